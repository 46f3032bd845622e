"""The job behind ``georoutenet tables``: the page of results, its numbers as CSV, and its pictures."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from georoutenet.io.atomic import atomic_write
from georoutenet.plot import save
from research.report.figures import figure_names, make_figure
from research.report.page import format_markdown
from research.report.replication import used_in_shifts
from research.report.shrink import shrink
from research.report.tables import format_csv, make_cells, read_folder


class Made(NamedTuple):
    """What was written, and how much."""

    numbers: int
    results: int
    pictures: int
    csv: Path
    unused: list[str]
    """Results that cover only part of their set."""


def make_page(folder: Path, out: Path, *, pictures: bool = True) -> Made:
    """Write ``out``, its numbers to a CSV beside it, and pictures to ``images/`` in the same folder."""
    found = read_folder(folder)
    cells = make_cells(found.complete)
    numbers = out.with_suffix(".csv")
    for path, text in (
        (out, format_markdown(found, cells, out.parent / "runs")),
        (numbers, format_csv(cells)),
    ):
        with atomic_write(path) as file:
            file.write(text)
    used = used_in_shifts(found.partial)
    names = figure_names(cells, found.measurements) if pictures else {}
    for name in names:
        picture = out.parent / "images" / f"{name}.png"
        save(make_figure(name, cells, found.measurements), picture)
        shrink(picture)
    return Made(
        len(cells),
        len(found.complete),
        len(names),
        numbers,
        [name for name, _ in found.partial if name not in used],
    )
