"""The fused edge kernels on a GPU: forward and backward, by launch shape, against compiled PyTorch.

    python benchmarks/edge_kernels.py [--batch 512] [--n 50] [--csv benchmarks/results/edge_kernels.csv]

Appends to the CSV file.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import subprocess
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from triton.testing import do_bench

from georoutenet.model import edge_ends_triton, edge_update_triton
from georoutenet.model.tiles_triton import Launch

RESULTS = Path(__file__).parent / "results" / "edge_kernels.csv"
FORWARD = [
    Launch(64, warps=4, stages=2, share=3, registers=168),
    Launch(64, warps=4, stages=1, share=3, registers=168),
    Launch(64, warps=4, stages=2, share=2),
    Launch(64, warps=4, stages=3, share=2),
    Launch(64, warps=8, stages=2, share=2, registers=128),
    Launch(128, warps=8, stages=2, share=1),
]
BACKWARD = [
    Launch(64, warps=4, stages=2, share=2),
    Launch(64, warps=4, stages=1, share=2),
    Launch(64, warps=4, stages=3, share=2),
    Launch(128, warps=8, stages=2, share=1),
]
SUMS = [
    Launch(64, warps=8, stages=3, share=1),
    Launch(64, warps=8, stages=2, share=1),
    Launch(32, warps=8, stages=4, share=1),
    Launch(64, warps=4, stages=3, share=1),
]
ENDS_BACKWARD = [
    Launch(128, warps=8, stages=2, share=1),
    Launch(128, warps=8, stages=1, share=1),
    Launch(64, warps=4, stages=2, share=2),
]


class Table:
    """Milliseconds of what was measured, printed at once and appended to a file at the end."""

    def __init__(self, batch: int, n: int) -> None:
        commit = subprocess.run(["git", "describe", "--always"], capture_output=True, text=True, check=False)
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        device = torch.cuda.get_device_name()
        self.run = [today, commit.stdout.strip(), device, torch.__version__, batch, n]
        self.rows: list[list[object]] = []

    def measure(self, what: str, launch: Launch | None, function: Callable[[], object]) -> float:
        try:
            milliseconds = do_bench(function, warmup=20, rep=100, return_mode="median")
        except Exception as error:  # a launch that does not fit on the chip is a result too
            print(f"{what:26} {launch}: {type(error).__name__} {error}"[:200], flush=True)
            return float("inf")
        shape = "" if launch is None else str(launch)
        print(f"{what:26} {milliseconds:8.4f} ms {shape}", flush=True)
        self.rows.append([*self.run, what, shape, f"{milliseconds:.4f}"])
        return milliseconds

    def best(
        self, launches: dict[str, Launch], key: str, choices: list[Launch], what: str, f: Callable
    ) -> None:
        """Time every launch shape; keep the fastest for what follows."""
        times = []
        for choice in choices:
            launches[key] = choice
            times.append(self.measure(what, choice, f))
        launches[key] = choices[times.index(min(times))]

    def append(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        is_new = not path.exists()
        with path.open("a", newline="") as file:
            writer = csv.writer(file)
            if is_new:
                head = ["date", "commit", "device", "torch", "batch", "n", "what", "launch", "milliseconds"]
                writer.writerow(head)
            writer.writerows(self.rows)


def arguments(shapes: list[tuple[int, ...]], narrow: int) -> list[Tensor]:
    """Random tensors of these shapes, the first ``narrow`` of them in bfloat16."""
    torch.manual_seed(0)
    values = [torch.randn(s, device="cuda") * (s[-1] ** -0.5 if len(s) == 2 else 1) for s in shapes]
    return [v.bfloat16() if k < narrow else v for k, v in enumerate(values)]


def both(function: Callable[..., Tensor], values: list[Tensor]) -> Callable[[], None]:
    """Forward and backward with gradients of all arguments."""
    leaves = [value.detach().requires_grad_(value.is_floating_point()) for value in values]
    with torch.no_grad():
        upstream = torch.randn_like(function(*leaves))

    def run() -> None:
        for leaf in leaves:
            leaf.grad = None
        function(*leaves).backward(upstream)

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--n", type=int, default=50)
    parser.add_argument("--csv", type=Path, default=RESULTS)
    options = parser.parse_args()
    batch, n, d = options.batch, options.n, 128
    table = Table(batch, n)

    update = edge_update_triton
    values = arguments([(batch, n, n, d), (batch, n, d), (batch, n, d), (d, d), (d,), (d,)], 3)
    e, source, target, weight, gamma, beta = values
    narrow = (e, source, target, weight.bfloat16(), gamma)
    grad = torch.randn_like(e)
    forward = partial(update._forward_pass, (*narrow, beta))
    table.best(update.LAUNCH, "forward", FORWARD, "update forward", forward)
    _, scales, shifts = forward()
    backward = partial(update._backward_pass, (*narrow, scales, shifts), grad)
    table.best(update.LAUNCH, "backward", BACKWARD, "update backward (all)", backward)
    table.best(update.LAUNCH, "sums", SUMS, "update backward (all)", backward)
    table.measure("update both", None, both(update.edge_update, values))
    plain = torch.compile(update.edge_update_reference)
    table.measure(
        "update compiled both", None, both(plain, [*values[:3], *(v.bfloat16() for v in values[3:])])
    )

    ends = edge_ends_triton
    distance = torch.rand(batch, n, n, device="cuda")
    centers, bandwidth = torch.linspace(0, 1.4, 16, device="cuda"), torch.tensor(0.1, device="cuda")
    maps = arguments([(d, 16), (d,), (d, d), (d,)], 0)
    embedding = partial(ends.edge_embedding, distance, dtype=torch.bfloat16)
    ends_forward = [replace(launch) for launch in FORWARD]
    run = partial(embedding, centers, bandwidth, *maps)
    table.best(ends.LAUNCH, "embedding", ends_forward, "embedding forward", run)
    run_both = both(embedding, [centers, bandwidth, *maps])
    table.best(ends.LAUNCH, "embedding_backward", ENDS_BACKWARD, "embedding both", run_both)
    reference = torch.compile(partial(ends.edge_embedding_reference, distance, dtype=torch.bfloat16))
    table.measure("embedding compiled both", None, both(reference, [centers, bandwidth, *maps]))

    values = arguments([(batch, n, n, d), (d, d), (d,), (d,), (1,)], 1)
    run = partial(ends.edge_logit, *values)
    table.best(ends.LAUNCH, "logit", ends_forward, "logit forward", run)
    run_both = both(ends.edge_logit, values)
    table.best(ends.LAUNCH, "logit_backward", ENDS_BACKWARD, "logit both", run_both)
    table.measure("logit compiled both", None, both(torch.compile(ends.edge_logit_reference), values))
    table.append(options.csv)
    for launches in (update.LAUNCH, ends.LAUNCH):
        print("\n".join(f"best {key}: {launch}" for key, launch in launches.items()))


if __name__ == "__main__":
    main()
