"""The job behind ``georoutenet reference``: solve a data set in parallel, survive a kill, keep the best.

The instances are cut into chunks. A worker process solves one chunk with one solver and writes its result to
the cache folder; a job that is started again finds the finished chunks and goes on with the rest. At the end
all chunks are merged into the references, the shorter tour winning, and the chunk files are removed.
"""

from __future__ import annotations

import datetime
import hashlib
import io
import json
import multiprocessing
import multiprocessing.connection
import os
import shutil
import signal
import threading
import zipfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from georoutenet.errors import GeoRouteNetError, InputError
from georoutenet.evaluate.references import PACKAGED, References, has_references, load_references
from georoutenet.io.atomic import atomic_write
from georoutenet.io.cache import cache_folder
from georoutenet.io.datasets import Dataset
from georoutenet.problem.generate import Coordinates
from research.references.keep import improve, save_references, unknown
from research.references.solvers import make_solver

Progress = Callable[[int, int], None]
"""Called with the instances done and the instances in all."""


@dataclass(frozen=True)
class Pass:
    """One solver with its options over the first ``first`` instances (None: all)."""

    solver: str
    options: dict[str, Any] = field(default_factory=dict)
    first: int | None = None


def make_references(
    data: Dataset,
    passes: Sequence[Pass],
    *,
    workers: int = 1,
    folder: Path = PACKAGED,
    progress: Progress | None = None,
) -> References:
    """Improve (or make) the references of ``data`` in ``folder`` and return them.

    Instances whose tour is proven optimal are left out. Where ``folder`` holds nothing yet, the packaged
    references are the start; where these are missing too, some pass must cover every instance.
    """
    if not data.is_random:
        raise InputError(f"{data.name} has published optima instead of reference tours")
    if workers < 1:
        raise InputError(f"the number of workers must be >= 1, got {workers}")
    for each in passes:
        make_solver(each.solver, **each.options)  # an error here, not in a worker
        if each.first is not None and not 1 <= each.first <= data.count:
            raise InputError(f"{data.name} has {data.count} instances; cannot take the first {each.first}")

    known = _start(data, folder)
    if known is None and not any(each.first in (None, data.count) for each in passes):
        raise InputError(
            f"{data.name} has no references yet: a solver has to cover all {data.count} instances"
        )
    chunks = [chunk for each in passes for chunk in _chunks(data, each, known)]
    _solve(data, chunks, workers=workers, progress=progress)
    # Read again: another job may have finished while this one was computing.
    known = _start(data, folder) or unknown(data.name)
    for each in passes:
        known = _merge(known, each, [_read(chunk) for chunk in chunks if chunk.of is each])
    path = save_references(known, folder)
    for each in passes:
        shutil.rmtree(_job_folder(data, each), ignore_errors=True)
    return load_references(data.name, path.parent)


@dataclass(frozen=True, eq=False)
class _Chunk:
    of: Pass
    path: Path
    rows: NDArray[np.int64]


def _start(data: Dataset, folder: Path) -> References | None:
    for place in (folder, PACKAGED):
        if has_references(data.name, place):
            return load_references(data.name, place)
    return None


def _job_folder(data: Dataset, each: Pass) -> Path:
    """Where the chunks of a pass are kept; another data set, solver or option gets another folder."""
    key = json.dumps(
        [data.sha256, each.solver, make_solver(each.solver, **each.options).settings], sort_keys=True
    )
    name = f"{data.name}-{each.solver}-{hashlib.sha256(key.encode()).hexdigest()[:12]}"
    return cache_folder() / "reference-jobs" / name


def _chunks(data: Dataset, each: Pass, known: References | None) -> list[_Chunk]:
    assert data.n is not None
    size = max(1, 5_000 // data.n)  # some seconds of work
    stop = data.count if each.first is None else each.first
    folder = _job_folder(data, each)
    chunks = []
    for begin in range(0, stop, size):
        rows = np.arange(begin, min(begin + size, stop))
        if known is not None:
            rows = rows[~known.proven[rows]]
        if len(rows):
            chunks.append(_Chunk(each, folder / f"{begin:06d}.npz", rows))
    return chunks


def _solve(data: Dataset, chunks: list[_Chunk], *, workers: int, progress: Progress | None) -> None:
    """Compute the chunks that have no good file yet."""
    total = sum(len(chunk.rows) for chunk in chunks)
    missing = [chunk for chunk in chunks if _read(chunk) is None]
    done = total - sum(len(chunk.rows) for chunk in missing)
    report = progress or (lambda done, total: None)
    report(done, total)
    if not missing:
        return
    coordinates = data.coordinates
    pool = ProcessPoolExecutor(
        max_workers=min(workers, len(missing)),
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_start_worker,
    )
    try:
        running = {
            pool.submit(
                _solve_chunk,
                chunk.of.solver,
                chunk.of.options,
                chunk.path,
                chunk.rows,
                coordinates[chunk.rows],
            ): chunk
            for chunk in missing
        }
        for finished in as_completed(running):
            finished.result()
            done += len(running[finished].rows)
            report(done, total)
    except BrokenProcessPool:
        raise GeoRouteNetError(
            f"a worker process ended without a word (killed, or a solver crashed) after {done} of {total} "
            "instances; the finished chunks are kept: start the same command again"
        ) from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _solve_chunk(
    solver_name: str, options: dict[str, Any], path: Path, rows: NDArray[np.int64], coordinates: Coordinates
) -> None:
    """Runs in a worker: every instance of the chunk, its own number as seed, into one file."""
    solver = make_solver(solver_name, **options)
    solutions = [solver.solve(cities, seed=int(row)) for row, cities in zip(rows, coordinates, strict=True)]
    with atomic_write(path, "wb") as file:
        np.savez(
            file,
            rows=rows,
            tours=np.stack([solution.tour for solution in solutions]),
            proven=np.array([solution.proven for solution in solutions]),
            seconds=np.array([solution.seconds for solution in solutions]),
        )


def _start_worker() -> None:
    """In a worker: end at once at Ctrl-C, and when the parent process does, even by ``kill -9``."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _read(chunk: _Chunk) -> dict[str, NDArray[Any]] | None:
    """A chunk's result, or None when it is missing, damaged or lacks an instance."""
    try:
        with np.load(io.BytesIO(chunk.path.read_bytes()), allow_pickle=False) as stored:
            result = {key: stored[key] for key in ("rows", "tours", "proven", "seconds")}
    except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile):
        return None
    return result if np.isin(chunk.rows, result["rows"]).all() else None


def _merge(known: References, each: Pass, results: Sequence[dict[str, NDArray[Any]] | None]) -> References:
    if not results:
        return known
    found = [result for result in results if result is not None]
    if len(found) < len(results):
        raise GeoRouteNetError(f"finished chunks of {known.name} vanished; does the same job run twice?")
    joined = {key: np.concatenate([result[key] for result in found]) for key in found[0]}
    better = improve(known, joined["rows"], joined["tours"], joined["proven"])
    better.info.append(
        {
            "solver": each.solver,
            "settings": make_solver(each.solver, **each.options).settings,
            "instances": len(joined["rows"]),
            "improved": int((better.lengths < known.lengths).sum()),
            "seconds": round(float(joined["seconds"].sum()), 1),
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        }
    )
    return better
