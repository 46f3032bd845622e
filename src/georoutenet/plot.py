"""Pictures of instances and tours (matplotlib's Agg and SVG writers; the global backend is left alone)."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from georoutenet.errors import InputError
from georoutenet.io.atomic import atomic_write
from georoutenet.io.names import visible
from georoutenet.problem.instance import DistanceRule, Instance
from georoutenet.problem.tour import check_tour, gap, proven, tour_length
from georoutenet.stop import Progress
from georoutenet.unbroken import import_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TOUR_COLOR = "#1f4e79"
CITY_COLOR = "#c8102e"
PROBABILITY_COLOR = "#e69f00"
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#6a51a3", "#333333")
"""Told apart by most people who do not see all colors."""
MARKERS = "os^DvP*Xhp<>"
GRAY = "#666666"
FORMATS = (".png", ".svg", ".pdf")
LONGEST_NAME = 80
"""Characters of a name that a title shows: pictures are as wide as their titles."""
PathLike = str | os.PathLike[str]


def plot_tour(
    instance: Instance,
    tour: ArrayLike | None = None,
    path: PathLike | None = None,
    *,
    title: str | None = None,
    ax: Axes | None = None,
    edge_probabilities: ArrayLike | tuple[ArrayLike, ArrayLike] | None = None,
    closed: bool = True,
    lower_bound: float | None = None,
) -> Figure:
    """Draw the cities and, if given, a tour; returns the figure and writes it to ``path`` if given.

    ``closed=False`` leaves out the way back. ``edge_probabilities`` are drawn behind the tour, stronger where
    they are larger; those below 2 % are left out. They are a matrix ``(n, n)``, or a pair ``(neighbors,
    probabilities)``, both ``(n, K)``. The title is made of name, number of cities, length and gap, or where
    no optimum is known what the ``lower_bound`` says, unless one is given.
    """
    if path is not None:
        _extension(path)
    order = None if tour is None else check_tour(tour, instance.n)
    if ax is None:
        ax = _new_figure(1, 1, _panel_size(instance))[1][0]
    points = _map_points(instance)
    if edge_probabilities is not None:
        _draw_probabilities(ax, points, edge_probabilities)
    _draw_tour(ax, points, order, closed, faint=edge_probabilities is not None)
    if edge_probabilities is not None:
        legend = "edges that the network finds probable, the wider the more"
        ax.set_xlabel(legend, fontsize=9, color=PROBABILITY_COLOR)
    title = _title(instance, order, closed, lower_bound) if title is None else title
    ax.set_title(title, fontsize=11, color="#222222")
    figure = cast("Figure", ax.figure)
    if path is not None:
        save(figure, path)
    return figure


def plot_instances(
    instances: Sequence[Instance],
    path: PathLike | None = None,
    *,
    tours: Sequence[ArrayLike | None] | None = None,
    titles: Sequence[str] | None = None,
    columns: int = 4,
) -> Figure:
    """Small panels side by side, one per instance."""
    if path is not None:
        _extension(path)
    if not instances:
        raise InputError("plot_instances needs at least one instance, got none")
    for what, given in (("tours", tours), ("titles", titles)):
        if given is not None and len(given) != len(instances):
            raise InputError(f"{len(given)} {what} for {len(instances)} instances")
    if columns < 1:
        raise InputError(f"columns must be at least 1, got {columns}")
    columns = min(columns, len(instances))
    rows = math.ceil(len(instances) / columns)
    figure, axes = _new_figure(rows, columns, (2.6, 2.8))
    for k, instance in enumerate(instances):
        tour = None if tours is None else tours[k]
        title = drawn(instance.name) if titles is None else titles[k]
        plot_tour(instance, tour, ax=axes[k], title=title)
        axes[k].title.set_fontsize(9)
    for empty in axes[len(instances) :]:
        empty.set_axis_off()
    if path is not None:
        save(figure, path)
    return figure


def save(figure: Figure, path: PathLike) -> None:
    """Write a figure whole or not at all; the extension decides the format."""
    kind = _extension(path)[1:]
    # Dates and random identifiers would make two pictures of the same tour differ.
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {"Software": None}}[kind]
    import_whole("matplotlib")
    import matplotlib

    with matplotlib.rc_context({"svg.hashsalt": "georoutenet"}), atomic_write(path, "wb") as file:
        figure.savefig(file, format=kind, dpi=150, metadata=metadata, bbox_inches="tight", pad_inches=0.08)


def _extension(path: PathLike) -> str:
    extension = os.path.splitext(os.fspath(path))[1].lower()
    if extension not in FORMATS:
        raise InputError(f"{path}: unknown picture format {extension!r}; allowed: {', '.join(FORMATS)}")
    return extension


def _new_figure(rows: int, columns: int, panel: tuple[float, float]) -> tuple[Figure, list[Axes]]:
    import_whole("matplotlib.figure", "matplotlib.backends.backend_agg", "matplotlib.collections")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(columns * panel[0], rows * panel[1]), layout="constrained")
    FigureCanvasAgg(figure)
    axes: Any = figure.subplots(rows, columns, squeeze=False)
    return figure, list(axes.flat)


def _map_points(instance: Instance) -> NDArray[np.float64]:
    """Coordinates to draw: x to the right, y up. GEO files give (latitude, longitude), so they are turned."""
    if instance.rule is DistanceRule.GEO:
        return instance.coordinates[:, ::-1]
    return instance.plane


def _panel_size(instance: Instance) -> tuple[float, float]:
    """Inches; the shape follows the cities, within reason, so that little paper stays empty."""
    width, height = np.ptp(_map_points(instance), axis=0)
    shape = 1.0 if not (width > 0 and height > 0) else min(2.2, max(1 / 1.6, float(width / height)))
    size = 6.4 if instance.n <= 1000 else 8.0
    return (size * max(1.0, math.sqrt(shape)), size * max(1.0, math.sqrt(shape)) / shape + 0.5)


def _draw_tour(
    ax: Axes, points: NDArray[np.float64], tour: NDArray[np.int64] | None, closed: bool, faint: bool
) -> None:
    n = len(points)
    # Inches of axes per city, on a square: marks shrink with the room they have.
    box = ax.get_position()
    inches = min(cast("Figure", ax.figure).get_size_inches() * (box.width, box.height))
    room = 72.0 * inches / math.sqrt(n)
    marker = min(6.0, 0.22 * room)
    width = min(1.6, max(0.6, 0.055 * room))
    if tour is not None:
        line = points[np.append(tour, tour[0])] if closed else points[tour]
        if faint:  # so that what lies behind shows
            width = max(0.5, 0.6 * width)
        ax.plot(*line.T, "-", color=TOUR_COLOR, linewidth=width, solid_joinstyle="round", zorder=2)
    if tour is None or n <= 2000:  # in a large tour the corners of the line show the cities
        ax.plot(*points.T, "o", color=CITY_COLOR, markersize=max(0.8, marker), markeredgewidth=0, zorder=3)
    if tour is not None and n <= 200:
        ax.plot(
            *points[tour[0]], "s", color="white", markeredgecolor=CITY_COLOR, markersize=marker + 2, zorder=4
        )
        if not closed and n > 1:
            ax.plot(
                *points[tour[-1]],
                "D",
                color="white",
                markeredgecolor=CITY_COLOR,
                markersize=marker + 1,
                zorder=4,
            )
    ax.set_aspect("equal", adjustable="datalim" if np.ptp(points, axis=0).min() == 0 else "box")
    ax.margins(0.03)
    ax.set_xticks([])
    ax.set_yticks([])
    for spine in ax.spines.values():
        spine.set_color("#cccccc")


def _draw_probabilities(
    ax: Axes, points: NDArray[np.float64], values: ArrayLike | tuple[ArrayLike, ArrayLike]
) -> None:
    from matplotlib.collections import LineCollection
    from matplotlib.colors import to_rgb

    n = len(points)
    i, j, strength = _likely_edges(values, n)
    colors = np.column_stack([np.tile(to_rgb(PROBABILITY_COLOR), (len(i), 1)), 0.8 * np.sqrt(strength)])
    widths = 0.4 + 4.0 * strength * min(1.0, math.sqrt(100 / n))
    segments = np.stack([points[i], points[j]], axis=1)
    ax.add_collection(LineCollection(list(segments), colors=list(colors), linewidths=list(widths), zorder=1))


def _likely_edges(
    values: ArrayLike | tuple[ArrayLike, ArrayLike], n: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Edges ``i < j`` and the larger of their two probabilities, where it is at least 2 %."""
    if isinstance(values, tuple):
        neighbors, probabilities = np.asarray(values[0]), np.asarray(values[1], dtype=np.float64)
        if neighbors.shape != probabilities.shape or neighbors.ndim != 2 or len(neighbors) != n:
            raise InputError(
                f"neighbors {neighbors.shape} and probabilities {probabilities.shape} must both be ({n}, K)"
            )
        i = np.repeat(np.arange(n), neighbors.shape[1])
        j, strength = neighbors.ravel().astype(np.int64), probabilities.ravel()
        if len(j) and (j.min() < 0 or j.max() >= n):
            raise InputError(f"neighbors must be cities in 0..{n - 1}, got {j.min()}..{j.max()}")
    else:
        matrix = np.asarray(values, dtype=np.float64)
        if matrix.shape != (n, n):
            raise InputError(f"edge_probabilities must have shape ({n}, {n}), got {matrix.shape}")
        i, j = (index.ravel() for index in np.indices((n, n)))
        strength = matrix.ravel()
    if not ((strength >= 0) & (strength <= 1)).all():
        raise InputError("edge_probabilities must lie between 0 and 1")
    kept = (strength >= 0.02) & (i != j)
    low, high, strength = np.minimum(i, j)[kept], np.maximum(i, j)[kept], strength[kept]
    order = np.argsort(-strength, kind="stable")  # of the two directions the more probable comes first
    _, first = np.unique(low[order] * n + high[order], return_index=True)
    return low[order][first], high[order][first], strength[order][first]


def plot_progress(
    instance: Instance,
    history: Sequence[Progress],
    path: PathLike | None = None,
    *,
    end: float | None = None,
) -> Figure:
    """Draw how the best tour got shorter over time, in percent above the best length known, else the last.

    ``end`` is when the search ended, in seconds; by default at its last improvement.
    """
    if path is not None:
        _extension(path)
    if not history:
        raise InputError("there is no history to draw: no search was made")
    figure, (ax,) = _new_figure(1, 1, (6.4, 3.6))
    seconds = np.array([entry.seconds for entry in history])
    lengths = np.array([entry.length for entry in history], dtype=np.float64)
    reference = lengths[-1] if instance.optimum is None else float(instance.optimum)
    percent = np.atleast_1d(gap(lengths, reference))
    last = max(seconds[-1], seconds[-1] if end is None else end)
    times, values = np.append(seconds, last), np.append(percent, percent[-1])
    ax.step(times, values, where="post", color=TOUR_COLOR, linewidth=1.6, clip_on=False)
    ax.plot(seconds[:1], percent[:1], "o", color=TOUR_COLOR, markersize=4, clip_on=False)  # the first tour
    if (percent > 0).sum() > 1:
        # A search gains most at the start: logarithmic above the smallest gap that shows, linear below.
        smallest = max(1e-3, float(percent[percent > 0].min()))
        ax.set_yscale("symlog", linthresh=smallest, linscale=0.4)
        decades = range(math.ceil(math.log10(smallest)), math.floor(math.log10(percent.max())) + 1)
        ax.set_yticks([0.0, *(10.0**k for k in decades)])  # those near zero would lie on top of it
        ax.set_yticks([], minor=True)
        ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    ax.set_ylim(0.0, None if percent.max() > 0 else 1.0)
    # Where loading took most of the time, only the search is shown.
    begin = 1.05 * seconds[0] - 0.05 * last if seconds[0] < last < 2 * seconds[0] else 0.0
    ax.set_xlim(begin, max(last, 1e-3))
    ax.set_xlabel("seconds since the call", fontsize=10)
    ax.set_ylabel("% above the " + ("last tour" if instance.optimum is None else "best known"), fontsize=10)
    ax.grid(color="#e5e5e5", linewidth=0.6)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    title = f"{drawn(instance.name)}  ·  {_number(lengths[0].item())} to {_number(lengths[-1].item())}"
    bound = history[-1].lower_bound
    if instance.optimum is None and bound is not None and lengths[-1] > 0:
        title += f"  ·  {proven(lengths[-1].item(), bound)}"
    ax.set_title(title, fontsize=11, color="#222222")
    if path is not None:
        save(figure, path)
    return figure


def drawn(text: str) -> str:
    """Text from a file as part of a title: no character that no font has, no formula, not too long."""
    text = visible(text)
    return (text if len(text) <= LONGEST_NAME else f"{text[:LONGEST_NAME]}...").replace("$", r"\$")


def _title(
    instance: Instance, tour: NDArray[np.int64] | None, closed: bool, lower_bound: float | None
) -> str:
    parts = [drawn(instance.name), f"{instance.n:,} cities" if instance.n != 1 else "1 city"]
    if tour is not None:
        length = tour_length(instance, tour, closed=closed)
        unit = f" {instance.unit}" if instance.unit else ""
        parts.append(f"{'' if closed else 'open path, '}length {_number(length)}{unit}")
        if instance.optimum is not None and closed:  # optima are those of closed tours
            parts.append(f"gap {round(gap(length, instance.optimum), 2) + 0.0:.2f} %")
        elif lower_bound is not None and length > 0:
            parts.append(proven(length, lower_bound))
    return "  ·  ".join(parts)


def _number(length: float) -> str:
    if isinstance(length, float) and length.is_integer() and length < 1e15:
        length = int(length)
    return (
        f"{length:,}" if isinstance(length, int) else f"{length:,.1f}" if length >= 1000 else f"{length:.5g}"
    )


def tidy(ax: Axes) -> None:
    ax.grid(color="#e5e5e5", linewidth=0.6)
    ax.set_axisbelow(True)
    ax.tick_params(labelsize=10)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
