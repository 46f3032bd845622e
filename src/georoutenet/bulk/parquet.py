"""Parquet files as rows, from any row on, in memory that does not grow with the file."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from georoutenet.bulk.arrow import Columns, find_columns, group_starts, long_rows, opened, pyarrow, wide_rows
from georoutenet.bulk.reader import STRIDE, Scan, starting_at
from georoutenet.bulk.rows import MOST_CITIES, Row
from georoutenet.errors import InputError

BATCH = 1_024
"""Rows that are decoded at a time, at most."""
CITIES = 250_000
"""Cities that are decoded at a time, about."""
LONG_BATCH = 65_536
"""The same where a row is a city."""


def scan_parquet(path: Path, id_column: str | None) -> Scan:
    """Columns, instances and cities: from the footer, in the long form from the column of ids too."""
    file = _open(path)
    columns = find_columns(file.schema_arrow, id_column, str(path))
    schema = [f"{name}: {file.schema_arrow.field(name).type}" for name in columns.names]
    if not columns.long:
        if _each(file, columns) > MOST_CITIES:
            raise InputError(f"{path}: instances of more than {MOST_CITIES:,} cities")
        return Scan(file.metadata.num_rows, columns, schema, cities=_cities(file, columns))
    count, at, last = 0, 0, None
    index: list[list[int]] = []
    for batch in file.iter_batches(batch_size=LONG_BATCH, columns=[columns.id], use_threads=False):
        starts, last = group_starts(batch.column(0), columns, last)
        index += [[at + int(start)] for k, start in enumerate(starts, count) if k % STRIDE == 0]
        count, at = count + len(starts), at + len(batch)
    return Scan(count, columns, schema, index=index, cities=at)


def _open(path: Path) -> Any:
    arrow = pyarrow(f"{path}: Parquet")
    try:
        # A buffer makes column chunks come in pieces; else each is read whole, and one may be the file.
        return arrow.parquet.ParquetFile(opened(path), buffer_size=1 << 20, pre_buffer=False)
    except (arrow.ArrowException, OSError) as error:
        raise InputError(f"{path}: not a Parquet file: {str(error)[:200]}") from None


def _cities(file: Any, columns: Columns, groups: Iterable[int] | None = None) -> int:
    """Numbers in the first column of coordinates, from the footer; a null or an empty list counts as one."""
    leaf = (columns.points or columns.first).split(".")[0]
    total = 0
    for group in range(file.metadata.num_row_groups) if groups is None else groups:
        about = file.metadata.row_group(group)
        chunks = [about.column(k) for k in range(about.num_columns)]
        total += next(each.num_values for each in chunks if each.path_in_schema.split(".")[0] == leaf)
    pairs = columns.points is not None and not pyarrow("").types.is_struct(
        file.schema_arrow.field(columns.points).type.value_type
    )
    return total // 2 if pairs else total


def _each(file: Any, columns: Columns) -> float:
    """Cities of an instance: the mean of the row group where it is largest."""
    groups = range(file.metadata.num_row_groups)
    means = (_cities(file, columns, [k]) / max(1, file.metadata.row_group(k).num_rows) for k in groups)
    return max(means, default=0.0)


class ParquetReader:
    """Rows of one file. What is asked for in order is decoded once."""

    def __init__(self, path: Path, columns: Columns, index: list[list[int]], base: int) -> None:
        self.columns, self.index, self.base = columns, index, base
        self.file = _open(path)
        sizes = [self.file.metadata.row_group(k).num_rows for k in range(self.file.metadata.num_row_groups)]
        self.starts = [0, *itertools.accumulate(sizes)]
        self.batches: Iterator[Any] = iter(())
        self.left: Any = None
        """What was decoded and not yet asked for."""
        self.at = -1
        """The number of its first row."""
        each = 1.0 if columns.long else max(1.0, _each(self.file, columns))
        self.size = LONG_BATCH if columns.long else max(1, min(BATCH, int(CITIES / each)))

    def close(self) -> None:
        self.batches, self.left = iter(()), None
        self.file.close(force=True)

    def read(self, first: int, stop: int) -> Iterator[Row]:
        """The instances from ``first`` to before ``stop``."""
        if not self.columns.long:
            at = first
            for batch in self._rows(first, stop):
                yield from wide_rows(batch, self.columns, self.base + at)
                at += len(batch)
            return
        row, skip = starting_at(self.index, first)
        rows = long_rows(self._rows(row[0], self.starts[-1]), self.columns)
        yield from itertools.islice(rows, skip, skip + stop - first)

    def _rows(self, first: int, stop: int) -> Iterator[Any]:
        """Record batches with exactly these rows."""
        group = bisect.bisect_right(self.starts, first) - 1
        if self.left is None or first < self.at or self.starts[group] >= self.at + len(self.left):
            self._start(group)
        while first < stop:
            assert self.left is not None
            while first >= self.at + len(self.left):
                self._next()
            offset = first - self.at
            batch = self.left.slice(offset, min(len(self.left) - offset, stop - first))
            first += len(batch)
            yield batch

    def _start(self, group: int) -> None:
        groups = range(group, len(self.starts) - 1)
        self.batches = self.file.iter_batches(
            batch_size=self.size, row_groups=groups, columns=self.columns.names, use_threads=False
        )
        self.left, self.at = (), self.starts[group]

    def _next(self) -> None:
        self.at += len(self.left)
        self.left = next(self.batches)
