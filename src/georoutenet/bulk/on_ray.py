"""The engine ``ray``: the same shards, solved by a pool of actors of Ray Data, here or on a cluster."""

from __future__ import annotations

import json
import logging
import os
from collections import Counter
from collections.abc import Generator
from typing import Any

from georoutenet.bulk.engine import ONE_THREAD, Advance, Step, attempt, told
from georoutenet.bulk.inputs import Rows
from georoutenet.bulk.settings import code_hash
from georoutenet.bulk.shards import Job, Report, make_solver
from georoutenet.errors import GeoRouteNetError, InputError, MissingDependencyError
from georoutenet.solver.api import available_cores


def import_ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to anybody
    try:
        import ray
        import ray.data
    except ImportError:
        raise MissingDependencyError("the engine ray needs Ray: pip install 'ray[data]' pyarrow") from None
    return ray


ATTEMPTS = 12
"""Workers that may die over one shard before it is given up. A cluster also takes workers away by itself."""


class Tries:
    """An actor: how often each shard was begun. Ray replaces workers for ever, whatever they die of."""

    def __init__(self) -> None:
        self.begun: Counter[int] = Counter()

    def begin(self, shard: int) -> int:
        self.begun[shard] += 1
        return self.begun[shard]


class ShardSolver:
    """An actor: numbers of shards in, what became of them out. Their files are written by the way."""

    def __init__(self, job: str, code: str, tries: Any) -> None:
        self.ray, self.tries = import_ray(), tries
        self.job = Job.from_json(json.loads(job))
        if code_hash() != code:
            raise InputError("this node has another version of georoutenet than the one that started the run")
        gpu = self.job.options["device"] == "cuda"
        threads = available_cores() if gpu else 1
        self.solver = make_solver(self.job, device="cuda:0" if gpu else "cpu", threads=threads)
        self.rows = Rows(self.job.input)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        shards = map(int, batch["shard"])
        return {"answer": [json.dumps(self._attempt(k)) for k in shards]}

    def _attempt(self, shard: int) -> dict[str, Any]:
        if self.ray.get(self.tries.begin.remote(shard)) > ATTEMPTS:
            return {"failed": {"shard": shard, "error": f"{ATTEMPTS} workers died over it"}}
        return attempt(self.job, self.rows, self.solver, shard)


def run_ray(job: Job, shards: list[int], workers: int, address: str | None) -> Generator[Step, None, None]:
    """Solve shards; what became of them comes as it is known. A worker that dies is replaced by Ray."""
    if not shards:
        return
    ray = import_ray()
    gpu = job.options["device"] == "cuda"
    started = not ray.is_initialized()
    if started:
        address = address or os.environ.get("RAY_ADDRESS")  # where Ray would look, and then refuse num_cpus
        here = {} if address else {"num_cpus": workers or available_cores(), "include_dashboard": False}
        ray.init(address=address, log_to_driver=False, logging_level="warning", **here)
        logging.getLogger("ray.data").setLevel("WARNING")
    try:
        resources = ray.cluster_resources()
        workers = workers or int(resources.get("GPU" if gpu else "CPU", 0))
        if not workers:
            raise InputError(f"the cluster has no {'GPU' if gpu else 'CPU'}; it has {resources}")
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        dataset = ray.data.from_items([{"shard": k} for k in shards], override_num_blocks=len(shards))
        given = {
            "job": json.dumps(job.to_json()),
            "code": code_hash(),
            "tries": ray.remote(num_cpus=0)(Tries).remote(),
        }
        answers = dataset.map_batches(
            ShardSolver,
            fn_constructor_kwargs=given,
            batch_size=1,
            compute=ray.data.ActorPoolStrategy(size=min(workers, len(shards))),
            **({"num_gpus": 1} if gpu else {"num_cpus": 1, "runtime_env": {"env_vars": ONE_THREAD}}),
        )
        for row in answers.iter_rows():
            step = told(json.loads(row["answer"]))
            if isinstance(step, Report):
                yield Advance(step.rows)
            yield step
    except ray.exceptions.RayError as error:  # also what an actor raises that cannot begin
        raise GeoRouteNetError(f"Ray gave up: {str(error).strip().splitlines()[-1]}") from error
    finally:
        if started:
            ray.shutdown()
