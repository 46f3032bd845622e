"""``solve_bulk``: a file or folder of instances in, a folder of shards out, in as many goes as it takes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Unpack

from georoutenet.bulk.arrow import INSTALL, pyarrow
from georoutenet.bulk.engine import Advance, Failed, Step
from georoutenet.bulk.inputs import find_input
from georoutenet.bulk.local import PROCESSES_PER_GPU, gpus_named, run_local
from georoutenet.bulk.manifest import Manifest, fingerprint, made_of
from georoutenet.bulk.settings import bounded_by_time, to_json
from georoutenet.bulk.shards import FORMATS, Job, Report
from georoutenet.errors import GeoRouteNetError, InputError, MissingDependencyError, path_name, whole
from georoutenet.io.atomic import sweep
from georoutenet.io.folder_lock import FolderLock
from georoutenet.solver.api import available_cores
from georoutenet.solver.options import SolveKeywords, SolveOptions, read_options, takes_options

ENGINES = ("local", "ray")
WRITE_EVERY = 10.0
"""Seconds between two looks of the manifest."""

PathLike = str | os.PathLike[str]


@dataclass(frozen=True)
class BulkResult:
    """What a run of ``solve_bulk`` has come to."""

    folder: Path
    instances: int
    shards: int
    solved_now: int
    """Instances that this call solved; the others were there."""
    errors: int
    """Rows of all shards in the folder that have an error in place of a tour."""
    seconds: float
    """Of solving, from the first worker's start."""
    failed: dict[int, str] = field(default_factory=dict)
    """Shards that are missing, and why. The same call tries them again."""

    @property
    def complete(self) -> bool:
        return not self.failed


@dataclass(frozen=True)
class Plan:
    """A run before it begins."""

    job: Job
    manifest: Manifest
    workers: int
    engine: str
    address: str | None
    repeats: bool
    gpus: list[str]
    """Those that local workers share; none where CPUs solve."""


@takes_options
def solve_bulk(
    input: PathLike,
    out: PathLike,
    *,
    engine: str = "local",
    address: str | None = None,
    shard_rows: int | None = None,
    format: str | None = None,
    id_column: str | None = None,
    lower_bound: bool = False,
    report: Callable[[int, int], None] | None = None,
    **options: Unpack[SolveKeywords],
) -> BulkResult:
    """Solve all instances of ``input`` into shards in the folder ``out``; the same call goes on after a stop.

    ``input`` is a Parquet file (one row per instance: ``id`` and lists ``x``, ``y``, or ``points``; or one
    row per city: ``id``, ``x``, ``y``, those of one id together), a CSV file in the second form, ``.npy`` or
    ``.npz`` ``(B, n, 2)``, or a folder of such files or of ``.tsp`` files. Shard k, ``part-00000k``, holds
    the tours of rows ``k * shard_rows`` on, in the order of the input, as Parquet or ``.npz`` (``format``).
    A row that cannot be solved has an ``error`` in place of a tour.

    ``engine`` is ``local`` (processes on this machine) or ``ray`` (``address``: of a cluster; without one,
    Ray starts on this machine). ``workers`` counts processes, by default one per core, or three per GPU:
    all GPUs, or the one that ``device`` names.
    ``report`` is called with the number of instances that are done and that of all.
    """
    plan = make_plan(
        input,
        out,
        read_options("solve_bulk", options),
        engine=engine,
        address=address,
        shard_rows=shard_rows,
        format=format,
        id_column=id_column,
        lower_bound=lower_bound,
    )
    return run_plan(plan, report)


def make_plan(
    input: PathLike,
    out: PathLike,
    options: SolveOptions,
    *,
    engine: str = "local",
    address: str | None = None,
    shard_rows: int | None = None,
    format: str | None = None,
    id_column: str | None = None,
    lower_bound: bool = False,
) -> Plan:
    """Look at the input and say how it will be solved; nothing is written."""
    if engine not in ENGINES:
        raise InputError(f"unknown engine {engine!r}; allowed: {', '.join(ENGINES)}")
    if address is not None and engine != "ray":
        raise InputError(f"address is of the engine ray, not of {engine}")
    if engine == "ray":
        if ":" in options.device:
            raise InputError(f"Ray chooses the GPUs itself; give device='cuda', not {options.device!r}")
        from georoutenet.bulk.on_ray import import_ray

        import_ray()  # where it is missing, nothing shall have been written
    for city in (options.start, options.end):
        if isinstance(city, str):
            raise InputError(f"a city is named by its position in a bulk run, got {city!r}")
    format = _format(format)
    content = to_json(options)
    given, folder = Path(path_name(input)).resolve(), Path(path_name(out)).resolve()
    if given.is_dir() and (folder == given or given in folder.parents):
        raise InputError(f"{out}: shards go into a folder outside of the input {input}")
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{out}: is a file; shards go into a folder")
    found = find_input(input, id_column)
    shard_rows = (
        _shard_rows(found.instances, content["device"])
        if shard_rows is None
        else whole("shard_rows", shard_rows)
    )
    parts = made_of(found, content, format=format, shard_rows=shard_rows, lower_bound=bool(lower_bound))
    job = Job(
        input=found,
        out=str(folder),
        format=format,
        shard_rows=shard_rows,
        options=content,
        lower_bound=bool(lower_bound),
        fingerprint=fingerprint(parts),
    )
    timed = bounded_by_time(options)
    about = {
        "input": {
            "path": os.fspath(input),
            "kind": found.kind,
            "files": len(found.names),
            "bytes": found.bytes,
        },
        "columns": found.schema,
        "instances": found.instances,
        "cities": found.cities,
        "number of shards": job.shards,
        "repeats": not timed,
        **({"why not": f"{timed} ends searches by the clock"} if timed else {}),
    }
    gpus = gpus_named(options.device) if content["device"] == "cuda" else []
    default = PROCESSES_PER_GPU * len(gpus) or available_cores()
    workers = options.workers or (default if engine == "local" else 0)
    return Plan(job, Manifest(job, parts, about), workers, engine, address, not timed, gpus)


def _shard_rows(instances: int, device: str) -> int:
    """Rows of a shard where nothing is said: 1,000, fewer where all workers would not have some, more where
    there would be more than 10,000 files; at least 20 and at most 100,000. On a GPU, which needs many at a
    time, 1,000 to 50,000, and no more than leave sixteen shards."""
    if device == "cuda":
        return max(1_000, min(50_000, -(-instances // 16)))
    few, many = -(-instances // 64), -(-instances // 10_000)
    return min(100_000, max(20, min(1_000, few), many))


def _format(given: str | None) -> str:
    """Parquet where PyArrow is installed, else NumPy's."""
    if given is None:
        try:
            pyarrow("Parquet")
        except MissingDependencyError:
            return "npz"
        return "parquet"
    if given not in FORMATS:
        raise InputError(f"unknown format {given!r}; allowed: {', '.join(FORMATS)}")
    if given == "parquet":
        pyarrow(f"the format parquet (npz does without; {INSTALL})")
    return given


def run_plan(plan: Plan, report: Callable[[int, int], None] | None = None) -> BulkResult:
    """Solve what is missing in the folder."""
    job, manifest = plan.job, plan.manifest
    folder = Path(job.out)
    with _held(folder):
        manifest.open()
        there = [job.errors(shard) for shard in range(job.shards)]
        missing = [shard for shard, has in enumerate(there) if has is None]
        before = sum(has for has in there if has is not None)
        left = sum(stop - first for first, stop in map(job.rows, missing))
        done = job.input.instances - left
        started = datetime.now(UTC).isoformat(" ", "seconds")
        began = last = time.perf_counter()
        entry = {"started": started, "engine": plan.engine, "workers": plan.workers, "instances": 0}
        manifest.runs.append(entry)
        manifest.write()
        solved = errors = 0
        failed: dict[int, str] = {}
        if report is not None:
            report(done, job.input.instances)
        try:
            with closing(_engine(plan, missing)) as steps:  # its workers end before anything is swept
                for step in steps:
                    if isinstance(step, Advance):
                        done += step.rows
                    elif isinstance(step, Report):
                        solved, errors = solved + step.rows, errors + step.errors
                        manifest.add(step)
                    elif isinstance(step, Failed):
                        failed[step.shard] = step.error
                        if step.stop:
                            name = job.path(step.shard).name
                            raise GeoRouteNetError(
                                f"{name}: {step.error}; the same command goes on from here"
                            )
                    if report is not None:
                        report(done, job.input.instances)
                    if time.perf_counter() - last > WRITE_EVERY:
                        last = time.perf_counter()
                        entry.update(instances=solved, errors=errors, seconds=round(last - began, 3))
                        manifest.write()
        except BaseException:
            sweep(folder)  # what workers that were ended have left
            entry.update(instances=solved, errors=errors, seconds=round(time.perf_counter() - began, 3))
            with suppress(OSError):  # the disk may be full, which was said then
                manifest.write()
            raise
        seconds = time.perf_counter() - began
        entry.update(instances=solved, errors=errors, seconds=round(seconds, 3))
        manifest.write()
        return BulkResult(folder, job.input.instances, job.shards, solved, before + errors, seconds, failed)


def _engine(plan: Plan, missing: list[int]) -> Generator[Step, None, None]:
    if plan.engine == "local":
        return run_local(plan.job, missing, plan.workers, plan.gpus)
    from georoutenet.bulk.on_ray import run_ray

    return run_ray(plan.job, missing, plan.workers, plan.address)


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    lock = FolderLock(folder, does="writes shards", other="folder")
    lock.acquire()
    try:
        yield
    finally:
        lock.release()
