"""What engines have in common: how a worker tries a shard, and what is told of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from georoutenet.bulk.inputs import InputChanged, Rows
from georoutenet.bulk.shards import Job, Report, run_shard
from georoutenet.bulk.solver import BulkSolver
from georoutenet.errors import GeoRouteNetError


@dataclass(frozen=True)
class Advance:
    """So many rows of some shard were solved; a negative number takes back what has to be done again."""

    rows: int


@dataclass(frozen=True)
class Failed:
    """A shard that could not be solved or written."""

    shard: int
    error: str
    stop: bool = False
    """Whether others will fare no better, as with a full disk."""


Step = Report | Advance | Failed

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
"""Environment of workers on a CPU: there are as many of them as cores."""


def attempt(
    job: Job, rows: Rows, solver: BulkSolver, shard: int, progress: Callable[[int], None] = lambda _: None
) -> dict[str, Any]:
    """Solve a shard, in a worker; the answer is ready for JSON, and ``told`` understands it."""
    try:
        return {"done": asdict(run_shard(job, rows, solver, shard, progress))}
    except Exception as error:
        kind = "" if isinstance(error, (GeoRouteNetError, OSError)) else f"{type(error).__name__}: "
        hopeless = isinstance(error, (OSError, InputChanged))
        return {"failed": {"shard": shard, "error": f"{kind}{error}", "stop": hopeless}}


def told(answer: dict[str, Any]) -> Report | Failed:
    return Report(**answer["done"]) if "done" in answer else Failed(**answer["failed"])
