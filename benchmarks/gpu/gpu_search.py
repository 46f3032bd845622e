"""The GPU's local search: gap against instances per second, from three kinds of first tours, beside the CPU.

    python benchmarks/gpu/gpu_search.py                      # test50, test100, test200, test1000
    python benchmarks/gpu/gpu_search.py --n 100 --depth 1 3 5
    python benchmarks/gpu/gpu_search.py --n 100 --iterations 0 50      # 0: lists of the nearest, not by alpha
    python benchmarks/gpu/gpu_search.py --dry-run            # no GPU: a few kicks in the emulator, no rows
    python benchmarks/gpu/gpu_search.py --dry-run --n 100 --first curve --count 24 --kicks 512 --csv FILE

The instances of the test sets, repeated up to ``--count``, are taken to more and more kicks; a row is
written each time their number has doubled: mean gap to the packaged references, seconds of the first tours
and of the search since, its neighbor lists included (the device is waited for), instances and kicks per
second of both together. ``greedy-edge`` is made by one CPU thread, ``network`` by the packaged weights with
greedy decoding of one view. The rows ``cpu`` are ``solve_batch(device="cpu")`` on all cores. Rows go to
``benchmarks/results/gpu/gpu_search.csv`` or to another file, ``--csv``. In the emulator kicks and gaps are
those of a GPU; times mean nothing.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import georoutenet as grn
from georoutenet.evaluate.references import load_references, random_set
from georoutenet.search.construct import greedy_edge
from georoutenet.search.gpu.cycle import curves
from georoutenet.search.gpu.engine import ITERATIONS, Walks, walks_to_fill
from georoutenet.search.path import Ends

sys.path.insert(0, str(Path(__file__).parents[1]))
from rows import append

COUNTS = {50: 20_000, 100: 20_000, 200: 20_000, 1000: 4_096}
COLUMNS = (
    "n", "count", "first", "walks", "depth", "iterations", "kicks", "seconds_first", "seconds_search",
    "instances_per_second", "kicks_per_second", "mean_gap_percent", "not_at_reference", "device",
)  # fmt: skip


def by_network(points: Tensor) -> Tensor:
    device = "cuda" if points.is_cuda else "cpu"
    decoder = "greedy-views-1"
    tours, _ = grn.solve_batch(points, decoder=decoder, improve=False, device=device)
    return torch.as_tensor(tours)


def by_greedy_edge(points: Tensor) -> Tensor:
    tours = [greedy_edge(cities) for cities in points.cpu().numpy()]
    return torch.as_tensor(np.array(tours)).to(points.device)


FIRST: dict[str, Callable[[Tensor], Tensor]] = {
    "curve": curves,
    "greedy-edge": by_greedy_edge,
    "network": by_network,
}


def wait(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def on_gpu(
    points: Tensor, references: np.ndarray, first: str, depth: int, iterations: int, most: int
) -> Iterator[tuple[object, ...]]:
    """A row each time the number of kicks has doubled."""
    count, n, device = len(points), points.shape[1], points.device
    ends = Ends(n)
    walks = walks_to_fill(device, count) if device.type == "cuda" else 1
    warm = Walks(
        points[:2], FIRST[first](points[:2]), ends=ends, depth=depth, iterations=iterations
    )  # compiles
    warm.run(1)
    began = wait(device)
    tours = FIRST[first](points)
    middle = wait(device)
    search = Walks(points, tours, ends=ends, depth=depth, walks=walks, iterations=iterations)
    kicks, step, seconds = 0, 0, 0.0
    while True:
        since = middle if not step and not kicks else wait(device)
        search.run(step)
        seconds += wait(device) - since
        kicks += step
        lengths = search.found().lengths.cpu().numpy()  # not timed
        gaps = grn.gap(lengths, references)
        total = middle - began + seconds
        yield (
            n, count, first, walks, depth, iterations, kicks, round(middle - began, 4), round(seconds, 4),
            round(count / total, 1), round(count * walks * kicks / seconds, 1), round(float(gaps.mean()), 6),
            int((gaps > 1e-6).sum()), device_name(device),
        )  # fmt: skip
        if kicks >= most:
            return
        step = min(max(1, kicks), most - kicks)


def on_cpu(points: np.ndarray, references: np.ndarray, kicks: int) -> tuple[object, ...]:
    """The search on all cores, to so many kicks of each instance."""
    grn.solve_batch(points[:2], device="cpu", stop=grn.MaxIterations(1))
    began = time.perf_counter()
    lengths = grn.solve_batch(points, device="cpu", tours=False, stop=grn.MaxIterations(kicks))
    seconds = time.perf_counter() - began
    gaps = grn.gap(lengths, references)
    count, n = points.shape[:2]
    return (
        n, count, "greedy-edge", 1, 10, 100, kicks, 0.0, round(seconds, 4), round(count / seconds, 1),
        round(count * kicks / seconds, 1), round(float(gaps.mean()), 6), int((gaps > 1e-6).sum()), "cpu",
    )  # fmt: skip


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "emulator"


def emulate() -> None:
    """Kernels run in the tests' emulator."""
    import pytest

    sys.path.append(str(Path(__file__).parents[2] / "tests" / "kernels" / "cuda"))
    from emulated import emulate

    emulate(pytest.MonkeyPatch())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--n", type=int, nargs="+", default=list(COUNTS), choices=list(COUNTS))
    parser.add_argument("--count", type=int, help="instances (default: 20,000; 4,096 of 1,000 cities)")
    parser.add_argument("--first", nargs="+", default=list(FIRST), choices=list(FIRST))
    parser.add_argument("--depth", type=int, nargs="+", default=[5])
    parser.add_argument("--iterations", type=int, nargs="+", default=[ITERATIONS], help="of the ascent")
    parser.add_argument("--kicks", type=int, help="of a walk, at most (default: 4096; 2 in a dry run)")
    parser.add_argument("--cpu", type=int, help="instances of the CPU's rows (default: 200 or --count)")
    parser.add_argument("--csv", type=Path, help="the file to append to")
    parser.add_argument("--dry-run", action="store_true", help="a few kicks in the emulator, no rows")
    options = parser.parse_args()
    target = options.csv
    if options.dry_run:
        emulate()
        options.kicks, options.count = options.kicks or 2, options.count or 2
        options.n = [n for n in options.n if n <= 200]
    elif not torch.cuda.is_available():
        parser.error("there is no CUDA device; --dry-run needs none")
    else:
        target, options.kicks = target or Path("gpu/gpu_search.csv"), options.kicks or 4096
    device = torch.device("cpu" if options.dry_run else "cuda")
    cpu = min(200, options.count or 200) if options.cpu is None else options.cpu
    for n in options.n:
        known = load_references(f"test{n}").lengths
        own = np.arange(options.count or COUNTS[n]) % len(known)
        cities = np.array(random_set(f"test{n}").coordinates)[own].astype(np.float64)
        points = torch.from_numpy(cities).to(device)
        for first in options.first:
            for depth, iterations in product(options.depth, options.iterations):
                for row in on_gpu(points, known[own], first, depth, iterations, options.kicks):
                    keep(row, target)
        part = slice(0, cpu)
        for kicks in (0, 16, 64, 256, 512, 1024, 4096) if cpu else ():
            if kicks <= options.kicks:
                keep(on_cpu(cities[part], known[own][part], kicks), target)


def keep(row: tuple[object, ...], target: Path | None) -> None:
    print(*row, flush=True)
    if target is not None:
        append(str(target), COLUMNS, [row])


if __name__ == "__main__":
    main()
