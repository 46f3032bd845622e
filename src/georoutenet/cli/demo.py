"""``georoutenet demo``: solve two examples and draw them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    app.command("demo")(demo)


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the pictures.")] = Path("demo"),
    seconds: Annotated[
        float, typer.Option(min=0.0, help="Time limit of the local search, per example.")
    ] = 2.0,
) -> None:
    """Solve the 48 US state capitals and 1,000 random cities; print a table and write two pictures."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console, notes = Console(), Console(stderr=True)
    with notes.status("preparing (the first run compiles the local search, a few seconds)"):
        from georoutenet.examples import thousand_cities, us_capitals
        from georoutenet.improve.construct import greedy_edge
        from georoutenet.improve.local_search import compile_kernels, improve
        from georoutenet.improve.stop import AnyOf, MaxTime, NoImprovement
        from georoutenet.plot import plot_tour
        from georoutenet.tour import gap, tour_length

        compile_kernels()

    table = Table(
        title="Greedy construction, then local search, on one CPU core",
        caption="gap: above the best tour known (Concorde, LKH)",
        box=box.SIMPLE,
    )
    table.add_column("example")
    for column in ("cities", "greedy", "improved", "change", "gap", "time"):
        table.add_column(column, justify="right")
    pictures = []
    for instance, file in ((us_capitals(), "us_capitals.png"), (thousand_cities(), "thousand_cities.png")):
        with notes.status(f"solving {instance.name}"):
            start = greedy_edge(instance.coordinates)
            result = improve(instance, start, stop=AnyOf(MaxTime(seconds), NoImprovement(20 * instance.n)))
            if result.interrupted:
                raise KeyboardInterrupt
            plot_tour(instance, result.tour, out / file)
        pictures.append(out / file)
        first = tour_length(instance, start)
        unit, digits = (" km", 0) if instance.latlon is not None else ("", 3)
        best = instance.optimum
        table.add_row(
            instance.name,
            f"{instance.n:,}",
            f"{first:,.{digits}f}{unit}",
            f"{result.length:,.{digits}f}{unit}",
            f"{gap(result.length, first):.1f} %",
            "" if best is None else f"{round(gap(result.length, best), 2) + 0.0:.2f} %",
            f"{result.seconds:.2f} s",
        )
    console.print(table)
    for picture in pictures:
        typer.echo(f"wrote {picture}")
