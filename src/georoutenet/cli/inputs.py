"""What commands that read cities say about them, once."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from georoutenet.solver.options import HELP

CITIES = "Cities: .csv, .tsv, .txt, .json, .geojson, .tsp or .npy (also gzipped), - for stdin."

Matrix = Annotated[bool, typer.Option("--matrix", help="Files hold distances: .csv, .txt, .npy or .json.")]

MaxBytes = Annotated[
    int, typer.Option("--max-bytes", min=1, help="Read at most so much of a file, counted unpacked.")
]


def solve_option(name: str, *flags: str) -> Any:
    """An option of ``solve``, with the help that Python shows."""
    return typer.Option(*flags, help=HELP[name])
