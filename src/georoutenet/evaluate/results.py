"""Per-instance results: one CSV file for one set, one decoder and one file of weights.

The file opens with lines ``# key: value`` that say how the numbers came about, then follows a table with one
row per instance. A name that ends in ``.gz`` is compressed. What is not known is empty, never zero.
"""

from __future__ import annotations

import csv
import gzip
import io
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from georoutenet.errors import InputError
from georoutenet.io.atomic import atomic_write
from georoutenet.io.unpack import read_file, reading, refuse_many
from georoutenet.problem.tour import gap

FORMAT = "georoutenet-results 1"
COLUMNS = ("instance", "n", "length", "reference", "gap", "seconds", "network_seconds", "improve_seconds")
"""Files from before local search lack the last."""
DECIMALS = 9
"""Of lengths in a file: sums of the same edges in another order agree to this."""
GAP_DECIMALS = 6


class Row(NamedTuple):
    """One instance. ``seconds`` and its parts are a batch's time over its instances; decoding is the rest."""

    instance: str
    n: int
    length: float
    reference: float = math.nan
    seconds: float = math.nan
    network_seconds: float = math.nan
    improve_seconds: float = 0.0


@dataclass(frozen=True, eq=False)
class Results:
    """The rows of a file and its header."""

    header: dict[str, str]
    rows: list[Row]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def lengths(self) -> NDArray[np.float64]:
        return self._column("length")

    @property
    def references(self) -> NDArray[np.float64]:
        return self._column("reference")

    @property
    def gaps(self) -> NDArray[np.float64]:
        """In percent, Eq. eval_gap without the mean; NaN without a reference."""
        return np.atleast_1d(gap(self.lengths, self.references))

    @property
    def seconds(self) -> NDArray[np.float64]:
        return self._column("seconds")

    @property
    def network_seconds(self) -> NDArray[np.float64]:
        return self._column("network_seconds")

    @property
    def improve_seconds(self) -> NDArray[np.float64]:
        return self._column("improve_seconds")

    def _column(self, name: str) -> NDArray[np.float64]:
        return np.array([getattr(row, name) for row in self.rows], dtype=np.float64)


def format_results(results: Results) -> str:
    """The text of a file."""
    return format_header(results.header) + format_rows(results.rows)


def format_header(header: Mapping[str, str]) -> str:
    """The commented lines and the names of the columns."""
    lines = [f"# {FORMAT}"]
    for key, value in header.items():
        if "\n" in f"{key}{value}" or ":" in key:
            raise InputError(f"a header line cannot hold {key!r}: {value!r}")
        lines.append(f"# {key}: {value}")
    return "\n".join([*lines, ",".join(COLUMNS)]) + "\n"


def format_rows(rows: Iterable[Row]) -> str:
    """One line for each row. The gap is that of the rounded lengths, so that the file agrees with itself."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for row in rows:
        length, reference = rounded(row.length), rounded(row.reference)
        percent = gap(length, reference)
        writer.writerow(
            (
                row.instance,
                row.n,
                _number(length, DECIMALS),
                _number(reference, DECIMALS),
                _number(percent, GAP_DECIMALS),
                _number(row.seconds, 9),
                _number(row.network_seconds, 9),
                _number(row.improve_seconds, 9),
            )
        )
    return text.getvalue()


def rounded(length: float) -> float:
    """A length as a file holds it."""
    return round(length, DECIMALS)


def _number(value: float, decimals: int) -> str:
    if math.isnan(value):
        return ""
    return f"{value:.{decimals}f}".rstrip("0").rstrip(".") if math.isfinite(value) else repr(value)


def write_results(path: str | os.PathLike[str], results: Results) -> None:
    """Write a file whole or not at all."""
    data = format_results(results).encode()
    if str(path).endswith(".gz"):
        data = gzip.compress(data, mtime=0)  # no date: the same results give the same bytes
    with atomic_write(path, "wb") as file:
        file.write(data)


def read_results(path: str | os.PathLike[str]) -> Results:
    """Read a file; a row that does not fit the columns or its own gap is an error that names the line."""
    data = read_file(path)
    refuse_many(data, str(path))
    with reading(path):
        text = data.decode()
    return parse_results(text, str(path))


def parse_results(text: str, name: str) -> Results:
    """The results in ``text``; ``name`` stands in error messages."""
    lines = text.splitlines()
    if not lines or lines[0] != f"# {FORMAT}":
        raise InputError(f"{name} is not a file of results: its first line is not '# {FORMAT}'")
    header: dict[str, str] = {}
    first = 1
    while first < len(lines) and lines[first].startswith("# "):
        key, colon, value = lines[first][2:].partition(":")
        if not colon:
            raise InputError(f"{name}, line {first + 1}: expected '# key: value', got {lines[first]!r}")
        header[key] = value.strip()
        first += 1
    columns = tuple(lines[first].split(",")) if first < len(lines) else ()
    if columns not in (COLUMNS, COLUMNS[:-1]):
        raise InputError(f"{name}, line {first + 1}: expected the columns {','.join(COLUMNS)}")
    rows = []
    seen: set[str] = set()
    try:
        cells_of = list(csv.reader(lines[first + 1 :]))
    except csv.Error as error:
        raise InputError(f"{name}: {error}") from None
    for number, cells in enumerate(cells_of, start=first + 2):
        try:
            row = _row(cells, len(columns))
        except ValueError as error:
            raise InputError(f"{name}, line {number}: {error}") from None
        if row.instance in seen:
            raise InputError(f"{name}, line {number}: {row.instance} is there twice")
        seen.add(row.instance)
        rows.append(row)
    return Results(header, rows)


def _row(cells: Sequence[str], columns: int) -> Row:
    if len(cells) != columns:
        raise ValueError(f"expected {columns} columns, got {len(cells)}")
    length, reference, percent, *seconds = (float(cell) if cell else math.nan for cell in cells[2:])
    if not (length >= 0 and math.isfinite(length)):
        raise ValueError(f"a length is a finite number >= 0, got {cells[2]!r}")
    row = Row(cells[0], int(cells[1]), length, reference, *seconds)
    expected = gap(length, reference)
    agree = math.isnan(percent) if math.isnan(expected) else abs(percent - expected) < 10.0**-GAP_DECIMALS
    if not (agree or percent == expected):
        raise ValueError(f"the gap is {expected:.6f} %, not {cells[4] or 'empty'}")
    return row


class PartialResults:
    """The file of an evaluation under way, ``NAME.partial``: rows are appended, and the end renames it.

    A file left by a killed run is taken up again where its header says the same as this run's, but for the
    date; a line that was cut off is dropped.
    """

    def __init__(self, path: str | os.PathLike[str], header: Mapping[str, str], *, fresh: bool = False):
        self.path = Path(path)
        self.partial = self.path.with_name(f"{self.path.name}.partial")
        self.header = dict(header)
        self.rows: list[Row] = []
        if self.partial.exists() and not fresh:
            self._take_up()

    def _take_up(self) -> None:
        text = self.partial.read_text(encoding="utf-8")
        try:
            old = parse_results(text[: text.rfind("\n") + 1], str(self.partial))
        except InputError as error:
            raise InputError(f"{error}; --fresh starts again") from None
        for key in {**old.header, **self.header}:
            there, here = old.header.get(key, ""), self.header.get(key, "")
            if key != "date" and there != here:
                raise InputError(
                    f"{self.partial} was begun with other settings ({key}: {there} there, {here} here); "
                    "--fresh starts again"
                )
        self.header, self.rows = old.header, old.rows

    def keep(self, count: int) -> None:
        """Go on after the first ``count`` rows; they are written anew, so the file ends with a whole line."""
        self.rows = self.rows[:count]
        with atomic_write(self.partial) as file:
            file.write(format_header(self.header) + format_rows(self.rows))

    def append(self, rows: Sequence[Row]) -> None:
        with open(self.partial, "a", encoding="utf-8", newline="\n") as file:
            file.write(format_rows(rows))
        self.rows.extend(rows)

    def finish(self, **more: str) -> Results:
        """Write the final file, with more header lines where given, and remove the partial one.

        What is returned has been through the format, so it is what a reader of the file gets.
        """
        text = format_results(Results({**self.header, **more}, self.rows))
        done = parse_results(text, str(self.path))
        write_results(self.path, done)
        self.partial.unlink(missing_ok=True)
        return done
