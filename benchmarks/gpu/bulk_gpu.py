"""``solve_bulk`` on GPUs, file to file: instances of 50 to 200 cities from ``.npy`` files to ``.npz`` shards.

    python benchmarks/gpu/bulk_gpu.py --count 1000000 --workers 3 [--csv gpu/bulk_gpu.csv]

Instances are uniform, in files of one size each whose sizes follow one another at random, so that every shard
has all sizes. A row has the wall seconds of the whole call, start-up included, the share of time in which the
first GPU was busy by ``nvidia-smi`` (looked at five times a second), and the mean length; a sample of the
tours is checked to be permutations of the length they are said to have. Rows go to ``benchmarks/results``.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import georoutenet as grn

sys.path.insert(0, str(Path(__file__).parents[1]))
from rows import append

COLUMNS = (
    "count", "workers", "kicks", "seconds", "per_second", "gpu_busy_percent", "errors", "mean_length",
    "checked",
)  # fmt: skip
FILES, LEAST, MOST = 604, 50, 200


def write(folder: Path, count: int, seed: int) -> None:
    numbers = np.random.default_rng(seed)
    sizes = numbers.integers(LEAST, MOST + 1, FILES)
    for k, part in enumerate(np.array_split(np.arange(count), FILES)):
        np.save(folder / f"{k:05}.npy", numbers.random((len(part), sizes[k], 2)))


def check(source: Path, shards: Path, every: int) -> tuple[float, int]:
    """Mean length of all, and how many tours were looked at."""
    points = [cities for path in sorted(source.iterdir()) for cities in np.load(path)]
    lengths, checked, at = [], 0, 0
    for path in sorted(shards.glob("*.npz")):
        with np.load(path) as shard:
            own, sizes, tours = shard["length"], shard["n"], shard["tour"]
            lengths.append(own)
            begin = np.concatenate([[0], np.cumsum(sizes)])
            for k in range(0, len(own), every):
                tour = tours[begin[k] : begin[k + 1]]
                exact = grn.tour_length(grn.Instance(points[at + k]), tour)  # refuses what is no permutation
                assert abs(exact - own[k]) < 1e-9 * exact, (path, k)
                checked += 1
            at += len(own)
    assert at == len(points), (at, len(points))
    return float(np.concatenate(lengths).mean()), checked


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--workers", type=int, help="processes (default: as solve_bulk chooses)")
    parser.add_argument("--kicks", type=int, help="of each instance (default: until little is to be gained)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--csv", default="gpu/bulk_gpu.csv")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        source, out = Path(name, "in"), Path(name, "out")
        source.mkdir()
        write(source, options.count, options.seed)
        how = {} if options.kicks is None else {"stop": grn.MaxIterations(options.kicks)}
        if options.workers:
            how["workers"] = options.workers
        watch = subprocess.Popen(
            ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-lms", "200"],
            stdout=subprocess.PIPE,
            text=True,
        )
        began = time.perf_counter()
        done = grn.solve_bulk(source, out, device=options.device, format="npz", **how)
        seconds = time.perf_counter() - began
        watch.kill()
        seen = [float(line) for line in watch.communicate()[0].splitlines() if line.strip().isdigit()]
        mean, checked = check(source, out, every=97)
        busy = round(statistics.mean(seen), 1) if seen else ""
        row = (
            options.count, options.workers or "", options.kicks or "", round(seconds, 2),
            round(options.count / seconds, 1), busy, done.errors, round(mean, 6), checked,
        )  # fmt: skip
        print(*row, flush=True)
        append(options.csv, COLUMNS, [row])


if __name__ == "__main__":
    main()
