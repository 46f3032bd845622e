"""Kicks of one and of two threads on one instance in the same wall-clock time, in turns.

    python benchmarks/threads.py --cities 200 1000 5000 --seconds 4 --repeats 2

``cpu_s`` tells whether both threads had a core: it is then twice the time. Rows go to
``benchmarks/results/solve_threads.csv``.
"""

from __future__ import annotations

import argparse
import time

from rows import append

from georoutenet import Instance
from georoutenet.problem.generate import uniform
from georoutenet.search import greedy_edge, improve
from georoutenet.stop import MaxTime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cities", type=int, nargs="+", default=[200, 1000, 5000])
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--repeats", type=int, default=2)
    options = parser.parse_args()
    rows = []
    for n in options.cities:
        instance = Instance(uniform(1, n, 77)[0])
        first = greedy_edge(instance.coordinates)
        improve(instance, first, stop=MaxTime(0.5), workers=2)  # compile
        for seed in range(options.repeats):
            for workers in (1, 2):
                began = time.process_time()
                found = improve(instance, first, stop=MaxTime(options.seconds), workers=workers, seed=seed)
                cpu = round(time.process_time() - began, 2)
                rows.append(
                    (n, workers, seed, options.seconds, found.iterations, cpu, round(found.length, 6))
                )
                print(*rows[-1], flush=True)
    append("solve_threads.csv", ("n", "workers", "seed", "seconds", "kicks", "cpu_s", "length"), rows)


if __name__ == "__main__":
    main()
