"""Speed of the decoders on one CPU core: Numba kernels, the plain PyTorch reference, and a lean PyTorch loop.

Synthetic scores of realistic sharpness: logits ``-20 sqrt(n / 50) * distance`` plus unit noise. All take
turns in one process, three runs each in a turn; times are CPU seconds of this thread, the best of several
turns, because other work on the machine then does not count. Rows are appended to ``results/decoders.csv``.

    python benchmarks/decoders.py [--sizes 50 100 200] [--seconds 6] [--sparse 1000 10000] [--no-beams]
"""

from __future__ import annotations

import argparse
import csv
import datetime
import os
import platform
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

os.environ["NUMBA_NUM_THREADS"] = "1"  # before Numba is imported
os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import torch
from torch import Tensor

import georoutenet
from georoutenet.decode import beam, greedy, sample
from georoutenet.model.scores import Scores

RESULTS = Path(__file__).parent / "results" / "decoders.csv"
RUNS = 3
"""Runs of a contender in a row: its scores are then in the cache, where they fit."""
FIELDS = [
    "date", "commit", "version", "device", "threads", "torch", "decoder", "n", "batch", "tours",
    "backend", "us_per_tour", "instances_per_s", "times_faster_than_reference",
]  # fmt: skip


def example(batch: int, n: int) -> tuple[Tensor, Scores]:
    generator = torch.Generator().manual_seed(n)
    points = torch.rand(batch, n, 2, generator=generator, dtype=torch.float64)
    noise = torch.randn(batch, n, n, generator=generator)
    logits = (-20 * (n / 50) ** 0.5 * torch.cdist(points, points) + noise).float()
    return points, Scores(torch.log_softmax(torch.randn(batch, n, generator=generator), dim=1), logits)


def sparse_example(n: int, candidates: int) -> tuple[Tensor, Scores]:
    """One large instance with candidate lists; pairs outside them cost a distance, not a network."""
    from scipy.spatial import cKDTree

    generator = np.random.default_rng(n)
    points = generator.random((n, 2))
    distances, neighbors = cKDTree(points).query(points, candidates + 1)
    scale = -20 * (n / 50) ** 0.5
    logits = torch.from_numpy(scale * distances[:, 1:] + generator.normal(size=(n, candidates))).float()
    where = torch.from_numpy(points)

    def pairs(b: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (scale * (where[i] - where[j]).norm(dim=1)).float()

    start = torch.full((1, n), -float(np.log(n)))
    return where[None], Scores(start, logits[None], torch.from_numpy(neighbors[None, :, 1:]), pairs)


def lean_loop(scores: Scores, samples: int) -> Tensor:
    """What one would write first: tours alone, no log-probabilities, ``torch.multinomial`` for draws."""
    start = scores.start.repeat_interleave(max(samples, 1), dim=0)
    instance = torch.arange(len(start)) // max(samples, 1)
    every = torch.arange(len(start))
    seen = torch.zeros(start.shape, dtype=torch.bool)

    def pick(rows: Tensor) -> Tensor:
        return torch.multinomial(rows.softmax(dim=1), 1)[:, 0] if samples else rows.argmax(dim=1)

    city = pick(start)
    tour = [city]
    for _ in range(scores.n - 1):
        seen[every, city] = True
        city = pick(scores.logits[instance, city].masked_fill(seen, -torch.inf))
        tour.append(city)
    return torch.stack(tour, dim=1)


def topk_beam(scores: Scores, width: int, points: Tensor) -> Tensor:
    """A beam without exact ties and float64 normalizers, but with ``topk`` instead of a stable sort."""
    n = scores.n
    score, city = scores.start[0].topk(min(width, n))
    tours = city[:, None]
    seen = torch.zeros(len(city), n, dtype=torch.bool).scatter(1, tours, True)
    for _ in range(n - 1):
        rows = scores.logits[0, tours[:, -1]].masked_fill(seen, -torch.inf).log_softmax(dim=1)
        children = (score[:, None] + rows).reshape(-1)
        score, best = children.topk(min(width, int((children > -torch.inf).sum())))
        parent, city = best // n, best % n
        tours = torch.cat([tours[parent], city[:, None]], dim=1)
        seen = seen[parent].scatter(1, city[:, None], True)
    path = points[0, tours]
    return tours[(path - path.roll(-1, 1)).norm(dim=2).sum(dim=1).argmin()]


def processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def take_turns(contenders: dict[str, Callable[[], object]], seconds: float) -> dict[str, float]:
    """Best CPU time of each contender; at least three turns each, then until the time is used up."""
    for run in contenders.values():
        run()  # compiled code and memory
    best = dict.fromkeys(contenders, np.inf)
    began, turns = time.perf_counter(), 0
    while turns < 3 or time.perf_counter() - began < seconds:
        for name, run in contenders.items():
            for _ in range(RUNS):
                before = time.thread_time()
                run()
                best[name] = min(best[name], time.thread_time() - before)
        turns += 1
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[50, 100, 200])
    parser.add_argument("--no-beams", action="store_true", help="greedy and sampled tours only")
    parser.add_argument("--seconds", type=float, default=6.0, help="for each group of contenders")
    parser.add_argument(
        "--sparse", type=int, nargs="*", default=[1000, 10000], help="sizes for beams over 10 candidates"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    ).stdout.strip()
    rows: list[dict[str, object]] = []

    def record(decoder: str, n: int, batch: int, tours: int, run: dict[str, Callable[[], object]]) -> None:
        times = take_turns(run, options.seconds)
        for backend, seconds in times.items():
            one = seconds / batch  # every contender works on the same instances
            rows.append(
                {
                    "date": datetime.date.today().isoformat(),
                    "commit": commit,
                    "version": georoutenet.__version__,
                    "device": processor(),
                    "threads": 1,
                    "torch": torch.__version__,
                    "decoder": decoder,
                    "n": n,
                    "batch": batch,
                    "tours": tours,
                    "backend": backend,
                    "us_per_tour": f"{one / tours * 1e6:.2f}",
                    "instances_per_s": f"{1 / one:.1f}",
                    "times_faster_than_reference": (
                        f"{times['reference'] / seconds:.1f}" if "reference" in times else ""
                    ),
                }
            )
            print(f"{decoder:22s} n={n:<4d} {backend:18s} {one * 1e3:10.4f} ms/instance", end="  ")
            print(f"{rows[-1]['times_faster_than_reference']:>7s}x  {1 / one:10.1f}/s", flush=True)

    for n in options.sizes:
        points, scores = example(128, n)
        record(
            "greedy", n, 128, 1,
            {
                "reference": lambda s=scores: greedy(s, backend="reference"),
                "lean loop": lambda s=scores: lean_loop(s, 0),
                "numba": lambda s=scores: greedy(s, backend="numba"),
                "numba, tours alone": lambda s=scores: greedy(s, backend="numba", log_probabilities=False),
            },
        )  # fmt: skip
        for samples in (1, 16):
            record(
                f"sample {samples}", n, 128, samples,
                {
                    "reference": lambda s=scores, m=samples: sample(s, m, seed=1, backend="reference"),
                    "lean loop": lambda s=scores, m=samples: lean_loop(s, m),
                    "numba": lambda s=scores, m=samples: sample(s, m, seed=1, backend="numba"),
                },
            )  # fmt: skip
        for width in () if options.no_beams else (100, 1000):
            one, where = scores[0], points[:1]
            plain = {
                "reference": lambda s=one, w=width, p=where: beam(s, w, coordinates=p, backend="reference"),
                "lean loop, topk": lambda s=one, w=width, p=where: topk_beam(s, w, p),
                "numba": lambda s=one, w=width, p=where: beam(s, w, coordinates=p, backend="numba"),
                "numba, dominance": lambda s=one, w=width, p=where: beam(s, w, coordinates=p, dominance=True),
            }
            record(f"beam {width}", n, 1, 1, plain)
    for n in [] if options.no_beams else options.sparse:
        points, scores = sparse_example(n, 10)
        for width in (100, 1000) if n <= 1000 else (100,):
            run: dict[str, Callable[[], object]] = {
                "numba": lambda s=scores, w=width, p=points: beam(s, w, coordinates=p),
                "numba, dominance": lambda s=scores, w=width, p=points: beam(
                    s, w, coordinates=p, dominance=True
                ),
            }
            if width * n <= 100_000:
                run["reference"] = lambda s=scores, w=width, p=points: beam(
                    s, w, coordinates=p, backend="reference"
                )
            record(f"sparse beam {width}", n, 1, 1, run)
    RESULTS.parent.mkdir(exist_ok=True)
    new = not RESULTS.exists()
    with RESULTS.open("a", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        if new:
            writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
