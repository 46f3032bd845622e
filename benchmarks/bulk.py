"""``solve_bulk`` from file to file against the bare ``solve_many``: time, scaling and memory.

    python benchmarks/bulk.py overhead --count 1500           # 50 to 200 cities, shards of 100, turn about
    python benchmarks/bulk.py scaling --count 400 --repeats 5  # 1 and 2 threads, 1 and 2 workers
    python benchmarks/bulk.py ray --count 400 --repeats 5      # 2 workers, local and Ray, turn about
    python benchmarks/bulk.py tiny --count 1000000             # 1 to 4 cities: memory
    python benchmarks/bulk.py read --count 300000              # one row group of 600 MB, read only: memory

Instances are uniform in the unit square. A row has wall seconds and CPU seconds of all processes. Start-up is
the wall time of the same call with two instances, and the speed is that of the rest. Memory is the peak of
the resident memory of this process and of all that it started together, which counts shared pages more than
once, looked at every 0.2 s. Rows go to ``benchmarks/results/bulk.csv``.

``overhead`` solves each shard twice in one thread of this process, by ``solve_many`` from arrays and from
file to file; compare its CPU seconds, which other work on the machine disturbs least. Where the wall counts,
compare the best of several runs.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import georoutenet as grn
from georoutenet.bulk.api import make_plan
from georoutenet.bulk.inputs import Rows, find_input
from georoutenet.bulk.shards import make_solver, read_shard, run_shard
from georoutenet.solver.options import SolveOptions

COLUMNS = (
    *("kind", "how", "workers", "count", "seed", "wall_s", "startup_s", "cpu_s", "per_second"),
    *("peak_mb", "total_length"),
)


def write(path: Path, count: int, seed: int, least: int, most: int, row_group: int | None = None) -> None:
    """A Parquet file of them, written in pieces."""
    schema = pa.schema([("id", pa.int64()), ("x", pa.list_(pa.float64())), ("y", pa.list_(pa.float64()))])
    step = row_group or min(count, 50_000)
    with pq.ParquetWriter(path, schema) as writer:
        for at in range(0, count, step):
            numbers = np.random.default_rng((seed, at))
            sizes = numbers.integers(least, most + 1, min(step, count - at))
            ends = np.concatenate(([0], np.cumsum(sizes))).astype(np.int32)
            lists = [pa.ListArray.from_arrays(ends, numbers.random(ends[-1])) for _ in "xy"]
            writer.write_table(pa.table([pa.array(range(at, at + len(sizes))), *lists], schema=schema), step)


def used() -> float:
    own, others = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + others.ru_utime + others.ru_stime


def resident(process: str = "self") -> float:
    """Megabytes of a process and of all below it."""
    total = 0.0
    with suppress(OSError):  # one that has just ended
        place = Path("/proc", process)
        lines = place.joinpath("status").read_text().splitlines()
        total = sum(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))
        for thread in place.joinpath("task").iterdir():
            total += sum(map(resident, thread.joinpath("children").read_text().split()))
    return total


class Watch:
    """The peak of ``resident`` while a block runs."""

    def __enter__(self) -> Watch:
        self.peak, self.done = 0.0, threading.Event()
        self.thread = threading.Thread(target=self._look)
        self.thread.start()
        return self

    def _look(self) -> None:
        while not self.done.wait(0.2):
            self.peak = max(self.peak, resident())

    def __exit__(self, *error: object) -> None:
        self.done.set()
        self.thread.join()


def timed(work: Callable[[], float]) -> tuple[float, float, float, float]:
    """Wall seconds, CPU seconds, peak memory, and what the work gives."""
    with Watch() as watch:
        cpu, wall = used(), time.perf_counter()
        given = work()
        wall, cpu = time.perf_counter() - wall, used() - cpu
    return wall, cpu, watch.peak, given


def total_length(folder: str) -> float:
    return float(sum(pq.read_table(folder, columns=["length"]).column("length").to_pylist()))


class Bench:
    def __init__(self, kind: str, count: int, seed: int, folder: str) -> None:
        self.kind, self.count, self.seed, self.folder = kind, count, seed, Path(folder)
        self.input, self.small = self.folder / "in.parquet", self.folder / "two.parquet"
        self.made: list[tuple[object, ...]] = []

    def row(
        self, how: str, workers: int, startup: float, measured: tuple[float, float, float, float]
    ) -> None:
        wall, cpu, memory, length = measured
        speed = round(self.count / (wall - startup), 2)
        times = (round(wall, 2), round(startup, 2), round(cpu, 2), speed)
        about = (self.kind, how, workers, self.count, self.seed)
        self.made.append((*about, *times, round(memory), repr(length)))
        print(*self.made[-1], flush=True)

    def bulk(self, workers: int, engine: str = "local", shard_rows: int | None = None) -> None:
        def run(source: Path) -> float:
            with tempfile.TemporaryDirectory(dir=self.folder) as out:
                result = grn.solve_bulk(source, out, workers=workers, engine=engine, shard_rows=shard_rows)
                assert result.complete, result
                return total_length(out) if source == self.input else 0.0

        startup = timed(lambda: run(self.small))[0]
        self.row(f"bulk {engine}", workers, startup, timed(lambda: run(self.input)))

    def problems(self) -> list[np.ndarray]:
        table = pq.read_table(self.input)
        pairs = zip(table.column("x").to_pylist(), table.column("y").to_pylist(), strict=True)
        return [np.column_stack(pair) for pair in pairs]

    def bare(self, workers: int) -> None:
        """``solve_many`` in threads."""
        problems = self.problems()

        def run() -> float:
            results = grn.solve_many(problems, workers=workers, device="cpu")
            return float(sum(result.length for result in results))

        grn.solve_many(problems[:3], workers=1, device="cpu")
        self.row("solve_many", workers, 0.0, timed(run))

    def overhead(self, shard_rows: int = 100) -> None:
        """The same shards by ``solve_many`` from arrays and by a worker's own code from file to file."""
        options = SolveOptions(device="cpu", workers=1)
        plan = make_plan(self.input, self.folder / "out", options, shard_rows=shard_rows)
        rows, solver = Rows(plan.job.input), make_solver(plan.job)
        problems = self.problems()

        def bare(shard: int) -> float:
            given = problems[slice(*plan.job.rows(shard))]
            return float(sum(result.length for result in grn.solve_many(given, workers=1, device="cpu")))

        def shards(shard: int) -> float:
            run_shard(plan.job, rows, solver, shard)
            return float(sum(read_shard(plan.job.path(shard))["length"]))

        grn.solve_many(problems[:3], workers=1, device="cpu")
        sums = {"solve_many": np.zeros(4), "shards": np.zeros(4)}
        for shard in range(plan.job.shards):
            for how, work in (("solve_many", bare), ("shards", shards))[:: 1 if shard % 2 else -1]:
                sums[how] += timed(lambda work=work, shard=shard: work(shard))
        for how, (wall, cpu, _, length) in sums.items():
            self.row(how, 1, 0.0, (wall, cpu, resident(), float(length)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("kind", choices=("overhead", "scaling", "ray", "tiny", "read"))
    parser.add_argument("--count", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=1)
    given = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(given.kind, given.count, given.seed, folder)
        sizes = (1, 4) if given.kind == "tiny" else (50, 200)
        whole = given.count if given.kind in ("tiny", "read") else None
        write(bench.input, given.count, given.seed, *sizes, row_group=whole)
        write(bench.small, 2, given.seed, *sizes)
        if given.kind == "overhead":
            bench.overhead()
        elif given.kind == "scaling":
            for workers in (1, 2) * given.repeats:
                bench.bare(workers)
                bench.bulk(workers, shard_rows=10)
        elif given.kind == "ray":
            from georoutenet.bulk.on_ray import import_ray

            import_ray().init(num_cpus=2, include_dashboard=False, log_to_driver=False)
            for engine in ("local", "ray") * given.repeats:
                bench.bulk(2, engine, shard_rows=10)
        elif given.kind == "tiny":
            bench.bulk(2)
        else:
            found = find_input(bench.input)
            bench.row(
                "read", 1, 0.0, timed(lambda: float(sum(row.n for row in Rows(found).read(0, given.count))))
            )
        from rows import append  # loads PyTorch, whose memory does not belong here

        append("bulk.csv", COLUMNS, bench.made)


if __name__ == "__main__":
    main()
