"""Time from typing ``georoutenet --help`` to its end, in new processes.

    python benchmarks/startup.py

Prints the median and the best of ten runs after one to warm the file cache, and appends them to
benchmarks/results/startup.csv. It should stay under 0.5 s, which it does as long as nothing imports torch,
matplotlib, Numba or SciPy at the start.
"""

from __future__ import annotations

import csv
import datetime
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

LIMIT_S = 0.5
RESULTS = Path(__file__).parent / "results" / "startup.csv"


def seconds(*arguments: str) -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def record(task: str, median: float, best: float) -> None:
    describe = ["git", "describe", "--always", "--dirty"]
    commit = subprocess.run(describe, capture_output=True, text=True, check=False).stdout.strip()
    is_new = not RESULTS.exists()
    with RESULTS.open("a", newline="") as file:
        writer = csv.writer(file)
        if is_new:
            writer.writerow(["date", "commit", "machine", "python", "task", "median_s", "best_s"])
        run = [datetime.date.today().isoformat(), commit, platform.machine(), platform.python_version()]
        writer.writerow([*run, task, f"{median:.3f}", f"{best:.3f}"])


def main() -> None:
    tasks = {
        "bare interpreter": ("-c", "pass"),
        "import georoutenet": ("-c", "import georoutenet"),
        "georoutenet --help": ("-m", "georoutenet", "--help"),
    }
    for name, arguments in tasks.items():
        seconds(*arguments)
        times = [seconds(*arguments) for _ in range(10)]
        median = statistics.median(times)
        verdict = (
            f"  (limit {LIMIT_S} s: {'kept' if median < LIMIT_S else 'BROKEN'})" if "help" in name else ""
        )
        record(name, median, min(times))
        print(f"{name:<20} median {median:.3f} s, best {min(times):.3f} s{verdict}")


if __name__ == "__main__":
    main()
