"""Pictures of instances and tours (matplotlib's Agg and SVG writers; the global backend is left alone)."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from georoutenet.errors import InputError, path_name
from georoutenet.io.atomic import atomic_write
from georoutenet.io.names import visible
from georoutenet.problem.globe import cut_at_border, project
from georoutenet.problem.instance import DistanceRule, Instance
from georoutenet.problem.sketch import CITY_COLOR, TOUR_COLOR
from georoutenet.problem.tour import OPTIMAL, check_tour, gap, proven, tour_length
from georoutenet.stop import Progress
from georoutenet.unbroken import import_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#6a51a3", "#333333")
"""Told apart by most people who do not see all colors."""
PROBABILITY_COLOR = "#e69f00"
LAND, COAST = "#f4f3ee", "#cfccc0"
LEAST = 0.02
"""Edges that are less probable are left out."""
LEGEND = (0.1, 0.5, 1.0)
"""Probabilities that a legend shows."""
MARKERS = "os^DvP*Xhp<>"
GRAY = "#666666"
START, END = "s", "D"
MOST_WITH_ENDS = 200
"""Cities of a tour whose first and last one are marked."""
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
    outline: ArrayLike | None = None,
) -> Figure:
    """Draw the cities and, if given, a tour; returns the figure and writes it to ``path`` if given.

    ``closed=False`` leaves out the way back. ``edge_probabilities`` are drawn behind the tour, wider and
    stronger where they are larger; those below 2 % are left out. They are a matrix ``(n, n)``, or a pair
    ``(edges, probabilities)``, ``(m, 2)`` and ``(m,)``, or ``(neighbors, probabilities)``, both ``(n, K)``;
    of an edge that is named more than once the largest counts. ``outline (m, 2)`` is a line behind all, in
    the instance's own coordinates. The title is made of name, number of cities, length and gap, or where
    no optimum is known what the ``lower_bound`` says, unless one is given. A legend below says what is what
    where the picture has no other panels; maps of ``lat,lon`` have a scale.
    """
    if path is not None:
        _extension(path)
    order = None if tour is None else check_tour(tour, instance.n)
    alone = ax is None
    if ax is None:
        ax = _new_figure(1, 1, _panel_size(instance))[1][0]
    points = _map_points(instance)
    if outline is not None:
        _draw_outline(ax, instance, outline)
    if edge_probabilities is not None:
        _draw_probabilities(ax, points, edge_probabilities, instance.map_turn)
    ends = alone or not closed  # where a tour begins says nothing without a legend
    _draw_tour(ax, points, order, instance.map_turn, closed, ends, faint=edge_probabilities is not None)
    if alone:
        _explain(ax, instance, order, closed, probable=edge_probabilities is not None)
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
        axes[k].set_anchor("N")  # titles of a row at one height, whatever shapes the panels have
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
    extension = os.path.splitext(path_name(path))[1].lower()
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
    ax: Axes,
    points: NDArray[np.float64],
    tour: NDArray[np.int64] | None,
    turn: float,
    closed: bool,
    ends: bool,
    faint: bool,
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
        limits, parts = ax.dataLim.frozen(), cut_at_border(line, turn)
        for part in parts:
            ax.plot(*part.T, "-", color=TOUR_COLOR, linewidth=width, solid_joinstyle="round", zorder=2)
        if len(parts) > 1:  # the limits are those of the cities: what goes around the Earth leaves the map
            ax.dataLim.set(limits)
            ax.update_datalim(points)
    if tour is None or n <= 2000:  # in a large tour the corners of the line show the cities
        ax.plot(*points.T, "o", color=CITY_COLOR, markersize=max(0.8, marker), markeredgewidth=0, zorder=3)
    if tour is not None and ends and n <= MOST_WITH_ENDS:
        _mark(ax, points[tour[0]], START, marker)
        if not closed and n > 1:
            _mark(ax, points[tour[-1]], END, marker)
    ax.set_aspect("equal", adjustable="datalim" if np.ptp(points, axis=0).min() == 0 else "box")
    ax.margins(0.03)
    ax.set_xticks([])
    ax.set_yticks([])
    for spine in ax.spines.values():
        spine.set_color("#cccccc")


def _mark(ax: Axes, place: NDArray[np.float64], look: str, size: float) -> None:
    """The first or the last city."""
    ax.plot(*place, look, color="white", markeredgecolor=CITY_COLOR, markersize=size + 3, zorder=4)


def _draw_outline(ax: Axes, instance: Instance, outline: ArrayLike) -> None:
    line = _numbers(outline, "outline")
    if line.ndim != 2 or line.shape[1] != 2:
        raise InputError(f"outline must have shape (m, 2), got {line.shape}")
    if instance.rule is DistanceRule.GREAT_CIRCLE:
        line = project(line, instance.coordinates)
    elif instance.rule is DistanceRule.GEO:
        line = line[:, ::-1]
    ax.fill(*line.T, facecolor=LAND, edgecolor=COAST, linewidth=0.8, zorder=0)


def _explain(
    ax: Axes, instance: Instance, tour: NDArray[np.int64] | None, closed: bool, *, probable: bool
) -> None:
    """A legend below the picture, and for maps a scale."""
    from matplotlib.lines import Line2D

    def entry(label: str, **look: Any) -> Line2D:
        return Line2D([], [], label=label, **look)

    end: dict[str, Any] = {"color": "white", "markeredgecolor": CITY_COLOR, "linestyle": "", "markersize": 8}
    entries = []
    if tour is not None and probable:
        entries.append(entry("tour" if closed else "path", color=TOUR_COLOR, linewidth=1.0))
    if tour is not None and 1 < instance.n <= MOST_WITH_ENDS:
        entries.append(entry(_called("start", instance, int(tour[0])), marker=START, **end))
        if not closed:
            entries.append(entry(_called("end", instance, int(tour[-1])), marker=END, **end))
    if probable:
        colors, widths = _look_of(np.array(LEGEND), 1)
        for probability, color, width in zip(LEGEND, colors, widths, strict=True):
            text = f"in {100 * probability:.0f} %" + (" of the network's tours" if probability == 1.0 else "")
            entries.append(entry(text, color=color, linewidth=width, solid_capstyle="butt"))
    if entries:
        inches = sum(0.55 + 0.075 * len(str(each.get_label())) for each in entries)
        columns = len(entries) if inches < cast("Figure", ax.figure).get_figwidth() else 3
        where: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.01), "borderaxespad": 0.2}
        ax.legend(handles=entries, ncols=columns, fontsize=9, frameon=False, **where)
    if instance.rule is DistanceRule.GREAT_CIRCLE and instance.n > 1:
        _draw_scale(ax, _map_points(instance))


def _called(what: str, instance: Instance, city: int) -> str:
    return what if instance.ids is None else f"{what}: {drawn(str(instance.ids[city]), 24)}"


def _draw_scale(ax: Axes, points: NDArray[np.float64]) -> None:
    """A bar of so many kilometers, about a sixth of the map, in the corner with the fewest cities."""
    low, high = ax.get_xlim()
    width = high - low
    if not width > 0 or np.ptp(points, axis=0).max() == 0:
        return
    size = 10.0 ** math.floor(math.log10(width / 6))
    length = max((step * size for step in (1, 2, 5) if step * size <= width / 6), default=size)
    parts = ax.transAxes.inverted().transform(ax.transData.transform(points))
    corners = [(x, y) for y in (0, 1) for x in (0, 1)]
    near = length / width + 0.15, 0.1
    inside = [int((np.abs(parts - corner) < near).all(axis=1).sum()) for corner in corners]
    right, up = corners[int(np.argmin(inside))]
    begin, height = (high - 0.03 * width - length if right else low + 0.03 * width), 0.93 if up else 0.04
    where = ax.get_xaxis_transform()  # kilometers across, parts of the picture up
    look: dict[str, Any] = {"transform": where, "color": GRAY, "linewidth": 1.2, "zorder": 0.5}
    ends = (begin, begin + length)
    for across, at in ((ends, (height,) * 2), *(((x, x), (height - 0.01, height + 0.01)) for x in ends)):
        ax.plot(across, at, **look)
    words: dict[str, Any] = {"transform": where, "fontsize": 9, "color": GRAY, "zorder": 0.5}
    ax.text(begin + length / 2, height + 0.012, f"{length:,g} km", ha="center", va="bottom", **words)


def _numbers(values: ArrayLike, what: str) -> NDArray[np.float64]:
    try:
        given = np.asarray(values)
        if given.dtype.kind not in "biufO":
            raise TypeError(f"got {given.dtype}")
        return given.astype(np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{what} must be an array of numbers: {error}") from None


def _draw_probabilities(
    ax: Axes, points: NDArray[np.float64], values: ArrayLike | tuple[ArrayLike, ArrayLike], turn: float
) -> None:
    from matplotlib.collections import LineCollection

    i, j, strength = _likely_edges(values, len(points))
    order = np.argsort(strength, kind="stable")  # the most probable on top
    colors, widths = _look_of(strength[order], len(points))
    segments = [cut_at_border(edge, turn) for edge in np.stack([points[i], points[j]], axis=1)[order]]
    count = [len(parts) for parts in segments]
    look: dict[str, Any] = {"colors": colors.repeat(count, axis=0), "linewidths": widths.repeat(count)}
    lines = LineCollection([part for parts in segments for part in parts], zorder=1, capstyle="round", **look)
    ax.add_collection(lines, autolim=max(count, default=1) == 1)


def _look_of(strength: NDArray[np.float64], n: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Colors ``(m, 3)`` and widths ``(m,)`` of edges: from pale and thin to full and wide."""
    from matplotlib.colors import to_rgb

    depth = (0.3 + 0.7 * strength)[:, None]
    widths = (0.8 + 5.2 * strength) * min(1.0, math.sqrt(100 / n))
    return 1 - depth * (1 - np.array(to_rgb(PROBABILITY_COLOR))), widths


def _likely_edges(
    values: ArrayLike | tuple[ArrayLike, ArrayLike], n: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Edges ``i < j`` and the largest of their probabilities, where it is at least 2 %."""
    if isinstance(values, tuple):
        if len(values) != 2:
            raise InputError(f"edges are a pair of cities and probabilities, got {len(values)} things")
        cities, probabilities = (_numbers(each, "edge_probabilities") for each in values)
        strength = probabilities.ravel()
        if not ((cities >= 0) & (cities < n)).all():
            raise InputError(f"edges must be of cities in 0..{n - 1}, got {cities.min():g}..{cities.max():g}")
        if probabilities.ndim == 1 and cities.shape == (len(probabilities), 2):
            i, j = cities.astype(np.int64).T
        elif cities.shape == probabilities.shape and cities.ndim == 2 and len(cities) == n:
            i, j = np.repeat(np.arange(n), cities.shape[1]), cities.ravel().astype(np.int64)
        else:
            raise InputError(
                f"neighbors {cities.shape} and probabilities {probabilities.shape} must both be ({n}, K), "
                "or edges (m, 2) and probabilities (m,)"
            )
    else:
        matrix = _numbers(values, "edge_probabilities")
        if matrix.shape != (n, n):
            raise InputError(f"edge_probabilities must have shape ({n}, {n}), got {matrix.shape}")
        i, j = (index.ravel() for index in np.indices((n, n)))
        strength = matrix.ravel()
    if not ((strength >= 0) & (strength <= 1)).all():
        raise InputError("edge_probabilities must lie between 0 and 1")
    kept = (strength >= LEAST) & (i != j)
    low, high, strength = np.minimum(i, j)[kept], np.maximum(i, j)[kept], strength[kept]
    order = np.argsort(-strength, kind="stable")  # of several the most probable comes first
    _, first = np.unique(low[order] * n + high[order], return_index=True)
    return low[order][first], high[order][first], strength[order][first]


def plot_progress(
    instance: Instance,
    history: Sequence[Progress],
    path: PathLike | None = None,
    *,
    end: float | None = None,
    lower_bound: float | None = None,
) -> Figure:
    """Draw how the best tour got shorter over time, in percent above the best length known, else the last.

    ``end`` is when the search ended, in seconds, and ``lower_bound`` what it knew then; by default both are
    those of its last improvement. Where nothing was shorter than the first tour, the picture says why.
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
    ax.step(times, values, where="post", color=TOUR_COLOR, linewidth=1.6, clip_on=False, zorder=3)
    first: dict[str, Any] = {"color": TOUR_COLOR, "markersize": 5, "clip_on": False, "zorder": 3}
    ax.plot(seconds[:1], percent[:1], "o", **first)
    tidy(ax)
    if (percent > 0).sum() > 1:
        # A search gains most at the start: logarithmic above the smallest gap that shows, linear below.
        smallest = max(1e-3, float(percent[percent > 0].min()))
        ax.set_yscale("symlog", linthresh=smallest, linscale=0.4)
        decades = range(math.ceil(math.log10(smallest)), math.floor(math.log10(percent.max())) + 1)
        ax.set_yticks([0.0, *(10.0**k for k in decades)])  # those near zero would lie on top of it
        ax.set_yticks([], minor=True)
        ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    ax.set_ylim(0.0, None if percent.max() > 0 else 1.0)
    if percent.max() > 0:  # room for the words above the first tour
        low, high = ax.transAxes.transform([(0, 0), (0, 1)])[:, 1]
        ax.set_ylim(0.0, ax.transData.inverted().transform((0, high + 0.08 * (high - low)))[1])
    # Where loading took most of the time, only the search is shown.
    begin = 1.05 * seconds[0] - 0.05 * last if seconds[0] < last < 2 * seconds[0] else 0.0
    ax.set_xlim(begin, max(last, 1e-3))
    ax.set_xlabel("seconds since the call", fontsize=10)
    ax.set_ylabel("% above the " + ("last tour" if instance.optimum is None else "best known"), fontsize=10)
    bound = history[-1].lower_bound if lower_bound is None else lower_bound
    unit = f" {instance.unit}" if instance.unit else ""
    title = f"{drawn(instance.name)}  ·  {_number(lengths[0].item())} to {_number(lengths[-1].item())}{unit}"
    if lengths[-1] == lengths[0]:
        title = f"{drawn(instance.name)}  ·  length {_number(lengths[0].item())}{unit}"
        words = _why_flat(instance, lengths[0].item(), bound)
        ax.text(0.5, 0.55, words, transform=ax.transAxes, ha="center", fontsize=10, color=GRAY)
    else:
        beside: dict[str, Any] = {"xytext": (6, 5), "textcoords": "offset points", "fontsize": 9}
        ax.annotate("first tour", (seconds[0], percent[0]), color=TOUR_COLOR, **beside)
    if instance.optimum is None and bound is not None and lengths[-1] > 0:
        title += f"  ·  {proven(lengths[-1].item(), bound)}"
    ax.set_title(title, fontsize=11, color="#222222")
    if path is not None:
        save(figure, path)
    return figure


def _why_flat(instance: Instance, length: float, bound: float | None) -> str:
    """Why the first tour was the last."""
    if instance.optimum is not None and length <= instance.optimum:
        return "nothing to improve: the first tour is as short as the best known"
    if bound is not None and length > 0 and proven(length, bound) == OPTIMAL:
        return "nothing to improve: the first tour is proven optimal"
    return "the search found no tour shorter than the first"


def drawn(text: str, longest: int = LONGEST_NAME) -> str:
    """Text from a file as part of a title: no character that no font has, no formula, not too long."""
    text = visible(text)
    return (text if len(text) <= longest else f"{text[:longest]}...").replace("$", r"\$")


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
