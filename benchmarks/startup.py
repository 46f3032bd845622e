"""Time from typing ``georoutenet --help`` to its end, in new processes.

    python benchmarks/startup.py

Prints the median and the best of ten runs after one to warm the file cache. It should stay under 0.5 s, which
it does as long as nothing imports torch, matplotlib, Numba or SciPy at the start.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

LIMIT_S = 0.5


def seconds(*arguments: str) -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


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
        print(f"{name:<20} median {median:.3f} s, best {min(times):.3f} s{verdict}")


if __name__ == "__main__":
    main()
