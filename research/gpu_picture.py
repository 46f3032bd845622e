"""The picture of the page on many instances: gap against instances per second, on a GPU and on a CPU."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from georoutenet.plot import COLORS, tidy

FOLDER = Path(__file__).parent.parent / "benchmarks" / "results" / "gpu"
SIZES = (50, 100, 200, 1000)
FIRST = {"curve": "a curve", "greedy-edge": "greedy edge", "network": "the network"}
"""First tours, and what the legend calls them."""
PEERS = {"ours": ("o", "our CPU search"), "fast-tsp": ("^", "fast-tsp"), "lkh": ("s", "LKH")}
USEFUL = 5.0
"""Percent: solvers that were stopped with longer tours are left out."""
LEAST = 1e-4
"""Percent from which on the scale is a logarithm's."""


def read(name: str) -> list[dict[str, str]]:
    with (FOLDER / name).open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def points(rows: list[dict[str, str]]) -> tuple[list[float], list[float]]:
    """Instances per second, and mean gaps."""
    rates = [float(row["instances_per_second"]) for row in rows]
    return rates, [max(0.0, float(row["mean_gap_percent"])) for row in rows]


def draw() -> Figure:
    """A panel for each size: lines over the number of kicks, marks where settings were measured."""
    searched, solved = read("gpu_search.csv"), read("solve_gpu.csv")
    figure = Figure(figsize=(3.0 * len(SIZES) + 3.2, 4.6), layout="constrained")
    panels: Any = figure.subplots(1, len(SIZES), sharey=True)
    shown: dict[str, Any] = {}
    for ax, n in zip(panels, SIZES, strict=True):
        tidy(ax)
        ax.set(xscale="log", xlim=(1.0, 2e6))
        ax.set_xticks([1.0, 1e2, 1e4, 1e6], ["1", "100", "10,000", "million"])
        ax.set_xticks([], minor=True)
        ax.set_yscale("symlog", linthresh=LEAST, linscale=0.4)
        ax.set_ylim(0.0, 3.0)
        ax.set_yticks([0.0, 1e-4, 1e-3, 1e-2, 0.1, 1.0])
        ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        ax.set_title(f"{n:,} cities", fontsize=11)
        ax.set_xlabel("instances per second", fontsize=10)
        for label, style, rows in contenders(searched, solved, str(n)):
            if rows:
                (shown[label],) = ax.plot(*points(rows), clip_on=False, zorder=3, **style)
    panels[0].set_ylabel("mean gap (%)", fontsize=10)
    figure.legend(shown.values(), shown.keys(), loc="outside right upper", fontsize=9, frameon=False)
    return figure


def contenders(
    searched: list[dict[str, str]], solved: list[dict[str, str]], n: str
) -> Iterator[tuple[str, dict[str, Any], list[dict[str, str]]]]:
    """What the legend calls them, how they are drawn, and their rows at ``n`` cities."""
    for color, (first, words) in zip(COLORS, FIRST.items(), strict=False):
        own = [row for row in searched if row["n"] == n and row["first"] == first]
        yield f"H200, search from {words}", {"color": color, "marker": ".", "linewidth": 1.6}, own
    own = [row for row in solved if row["n"] == n]
    search = [row for row in own if row["what"] == "search"]
    mark = {"color": COLORS[0], "linestyle": ""}
    some = [row for row in search if row["setting"] != "default"]
    yield "H200, solve_batch, 100 to 10,000 kicks", {**mark, "marker": "s"}, some
    default = [row for row in search if row["setting"] == "default"]
    yield "H200, solve_batch, default", {**mark, "marker": "*", "markersize": 13}, default
    for what, (marker, name) in PEERS.items():
        rows = [row for row in own if row["what"] == what and float(row["mean_gap_percent"]) < USEFUL]
        hollow = {"color": "black", "markerfacecolor": "none", "linestyle": "", "marker": marker}
        yield f"12 cores, {name}", hollow, rows
