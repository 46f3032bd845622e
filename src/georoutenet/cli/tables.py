"""``georoutenet tables``: the paper's tables and pictures from files of results (``research/report``)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from georoutenet.cli.screen import say


def register(app: typer.Typer) -> None:
    app.command("tables")(tables)


def tables(
    folder: Annotated[
        Path, typer.Argument(help="A folder of results: files of 'georoutenet evaluate', or packed.")
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out", help="The page. Its numbers go to a .csv beside it, its pictures to images/results-*."
        ),
    ] = Path("docs/results.md"),
    pictures: Annotated[bool, typer.Option("--pictures/--no-pictures", help="Draw them, or not.")] = True,
) -> None:
    """Make the paper's tables, with its values beside ours, as Markdown and CSV, and the pictures."""
    from georoutenet.cli.checkout import research

    if out.suffix != ".md":
        raise typer.BadParameter(f"{out}: the page ends in .md", param_hint="--out")
    made = research("report.make", "tables").make_page(folder, out, pictures=pictures)
    for name in made.unused:
        say(f"not used: {name} covers only part of its set", err=True)
    say(f"{made.numbers} numbers from {made.results} results, {made.pictures} pictures: {out}, {made.csv}")
