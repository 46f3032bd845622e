"""Time of ``georoutenet --help`` and of ``georoutenet solve berlin52.tsp``, in new processes.

    python benchmarks/startup.py

Prints the median and the best of ten runs after one to warm the file cache, and appends them to
benchmarks/results/startup.csv. Help should stay under 0.5 s, which it does as long as nothing imports torch,
matplotlib, Numba or SciPy at the start; a solve under 3 s, and under 1 s beyond importing torch. The tasks
take turns, because other work on the machine comes and goes. Without TSPLIB the solve is left out.
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

from georoutenet.io.tsplib import tsplib_folder

HELP, TORCH, SOLVE = "georoutenet --help", "import torch", "georoutenet solve berlin52.tsp"
LIMITS_S = {HELP: 0.5, SOLVE: 3.0}
BEYOND_TORCH_S = 1.0
RESULTS = Path(__file__).parent / "results" / "startup.csv"


def seconds(*arguments: str) -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def verdict(median: float, limit: float | None) -> str:
    return "" if limit is None else f"  (limit {limit} s: {'kept' if median < limit else 'BROKEN'})"


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
    tasks: dict[str, tuple[str, ...]] = {
        "bare interpreter": ("-c", "pass"),
        "import georoutenet": ("-c", "import georoutenet"),
        HELP: ("-m", "georoutenet", "--help"),
        TORCH: ("-c", "import torch"),
    }
    folder = tsplib_folder()
    if folder is not None:
        tasks[SOLVE] = ("-m", "georoutenet", "solve", str(folder / "berlin52.tsp"))
    for arguments in tasks.values():
        seconds(*arguments)
    turns = [{name: seconds(*arguments) for name, arguments in tasks.items()} for _ in range(10)]
    medians = {name: statistics.median(turn[name] for turn in turns) for name in tasks}
    for name, median in medians.items():
        best = min(turn[name] for turn in turns)
        record(name, median, best)
        print(f"{name:<32} median {median:.3f} s, best {best:.3f} s{verdict(median, LIMITS_S.get(name))}")
    if SOLVE in medians:
        beyond = statistics.median(turn[SOLVE] - turn[TORCH] for turn in turns)
        record("solve beyond import torch", beyond, min(turn[SOLVE] - turn[TORCH] for turn in turns))
        print(f"{'solve beyond import torch':<32} median {beyond:.3f} s{verdict(beyond, BEYOND_TORCH_S)}")


if __name__ == "__main__":
    main()
