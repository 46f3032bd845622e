"""Many small instances through ``solve_many`` in one thread: instances per CPU second and gap, array to tour.

    python benchmarks/solve_bulk.py --n 50 100 --count 1000

The first ``count`` instances of test50 and test100 against their packaged references; a CPU second is user
and system time of all threads, imports and compiling excluded. Rows go to
``benchmarks/results/solve_bulk.csv``.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

import georoutenet as grn
from georoutenet.evaluate.references import load_references, random_set

RESULTS = Path(__file__).parent / "results" / "solve_bulk.csv"
COLUMNS = "n,count,per_cpu_second,mean_gap_percent,not_at_reference,commit,date,hardware,command"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--n", type=int, nargs="+", default=[50, 100])
    parser.add_argument("--count", type=int, default=1000)
    options = parser.parse_args()
    git = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    new = not RESULTS.exists()
    with open(RESULTS, "a", newline="") as file:
        writer = csv.writer(file)
        if new:
            writer.writerow(COLUMNS.split(","))
        for n in options.n:
            cities = list(np.array(random_set(f"test{n}").coordinates[: options.count]))
            lengths = load_references(f"test{n}").lengths[: options.count]
            grn.solve_many(cities[:3], workers=1, device="cpu")
            began = time.process_time()
            results = grn.solve_many(cities, workers=1, device="cpu")
            took = time.process_time() - began
            gaps = grn.gap([result.length for result in results], lengths)
            row = (n, len(cities), round(len(cities) / took, 1), round(float(gaps.mean()), 6))
            about = (commit, datetime.date.today().isoformat(), "2 cores, CPU, one used")
            writer.writerow((*row, int((gaps > 1e-6).sum()), *about, " ".join(sys.argv[1:])))
            print(*row, int((gaps > 1e-6).sum()))


if __name__ == "__main__":
    main()
