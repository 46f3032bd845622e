"""The picture of the page on bulk runs: how rows become shards."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from georoutenet.plot import COLORS

INK, PALE = "#222222", "#f4f4f4"
SHARDS = COLORS[:4]
ROWS = 3
"""Rows of a shard in the picture."""


def box(axes: Axes, x: float, y: float, width: float, height: float, text: str, color: str = PALE) -> None:
    shape = FancyBboxPatch(
        (x, y),
        width,
        height,
        boxstyle="round,pad=0,rounding_size=0.06",
        facecolor=color,
        edgecolor=INK,
        lw=0.8,
    )
    axes.add_patch(shape)
    white = color in SHARDS
    axes.text(
        *(x + width / 2, y + height / 2, text),
        ha="center",
        va="center",
        size=8,
        color="white" if white else INK,
    )


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], style: str = "-") -> None:
    axes.annotate(
        "", end, start, arrowprops={"arrowstyle": "->", "color": INK, "lw": 0.9, "linestyle": style}
    )


def draw() -> Figure:
    figure = Figure(figsize=(8.4, 3.9))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, 10.4)
    axes.set_ylim(-0.15, 4.75)
    axes.axis("off")
    for x, title in ((0.9, "input rows"), (3.95, "workers"), (7.2, "folder OUT"), (9.35, "is it done?")):
        axes.text(x, 4.5, title, ha="center", size=9, weight="bold", color=INK)
    middles = []
    for shard, color in enumerate(SHARDS):
        top = 4.1 - shard * 1.0
        for row in range(ROWS):
            number = shard * ROWS + row
            box(axes, 0.15, top - 0.27 * (row + 1), 1.5, 0.24, f"row {number}: id, x, y", color)
        middles.append(top - 0.27 * ROWS / 2 - 0.02)
    for worker, y in enumerate((3.15, 1.35)):
        text = f"worker {worker + 1}\nread its rows, solve,\nwrite under another name,\nflush, rename"
        box(axes, 2.9, y - 0.45, 2.1, 0.95, text)
    killed = 2
    for shard, (color, y) in enumerate(zip(SHARDS, middles, strict=True)):
        height = 3.15 if shard < 2 else 1.35
        offset = 0.2 if shard % 2 == 0 else -0.2
        style = "--" if shard == killed else "-"
        arrow(axes, (1.7, y), (2.85, height + offset))
        arrow(axes, (5.05, height + offset), (6.3, y), style)
        if shard == killed:
            paper = {"facecolor": "white", "edgecolor": "none", "pad": 1}
            where = (5.68, (height + offset + y) / 2)
            axes.text(*where, "kill -9", size=8, color=COLORS[1], ha="center", va="center", bbox=paper)
            box(axes, 6.35, y - 0.18, 1.7, 0.36, f".part-00000{shard}…tmp")
            axes.text(
                9.35, y, "no: the same command\nsolves rows 6 to 8 again", size=8, ha="center", va="center"
            )
        else:
            box(axes, 6.35, y - 0.18, 1.7, 0.36, f"part-00000{shard}.parquet", color)
            axes.text(9.35, y, "yes: footer = fingerprint,\nshard and rows", size=8, ha="center", va="center")
    box(axes, 6.35, 0.0, 1.7, 0.32, "_manifest.json")
    text = "fingerprint = input, options, weights, code;  another one is refused"
    axes.text(6.25, 0.16, text, ha="right", va="center", size=8, color=INK)
    return figure
