"""What the benchmarks of the search share: rows appended to a file, with where and how they were made."""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

from georoutenet.io.provenance import commit, device_name, today

RESULTS = Path(__file__).parent / "results"
ABOUT = ("commit", "date", "hardware", "command")


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
