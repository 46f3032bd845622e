"""What Concorde and LKH reached on the paper's sets, by the rows of ``benchmarks/solver_rows.py``."""

from __future__ import annotations

import csv
import gzip
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FILE = "solvers.csv"
PATH = Path(__file__).parents[2] / "benchmarks" / "results" / FILE
COLUMNS = ("solver", "set", "instance", "n", "length", "reference", "proven", "seconds")
NAMES = {"Concorde": "concorde", "LKH-3": "lkh"}
"""In the tables and in the file."""


class SolverRows(NamedTuple):
    """A solver on the first instances of a set, or on all."""

    instances: list[str]
    gaps: NDArray[np.float64]
    proven: int
    seconds: float


@cache
def solver_rows(path: Path = PATH) -> dict[tuple[str, str], SolverRows]:
    """By the name in the tables and the set, from the packed file and the plain one; nothing without them."""
    found: dict[tuple[str, str], dict[str, dict[str, str]]] = {}
    for each, reader in ((path.with_name(f"{path.name}.gz"), gzip.open), (path, open)):
        if each.exists():
            with reader(each, "rt", encoding="utf-8", newline="") as file:
                for row in csv.DictReader(file):  # of an instance that was solved again the last row counts
                    found.setdefault((row["solver"], row["set"]), {})[row["instance"]] = row
    short = {words: name for name, words in NAMES.items()}
    return {
        (short[solver], name): SolverRows(
            [row["instance"] for row in rows],
            np.array([100 * (float(row["length"]) / float(row["reference"]) - 1) for row in rows]),
            sum(int(row["proven"]) for row in rows),
            sum(float(row["seconds"]) for row in rows),
        )
        for (solver, name), rows in ((key, list(by.values())) for key, by in found.items())
    }
