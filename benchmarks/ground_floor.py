"""Time to read instances and to measure tours.

    GEOROUTENET_TSPLIB=folder python benchmarks/ground_floor.py

Each task runs once to warm up and then many times; the table has the median and the best. Results are
appended to benchmarks/results/ground_floor.csv. Reading pr2392 or rl5934, and measuring 10,000 tours of
100 cities, should each take less than 50 ms on one thread.
"""

from __future__ import annotations

import csv
import datetime
import os
import platform
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from georoutenet.errors import InputError
from georoutenet.io.files import read_instance, write_instance
from georoutenet.io.tsplib import load_optimal_tour, load_tsplib
from georoutenet.problem.instance import DistanceRule, Instance
from georoutenet.problem.tour import tour_length, tour_lengths

RESULTS = Path(__file__).parent / "results" / "ground_floor.csv"
LIMIT_MS = 50.0


def milliseconds(task: Callable[[], object], *, repeats: int = 15) -> list[float]:
    task()
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        task()
        times.append(1000 * (time.perf_counter() - started))
    return times


def tasks(folder: Path) -> dict[str, tuple[Callable[[], object], float | None]]:
    """What is timed, and the limit where one is set."""
    generator = np.random.default_rng(0)
    coordinates = generator.random((10_000, 100, 2))
    tours = generator.permuted(np.tile(np.arange(100), (10_000, 1)), axis=1)
    many = Instance(
        generator.integers(0, 10**6, (100_000, 2)).astype(float), name="many", rule=DistanceRule.EUC_2D
    )
    write_instance(folder / "many.tsp", many)
    write_instance(folder / "many.csv", many)
    order = generator.permutation(many.n)
    found: dict[str, tuple[Callable[[], object], float | None]] = {
        "lengths of 10,000 tours of 100 cities": (lambda: tour_lengths(coordinates, tours), LIMIT_MS),
        "length of one tour of 100,000 cities": (lambda: tour_length(many, order), None),
        "read 100,000 cities, .tsp": (lambda: read_instance(folder / "many.tsp"), None),
        "read 100,000 cities, .csv": (lambda: read_instance(folder / "many.csv"), None),
    }
    try:
        load_tsplib("pr2392")
    except InputError as error:
        print(f"without TSPLIB's files: {error}")
    else:
        found["read pr2392"] = (lambda: load_tsplib("pr2392"), LIMIT_MS)
        found["read rl5934"] = (lambda: load_tsplib("rl5934"), LIMIT_MS)
        found["read pr2392 and its optimal tour"] = (lambda: load_optimal_tour("pr2392"), None)
    return found


def processor() -> str:
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    result = subprocess.run(command, cwd=RESULTS.parent, capture_output=True, text=True, check=False)
    return result.stdout.strip() or "unknown"


def main() -> None:
    about = {
        "date": datetime.date.today().isoformat(),
        "commit": commit(),
        "device": processor(),
        "threads": os.environ.get("OMP_NUM_THREADS", "1"),
        "numpy": np.__version__,
    }
    rows = []
    print(f"{'task':40} {'median ms':>10} {'best ms':>10} {'limit ms':>10}")
    with tempfile.TemporaryDirectory() as folder:
        for name, (task, limit) in tasks(Path(folder)).items():
            times = milliseconds(task)
            median, best = statistics.median(times), min(times)
            print(f"{name:40} {median:10.2f} {best:10.2f} {limit or '':>10}")
            rows.append({**about, "task": name, "median_ms": f"{median:.3f}", "best_ms": f"{best:.3f}"})
    new = not RESULTS.exists()
    RESULTS.parent.mkdir(exist_ok=True)
    with RESULTS.open("a", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
