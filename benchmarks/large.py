"""Large tours: `solve` from an array in memory to a tour within a limit, one process per row.

    python benchmarks/large.py --cities 100000 --seeds 1 2 3 --seconds 10 60 --workers 1
    python benchmarks/large.py --cities 1000000 --seeds 1 --seconds 2 10 60 --workers 2

Uniform instances. Their expected optimum is 0.7124 sqrt(n) (1 + 0.73 / sqrt(n)): 225.8 at 100,000 cities. All
code is loaded before the clock starts. ``took_s`` is wall-clock time around the call, ``peak_mb`` the
largest memory of the process. ``--processes`` runs so many at a time, where there are cores enough. Rows go
to ``benchmarks/results/solve_large.csv``. ``--clock cpu`` has the limits of one worker count CPU time, where
the machine is busy with other work.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import resource
import time
from concurrent.futures import ProcessPoolExecutor

from rows import append

COLUMNS = (
    "cities",
    "seed",
    "workers",
    "clock",
    "limit_s",
    "took_s",
    "length",
    "gap",
    "kicks",
    "cpu_s",
    "peak_mb",
)


def expected_optimum(n: int) -> float:
    """Of uniform cities in the unit square."""
    return float(0.7124 * n**0.5 * (1 + 0.73 / n**0.5))


def measure(n: int, seed: int, workers: int, limit: float, clock: str) -> tuple[object, ...]:
    if clock == "cpu":
        time.perf_counter = time.process_time
    import georoutenet as grn
    from georoutenet.problem.generate import uniform
    from georoutenet.problem.tour import check_tour

    grn.solve(uniform(1, 12_000, 0)[0], stop=grn.MaxIterations(10), workers=workers)
    points = uniform(1, n, seed)[0]
    cpu, began = time.process_time(), time.perf_counter()
    result = grn.solve(points, max_seconds=limit, workers=workers)
    took, cpu = time.perf_counter() - began, time.process_time() - cpu
    check_tour(result.tour, n)
    gap = 100 * (result.length / expected_optimum(n) - 1)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    times = round(took, 3), round(result.length, 4), round(gap, 3), result.iterations, round(cpu, 2)
    return n, seed, workers, clock, limit, *times, peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cities", type=int, nargs="+", default=[100_000])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--seconds", type=float, nargs="+", default=[10.0, 60.0])
    parser.add_argument("--workers", type=int, nargs="+", default=[1])
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    options = parser.parse_args()
    if options.clock == "cpu" and options.workers != [1]:
        parser.error("CPU time is a clock for one worker")
    print(*COLUMNS)
    cases = list(
        itertools.product(options.cities, options.seeds, options.workers, options.seconds, [options.clock])
    )
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.processes, spawn, max_tasks_per_child=1) as pool:
        for row in pool.map(measure, *zip(*cases, strict=True)):
            print(*row, flush=True)
            append("solve_large.csv", COLUMNS, [row])


if __name__ == "__main__":
    main()
