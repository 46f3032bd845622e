"""Kicks of one and of two threads on one instance in the same wall-clock time, in turns.

    python benchmarks/threads.py --cities 200 1000 5000 --seconds 4 --repeats 2
    python benchmarks/threads.py --cities 5000 --kicks 160000

``cpu_s`` tells whether both threads had a core: it is then twice the time. With ``--kicks`` all make as many
kicks in all, and ``seconds`` is what they took: how much faster two threads are. Rows go to
``benchmarks/results/solve_threads.csv``.
"""

from __future__ import annotations

import argparse
import time

from rows import append

from georoutenet import Instance
from georoutenet.problem.generate import uniform
from georoutenet.search import greedy_edge, improve
from georoutenet.stop import MaxIterations, MaxTime, Stop


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cities", type=int, nargs="+", default=[200, 1000, 5000])
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--kicks", type=int)
    options = parser.parse_args()
    stop: Stop = MaxTime(options.seconds) if options.kicks is None else MaxIterations(options.kicks)
    limit = options.seconds if options.kicks is None else ""
    rows = []
    for n in options.cities:
        instance = Instance(uniform(1, n, 77)[0])
        first = greedy_edge(instance.coordinates)
        improve(instance, first, stop=MaxTime(0.5), workers=2)  # compile
        for seed in range(options.repeats):
            for workers in (1, 2):
                began = time.process_time()
                found = improve(instance, first, stop=stop, workers=workers, seed=seed)
                cpu = round(time.process_time() - began, 2)
                took = limit if options.kicks is None else round(found.seconds, 2)
                rows.append((n, workers, seed, took, found.iterations, cpu, round(found.length, 6)))
                print(*rows[-1], flush=True)
    append("solve_threads.csv", ("n", "workers", "seed", "seconds", "kicks", "cpu_s", "length"), rows)


if __name__ == "__main__":
    main()
