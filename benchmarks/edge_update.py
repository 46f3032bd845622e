"""The fused edge update on a GPU: forward and backward, by launch shape, against compiled PyTorch.

    python benchmarks/edge_update.py [--batch 512] [--n 50]

Appends to benchmarks/results/edge_update.csv.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import subprocess
from pathlib import Path

import torch
from triton.testing import do_bench

from georoutenet.model import edge_update_triton
from georoutenet.model.edge_update_triton import edge_update, edge_update_backward, edge_update_reference

RESULTS = Path(__file__).parent / "results" / "edge_update.csv"


def arguments(batch: int, n: int, d: int = 128) -> list[torch.Tensor]:
    torch.manual_seed(0)
    shapes = [(batch, n, n, d), (batch, n, d), (batch, n, d), (d, d), (d,), (d,), (d,)]
    values = [torch.randn(shape, device="cuda") * (d**-0.5 if shape == (d, d) else 1) for shape in shapes]
    return [value.bfloat16() if k < 4 else value for k, value in enumerate(values)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--n", type=int, default=50)
    options = parser.parse_args()
    values = arguments(options.batch, options.n)
    grad = torch.randn_like(values[0])
    rows = []

    def measure(what: str, shape: str, function: object) -> None:
        milliseconds = do_bench(function, warmup=50, rep=200, return_mode="median")
        rows.append((what, shape, milliseconds))
        print(f"{what:20} {shape:20} {milliseconds:8.3f} ms", flush=True)

    launch = edge_update_triton.LAUNCH
    for shape in ((64, 4), (64, 8), (64, 16), (32, 8)):
        launch["forward"] = shape
        measure("forward", str(shape), lambda: edge_update(*values))
    for proposal in ((64, 8), (64, 16), (32, 4), (32, 8), (16, 4)):
        launch["proposal"] = proposal
        measure("backward", f"{proposal} {launch['state']}", lambda: edge_update_backward(grad, *values[:6]))
    leaves = [value.detach().requires_grad_() for value in values]

    def reference() -> torch.Tensor:
        e, source, target, weight, bias, gamma, beta = leaves
        return edge_update_reference(
            e, source, target, weight, bias.bfloat16(), gamma.bfloat16(), beta.bfloat16()
        )

    compiled = torch.compile(reference)
    measure("compiled forward", "", lambda: compiled())
    measure("compiled both", "", lambda: compiled().backward(grad))

    commit = subprocess.run(
        ["git", "describe", "--always"], capture_output=True, text=True, check=False
    ).stdout
    RESULTS.parent.mkdir(exist_ok=True)
    is_new = not RESULTS.exists()
    with RESULTS.open("a", newline="") as file:
        writer = csv.writer(file)
        if is_new:
            writer.writerow(
                ["date", "commit", "device", "torch", "batch", "n", "what", "launch", "milliseconds"]
            )
        run = [
            datetime.date.today().isoformat(),
            commit.strip(),
            torch.cuda.get_device_name(),
            torch.__version__,
        ]
        for what, shape, milliseconds in rows:
            writer.writerow([*run, options.batch, options.n, what, shape, f"{milliseconds:.4f}"])


if __name__ == "__main__":
    main()
