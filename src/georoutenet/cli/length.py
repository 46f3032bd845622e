"""``georoutenet length``: measure a tour."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    app.command("length")(length)


def length(
    cities: Annotated[Path, typer.Argument(help="Cities: .tsp, .csv, .txt or .npy (also gzipped), - for stdin.")],
    tour: Annotated[Path, typer.Argument(help="The tour: .tour, .opt.tour, .csv or .json.")],
) -> None:
    """Print the length of a tour under the rule of the cities' file, and its gap where the optimum is known."""
    from georoutenet.files import read_instance, read_tour
    from georoutenet.tour import gap, tour_length

    instance = read_instance(cities)
    measured = tour_length(instance, read_tour(tour, instance.n))
    typer.echo(f"{instance.name}: {instance.n} cities, {instance.rule.value}, length {measured}")
    if instance.optimum is not None:
        typer.echo(f"optimum {instance.optimum:.15g}, gap {gap(measured, instance.optimum):.4f} %")
