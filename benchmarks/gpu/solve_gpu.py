"""``solve_batch`` from host arrays to host tours on a GPU, beside solvers on the cores of the same machine.

    python benchmarks/gpu/solve_gpu.py network     # decoders alone: val50, diag100, test50 ... test1000
    python benchmarks/gpu/solve_gpu.py search      # the search, at several limits of kicks and by default
    python benchmarks/gpu/solve_gpu.py one         # one instance of 100 cities, from coordinates to its tour
    python benchmarks/gpu/solve_gpu.py peers       # fast-tsp, LKH and our own search, a process on each core

Rates are of fresh uniform instances, the best of ``--repeats`` after a warm-up; gaps of the named held-out
sets (val50 and diag100: sets of selection), to their packaged references. Every row is one setting. Rows
go to ``benchmarks/results/gpu/solve_gpu.csv`` or to ``--csv``, and lengths of each instance to ``--lengths
FILE.npz``. A peer that finds no tour in its time is given twice as much.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import georoutenet as grn
from georoutenet.evaluate.references import load_references, random_set

sys.path.insert(0, str(Path(__file__).parents[1]))
from rows import append

COLUMNS = (
    "what", "setting", "set", "n", "count", "seconds", "instances_per_second", "instances_of_gap",
    "mean_gap_percent", "not_at_reference", "device",
)  # fmt: skip
RECOMMENDED = "beam-1000-views-8-dominance-length-60"
DECODERS = {
    "val50": ("greedy", "beam-1000", RECOMMENDED, RECOMMENDED + "-merge"),
    "diag100": ("greedy", "beam-1000", RECOMMENDED, RECOMMENDED + "-merge"),
    "test50": (RECOMMENDED + "-merge",),
    "test100": (RECOMMENDED + "-merge",),
    "test200": (RECOMMENDED + "-merge",),
    "test500": ("beam-1000-views-8-dominance-length-120-merge-candidates-32",),
    "test1000": ("beam-1000-views-8-dominance-length-120-merge-candidates-32",),
}
FRESH = {50: 20_000, 100: 20_000, 200: 10_000, 1000: 4_096}
FEWER = {200: 4_000, 500: 512, 1000: 256}
"""Where the network decodes over candidate lists or many pairs."""
KICKS: dict[int, tuple[int, ...]] = {
    50: (100, 300, 1_000),
    100: (300, 1_000, 3_000),
    200: (1_000, 3_000, 10_000),
    1000: (3_000, 10_000, 30_000),
}
SECONDS = {50: (0.01, 0.03), 100: (0.02, 0.05), 200: (0.05, 0.2), 1000: (0.5, 2.0)}
"""For fast-tsp and LKH, each instance."""
kept: dict[str, NDArray[np.float64]] = {}


def fresh(n: int, count: int) -> NDArray[np.float64]:
    return np.random.default_rng([n, 2026]).random((count, n, 2))


def wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def best_of(repeats: int, function: Callable[[], Any]) -> float:
    seconds = []
    for _ in range(repeats):
        wait()
        began = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def measure(
    what: str, setting: str, name: str, settings: argparse.Namespace, **options: Any
) -> tuple[Any, ...]:
    """One row: the rate on fresh instances, the gap on the named ones."""
    n = int("".join(each for each in name if each.isdigit()))
    options["device"] = settings.device
    cities = fresh(n, settings.count or (FEWER if what == "network" and n >= 200 else FRESH)[n])
    grn.solve_batch(cities[:64], **options)  # compiles
    grn.solve_batch(cities[: len(cities) // 2], **options)
    seconds = best_of(settings.repeats, lambda: grn.solve_batch(cities, **options))
    references = load_references(name).lengths[: settings.of_gap]
    points = np.array(random_set(name).coordinates)[: len(references)].astype(np.float64)
    lengths = grn.solve_batch(points, tours=False, **options)
    kept[f"{what} {setting} {name}"] = lengths
    return row(what, setting, name, n, len(cities), seconds, lengths, references, device_name(settings))


def device_name(settings: argparse.Namespace) -> str:
    return torch.cuda.get_device_name() if settings.device == "cuda" else settings.device


def row(
    what: str,
    setting: str,
    name: str,
    n: int,
    count: int,
    seconds: float,
    lengths: Any,
    references: Any,
    device: str,
) -> tuple[Any, ...]:
    gaps = grn.gap(lengths, references)
    return (
        what, setting, name, n, count, round(seconds, 4), round(count / seconds, 1), len(gaps),
        round(float(gaps.mean()), 6), int((gaps > 1e-6).sum()), device,
    )  # fmt: skip


def one(settings: argparse.Namespace) -> list[tuple[Any, ...]]:
    """A single instance: the median, since a user waits once."""
    rows = []
    for n in (50, 100, 200):
        for decoder in ("greedy", "beam-1000"):
            cities = fresh(n, 1)
            options: dict[str, Any] = {"decoder": decoder, "improve": False, "device": settings.device}
            for _ in range(5):
                grn.solve_batch(cities, **options)
            call = partial(grn.solve_batch, cities, **options)
            seconds = statistics.median(best_of(1, call) for _ in range(50))
            rows.append(
                (
                    "one",
                    decoder,
                    "",
                    n,
                    1,
                    round(seconds, 6),
                    round(1 / seconds, 1),
                    0,
                    "",
                    "",
                    device_name(settings),
                )
            )
    return rows


def solved_by(job: tuple[str, NDArray[np.float64], float]) -> list[float]:
    """Lengths of the tours of a peer, in a process of its own."""
    from solve_peers import SOLVERS

    solver, cities, seconds = job
    os.environ["NUMBA_NUM_THREADS"] = "1"
    found = []
    for points in cities:
        instance = grn.Instance(points)
        if solver == "ours":
            found.append(float(grn.solve_many([instance], device="cpu", workers=1)[0].length))
        else:
            tour, given = np.empty(0, dtype=np.int64), seconds
            while len(tour) < len(points):
                tour, given = SOLVERS[solver](instance, given, 0), 2 * given
            found.append(float(grn.tour_length(instance, tour)))
    return found


def peers(sizes: list[int], cores: int, share: float) -> list[tuple[Any, ...]]:
    """All cores at once, for about ``share`` seconds a row."""
    rows = []
    with get_context("spawn").Pool(cores) as pool:
        for n in sizes:
            references = load_references(f"test{n}").lengths
            points = np.array(random_set(f"test{n}").coordinates)[: len(references)].astype(np.float64)
            pool.map(
                solved_by,
                [(solver, points[:1], 0.1) for solver in ("ours", "fast-tsp") for _ in range(cores)],
            )
            for solver, seconds in [
                ("ours", 0.0),
                *((peer, s) for peer in ("fast-tsp", "lkh") for s in SECONDS[n]),
            ]:
                each = seconds or {50: 0.006, 100: 0.02, 200: 0.1, 1000: 2.0}[n]
                count = min(len(points), cores * max(1, round(share / each)))
                parts = np.array_split(points[:count], cores)
                began = time.perf_counter()
                lengths = np.concatenate(
                    pool.map(solved_by, [(solver, part, seconds) for part in parts], chunksize=1)
                )
                taken = time.perf_counter() - began
                setting = f"{seconds:g} s each" if seconds else "default"
                rows.append(
                    row(
                        solver,
                        setting,
                        f"test{n}",
                        n,
                        count,
                        taken,
                        lengths,
                        references[:count],
                        f"{cores} cores",
                    )
                )
                print(*rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", nargs="+", choices=("network", "search", "one", "peers"))
    parser.add_argument("--sets", nargs="+", help="of those above")
    parser.add_argument("--count", type=int, default=0, help="fresh instances (default: by size)")
    parser.add_argument("--of-gap", type=int, help="instances of the named sets (default: all)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--cores", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--share", type=float, default=4.0, help="seconds of a row of peers")
    parser.add_argument("--csv", default="gpu/solve_gpu.csv")
    parser.add_argument("--lengths", type=Path)
    options = parser.parse_args()

    def keep(found: tuple[Any, ...]) -> None:
        print(*found, flush=True)
        append(options.csv, COLUMNS, [found])

    if "one" in options.what:
        for found in one(options):
            keep(found)
    if "network" in options.what:
        for name, decoders in DECODERS.items():
            for decoder in decoders:
                if not options.sets or name in options.sets:
                    keep(measure("network", decoder, name, options, decoder=decoder, improve=False))
    if "search" in options.what:
        for n, kicks in KICKS.items():
            if options.sets and f"test{n}" not in options.sets:
                continue
            for most in kicks:
                stop = grn.MaxIterations(most)
                keep(measure("search", f"{most} kicks", f"test{n}", options, stop=stop))
            keep(measure("search", "default", f"test{n}", options))
    if "peers" in options.what:
        sizes = [n for n in KICKS if not options.sets or f"test{n}" in options.sets]
        append(options.csv, COLUMNS, peers(sizes, options.cores, options.share))
    if options.lengths:
        np.savez_compressed(options.lengths, **kept)


if __name__ == "__main__":
    main()
