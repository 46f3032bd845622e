"""``georoutenet tables``: the paper's tables and pictures from files of results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    app.command("tables")(tables)


def tables(
    folder: Annotated[Path, typer.Argument(help="A folder of files written by 'georoutenet evaluate'.")],
    out: Annotated[
        Path,
        typer.Option(
            "--out", help="The page. Its numbers go to a .csv beside it, its pictures to images/results-*."
        ),
    ] = Path("docs/results.md"),
    pictures: Annotated[bool, typer.Option("--pictures/--no-pictures", help="Draw them, or not.")] = True,
) -> None:
    """Make the paper's tables, with its values beside ours, as Markdown and CSV, and the pictures."""
    from georoutenet.evaluate.figures import figure_names, make_figure
    from georoutenet.evaluate.page import format_markdown
    from georoutenet.evaluate.tables import format_csv, make_cells, read_folder
    from georoutenet.io.atomic import atomic_write

    if out.suffix != ".md":
        raise typer.BadParameter(f"{out}: the page ends in .md", param_hint="--out")
    found = read_folder(folder)
    cells = make_cells(found.complete)
    numbers = out.with_suffix(".csv")
    for path, text in ((out, format_markdown(found, cells)), (numbers, format_csv(cells))):
        with atomic_write(path) as file:
            file.write(text)
    names = figure_names(cells, found.measurements) if pictures else {}
    for name in names:
        from georoutenet.plot import save

        figure = make_figure(name, cells, found.measurements)
        for extension in (".png", ".svg"):
            save(figure, out.parent / "images" / f"{name}{extension}")
    for name in found.partial:
        typer.echo(f"not used: {name} covers only part of its set", err=True)
    typer.echo(
        f"{len(cells)} numbers from {len(found.complete)} files, {len(names)} pictures: {out}, {numbers}"
    )
