"""Speed of the GPU decoders, scores given: rollout, greedy, Beam-1000 and the recommended beam.

Run with ``python benchmarks/gpu/decoders_gpu.py``; ``--sweep`` also times other shapes, without recording
them. Each time is the median of repeated calls between CUDA events, after a warm-up that compiles.
"""

from __future__ import annotations

import argparse
import csv
import io
import statistics
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from itertools import product
from pathlib import Path

import torch
import triton
from torch import Tensor

from georoutenet.decode.gpu.beam import beam_tours
from georoutenet.decode.gpu.rollout import greedy, rollout
from georoutenet.io.atomic import atomic_write

RESULTS = Path(__file__).parents[1] / "results" / "gpu" / "decoders_gpu.csv"
FIELDS = [
    "date",
    "device",
    "torch",
    "triton",
    "decoder",
    "n",
    "batch",
    "tours",
    "ms",
    "instances_per_s",
    "peak_mib",
]


def random_scores(batch: int, n: int) -> tuple[Tensor, Tensor, Tensor]:
    """Distances, and scores that favor short edges as a trained policy's do."""
    generator = torch.Generator("cuda").manual_seed(0)
    coords = torch.rand(batch, n, 2, generator=generator, device="cuda", dtype=torch.float64)
    distances = torch.cdist(coords, coords)
    start = torch.randn(batch, n, generator=generator, device="cuda").log_softmax(1)
    noise = torch.randn(batch, n, n, generator=generator, device="cuda")
    return start, (-30 * distances).float() + noise, distances


def milliseconds(call: Callable[[], object], *, seconds: float = 1.0) -> tuple[float, float]:
    """Median time of a call, and the most memory it held beyond what was there before, in MiB."""
    call()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    times: list[float] = []
    while len(times) < 5 or (sum(times) < 1000 * seconds and len(times) < 200):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        call()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times), (torch.cuda.max_memory_allocated() - before) / 2**20


def replayed(call: Callable[[], object]) -> Callable[[], object]:
    """The call as a CUDA graph, which leaves out the launch from Python, as a captured training step does."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def measure() -> list[dict[str, object]]:
    machine = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
    }
    rows: list[dict[str, object]] = []

    def add(decoder: str, n: int, batch: int, tours: int, call: Callable[[], object]) -> None:
        ms, peak = milliseconds(call)
        speed = f"{batch / ms * 1000:.0f}"
        row = {"decoder": decoder, "n": n, "batch": batch, "tours": tours, "ms": f"{ms:.4f}"}
        rows.append({**machine, **row, "instances_per_s": speed, "peak_mib": f"{peak:.0f}"})
        print(f"{decoder:<20}{n:>6}{batch:>8}{tours:>7}{ms:>12.4f}{speed:>15}{peak:>10.0f}", flush=True)

    print(machine["device"], "torch", machine["torch"], "triton", machine["triton"])
    headings = ("decoder", "n", "batch", "tours", "ms", "instances/s", "MiB")
    print("{:<20}{:>6}{:>8}{:>7}{:>12}{:>15}{:>10}".format(*headings))
    seed = torch.ones(1, dtype=torch.int64, device="cuda")
    for n in (50, 100):
        start, logits, _ = random_scores(512, n)
        draw = partial(rollout, start, logits, samples=48, seed=seed, dtype=torch.int32)
        add("rollout", n, 512, 49, draw)
        add("rollout in a graph", n, 512, 49, replayed(draw))
        start, logits, _ = random_scores(10_000, n)
        add("greedy", n, 10_000, 1, partial(greedy, start, logits))
    for n, batch in ((50, 1000), (100, 500)):
        start, logits, distances = random_scores(batch, n)
        for width in (1000, 32):
            search = partial(beam_tours, start, logits, width=width, distances=distances, keep=1)
            add(f"beam {width}", n, batch, width, search)
        # The recommended decoder: 8 views of each instance, 125 beams each, dominance, length weight 60.
        start, logits, distances = random_scores(8 * batch, n)
        values = (logits - 60 * distances).float()
        views = partial(
            beam_tours,
            start,
            logits,
            width=125,
            values=values,
            distances=distances,
            dominance=True,
            keep=1,
        )
        add("8 views, dominance", n, batch, 1000, views)
        wide = partial(
            beam_tours,
            start[:batch],
            logits[:batch],
            width=1000,
            values=values[:batch],
            distances=distances[:batch],
            dominance=True,
            keep=1,
        )
        add("beam 1000, dominance", n, batch, 1000, wide)
    return rows


def sweep() -> None:
    """Times of other launch shapes, to choose the defaults by."""
    seed = torch.ones(1, dtype=torch.int64, device="cuda")
    for n in (50, 100):
        start, logits, _ = random_scores(512, n)
        draw = partial(rollout, start, logits, samples=48, seed=seed, dtype=torch.int32)
        for elements, num_warps in product((64, 128, 256, 512), (1, 2)):
            shaped = partial(draw, elements=elements, num_warps=num_warps)
            ms, _ = milliseconds(replayed(shaped), seconds=0.1)
            print(f"rollout n={n} elements={elements} num_warps={num_warps}: {ms:.4f} ms", flush=True)
    for n, batch in ((50, 1000), (100, 500)):
        start, logits, _ = random_scores(batch, n)
        for num_warps, registers in product((4, 8, 16, 32), (64, 80, 96, None)):
            if num_warps == 32 and registers != 64:
                continue  # 1,024 threads have 64 registers each
            search = partial(beam_tours, start, logits, width=1000, keep=1)
            ms, _ = milliseconds(partial(search, num_warps=num_warps, registers=registers), seconds=0.2)
            shape = f"num_warps={num_warps} registers={registers}"
            print(f"beam n={n} {shape}: {ms:.2f} ms, {batch / ms * 1000:.0f}/s", flush=True)
        start, logits, distances = random_scores(8 * batch, n)
        for num_warps, registers in product((1, 2, 4), (64, 96, 128)):
            search = partial(
                beam_tours, start, logits, width=125, distances=distances, dominance=True, keep=1
            )
            ms, _ = milliseconds(partial(search, num_warps=num_warps, registers=registers), seconds=0.2)
            shape = f"num_warps={num_warps} registers={registers}"
            print(f"8 views, dominance n={n} {shape}: {ms:.2f} ms, {batch / ms * 1000:.0f}/s", flush=True)


def append(rows: list[dict[str, object]]) -> None:
    old = RESULTS.read_text(encoding="utf-8") if RESULTS.exists() else ""
    text = io.StringIO()
    writer = csv.DictWriter(text, FIELDS, lineterminator="\n")
    if not old:
        writer.writeheader()
    writer.writerows(rows)
    with atomic_write(RESULTS) as file:
        file.write(old + text.getvalue())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sweep", action="store_true", help="also time other launch shapes")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs a CUDA device, and none was found")
    append(measure())
    if arguments.sweep:
        sweep()


if __name__ == "__main__":
    main()
