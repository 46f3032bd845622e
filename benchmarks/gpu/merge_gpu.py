"""Merging the tours of all views on a GPU, and on the CPU's threads, which must give the same tours.

Instances of a set are decoded with the recommended decoder (bfloat16), without merging and with it; then the
merging is repeated alone, and its tours are compared with those of the CPU. Times are taken after a warm-up,
of merging the best of three; the CPU's, with all threads, is of ``--exact`` instances, once. Rows go to
``benchmarks/results/gpu/merge_gpu.csv`` or to ``--csv``.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import georoutenet as grn
from georoutenet.decode import views
from georoutenet.decode.costs import Costs
from georoutenet.evaluate.references import load_references, random_set
from georoutenet.solver.network import load

sys.path.insert(0, str(Path(__file__).parents[1]))
from rows import append

COLUMNS = (
    "set", "n", "instances", "tours", "decoder", "batch", "decode_s", "decode_with_merge_s", "gap_percent",
    "gap_with_merge_percent", "merge_ms", "merged_per_s", "exact", "equal", "cpu_merged_per_s", "threads",
    "device",
)  # fmt: skip
SETS = {
    "val50": (10_000, "beam-1000-views-8-dominance-length-60", 2048),
    "diag100": (5_000, "beam-1000-views-8-dominance-length-60", 2048),
    "test200": (500, "beam-1000-views-8-dominance-length-60", 512),
    "test1000": (8, "beam-1000-views-8-dominance-length-120", 16),
}


def best_of(times: int, call: Callable[[], Any]) -> tuple[float, Any]:
    found = call()
    seconds = []
    for _ in range(times):
        torch.cuda.synchronize()
        began = time.perf_counter()
        found = call()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return min(seconds), found


def measure(name: str, exact: int) -> tuple[Any, ...]:
    policy = load("georoutenet", "cuda")
    policy.compute_dtype = torch.bfloat16
    count, decoder, batch = SETS[name]
    references = load_references(name).lengths[:count]
    count = len(references)
    coordinates = np.array(random_set(name).coordinates)[:count].astype(np.float64)
    points = torch.from_numpy(coordinates).cuda()
    given: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    merge = views.merge_tours

    def keep(*arguments: Any, **options: Any) -> torch.Tensor:
        given[:] = [(arguments, options)]
        return merge(*arguments, **options)

    def decode(text: str) -> tuple[float, float]:
        seconds, found = best_of(
            1, lambda: views.decode_views(policy, points, text, device="cuda", batch=batch)
        )
        return seconds, float(grn.gap(found.lengths[:, 0].cpu().numpy(), references).mean())

    views.merge_tours = keep
    (plain, gap), (merged, gap_merged) = decode(decoder), decode(f"{decoder}-merge")
    views.merge_tours = merge
    (tours, lengths, costs), options = given[0]
    seconds, found = best_of(3, lambda: merge(tours, lengths, costs, **options))
    own = Costs(costs.coordinates[:exact].cpu(), None, costs.closed, costs.rule)
    there = tours[:exact].cpu(), lengths[:exact].cpu(), own
    merge(*(each[:1] for each in there[:2]), Costs(own.coordinates[:1], None), **options)  # compiles
    began = time.perf_counter()
    wanted = merge(*there, **options)
    on_cpu = time.perf_counter() - began
    equal = int((found[:exact].cpu() == wanted).all(dim=2).sum())
    return (
        name, points.shape[1], count, tours.shape[1], decoder, batch, round(plain, 4), round(merged, 4),
        round(gap, 6), round(gap_merged, 6), round(1e3 * seconds, 3), round(count / seconds),
        len(wanted), equal, round(len(wanted) / on_cpu, 1), torch.get_num_threads(),
        torch.cuda.get_device_name(),
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=list(SETS))
    parser.add_argument("--exact", type=int, default=2_000, help="instances that the CPU merges, too")
    parser.add_argument("--csv", default="gpu/merge_gpu.csv")
    options = parser.parse_args()
    for name in options.sets:
        row = measure(name, options.exact)
        print(*row, flush=True)
        append(options.csv, COLUMNS, [row])


if __name__ == "__main__":
    main()
