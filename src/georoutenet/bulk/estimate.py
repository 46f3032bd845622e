"""How long a run will take, from a sample of its own instances."""

from __future__ import annotations

import time
from dataclasses import dataclass

from georoutenet.bulk.api import Plan
from georoutenet.bulk.inputs import Rows
from georoutenet.bulk.shards import make_solver
from georoutenet.solver.api import available_cores

PLACES = 8
"""Shards, evenly spread, from whose beginnings the sample is taken."""
ROWS = 4
"""Rows from each."""
GPU_ROWS = 1_024
"""The same where a GPU searches, which is fast at many instances alone."""
SECONDS = 10.0
"""No further place is looked at after so long."""


@dataclass(frozen=True)
class Estimate:
    """A sample that was solved, and what it says of the whole."""

    rows: int
    errors: int
    least: int
    most: int
    """Cities of the smallest and of the largest instance of the sample."""
    workers: int
    per_second: float
    """Instances of all workers. Where they share a GPU, what one process did there counts once."""
    seconds: float


def estimate(plan: Plan) -> Estimate | None:
    """Solve a sample in this process, on a CPU in one thread; None where there is nothing to solve."""
    job = plan.job
    if not job.shards:
        return None
    reader, solver = Rows(job.input), make_solver(job, device=plan.gpus[0] if plan.gpus else None)
    places = sorted({k * job.shards // PLACES for k in range(PLACES)})
    each, once = (GPU_ROWS, GPU_ROWS) if solver.on_gpu else (ROWS, 1)
    sizes: list[int] = []
    errors, seconds = 0, 0.0
    some = reader.read(0, min(once, job.input.instances))
    solver.solve([row for row in some if not row.error])  # loads and compiles
    for shard in places:
        first, stop = job.rows(shard)
        rows = list(reader.read(first, min(stop, first + each)))
        began = time.perf_counter()
        errors += sum(one.error is not None for one in solver.solve(rows))
        seconds += time.perf_counter() - began
        sizes += [row.n for row in rows]
        if seconds > SECONDS:
            break
    reader.close()
    workers = plan.workers or available_cores()
    per_second = (max(1, len(plan.gpus)) if solver.on_gpu else workers) * len(sizes) / seconds
    return Estimate(
        rows=len(sizes),
        errors=errors,
        least=min(sizes),
        most=max(sizes),
        workers=workers,
        per_second=per_second,
        seconds=job.input.instances / per_second,
    )
