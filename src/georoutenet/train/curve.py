"""Learning curves from the ``metrics.csv`` of training runs."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from georoutenet.errors import InputError
from georoutenet.io.unpack import read_file, reading, refuse_many
from georoutenet.problem.instance import WIDEST

if TYPE_CHECKING:
    from matplotlib.figure import Figure

AXES = {
    "instances": "instances seen (millions)",
    "seconds": "minutes of training",
    "step": "steps (thousands)",
}
UNITS = {"instances": 1e6, "seconds": 60.0, "step": 1e3}
NEEDED = (*AXES, "greedy_cost", "validation")


@dataclass(frozen=True)
class Curve:
    """One run: where it stood at each line of its metrics, and the lengths there; NaN where not measured."""

    name: str
    at: dict[str, list[float]]  # for each of `AXES`
    training: list[float]
    validation: list[float]

    def then(self, later: Curve) -> Curve:
        """This run and one that went on from it, as one."""
        at = {axis: [*x, *(x[-1] + value for value in later.at[axis])] for axis, x in self.at.items()}
        return Curve(
            f"{self.name.split(' to ')[0]} to {later.name}",
            at,
            [*self.training, *later.training],
            [*self.validation, *later.validation],
        )


def read_curve(path: str | Path) -> Curve:
    """The curve of a run's folder, or of its ``metrics.csv`` under any name, also compressed (``.gz``)."""
    path = Path(path)
    file = path / "metrics.csv" if path.is_dir() else path
    data = read_file(file)
    refuse_many(data, str(file))
    with reading(file):
        try:
            rows = list(csv.DictReader(io.StringIO(data.decode(), newline="")))
        except csv.Error as error:
            raise InputError(str(error)) from None
    if not rows or any(name not in rows[0] for name in NEEDED):
        raise InputError(f"{file} is no metrics.csv of a training run: it needs {', '.join(NEEDED)}")
    if any(None in (*row, *row.values()) for row in rows):
        raise InputError(f"{file} has a line that is cut off or too long")
    try:
        columns = {name: [float(row[name] or "nan") for row in rows] for name in NEEDED}
    except ValueError as error:
        raise InputError(f"{file} holds what is no number: {error}") from error
    stem = file.name.removesuffix(".gz").removesuffix(".csv")
    name = path.name if path.is_dir() else path.parent.name if stem == "metrics" else stem
    return Curve(
        name or stem,
        {axis: columns[axis] for axis in AXES},
        columns["greedy_cost"],
        columns["validation"],
    )


def plot_curves(
    curves: Sequence[Curve], *, by: str = "instances", training: bool = False, lines: Sequence[float] = ()
) -> Figure:
    """Greedy length on the validation set, and of the training's own instances, against what it took."""
    if by not in AXES:
        raise InputError(f"curves are drawn by {', '.join(AXES)}, not by {by!r}")
    from matplotlib.figure import Figure

    from georoutenet.plot import COLORS, GRAY, MARKERS, drawn, tidy

    figure = Figure(figsize=(7.5, 4.5), layout="constrained")
    ax = figure.subplots()
    shown = list(lines)
    for number, curve in enumerate(curves):
        color, name = COLORS[number % len(COLORS)], drawn(curve.name)
        x = [value / UNITS[by] for value in curve.at[by]]
        known = [(a, b) for a, b in zip(x, curve.validation, strict=True) if not math.isnan(b)]
        if training or not known:
            words = "its batches" if known else "its batches, not validated yet"
            # A line of one point is not seen.
            dot = "o" if sum(map(math.isfinite, curve.training)) == 1 else ""
            ax.plot(x, curve.training, dot + "-", color=color, alpha=0.35, lw=1.0, label=f"{name}: {words}")
            # The beginning is far above the rest: what counts is the later three quarters.
            shown += curve.training[len(curve.training) // 4 :]
        if known:
            look: dict[str, Any] = {"color": color, "marker": MARKERS[number % len(MARKERS)]}
            ax.plot([a for a, _ in known], [b for _, b in known], label=f"{name}: validation", **look)
            shown += [b for _, b in known]
    for line in lines:
        ax.axhline(line, color=GRAY, linestyle="--", linewidth=1.2, label=f"{line:g}")
    finite = [value for value in shown if abs(value) < WIDEST]
    if not finite:
        raise InputError("there is nothing to draw: no run has a length yet")
    room = 0.05 * (max(finite) - min(finite)) or 0.01
    ax.set_ylim(min(finite) - room, max(finite) + room)
    ax.set_xlim(left=0.0)
    tidy(ax)
    ax.set_xlabel(AXES[by])
    ax.set_ylabel("mean greedy length")
    figure.legend(loc="outside lower center", ncols=2, fontsize=10, frameon=False)
    return figure
