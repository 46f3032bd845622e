"""One row of quality and speed per release, compared with the row before: ``make gate``.

    python benchmarks/gate.py [--no-record] [--accept]

Times are CPU seconds (user and system, of all threads), which other work on the machine disturbs least; they
are compared only with a row of the same hardware. Fails where a figure is worse than the last row's by more
than its margin, and then writes no row, with which the next run would compare. Rows go to
``benchmarks/results/gate.csv``.
"""

from __future__ import annotations

import argparse
import csv
import os
import resource
import subprocess
import sys
import tempfile
import time
from typing import Any

import numpy as np
from rows import RESULTS, about, append

import georoutenet as grn
from georoutenet.evaluate.references import load_references, random_set

FILE = "gate.csv"
# For each figure how much worse than in the last row it may be: points for gaps, a share for times and rates.
MARGINS = {
    "import_s": 1.0,  # of some hundredths of a second
    "first_tour_s": 0.25,
    "test50_per_s": 0.15,
    "test100_per_s": 0.15,
    "test50_gap": 0.005,
    "test100_gap": 0.01,
    "test1000_gap": 0.05,  # half of what it is; the kicks are counted, so that speed does not change it
    "val50_greedy_gap": 0.02,
    "val50_beam_gap": 0.02,
}
FIRST = "import numpy, georoutenet as g; g.solve(numpy.random.default_rng(0).random((100, 2)), device='cpu')"


def in_new_process(code: str) -> float:
    """CPU seconds of a new Python that runs ``code``, with nothing compiled before."""
    with tempfile.TemporaryDirectory() as folder:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", code], env=os.environ | {"NUMBA_CACHE_DIR": folder}, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def bulk(name: str, count: int, **options: Any) -> tuple[float, float]:
    """Mean gap in percent over the first instances of a set, and instances per CPU second."""
    options |= {"workers": 1, "device": "cpu"}
    cities = list(np.array(random_set(name).coordinates[:count]))
    grn.solve_many(cities[:2], **options)
    began = time.process_time()
    results = grn.solve_many(cities, **options)
    took = time.process_time() - began
    gaps = grn.gap([result.length for result in results], load_references(name).lengths[:count])
    return float(np.mean(gaps)), count / took


def measure() -> dict[str, float]:
    found = {"import_s": in_new_process("import georoutenet"), "first_tour_s": in_new_process(FIRST)}
    for name in ("test50", "test100"):
        found[f"{name}_gap"], found[f"{name}_per_s"] = bulk(name, 300)
    found["test1000_gap"] = bulk("test1000", 3, stop=grn.MaxIterations(40_000))[0]  # about a second each
    for name, decoder in (("greedy", "greedy"), ("beam", "beam-100")):
        found[f"val50_{name}_gap"] = bulk("val50", 100, decoder=decoder, improve=False)[0]
    return found


def worse(figure: str, new: float, old: float) -> bool:
    """Whether a figure is worse than it was by more than its margin."""
    margin = MARGINS[figure]
    if figure.endswith("_gap"):
        return new > old + margin
    return new < old * (1 - margin) if figure.endswith("_per_s") else new > old * (1 + margin)


def compare(new: dict[str, float], old: dict[str, str], same_hardware: bool) -> list[str]:
    """What got worse, in words; times only where the hardware is the same."""
    return [
        f"{figure}: {new[figure]:.4g}, was {float(old[figure]):.4g} in {old['version']} ({old['commit']})"
        for figure in MARGINS
        if (same_hardware or figure.endswith("_gap")) and worse(figure, new[figure], float(old[figure]))
    ]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--no-record", action="store_true", help="compare only, write no row")
    parser.add_argument(
        "--accept", action="store_true", help="write the row, and end well, although it is worse"
    )
    options = parser.parse_args(arguments)
    found = measure()
    for figure in MARGINS:
        print(f"{figure:18} {found[figure]:.5g}")
    path = RESULTS / FILE
    last = list(csv.DictReader(path.open(encoding="utf-8")))[-1] if path.exists() else None
    complaints = [] if last is None else compare(found, last, last["hardware"] == about()[2])
    if complaints and not options.accept:
        sys.exit("worse than the last row, so no row is written:\n" + "\n".join(complaints))
    if not options.no_record:
        append(FILE, ("version", *MARGINS), [(grn.__version__, *(round(found[one], 5) for one in MARGINS))])


if __name__ == "__main__":
    main()
