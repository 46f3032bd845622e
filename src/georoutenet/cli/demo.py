"""``georoutenet demo``: solve two examples and draw them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from georoutenet.cli.screen import say, styled
from georoutenet.solver.options import USUAL


def register(app: typer.Typer) -> None:
    app.command("demo")(demo)


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the pictures.")] = Path("demo"),
    seconds: Annotated[float, typer.Option(min=0.0, help="Time limit per example.")] = 3.0,
) -> None:
    """Solve the 48 US state capitals and 1,000 random cities; print a table and write two pictures."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console, notes = Console(), Console(stderr=True)
    with notes.status("loading") as status:
        from georoutenet.examples import thousand_cities, us_capitals, us_outline
        from georoutenet.problem.tour import gap
        from georoutenet.solver.api import solve
        from georoutenet.solver.compiling import WORDS, bar
        from georoutenet.solver.stages import warm_up
        from georoutenet.stop import AnyOf, MaxTime, NoImprovement

        warm_up(progress=lambda _, at: status.update(styled(f"{WORDS} {bar(at.iterations)}")))

    table = Table(title="A first tour, then local search", box=box.SIMPLE)
    table.caption = "gap: above the best tour known"
    table.add_column("example")
    for column in ("cities", "first tour", "improved", "change", "gap", "time"):
        table.add_column(column, justify="right")
    written, remarks = [], []
    examples = (
        (us_capitals(), us_outline(), "us_capitals.png"),
        (thousand_cities(), None, "thousand_cities.png"),
    )
    for instance, outline, file in examples:
        with notes.status(f"solving {instance.name}"):
            result = solve(instance, stop=AnyOf(MaxTime(seconds), NoImprovement(20 * instance.n)))
            if result.interrupted:
                raise KeyboardInterrupt
            result.plot(out / file, outline=outline)
        written.append(out / file)
        remarks += [f"{instance.name}: first tour by {result.method}"]
        remarks += [f"{instance.name}: {note}" for note in result.notes if note not in USUAL]
        unit, digits = (" km", 0) if instance.latlon is not None else ("", 3)
        table.add_row(
            instance.name,
            f"{instance.n:,}",
            f"{result.initial_length:,.{digits}f}{unit}",
            f"{result.length:,.{digits}f}{unit}",
            f"{gap(result.length, result.initial_length):.1f} %",
            "" if result.gap is None else f"{round(result.gap, 2) + 0.0:.2f} %",
            f"{result.timings['total']:.2f} s",
        )
    console.print(table)
    for remark in remarks:
        say(remark)
    for picture in written:
        say(f"wrote {picture}")
