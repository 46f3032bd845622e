"""What commands that read cities say about them, once."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from georoutenet.solver.options import HELP
from georoutenet.stop import AnyOf, MaxIterations, MaxTime

CITIES = "Cities: .csv, .tsv, .txt, .json, .geojson, .tsp or .npy (also gzipped), - for stdin."

Matrix = Annotated[bool, typer.Option("--matrix", help="Files hold distances: .csv, .txt, .npy or .json.")]

MaxBytes = Annotated[
    int, typer.Option("--max-bytes", min=1, help="Read at most so much of a file, counted unpacked.")
]

Iterations = Annotated[
    int | None,
    typer.Option(
        "--max-iterations",
        min=0,
        help="Kicks of each instance's search: the same tours on every day, unless a time limit ends it.",
    ),
]


def limits(max_seconds: float | None, max_iterations: int | None) -> dict[str, Any]:
    """The options of ``solve`` that end a search."""
    if max_iterations is None:
        return {"max_seconds": max_seconds}
    kicks = MaxIterations(max_iterations)
    return {"stop": kicks if max_seconds is None else AnyOf(MaxTime(max_seconds), kicks)}


def solve_option(name: str, *flags: str) -> Any:
    """An option of ``solve``, with the help that Python shows."""
    return typer.Option(*flags, help=HELP[name])
