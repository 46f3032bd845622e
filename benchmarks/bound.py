"""The search's lower bound beside the value to which the ascent converges, and the optimum.

    python benchmarks/bound.py

tsplib36, twelve of TSPLIB's to 1,084 cities, and five uniform instances of 1,000. ``search`` is the bound of
a search among many, ``solve`` that of a single one (``tight_bound``), ``solve_cpu_s`` what this takes to
the first local optimum, candidates and all; ``own`` is ``lower_bound``, ``converged`` the same with 5,000
iterations. Rows go to ``benchmarks/results/bound.csv``.
"""

from __future__ import annotations

import time

import numpy as np
from rows import append

from georoutenet import Instance, load_tsplib
from georoutenet.io.tsplib import tsplib_names
from georoutenet.search import greedy_edge, improve
from georoutenet.search.ascent import lower_bound
from georoutenet.stop import MaxIterations

LARGER = (
    *("lin318", "pcb442", "att532", "u574", "rat575", "p654"),
    *("d657", "u724", "rat783", "pr1002", "u1060", "vm1084"),
)


def main() -> None:
    named = [load_tsplib(name) for name in (*tsplib_names("tsplib36"), *LARGER)]
    uniform = [Instance(np.random.default_rng(k).random((1000, 2)), name=f"uniform-{k}") for k in range(5)]
    rows: list[tuple[object, ...]] = []
    for instance in (*named, *uniform):
        first = greedy_edge(instance.coordinates)
        stop = MaxIterations(5000)
        search, solve = (improve(instance, first, stop=stop, tight_bound=each) for each in (False, True))
        began = time.process_time()
        improve(instance, first, stop=MaxIterations(0), tight_bound=True)
        tight_took = round(time.process_time() - began, 3)
        began = time.process_time()
        own = lower_bound(instance, search.tour)
        took = round(time.process_time() - began, 3)
        converged = lower_bound(instance, search.tour, iterations=5000)
        about = (own, took, converged, instance.optimum, solve.lower_bound, tight_took)
        rows.append((instance.name, instance.n, search.lower_bound, *about))
        print(*rows[-1], flush=True)
    for part in (rows[:36], rows[36 : -len(uniform)], rows[-len(uniform) :]):
        for column, what in ((2, "search"), (7, "solve"), (3, "lower_bound")):
            below = np.array([100 * (1 - row[column] / row[5]) for row in part])  # type: ignore[operator]
            print(f"{what}: {below.mean():.3f} % below the converged value, {below.max():.3f} at worst")
    columns = ("instance", "n", "search", "own", "own_cpu_s", "converged", "optimum", "solve", "solve_cpu_s")
    append("bound.csv", columns, rows)


if __name__ == "__main__":
    main()
