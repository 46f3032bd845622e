"""What the benchmarks of the search share: limits of CPU time, and rows of a file with how they were made."""

from __future__ import annotations

import csv
import os
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from georoutenet.io.provenance import commit, device_name, today
from georoutenet.stop import Budget, Progress

RESULTS = Path(__file__).parent / "results"
ABOUT = ("commit", "date", "hardware", "command")


@dataclass(frozen=True)
class CpuTime:
    """Stop after so many seconds of this process's CPU time since the object was made."""

    seconds: float
    began: float = field(default_factory=time.process_time)

    def budget(self, progress: Progress) -> Budget:
        return Budget(seconds=self.seconds - (time.process_time() - self.began))


def about() -> tuple[str, ...]:
    """The last columns of a row."""
    head = commit()
    hardware = f"{device_name(torch.device('cpu'))}, {os.cpu_count()} cores"
    return head[:7] + "+" * head.endswith("+"), today(), hardware, " ".join(sys.argv[1:])


def append(name: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Append rows to ``results/NAME``; a new file begins with the names of the columns."""
    path, made = RESULTS / name, about()
    new = not path.exists()
    with open(path, "a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        if new:
            writer.writerow((*columns, *ABOUT))
        writer.writerows((*row, *made) for row in rows)
