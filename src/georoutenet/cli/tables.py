"""``georoutenet tables``: the paper's tables from per-instance files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    app.command("tables")(tables)


def tables(
    folder: Annotated[Path, typer.Argument(help="A folder of files written by 'georoutenet evaluate'.")],
    out: Annotated[
        Path, typer.Option("--out", help="The page; its numbers also go to a .csv beside it.")
    ] = Path("docs/results.md"),
) -> None:
    """Make the paper's tables, with its values beside ours, as Markdown and CSV."""
    from georoutenet.atomic import atomic_write
    from georoutenet.evaluate.tables import format_csv, format_markdown, make_cells, read_folder

    if out.suffix != ".md":
        raise typer.BadParameter(f"{out}: the page ends in .md", param_hint="--out")
    complete, partial = read_folder(folder)
    cells = make_cells(complete)
    numbers = out.with_suffix(".csv")
    for path, text in ((out, format_markdown(complete, cells, partial)), (numbers, format_csv(cells))):
        with atomic_write(path) as file:
            file.write(text)
    for name in partial:
        typer.echo(f"not used: {name} covers only part of its set", err=True)
    typer.echo(f"{len(cells)} numbers from {len(complete)} files: {out}, {numbers}")
