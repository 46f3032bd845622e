"""How good and how punctual the local search is on one core.

    python benchmarks/local_search.py                                    # a table of sizes, 10 s each
    python benchmarks/local_search.py --cities 20000 --seconds 30 60 --clock cpu

Uniform instances (seed 1), greedy start. For each size and limit: the length of the start, of the first local
optimum and at the end, and by how much the limit was missed. At 1,000 cities the gap to the best of five
runs of LKH is known. ``--clock cpu`` counts CPU time, for machines that are busy with other work.
``large.py`` measures large tours from array to tour.
"""

from __future__ import annotations

import argparse
import time

from rows import CpuTime

from georoutenet.examples import THOUSAND_CITIES
from georoutenet.problem.generate import uniform
from georoutenet.problem.instance import Instance
from georoutenet.problem.tour import gap, tour_length
from georoutenet.search import greedy_edge, improve
from georoutenet.stop import MaxTime, Stop


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cities", type=int, nargs="+", default=[200, 1_000, 10_000, 100_000])
    parser.add_argument("--seconds", type=float, nargs="+", default=[10.0])
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    options = parser.parse_args()
    columns = ("cities", "limit s", "greedy", "s", "local opt.", "s", "final", "kicks", "late ms")
    widths = (9, 7, 9, 6, 10, 6, 9, 8, 8)
    print(*(f"{column:>{width}}" for column, width in zip(columns, widths, strict=True)))
    for n in options.cities:
        instance = Instance(uniform(1, n, 1)[0])
        greedy_edge(instance.coordinates[:20])  # compile
        improve(instance, range(n), stop=MaxTime(0))
        started = time.perf_counter()
        start = greedy_edge(instance.coordinates)
        built = time.perf_counter() - started
        for limit in options.seconds:
            began = time.process_time()
            stop: Stop = MaxTime(limit) if options.clock == "wall" else CpuTime(limit)
            result = improve(instance, start, stop=stop)
            cpu = time.process_time() - began
            first = [entry for entry in result.history if entry.iterations == 0][-1]
            late = 1000 * ((result.seconds if options.clock == "wall" else cpu) - limit)
            row = f"{n:9,} {limit:7g} {tour_length(instance, start):9.3f} {built:6.2f} {first.length:10.3f}"
            row += f" {first.seconds:6.2f} {result.length:9.3f} {result.iterations:8,} {late:8.1f}"
            if n == 1_000:
                row += f"   gap {gap(result.length, THOUSAND_CITIES):.3f} % to LKH"
            print(row, flush=True)


if __name__ == "__main__":
    main()
