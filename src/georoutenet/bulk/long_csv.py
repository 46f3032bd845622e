"""CSV in the long form: ``id,x,y``, one city per line, the cities of one instance together."""

from __future__ import annotations

import csv
import gzip
import itertools
import zlib
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from georoutenet.bulk.arrow import Columns, id_name
from georoutenet.bulk.reader import STRIDE, Scan, starting_at
from georoutenet.bulk.rows import MOST_CITIES, Row, make_row
from georoutenet.errors import InputError
from georoutenet.io.columns import find_coordinates
from georoutenet.io.table import parse_number

LONGEST = 1 << 20
"""Bytes of a line, at most: what has longer ones is no table."""


class _Lines:
    """The lines of a file and what its header says."""

    def __init__(self, path: Path, id_column: str | None) -> None:
        self.path = path
        self.stream: Any = (
            gzip.open(path) if path.name.lower().endswith(".gz") else open(path, "rb")  # noqa: SIM115
        )
        try:
            header = self.stream.readline(LONGEST)
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(f"{path}: cannot read: {error}") from None
        if header[:2] in (b"\xff\xfe", b"\xfe\xff"):
            raise InputError(f"{path}: UTF-16 text; allowed: UTF-8")
        self.text = header.decode("utf-8-sig", "backslashreplace").strip()
        if not self.text:
            raise InputError(f"{path}: the first line must name the columns id, x, y; it is empty")
        self.separator = next((each for each in "\t;," if each in self.text), ",")
        self.commas = self.separator in "\t;"
        names = self.split(self.text)
        if names is None:
            raise InputError(f"{path}: the first line must name the columns id, x, y, got {self.text[:80]!r}")
        self.id = id_name(names, id_column, str(path))
        if self.id is None:
            raise InputError(
                f"{path}: no column 'id' that says which cities belong together; id_column (--id-column) "
                f"names another; columns: {', '.join(names)[:200]}"
            )
        others = [name for name in names if name != self.id]
        places, self.geographic, _ = find_coordinates(others, str(path))
        self.names, self.width = names, len(names)
        self.key = names.index(self.id)
        self.first, self.second = (names.index(others[k]) for k in places)
        self.begin = len(header)

    def split(self, text: str) -> list[str] | None:
        """The fields of a line; None where its quotes do not fit together."""
        if '"' not in text:
            return [field.strip() for field in text.split(self.separator)]
        try:
            (fields,) = csv.reader([text], delimiter=self.separator, strict=True)
        except (csv.Error, ValueError):
            return None
        return [field.strip() for field in fields]

    def since(self, offset: int, number: int) -> Iterator[tuple[int, int, str | None, list[str] | None]]:
        """Offset, number, id and fields of each line from an offset on; empty lines are left out."""
        if self.stream.tell() != offset:
            self.stream.seek(offset)
        while line := self._line(number):
            text = line.decode("utf-8", "surrogateescape").strip("\r\n")
            if text.strip():
                fields = self.split(text)
                id = None if fields is None or len(fields) <= self.key else fields[self.key]
                yield offset, number, id, fields
            offset, number = offset + len(line), number + 1

    def _line(self, number: int) -> bytes:
        try:
            line = self.stream.readline(LONGEST)
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(f"{self.path}: cannot read beyond line {number}: {error}") from None
        if len(line) == LONGEST and not line.endswith(b"\n"):
            raise InputError(f"{self.path}: line {number} has more than {LONGEST:,} bytes")
        return line


def scan_csv(path: Path, id_column: str | None) -> Scan:
    """Instances and where they begin."""
    lines = _Lines(path, id_column)
    count = cities = 0
    index: list[list[int]] = []
    before: Any = lines  # no id is equal to it
    with lines.stream:
        for offset, number, id, _ in lines.since(lines.begin, 2):
            if id != before:
                before = id
                if count % STRIDE == 0:
                    index.append([offset, number])
                count += 1
            cities += 1
    columns = Columns(
        long=True,
        id=lines.id,
        text_ids=True,
        first=lines.names[lines.first],
        second=lines.names[lines.second],
        geographic=lines.geographic,
    )
    schema = [f"{lines.id}: text", f"{columns.first}: number", f"{columns.second}: number"]
    return Scan(count, columns, schema, index=index, cities=cities)


class CsvReader:
    """Instances of one file."""

    def __init__(self, path: Path, columns: Columns, index: list[list[int]], base: int) -> None:
        self.lines, self.index = _Lines(path, columns.id), index

    def close(self) -> None:
        self.lines.stream.close()

    def read(self, first: int, stop: int) -> Iterator[Row]:
        """The instances from ``first`` to before ``stop``."""
        place, skip = starting_at(self.index, first)
        lines = self.lines.since(*place)
        groups = itertools.groupby(lines, key=lambda line: line[2])
        for id, group in itertools.islice(groups, skip, skip + stop - first):
            yield self._row(id, group)

    def _row(self, id: str | None, group: Any) -> Row:
        numbers, error = array("d"), ""
        for _, number, _, fields in group:
            pair = self._pair(fields)
            if isinstance(pair, str):
                error = error or f"line {number}: {pair}"
            elif len(numbers) <= 2 * MOST_CITIES:  # one more than there may be
                numbers.extend(pair)
        if id is not None and not id.isascii():
            name: Any = id.encode("utf-8", "surrogateescape")
        else:
            name = id or None
        if name is None and not error:
            error = "no id: it is empty"
        pairs = np.array(numbers).reshape(-1, 2)
        return make_row(name, pairs, geographic=self.lines.geographic, error=error)

    def _pair(self, fields: list[str] | None) -> tuple[float, float] | str:
        lines = self.lines
        if fields is None:
            return "quotes that do not fit together; a field cannot hold a line break"
        if len(fields) != lines.width:
            return f"expected {lines.width} columns, got {len(fields)}"
        given = fields[lines.first], fields[lines.second]
        first, second = (
            parse_number(each.replace(",", ".") if lines.commas and "." not in each else each)
            for each in given
        )
        if first is None or second is None:
            return f"expected a number, got {given[0 if first is None else 1][:40]!r}"
        return first, second
