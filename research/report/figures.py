"""Pictures of results: the interaction of encoder and objective, the grid of shifts, gap by size and by time.

What has not been measured is visibly empty; where nothing has, there is no picture. Names begin with
``results-``, then the kind.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from georoutenet.evaluate.names import BATCH_STATISTICS, METHODS
from georoutenet.io.datasets import SHIFT
from georoutenet.io.packaged import packaged_weights
from georoutenet.plot import COLORS, GRAY, MARKERS, tidy
from research.report.contrasts import seeds_of
from research.report.efficiency import Measurement
from research.report.tables import (
    DECODERS,
    Cell,
    paper_value,
    papers_decoder,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PAPER_SETS = ("val50", "diag100", "tsplib27")
SIZES = sorted({n for sizes in SHIFT.values() for n in sizes})
LARGEST_GAP = 5.0
"""Percent at which the color of a heat map is full."""
GAP_TICKS = (0.0, 0.05, 0.2, 0.5, 1.0, 2.0, 3.0, 5.0)
MARK = 7.0
"""Points of a mark's side in the picture of gap against time."""
SIDE = 0.06
"""From one series to the next in the interaction figure, so that none hides another; encoders are 1 apart."""
STEP = 1.06
"""The same, as a factor, from one decoder to the next of those that were measured at a size."""
SEVERAL = 4
"""On so many sets of the grid a model, or a decoder that the paper lacks, was measured if it is drawn."""


def figure_names(cells: Sequence[Cell], measured: Sequence[Measurement]) -> dict[str, str]:
    """The pictures that these numbers give, by name, and what each shows."""
    names = {}
    if research_weights(cells):
        names["results-interaction"] = "Gaps of both encoders under both objectives, the paper's beside ours"
    for weights in shifted(cells):
        names[f"results-grid-{weights}"] = f"Gap of {weights} by distribution and size, for each decoder"
        names[f"results-size-{weights}"] = f"Gap of {weights} on uniform instances by size"
    if shown_in_time(measured):
        names["results-time"] = "Gap against time per instance, our models and classical solvers"
    return names


def make_figure(name: str, cells: Sequence[Cell], measured: Sequence[Measurement]) -> Figure:
    """The picture of that name."""
    kind, _, weights = name.removeprefix("results-").partition("-")
    if kind == "interaction":
        return plot_interaction(cells)
    if kind == "time":
        return plot_time(measured)
    own = [cell for cell in cells if cell.weights == weights]
    return plot_grid(own) if kind == "grid" else plot_sizes(own)


def shifted(cells: Sequence[Cell]) -> list[str]:
    """Weights that were measured on several sets of the grid."""
    sets = {name for sizes in SHIFT.values() for name in sizes.values()}
    pairs = {(cell.weights, cell.set) for cell in cells if cell.set in sets}
    return sorted(name for name, count in Counter(name for name, _ in pairs).items() if count >= SEVERAL)


def research_weights(cells: Sequence[Cell]) -> dict[str, list[str]]:
    """For each of the paper's models the weights of its recipe, ``paper-nar4tsp-pg`` and its other seeds,
    else those with the most results on the paper's sets."""
    chosen = {}
    for method in METHODS.values():
        results = Counter(cell.weights for cell in cells if cell.method == method and cell.set in PAPER_SETS)
        if results:
            most = min(results, key=lambda name: (-results[name], name))
            chosen[method] = seeds_of(list(results), method) or [most]
    return chosen


def plot_interaction(cells: Sequence[Cell]) -> Figure:
    """The paper's interaction figure: a line per objective from one encoder to the other, seeds as points."""
    sets, decoders = PAPER_SETS, ("Greedy", "Beam-1000")
    figure, grid = _figure(len(decoders), len(sets), (3.3, 2.9))
    weights = research_weights(cells)
    by = {(cell.weights, cell.decoder, cell.set, cell.group): cell for cell in cells}
    for row, decoder in enumerate(decoders):
        for column, set_name in enumerate(sets):
            ax, empty = grid[row][column], list[tuple[int, str]]()
            for color, objective, side in zip(COLORS, ("PG", "MCS"), (-1, 1), strict=False):
                methods = [f"{encoder}-{objective}" for encoder in ("NAR4TSP", "GeoRouteNet")]
                paper = [paper_value(method, decoder, set_name).gap for method in methods]
                ax.plot(
                    _beside(1.5 * side), paper, "o--", color=color, markerfacecolor="white", linewidth=1.2
                )
                gaps = []
                places = _beside(0.5 * side)
                for x, method in zip(places, methods, strict=True):
                    own = [by.get((name, decoder, set_name, "all")) for name in weights.get(method, [])]
                    seeds = [cell.gap for cell in own if cell is not None]
                    gaps.append(sum(seeds) / len(seeds) if seeds else math.nan)
                    if len(seeds) > 1:
                        ax.plot([x] * len(seeds), seeds, "o", color=color, markersize=4)
                ax.plot(places, gaps, "_-", color=color, linewidth=2.0, markersize=11, markeredgewidth=2.0)
                for name in weights.get(methods[0], []):
                    batch = by.get((name, f"{decoder}, {BATCH_STATISTICS}", set_name, "all"))
                    if batch is not None:
                        ax.plot(_beside(side - 3.5)[:1], [batch.gap], "D", color=color, markersize=4)
                empty += [(k, objective) for k in (0, 1) if math.isnan(gaps[k])]
            tidy(ax)
            ax.set_xlim(-0.35, 1.35)
            ax.set_ylim(0.0, 1.08 * ax.get_ylim()[1])
            missing = [", ".join(f"no {name}" for x, name in empty if x == k) for k in (0, 1)]
            names = zip(("NAR4TSP", "GeoRouteNet"), missing, strict=True)
            ax.set_xticks((0, 1), [f"{name}\n(ours: {gone})" if gone else name for name, gone in names])
            ax.set_title(f"{set_name}, {decoder}", fontsize=11)
            if column == 0:
                ax.set_ylabel("mean gap (%)", fontsize=10)
    handles = [_handle(COLORS[0], "-", "", "PG"), _handle(COLORS[1], "-", "", "MCS")]
    drawn = sorted({name for each in weights.values() for name in each})
    recipes = len(drawn) > 0 and all(name.startswith("paper-") for name in drawn)
    words = "mean and single seeds" if recipes else ", ".join(drawn) or "none yet"
    handles += [_handle(GRAY, "-", "o", f"ours: {words}")]
    handles += [_handle(GRAY, "--", "o", "paper", hollow=True)]
    handles += [_handle(GRAY, "", "D", "ours, NAR4TSP with batch statistics")]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=9, frameon=False)
    return figure


def _beside(series: float) -> tuple[float, float]:
    """Where a series has its marks: beside 0 and beside 1."""
    return SIDE * series, 1 + SIDE * series


def plot_grid(cells: Sequence[Cell]) -> Figure:
    """A heat map for each decoder of one model: distribution by size."""
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import PowerNorm
    from matplotlib.patches import Rectangle

    sets = {name for sizes in SHIFT.values() for name in sizes.values()}
    measured = Counter(cell.decoder for cell in cells if cell.set in sets)
    decoders = [name for name in _decoders(cells) if name in DECODERS or measured[name] >= SEVERAL]
    columns = min(2, len(decoders))
    rows = math.ceil(len(decoders) / columns)
    figure, grid = _figure(rows, columns, (4.6, 3.0))
    gaps = {(cell.decoder, cell.set): cell.gap for cell in cells if cell.set in sets}
    # One scale for all pictures, so that they can be compared; by the root, so that small gaps differ too.
    scale = PowerNorm(0.5, 0.0, LARGEST_GAP, clip=True)
    colors = colormaps["viridis_r"]
    panels: list[Axes] = [ax for row in grid for ax in row]
    for ax in panels[len(decoders) :]:
        ax.set_axis_off()
    for ax, decoder in zip(panels, decoders, strict=False):
        for y, sizes in enumerate(SHIFT.values()):
            for x, n in enumerate(SIZES):
                if n not in sizes:
                    continue
                gap = gaps.get((decoder, sizes[n]))
                if gap is None:
                    ax.add_patch(Rectangle((x, y), 1, 1, facecolor="white", edgecolor="#bbbbbb", hatch="///"))
                    continue
                depth = float(scale(max(gap, 0.0)))
                ax.add_patch(Rectangle((x, y), 1, 1, facecolor=colors(depth), edgecolor="white"))
                text = f"{gap:.1f}" if gap >= 9.95 else f"{gap:.2f}"
                ink = "white" if depth > 0.45 else "black"
                ax.text(x + 0.5, y + 0.5, text, ha="center", va="center", fontsize=10, color=ink)
        ax.set(xlim=(0, len(SIZES)), ylim=(len(SHIFT), 0))
        ax.set_xticks([x + 0.5 for x in range(len(SIZES))], [f"{n:,}" for n in SIZES])
        ax.set_yticks([y + 0.5 for y in range(len(SHIFT))], list(SHIFT))
        ax.tick_params(length=0, labelsize=10)
        ax.set_title(decoder, fontsize=11)
        ax.set_xlabel("cities", fontsize=10)
        for spine in ax.spines.values():
            spine.set_visible(False)
    beyond = "max" if max(gaps.values(), default=0.0) > LARGEST_GAP else "neither"
    bar = figure.colorbar(
        ScalarMappable(scale, colors), ax=panels, shrink=0.8, pad=0.02, extend=beyond, ticks=GAP_TICKS
    )
    bar.set_label("mean gap (%)", fontsize=10)
    bar.ax.yaxis.set_major_formatter(_plain)
    figure.suptitle(f"{cells[0].weights}: mean gap (%) by distribution and size", fontsize=12)
    return figure


def plot_sizes(cells: Sequence[Cell]) -> Figure:
    """Gap against size on uniform instances, a line per decoder, intervals as pale bars."""
    from matplotlib.ticker import LogLocator

    figure, ((ax,),) = _figure(1, 1, (6.6, 5.0))
    uniform = {name: n for n, name in SHIFT["uniform"].items()}
    own = [cell for cell in cells if cell.set in uniform]
    decoders = _decoders(own)
    measured = {(cell.decoder, uniform[cell.set]) for cell in own}
    at = {n: [decoder for decoder in decoders if (decoder, n) in measured] for n in SIZES}

    def place(decoder: str, n: int) -> float:
        behind = at[n].index(decoder) - (len(at[n]) - 1) / 2 if decoder in at[n] else 0.0
        return n * STEP**behind

    for color, marker, decoder in zip(COLORS, MARKERS, decoders, strict=False):
        cells_of = [(uniform[cell.set], cell) for cell in own if cell.decoder == decoder]
        points = sorted((place(decoder, n), c.gap, c.gap_low, c.gap_high) for n, c in cells_of)
        if points:
            n, gap, low, high = (list(each) for each in zip(*points, strict=True))
            ax.plot(n, gap, marker=marker, color=color, linewidth=1.6, label=decoder)
            ax.vlines(n, low, high, color=color, linewidth=4.0, alpha=0.35)
        sets = {50: "val50", 100: "diag100"}
        gaps = {n: paper_value(cells[0].method, decoder, name).gap for n, name in sets.items()}
        paper = [(place(decoder, n), gap) for n, gap in gaps.items()]
        if points and not math.isnan(paper[0][1]):
            hollow: dict[str, Any] = {"color": color, "markerfacecolor": "white", "markersize": 8}
            ax.plot(*zip(*paper, strict=True), marker, **hollow, linestyle="", zorder=1)
    handles, labels = ax.get_legend_handles_labels()
    handles.append(_handle(GRAY, "", "o", "", hollow=True))
    labels.append("paper, on val50 and diag100")
    figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=9, frameon=False)
    tidy(ax)
    ax.set(xscale="log", yscale="log", xlim=(SIZES[0] / 1.2, SIZES[-1] * 1.2))
    ax.set_xticks(SIZES, [f"{n:,}" for n in SIZES])
    ax.set_xticks([], minor=True)
    ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.yaxis.set_major_formatter(_plain)
    ax.yaxis.set_minor_formatter(_nothing)
    ax.set_xlabel("cities (test20 to test1000), decoders side by side", fontsize=10)
    ax.set_ylabel("mean gap (%)", fontsize=10)
    ax.set_title(f"{cells[0].weights}: size shift on uniform instances", fontsize=11)
    return figure


def shown_in_time(measured: Sequence[Measurement]) -> list[Measurement]:
    """What the picture of gap against time shows: solvers and packaged weights, no research weights.

    Of what was measured on several numbers of a set's instances, the row of most of them.
    """
    known, most = set(packaged_weights()), dict[tuple[str, str, str, str], Measurement]()
    for each in measured:
        if math.isfinite(each.gap) and (not each.weights or each.weights in known):
            key = (each.set, each.weights, _contender(each), each.device)
            if key not in most or each.instances > most[key].instances:
                most[key] = each
    return list(most.values())


def plot_time(measured: Sequence[Measurement]) -> Figure:
    """Gap against time per instance: a panel per set, a color per model and device, a shape per settings.

    Marks that would lie on one another are moved apart; a line leads from each to where it belongs.
    """
    measured = shown_in_time(measured)
    sets = list(dict.fromkeys(each.set for each in measured))
    figure, (panels,) = _figure(1, len(sets), (3.7, 5.2))
    figure.set_size_inches(3.7 * len(sets) + 3.0, 5.2)
    runs = list(dict.fromkeys((each.weights, each.device) for each in measured if each.weights))
    color = {run: COLORS[k % len(COLORS)] for k, run in enumerate(runs)}
    labels = list(dict.fromkeys(_contender(each) for each in measured))
    solvers = [label for label in labels if not any(_contender(m) == label and m.weights for m in measured)]
    decoders = [label for label in labels if label not in solvers]
    marker: dict[str, str] = {}
    for group in (decoders, solvers):
        marker |= {label: MARKERS[k % len(MARKERS)] for k, label in enumerate(group)}
    times = [each.instance_seconds for each in measured]
    decades = [10.0 ** math.floor(math.log10(min(times))), 10.0 ** math.ceil(math.log10(max(times)))]
    for ax, set_name in zip(panels, sets, strict=True):
        own = [each for each in measured if each.set == set_name]
        tidy(ax)
        ax.set(xscale="log", xlim=decades)
        ax.xaxis.set_major_formatter(_time)
        ax.xaxis.set_minor_formatter(_nothing)
        ax.set_yscale("symlog", linthresh=0.01, linscale=0.5)
        ax.set_ylim(0.0, 1.5 * max([0.02, *(each.gap for each in own)]))
        ax.yaxis.set_major_formatter(_plain)
        count = max(each.instances for each in own)
        fewer = {
            f"{each.method or each.weights}: {each.instances:,}" for each in own if each.instances < count
        }
        also = f" ({', '.join(sorted(fewer))})" if fewer else ""
        ax.set_title(f"{set_name}, first {count:,}{also}", fontsize=11)
        ax.set_xlabel("time per instance\n(one thread: processor time)", fontsize=10)
    panels[0].set_ylabel("mean gap (%)", fontsize=10)
    handles = [_handle(color[run], "", "s", f"{run[0]} on {run[1]}") for run in runs]
    handles += [_handle(GRAY, "", marker[label], label) for label in decoders]
    handles += [_handle("black", "", marker[label], label, hollow=True) for label in solvers]
    figure.legend(handles=handles, loc="outside right upper", fontsize=9, frameon=False)
    figure.draw_without_rendering()  # from here on it is known how large the panels are
    for ax, set_name in zip(panels, sets, strict=True):
        own = [each for each in measured if each.set == set_name]
        places = np.array([(each.instance_seconds, max(each.gap, 0.0)) for each in own])
        for each, place, moved in zip(own, places, _apart(ax, places), strict=True):
            ink = color.get((each.weights, each.device), "black")
            ax.plot(*np.transpose([place, moved]), "-", color=GRAY, linewidth=0.6, clip_on=False, zorder=2)
            style: dict[str, Any] = {"markersize": MARK, "clip_on": False, "color": ink}
            style["markerfacecolor"] = ink if each.weights else "white"
            ax.plot(*moved, marker[_contender(each)], zorder=3, **style)
    return figure


def _apart(ax: Axes, places: NDArray[np.float64]) -> NDArray[np.float64]:
    """The places, those moved whose marks would lie on one another: up or down, and aside where need be."""
    dots = ax.transData.transform(places)
    floor = ax.transData.transform((1.0, 0.0))[1]
    apart = 1.25 * MARK * cast("Figure", ax.figure).dpi / 72
    moved = dots + np.arange(len(dots))[:, None] * (1e-3, 1e-3)  # none exactly on another
    for _ in range(2000):
        away = moved[:, None] - moved
        distance = np.hypot(away[..., 0], away[..., 1])
        np.fill_diagonal(distance, np.inf)
        if (distance >= apart).all():
            break
        push = np.maximum(apart - distance, 0.0) / distance
        moved += 0.3 * (push[..., None] * away).sum(axis=1)
        moved[:, 1] = np.maximum(moved[:, 1], floor)
    return np.asarray(ax.transData.inverted().transform(moved))


def _contender(one: Measurement) -> str:
    return one.decoder if one.weights else ", ".join(part for part in (one.method, one.decoder) if part)


def _decoders(cells: Sequence[Cell]) -> list[str]:
    """Plain decoders first, as in the tables."""
    own = {cell.decoder for cell in cells}
    order = {name: k for k, name in enumerate(DECODERS)}
    return sorted({*DECODERS, *own}, key=lambda name: (order.get(papers_decoder(name), 9), name))


def _figure(rows: int, columns: int, panel: tuple[float, float]) -> tuple[Figure, list[list[Axes]]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(columns * panel[0], rows * panel[1]), layout="constrained")
    axes: Any = figure.subplots(rows, columns, squeeze=False)
    return figure, [list(row) for row in axes]


def _plain(value: float, _: object) -> str:
    return f"{value:g}"


def _time(seconds: float, _: object) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= 0.999 * size:
            return f"{seconds / size:g} {unit}"
    return f"{seconds / 1e-6:g} µs"


def _nothing(value: float, _: object) -> str:
    return ""


def _handle(color: str, line: Any, marker: str, label: str, *, hollow: bool = False) -> Any:
    from matplotlib.lines import Line2D

    face = "white" if hollow else color
    return Line2D([], [], color=color, linestyle=line, marker=marker, markerfacecolor=face, label=label)
