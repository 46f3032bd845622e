"""The search's lower bound beside the value to which the ascent converges, and the optimum; tsplib36.

    python benchmarks/bound.py

``converged`` is ``lower_bound`` of 5,000 iterations. Rows go to ``benchmarks/results/bound.csv``.
"""

from __future__ import annotations

import time

import numpy as np
from rows import append

from georoutenet import load_tsplib
from georoutenet.io.tsplib import tsplib_names
from georoutenet.search import greedy_edge, improve
from georoutenet.search.ascent import lower_bound
from georoutenet.stop import MaxIterations


def main() -> None:
    rows = []
    for name in tsplib_names("tsplib36"):
        instance = load_tsplib(name)
        found = improve(instance, greedy_edge(instance.coordinates), stop=MaxIterations(5000))
        began = time.process_time()
        own = lower_bound(instance, found.tour)
        took = round(time.process_time() - began, 3)
        converged = lower_bound(instance, found.tour, iterations=5000)
        rows.append((name, instance.n, found.lower_bound, own, took, converged, instance.optimum))
        print(*rows[-1], flush=True)
    for column, what in ((2, "search"), (3, "lower_bound")):
        below = np.array([100 * (1 - row[column] / row[5]) for row in rows])  # type: ignore[operator]
        print(f"{what}: {below.mean():.3f} % below the converged value, {below.max():.3f} at worst")
    append("bound.csv", ("instance", "n", "search", "own", "own_cpu_s", "converged", "optimum"), rows)


if __name__ == "__main__":
    main()
