"""How good and how punctual the local search is on one core.

    python benchmarks/local_search.py [SECONDS]

Uniform instances (seed 1), greedy start. For each size: length of the start, of the first local optimum and
after SECONDS (default 10), and by how much the time limit was missed. At 1,000 cities the gap to the best of
five runs of LKH is known. Pin to one core (``taskset -c 0``) on a machine that is otherwise idle.
"""

from __future__ import annotations

import sys
import time

from georoutenet.examples import THOUSAND_CITIES
from georoutenet.generate import uniform
from georoutenet.improve import MaxTime, greedy_edge, improve
from georoutenet.improve.local_search import compile_kernels
from georoutenet.instance import Instance
from georoutenet.tour import gap, tour_length


def main() -> None:
    limit = float(sys.argv[1]) if len(sys.argv) > 1 else 10.0
    compile_kernels()
    greedy_edge(uniform(1, 20, 0)[0])
    columns = ("cities", "greedy", "s", "local opt.", "s", "final", "kicks", "late ms")
    widths = (8, 9, 6, 10, 6, 9, 8, 8)
    print(*(f"{column:>{width}}" for column, width in zip(columns, widths, strict=True)))
    for n in (200, 1_000, 10_000, 100_000):
        instance = Instance(uniform(1, n, 1)[0])
        started = time.perf_counter()
        start = greedy_edge(instance.coordinates)
        built = time.perf_counter() - started
        result = improve(instance, start, stop=MaxTime(limit))
        first = [entry for entry in result.history if entry.iterations == 0][-1]
        late = 1000 * (result.seconds - limit)
        row = f"{n:8,} {tour_length(instance, start):9.3f} {built:6.2f} {first.length:10.3f}"
        row += f" {first.seconds:6.2f} {result.length:9.3f} {result.iterations:8,} {late:8.1f}"
        if n == 1_000:
            row += f"   gap {gap(result.length, THOUSAND_CITIES):.3f} % to LKH"
        print(row, flush=True)


if __name__ == "__main__":
    main()
