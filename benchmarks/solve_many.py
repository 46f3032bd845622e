"""Searches side by side: seconds of `solve_many` for eight instances of 200 cities, with one worker and two.

python benchmarks/solve_many.py >> benchmarks/results/solve_many.csv
"""

from __future__ import annotations

import time

import numpy as np

import georoutenet as grn


def main() -> None:
    rng = np.random.default_rng(0)
    problems = [rng.random((200, 2)) for _ in range(8)]
    grn.solve_many(problems[:2], stop=grn.MaxIterations(10))
    for _ in range(3):
        for workers in (1, 2):
            began = time.perf_counter()
            results = grn.solve_many(problems, stop=grn.MaxIterations(50_000), workers=workers)
            seconds = time.perf_counter() - began
            searching = sum(result.timings["improve"] for result in results)
            print(f"{workers},{seconds:.2f},{searching:.2f},{sum(result.length for result in results)!r}")


if __name__ == "__main__":
    main()
