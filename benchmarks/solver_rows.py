"""Concorde and LKH, instance by instance, for their rows in the tables of the paper's sets.

    python benchmarks/solver_rows.py --solver concorde --set val50 --limit 200
    python benchmarks/solver_rows.py --solver lkh --set tsplib36

appends to ``benchmarks/results/solvers.csv``, which ``georoutenet tables`` reads. One thread, one run, one
instance after the other. On random sets a solver sees distances rounded as for the references; on TSPLIB
those of the rule EUC_2D, so a proof there is one of the published optimum.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np

from georoutenet.evaluate.batch_solver import Problems, checked_length
from georoutenet.io.datasets import dataset
from georoutenet.problem.instance import Instance
from georoutenet.problem.tour import Tour, canonical

sys.path.insert(0, str(Path(__file__).parent.parent))  # research/ is no part of the package
from benchmarks.rows import append
from research.references.solvers import Solver, make_solver
from research.report.solver_rows import COLUMNS, FILE


def solve(solver: Solver, instance: Instance, *, whole: bool) -> tuple[Tour, bool, float]:
    """The tour, whether it is proven, and the seconds; with ``whole`` under the rule EUC_2D itself."""
    if not whole:
        solution = solver.solve(instance.coordinates)
        return solution.tour, solution.proven, solution.seconds
    began = time.perf_counter()
    tour, proven = solver._search(np.asarray(instance.coordinates), 0)
    return canonical(np.asarray(tour)), proven, time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--solver", choices=("concorde", "lkh"), required=True)
    parser.add_argument("--set", dest="name", required=True)
    parser.add_argument("--limit", type=int)
    options = parser.parse_args()
    data = dataset(options.name)
    problems = Problems(data, options.limit)
    solver = make_solver(options.solver)
    if not data.is_random:
        solver.SPAN = 1  # type: ignore[attr-defined]
    rows = []
    for k, instance in enumerate(problems.take(0, problems.count)):
        tour, proven, seconds = solve(solver, instance, whole=not data.is_random)
        length = checked_length(instance, tour, solver.name)
        reference = float(problems.references[k])
        rows.append(
            (
                options.solver, options.name, instance.name, instance.n, f"{length:.9f}", f"{reference:.9f}",
                int(proven), f"{seconds:.4f}",
            )
        )  # fmt: skip
    append(FILE, COLUMNS, rows)
    gaps = [100 * (float(row[4]) / float(row[5]) - 1) for row in rows]
    print(
        f"{options.solver} on {options.name}: {len(rows)} instances, mean gap {np.mean(gaps):.5f} %, "
        f"{sum(int(row[6]) for row in rows)} proven, {sum(float(row[7]) for row in rows):.1f} s"
    )


if __name__ == "__main__":
    main()
