"""``georoutenet length``: measure a tour."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from georoutenet.cli.inputs import CITIES, Matrix, MaxBytes
from georoutenet.cli.screen import say
from georoutenet.errors import InputError
from georoutenet.io.unpack import MAX_BYTES


def register(app: typer.Typer) -> None:
    app.command("length")(length)


def length(
    cities: Annotated[Path, typer.Argument(help=CITIES)],
    tour: Annotated[Path, typer.Argument(help="The tour: .tour, .opt.tour, .csv or .json (also gzipped).")],
    open_path: Annotated[
        bool, typer.Option("--open", help="Leave out the way back to the first city.")
    ] = False,
    matrix: Matrix = False,
    max_bytes: MaxBytes = MAX_BYTES,
) -> None:
    """Print the length of a tour under the rule of its cities, and the gap where the optimum is known."""
    from georoutenet.io.files import read_instance, read_tour
    from georoutenet.problem.tour import gap, tour_length

    if cities.exists() and tour.exists() and cities.samefile(tour):
        raise InputError(f"{tour} is named twice: a tour counts the cities in the order of their own file")
    instance = read_instance(cities, matrix=matrix, max_bytes=max_bytes)
    measured = tour_length(instance, read_tour(tour, instance.n, max_bytes=max_bytes), closed=not open_path)
    unit = f" {instance.unit}" if instance.unit else ""
    kind = "open path, " if open_path else ""
    say(f"{instance.name}: {instance.n} cities, {instance.rule.value}, {kind}length {measured}{unit}")
    if instance.optimum is not None and not open_path:  # optima are those of closed tours
        say(f"optimum {instance.optimum:.15g}, gap {gap(measured, instance.optimum):.4f} %")
