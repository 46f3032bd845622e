"""Shards: a range of input rows each, one file each, there whole or not at all."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from georoutenet.bulk.arrow import opened, pyarrow
from georoutenet.bulk.inputs import Input, Rows
from georoutenet.bulk.rows import Row
from georoutenet.bulk.settings import keywords
from georoutenet.bulk.solver import BulkSolver, Solved, output_schema, to_table
from georoutenet.errors import InputError, MissingDependencyError
from georoutenet.io.atomic import atomic_write

FORMATS = ("parquet", "npz")
FOOTER = "georoutenet"
"""The name under which a shard says what it is."""
NO_ID = "no_id"
"""The array of an ``.npz`` shard that says which rows were given no id."""
PIECE = 2_000_000
"""Cities after which finished rows leave the memory, where the format allows it."""


@dataclass(frozen=True)
class Job:
    """All that a worker needs to know: what to read, how to solve it and where the shards go."""

    input: Input
    out: str
    format: str
    shard_rows: int
    options: dict[str, Any]
    """As ``settings.to_json`` writes them."""
    lower_bound: bool
    fingerprint: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Job:
        return cls(**{**content, "input": Input.from_json(content["input"])})

    @property
    def shards(self) -> int:
        return -(-self.input.instances // self.shard_rows)

    def rows(self, shard: int) -> tuple[int, int]:
        """The first row of a shard, and the one behind its last."""
        first = shard * self.shard_rows
        return first, min(first + self.shard_rows, self.input.instances)

    def path(self, shard: int) -> Path:
        digits = max(6, len(str(self.shards - 1)))
        return Path(self.out, f"part-{shard:0{digits}d}.{self.format}")

    def footer(self, shard: int) -> str:
        """What the file of a shard says that it is."""
        first, stop = self.rows(shard)
        content = {"fingerprint": self.fingerprint, "shard": shard, "first_row": first, "rows": stop - first}
        return json.dumps(content, separators=(",", ":"))

    def errors(self, shard: int) -> int | None:
        """Rows with an error of a shard that is there: a whole file that says it is this one of this run."""
        path = self.path(shard)
        found = read_footer(path) if path.is_file() else None
        return found[1] if found is not None and found[0] == self.footer(shard) else None


@dataclass(frozen=True)
class Report:
    """What became of one shard."""

    shard: int
    rows: int
    errors: int
    by_clock: int
    """Instances whose search was ended by the clock, without being asked to."""
    seconds: float


def run_shard(
    job: Job, rows: Rows, solver: BulkSolver, shard: int, progress: Callable[[int], None] = lambda _: None
) -> Report:
    """Solve one shard and write its file. ``progress`` is called with the number of rows just solved."""
    began = time.perf_counter()
    errors = by_clock = 0
    first, stop = job.rows(shard)

    def solved() -> Iterator[list[Solved]]:
        nonlocal errors, by_clock
        numbered = job.input.columns.id is None
        read = rows.read(first, stop)
        for chunk in solver.chunks(read if numbered else _once(read)):
            done = solver.solve(chunk)
            errors += sum(one.error is not None for one in done)
            by_clock += sum(one.by_clock for one in done)
            progress(len(done))
            yield done

    with atomic_write(job.path(shard), "wb") as file:
        write = _write_parquet if job.format == "parquet" else _write_npz
        count = write(file, solved(), job, job.footer(shard))
        if count != stop - first:
            raise InputError(
                f"shard {shard}: {count:,} rows instead of {stop - first:,}: the input has changed"
            )
    return Report(shard, stop - first, errors, by_clock, time.perf_counter() - began)


def make_solver(job: Job, *, device: str | None = None, threads: int = 1) -> BulkSolver:
    """The solver of one worker."""
    options = keywords(job.options, device=device, threads=threads)
    return BulkSolver(lower_bound=job.lower_bound, **options)


def _once(rows: Iterator[Row]) -> Iterator[Row]:
    """Rows, of which those whose id was there before in the shard have an error."""
    seen = set()
    for row in rows:
        if row.id is not None and row.id in seen:
            error = row.error or f"the id {row.id!r} was there before, in the same shard"
            yield Row(row.id, error=error, n=row.n)
        else:
            seen.add(row.id)
            yield row


# -- Parquet -----------------------------------------------------------------------------------------------


def _write_parquet(file: Any, solved: Iterator[list[Solved]], job: Job, footer: str) -> int:
    arrow = pyarrow("Parquet")
    text_ids = job.input.columns.text_ids
    schema = output_schema(text_ids=text_ids, lower_bound=job.lower_bound)
    schema = schema.with_metadata({FOOTER: footer})
    count = 0
    with arrow.parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        for piece in _pieces(solved):
            table = to_table(piece, text_ids=text_ids, lower_bound=job.lower_bound)
            writer.write_table(table.replace_schema_metadata(schema.metadata), row_group_size=len(piece))
            count += len(piece)
    return count


def _pieces(solved: Iterator[list[Solved]]) -> Iterator[list[Solved]]:
    piece: list[Solved] = []
    for done in solved:
        piece += done
        if sum(one.n for one in piece) >= PIECE:
            yield piece
            piece = []
    if piece:
        yield piece


# -- NumPy -------------------------------------------------------------------------------------------------


def _write_npz(file: Any, solved: Iterator[list[Solved]], job: Job, footer: str) -> int:
    """The columns as arrays; ``tour`` holds all tours, that of row k from ``tour_start[k]`` on.

    Arrays have no nulls: ``no_id`` says where the 0 or the empty text in ``id`` is none that was given.
    """
    done = [one for chunk in solved for one in chunk]
    tours = [np.zeros(0, dtype=np.int32) if one.tour is None else one.tour for one in done]
    text_ids = job.input.columns.text_ids
    ids = [("" if one.id is None else str(one.id)) if text_ids else (one.id or 0) for one in done]
    arrays = {
        "id": np.array(ids, dtype=np.str_ if text_ids else np.int64),
        NO_ID: np.array([one.id is None for one in done], dtype=np.bool_),
        "n": np.array([one.n for one in done], dtype=np.int32),
        "tour": np.concatenate(tours),
        "tour_start": np.cumsum([0, *map(len, tours)], dtype=np.int64),
        "length": _floats([one.length for one in done]),
        **({"lower_bound": _floats([one.lower_bound for one in done])} if job.lower_bound else {}),
        "method": np.array([one.method or "" for one in done]),
        "error": np.array([one.error or "" for one in done]),
        FOOTER: np.array(footer),
    }
    np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
    return len(done)


def _floats(values: list[float | None]) -> NDArray[np.float64]:
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


# -- reading -----------------------------------------------------------------------------------------------


def read_footer(path: Path) -> tuple[str, int] | None:
    """What a shard says that it is, and how many of its rows have an error; None where it is not whole."""
    try:
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as arrays:
                return str(arrays[FOOTER]), int(np.count_nonzero(arrays["error"] != ""))
        about = pyarrow("Parquet").parquet.read_metadata(opened(path))
        last = about.num_columns - 1  # the column error; the footer has counts of what is null
        groups = [about.row_group(k) for k in range(about.num_row_groups)]
        errors = sum(group.num_rows - group.column(last).statistics.null_count for group in groups)
        return (about.metadata or {}).get(FOOTER.encode(), b"").decode(), errors
    except MissingDependencyError:
        raise
    except Exception:  # zip and its codecs, NumPy and Arrow fail in many ways on foreign bytes
        return None


def read_shard(path: str | Path) -> dict[str, list[Any]]:
    """The columns of a shard of either format, as lists; None where there is no value."""
    path = Path(path)
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as arrays:
            about = (FOOTER, "tour_start", NO_ID)
            columns = {name: arrays[name].tolist() for name in arrays.files if name not in about}
            ids = zip(columns["id"], arrays[NO_ID], strict=True)
            columns["id"] = [None if missing else id for id, missing in ids]
            starts = arrays["tour_start"]
            tours = np.split(arrays["tour"], starts[1:-1])
        columns["tour"] = [
            None if error else tour.tolist() for tour, error in zip(tours, columns["error"], strict=True)
        ]
        for name in ("length", "lower_bound"):
            if name in columns:
                columns[name] = [None if value != value else value for value in columns[name]]
        for name in ("method", "error"):
            columns[name] = [value or None for value in columns[name]]
        return columns
    table = pyarrow("Parquet").parquet.read_table(opened(path))
    return {name: table.column(name).to_pylist() for name in table.column_names}
