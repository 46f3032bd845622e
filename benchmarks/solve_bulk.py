"""Many small instances through ``solve_many`` in one thread: instances per CPU second and gap, array to tour.

    python benchmarks/solve_bulk.py --n 50 100 --count 1000 [--call solve_batch]

The first ``count`` instances of test50 and test100 against their packaged references; a CPU second is user
and system time of all threads, imports and compiling excluded. Rows go to
``benchmarks/results/solve_bulk.csv``.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from rows import append

import georoutenet as grn
from georoutenet.evaluate.references import load_references, random_set

COLUMNS = ("n", "count", "per_cpu_second", "mean_gap_percent", "not_at_reference")


def solve(call: str, cities: np.ndarray) -> list[float]:
    if call == "solve_batch":
        return list(grn.solve_batch(cities, workers=1, device="cpu", tours=False))
    return [result.length for result in grn.solve_many(list(cities), workers=1, device="cpu")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--n", type=int, nargs="+", default=[50, 100])
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--call", choices=("solve_many", "solve_batch"), default="solve_many")
    options = parser.parse_args()
    rows = []
    for n in options.n:
        cities = np.array(random_set(f"test{n}").coordinates[: options.count])
        lengths = load_references(f"test{n}").lengths[: options.count]
        solve(options.call, cities[:3])
        began = time.process_time()
        found = solve(options.call, cities)
        took = time.process_time() - began
        gaps = grn.gap(found, lengths)
        speed, gap = round(len(cities) / took, 1), round(float(gaps.mean()), 6)
        rows.append((n, len(cities), speed, gap, int((gaps > 1e-6).sum())))
        print(*rows[-1])
    append("solve_bulk.csv", COLUMNS, rows)


if __name__ == "__main__":
    main()
