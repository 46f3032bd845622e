"""``BulkSolver``: rows of instances in, rows of tours out. Workers use it, and so can other pipelines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from georoutenet.bulk.arrow import find_columns, long_rows, pyarrow, wide_rows
from georoutenet.bulk.rows import Id, Row
from georoutenet.bulk.settings import bounded_by_time
from georoutenet.errors import GeoRouteNetError, InputError
from georoutenet.solver.api import solve_all
from georoutenet.solver.options import SolveKeywords, read_options
from georoutenet.solver.result import Result

CHUNK, CHUNK_CITIES = 256, 200_000
"""Rows, and cities of all of them, that are solved at a time; a larger instance is solved alone. Where the
network is asked, those of one size share its calls."""
GPU_CHUNK, GPU_CHUNK_CITIES = 65_536, 8_000_000
"""The same where a GPU searches, which needs many instances at a time."""


@dataclass(frozen=True)
class Solved:
    """One row of the output."""

    id: Id
    n: int
    tour: NDArray[np.int32] | None = None
    length: float | None = None
    lower_bound: float | None = None
    method: str | None = None
    error: str | None = None
    by_clock: bool = False
    """Whether the search was ended by the time that ``solve`` allows where nothing is said."""


def chunks(rows: Iterable[Row], most: int = CHUNK, most_cities: int = CHUNK_CITIES) -> Iterator[list[Row]]:
    """Rows in the portions in which they are solved; these depend on the rows alone."""
    chunk: list[Row] = []
    cities = 0
    for row in rows:
        if chunk and (len(chunk) == most or cities + row.n > most_cities):
            yield chunk
            chunk, cities = [], 0
        chunk.append(row)
        cities += row.n
    if chunk:
        yield chunk


class BulkSolver:
    """Called with a batch of instances, gives the batch of their tours: what ``map_batches`` of Ray calls.

    A batch is a dictionary of columns, a table of PyArrow or a frame of pandas, and the answer is of the same
    kind. Columns are those of ``georoutenet bulk``: ``id`` and lists ``x``, ``y`` (or ``lat``, ``lon``, or
    ``points``), one row per instance, or one row per city with all cities of an id in the batch. The answer
    has ``id``, ``n``, ``tour``, ``length``, ``method`` and ``error`` (null where all went well), and with
    ``lower_bound`` that too. Options are those of ``solve``; instances of one batch are searched by
    ``workers`` threads, one unless more are asked for.
    """

    def __init__(
        self,
        *,
        id_column: str | None = None,
        lower_bound: bool = False,
        **options: Unpack[SolveKeywords],
    ) -> None:
        checked = read_options("BulkSolver", options)
        self.options = checked if "workers" in options else replace(checked, workers=1)
        self.id_column, self.lower_bound = id_column, lower_bound
        # On a GPU instances are searched side by side, which gives no bounds and no clock to each.
        gpu = checked.device.startswith("cuda") and checked.improve
        self.on_gpu = gpu and not lower_bound and not bounded_by_time(checked)

    def chunks(self, rows: Iterable[Row]) -> Iterator[list[Row]]:
        """Rows in portions for ``solve``."""
        return chunks(rows, GPU_CHUNK, GPU_CHUNK_CITIES) if self.on_gpu else chunks(rows)

    def solve(self, rows: Sequence[Row]) -> list[Solved]:
        """The rows solved, in their order; those with an error pass through."""
        done = {k: Solved(row.id, row.n, error=row.error) for k, row in enumerate(rows) if row.error}
        if self.on_gpu:
            done |= self._solve_on_gpu(rows)
        open_ = [k for k in range(len(rows)) if k not in done]
        instances = [instance for k in open_ if (instance := rows[k].instance) is not None]
        for j, result in solve_all(instances, self.options, on_gpu=False):
            k = open_[j]
            if isinstance(result, GeoRouteNetError):
                done[k] = Solved(rows[k].id, rows[k].n, error=str(result))
                continue
            if result.interrupted:
                raise KeyboardInterrupt
            done[k] = Solved(
                rows[k].id,
                rows[k].n,
                tour=result.tour.astype(np.int32),
                length=float(result.length),
                lower_bound=None if result.lower_bound is None else float(result.lower_bound),
                method=result.method or None,
                by_clock=self._by_clock(result),
            )
        return [done[k] for k in range(len(rows))]

    def _solve_on_gpu(self, rows: Sequence[Row]) -> dict[int, Solved]:
        """Those rows that GPUs search."""
        from georoutenet.solver.many_gpu import search_many

        done: dict[int, Solved] = {}
        there = [(k, row.instance) for k, row in enumerate(rows) if row.instance is not None]
        instances = [instance for _, instance in there]
        for found in search_many(instances, self.options):
            every = zip(found.positions, found.tours.astype(np.int32), found.lengths.tolist(), strict=True)
            for j, tour, length in every:
                k, row = there[j][0], rows[there[j][0]]
                done[k] = Solved(row.id, row.n, tour=tour[: row.n], length=length, method=found.method)
        return done

    def _by_clock(self, result: Result) -> bool:
        """Whether a search without a limit of the caller's took as long as such a search may."""
        if self.options.max_seconds is not None or self.options.stop is not None:
            return False
        return result.timings.get("improve", 0.0) >= max(10.0, result.instance.n / 1000)

    def __call__(self, batch: Any) -> Any:
        arrow = pyarrow("BulkSolver")
        table, back = _as_table(arrow, batch)
        columns = find_columns(table.schema, self.id_column, "the batch")
        batches = table.combine_chunks().to_batches()
        if columns.long:
            rows = long_rows(batches, columns)
        else:
            offsets = np.cumsum([0, *(len(each) for each in batches)]).tolist()
            each = (wide_rows(part, columns, at) for part, at in zip(batches, offsets, strict=False))
            rows = chain.from_iterable(each)
        solved = [one for chunk in self.chunks(rows) for one in self.solve(chunk)]
        return back(to_table(solved, text_ids=columns.text_ids, lower_bound=self.lower_bound))


def output_schema(*, text_ids: bool, lower_bound: bool) -> Any:
    """The columns of the output."""
    arrow = pyarrow("Parquet")
    return arrow.schema(
        [
            ("id", arrow.string() if text_ids else arrow.int64()),
            ("n", arrow.int32()),
            ("tour", arrow.list_(arrow.int32())),
            ("length", arrow.float64()),
            *([("lower_bound", arrow.float64())] if lower_bound else []),
            ("method", arrow.string()),
            ("error", arrow.string()),
        ]
    )


def to_table(solved: Sequence[Solved], *, text_ids: bool, lower_bound: bool) -> Any:
    """Solved rows as a table of PyArrow."""
    arrow = pyarrow("Parquet")
    schema = output_schema(text_ids=text_ids, lower_bound=lower_bound)
    columns = [arrow.array([getattr(one, each.name) for one in solved], type=each.type) for each in schema]
    return arrow.Table.from_arrays(columns, schema=schema)


def _as_table(arrow: Any, batch: Any) -> tuple[Any, Any]:
    """A batch as a table, and how a table becomes a batch of the same kind."""
    if isinstance(batch, arrow.Table):
        return batch, lambda table: table
    if isinstance(batch, arrow.RecordBatch):
        return arrow.Table.from_batches([batch]), lambda table: _one_batch(arrow, table)
    if isinstance(batch, dict):
        made = {name: _column(arrow, name, values) for name, values in batch.items()}
        return arrow.table(made), _as_arrays
    if type(batch).__module__.partition(".")[0] == "pandas":
        return arrow.Table.from_pandas(batch, preserve_index=False), lambda table: table.to_pandas()
    raise InputError(
        "a batch is a dictionary of columns, a table of PyArrow or a frame of pandas, "
        f"got {type(batch).__name__}"
    )


def _one_batch(arrow: Any, table: Any) -> Any:
    """A table as one record batch, which one without rows is too."""
    columns = [table.column(name).combine_chunks() for name in table.column_names]
    return arrow.RecordBatch.from_arrays(columns, schema=table.schema)


def _column(arrow: Any, name: str, values: Any) -> Any:
    try:
        if isinstance(values, np.ndarray) and values.ndim > 2:
            return arrow.array(values.tolist())
        if isinstance(values, np.ndarray) and values.ndim == 1 and values.dtype != object:
            return arrow.array(values)
        return arrow.array([each.tolist() if getattr(each, "ndim", 1) != 1 else each for each in values])
    except (arrow.ArrowException, TypeError, ValueError) as error:
        raise InputError(f"the batch: the column {name!r} cannot be read: {str(error)[:200]}") from None


def _as_arrays(table: Any) -> dict[str, NDArray[Any]]:
    """Columns as arrays; tours, which differ in length, as an array of arrays."""
    arrays: dict[str, NDArray[Any]] = {}
    for name in table.column_names:
        column = table.column(name)
        if name == "tour":
            tours = np.empty(len(column), dtype=object)
            for k, tour in enumerate(column):
                tours[k] = None if not tour.is_valid else tour.values.to_numpy()
            arrays[name] = tours
        else:
            arrays[name] = column.to_numpy()
    return arrays
