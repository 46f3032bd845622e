"""A picture of training: greedy length against instances seen, from ``metrics.csv`` files."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from georoutenet.errors import InputError
from georoutenet.plot import save


def plot_learning_curve(
    stages: Sequence[str | Path], path: str | Path, *, reference: float | None = None, label: str = ""
) -> None:
    """Draw the stages one after the other; ``reference`` is a length to compare with, named by ``label``."""
    seen, trained, checked = 0, [], []
    for stage in stages:
        with open(stage, newline="") as file:
            rows = list(csv.DictReader(file))
        if not rows or "greedy_cost" not in rows[0]:
            raise InputError(f"{stage}: not a metrics file of a training run")
        trained += [((seen + int(row["instances"])) / 1e6, float(row["greedy_cost"])) for row in rows]
        checked += [
            ((seen + int(row["instances"])) / 1e6, float(row["validation"]))
            for row in rows
            if row["validation"]
        ]
        seen += int(rows[-1]["instances"])
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(*zip(*trained, strict=True), color="0.6", label="training batches")
    if checked:
        axes.plot(*zip(*checked, strict=True), "o-", color="tab:blue", label="validation set")
        lowest = min(value for _, value in checked)
        axes.set_ylim(lowest - 0.02, lowest + 0.15)
    if reference is not None:
        axes.axhline(reference, color="tab:red", linestyle="--", label=label or f"{reference}")
    axes.set_xlabel("instances seen (millions)")
    axes.set_ylabel("mean greedy length")
    axes.grid(alpha=0.3)
    axes.legend()
    save(figure, path)
