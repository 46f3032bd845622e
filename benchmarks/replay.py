"""The replay of given tours on a GPU: forward and backward, fused by launch shape, against compiled PyTorch.

    python benchmarks/replay.py [--batch 512] [--n 50] [--tours 48]

Appends to benchmarks/results/replay.csv.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import subprocess
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from triton.testing import do_bench

from georoutenet.decode import replay_triton
from georoutenet.decode.replay import replay_reference

RESULTS = Path(__file__).parent / "results" / "replay.csv"
Replay = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--n", type=int, default=50)
    parser.add_argument("--tours", type=int, default=48)
    options = parser.parse_args()
    batch, n, count = options.batch, options.n, options.tours
    torch.manual_seed(0)
    start = torch.randn(batch, n, device="cuda").log_softmax(1).requires_grad_()
    logits = (3 * torch.randn(batch, n, n, device="cuda")).requires_grad_()
    tours = torch.rand(batch, count + 1, n, device="cuda").argsort(2)[:, :-1]
    weight = torch.randn(batch, count, device="cuda")
    rows: list[tuple[str, str, float]] = []

    def measure(what: str, shape: str, function: Callable[[], object]) -> None:
        """Milliseconds of the captured call: as in training, launches cost nothing."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            function()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            function()
        milliseconds = do_bench(graph.replay, warmup=50, rep=200, return_mode="median")
        rows.append((what, shape, milliseconds))
        print(f"{what:22} {shape:12} {milliseconds:8.4f} ms", flush=True)

    def both(function: Replay) -> Callable[[], object]:
        def call() -> object:
            chance, entropy = function(start, logits, tours)
            return torch.autograd.grad((chance, entropy), (start, logits), (weight, weight))

        return call

    def forward(function: Replay) -> Callable[[], object]:
        @torch.no_grad()
        def call() -> object:
            return function(start, logits, tours)

        return call

    for elements in (512, 1024, 2048):
        replay_triton.ELEMENTS = elements
        torch._dynamo.reset()
        fused = torch.compile(replay_triton.replay_fused, dynamic=False)
        measure("fused forward", str(elements), forward(fused))
        measure("fused both", str(elements), both(fused))
    compiled = torch.compile(replay_reference, dynamic=False)
    measure("compiled forward", "", forward(compiled))
    measure("compiled both", "", both(compiled))

    commit = subprocess.run(
        ["git", "describe", "--always"], capture_output=True, text=True, check=False
    ).stdout
    RESULTS.parent.mkdir(exist_ok=True)
    is_new = not RESULTS.exists()
    with RESULTS.open("a", newline="") as file:
        writer = csv.writer(file)
        if is_new:
            writer.writerow(
                [
                    "date",
                    "commit",
                    "device",
                    "torch",
                    "batch",
                    "n",
                    "tours",
                    "what",
                    "elements",
                    "milliseconds",
                ]
            )
        run = [
            datetime.date.today().isoformat(),
            commit.strip(),
            torch.cuda.get_device_name(),
            torch.__version__,
        ]
        for what, shape, milliseconds in rows:
            writer.writerow([*run, batch, n, count, what, shape, f"{milliseconds:.4f}"])


if __name__ == "__main__":
    main()
