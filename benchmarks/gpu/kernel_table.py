"""What the kernel benchmarks share: milliseconds of captured calls, printed and appended to one file."""

from __future__ import annotations

import argparse
import csv
import datetime
import subprocess
from collections.abc import Callable
from pathlib import Path

import torch
from triton.testing import do_bench

RESULTS = Path(__file__).parents[1] / "results" / "gpu" / "kernels.csv"
COLUMNS = ("date", "commit", "device", "torch", "kernel", "batch", "n", "what", "launch", "milliseconds")


def parser(about: str | None) -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(description=about, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--batch", type=int, default=512)
    options.add_argument("--n", type=int, default=50)
    options.add_argument("--csv", type=Path, default=RESULTS, help="the file to append to")
    return options


def milliseconds(function: Callable[[], object]) -> float:
    """Median time of the call as it runs in training: from a captured graph, where launches cost nothing."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        function()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    return float(do_bench(graph.replay, warmup=20, rep=100, return_mode="median"))


class Table:
    """Rows about one kernel at one size."""

    def __init__(self, kernel: str, options: argparse.Namespace) -> None:
        describe = ["git", "describe", "--always"]
        commit = subprocess.run(describe, capture_output=True, text=True, check=False).stdout.strip()
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        device = torch.cuda.get_device_name()
        self.path: Path = options.csv
        self.run = [today, commit, device, torch.__version__, kernel, options.batch, options.n]
        self.rows: list[list[object]] = []

    def measure(self, what: str, launch: object, function: Callable[[], object]) -> float:
        """Time a call and keep the row. A launch that does not fit on the chip is infinitely slow."""
        try:
            time = milliseconds(function)
        except Exception as error:
            print(f"{what:24} {launch}: {type(error).__name__} {error}"[:200], flush=True)
            return float("inf")
        print(f"{what:24} {time:8.4f} ms  {launch}", flush=True)
        self.rows.append([*self.run, what, launch, f"{time:.4f}"])
        return time

    def append(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        is_new = not self.path.exists()
        with self.path.open("a", newline="") as file:
            writer = csv.writer(file)
            if is_new:
                writer.writerow(COLUMNS)
            writer.writerows(self.rows)
