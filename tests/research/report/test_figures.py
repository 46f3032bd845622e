from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from georoutenet.plot import save
from research.report.efficiency import Measurement
from research.report.figures import (
    figure_names,
    make_figure,
    plot_grid,
    plot_interaction,
    plot_sizes,
    plot_time,
    research_weights,
)
from research.report.tables import Cell, paper_values


def cell(set_name: str, gap: float, **other: object) -> Cell:
    given = Cell(
        method="GeoRouteNet-MCS",
        weights="mine",
        decoder="Greedy",
        set=set_name,
        group="all",
        instances=10,
        length=5.0,
        gap=gap,
        gap_low=gap - 0.1,
        gap_high=gap + 0.1,
        paper_length=math.nan,
        paper_gap=math.nan,
        file="f",
    )
    return replace(given, **other)  # type: ignore[arg-type]


def measurement(**other: object) -> Measurement:
    given = Measurement(
        *(
            "val50",
            "GeoRouteNet-MCS",
            "georoutenet",
            "Greedy",
            4,
            0.5,
            0.4,
            0.6,
            0.1,
            2.0,
            1.0,
            0.5,
            0.5,
            2.0,
            128,
        ),
        *("float32", 10, math.nan, "an abacus", 1, "", "2026-01-01"),
    )
    return replace(given, **other)  # type: ignore[arg-type]


def texts(ax: Axes) -> list[str]:
    return [text.get_text() for text in ax.texts]


def drawn_points(ax: Axes) -> list[tuple[float, float]]:
    """What is drawn and not missing."""
    drawn = [xy for line in ax.lines for xy in zip(line.get_xdata(), line.get_ydata(), strict=True)]  # type: ignore[arg-type]
    return [(float(x), round(float(y), 6)) for x, y in drawn if math.isfinite(y)]


def points(ax: Axes) -> set[tuple[float, float]]:
    """The same, each at the tick beside which it is drawn."""
    ticks = ax.get_xticks()
    return {(float(ticks[np.abs(ticks - x).argmin()]), y) for x, y in drawn_points(ax)}


def drawable(figure: Figure, tmp_path: object) -> None:
    for extension in ("png", "svg"):
        save(figure, f"{tmp_path}/x.{extension}")


def test_the_interaction_shows_the_paper_and_what_is_missing(tmp_path: object) -> None:
    figure = plot_interaction([])
    assert len(figure.axes) == 6
    for ax, (set_name, decoder) in zip(
        figure.axes,
        [(s, d) for d in ("Greedy", "Beam-1000") for s in ("val50", "diag100", "tsplib27")],
        strict=True,
    ):
        assert ax.get_title() == f"{set_name}, {decoder}"
        papers = {
            (
                float(encoder == "GeoRouteNet"),
                paper_values()[f"{encoder}-{objective}", decoder, set_name, "all"].gap,
            )
            for encoder in ("NAR4TSP", "GeoRouteNet")
            for objective in ("PG", "MCS")
        }
        assert points(ax) == papers
        assert len({x for x, _ in drawn_points(ax)}) == 4
        labels = [label.get_text() for label in ax.get_xticklabels()]
        assert labels == ["NAR4TSP\n(ours: no PG, no MCS)", "GeoRouteNet\n(ours: no PG, no MCS)"]
    drawable(figure, tmp_path)


def test_the_interaction_takes_what_was_measured_most() -> None:
    cells = [
        cell("val50", 1.0, weights="b"),
        cell("test50", 1.0, weights="a"),
        cell("diag100", 1.0, weights="b"),
    ]
    cells += [cell("val50", 1.0, weights="a"), cell("test100", 1.0, weights="a")]
    (chosen,) = research_weights(cells).values()
    assert chosen == ["b"]


def test_the_interaction_takes_the_four_research_weights_by_name() -> None:
    names = ["NAR4TSP-PG", "NAR4TSP-MCS", "GeoRouteNet-PG", "GeoRouteNet-MCS"]
    cells = [
        cell("val50", 90.0 + k, method=name, weights=f"paper-{name.lower()}") for k, name in enumerate(names)
    ]
    cells.append(cell("val50", 80.0, method="GeoRouteNet-MCS", weights="a-better-one"))
    cells.append(
        cell(
            "val50", 95.0, method="NAR4TSP-PG", weights="paper-nar4tsp-pg", decoder="Greedy, batch statistics"
        )
    )
    assert research_weights(cells) == {name: [f"paper-{name.lower()}"] for name in names}
    first, *others = plot_interaction(cells).axes
    ours = {point for point in points(first) if point[1] > 50}
    assert ours == {(0.0, 90.0), (0.0, 91.0), (1.0, 92.0), (1.0, 93.0), (0.0, 95.0)}
    assert [label.get_text() for label in first.get_xticklabels()] == ["NAR4TSP", "GeoRouteNet"]
    assert all(point[1] < 50 for ax in others for point in points(ax))


def test_the_grid_has_every_set_and_shows_what_is_missing(tmp_path: object) -> None:
    cells = [
        cell("test20", 0.5),
        cell("clustered200", 12.34),
        cell("ring50", 9.0, decoder="Beam-7"),  # too few to be drawn
        *(cell(name, 1.0, decoder="Beam-1000, 8 views") for name in ("test20", "test50", "grid50", "ring50")),
    ]
    figure = plot_grid([*cells, cell("val50", 7.0)])
    titles = [ax.get_title() for ax in figure.axes if ax.get_title()]
    assert titles == ["Greedy", "Beam-100", "Beam-1000", "Beam-1000, 8 views"]
    greedy, empty, _, views = figure.axes[:4]
    assert texts(greedy) == ["0.50", "12.3"]
    assert texts(views) == ["1.00"] * 4
    for ax, measured in ((greedy, 2), (empty, 0), (views, 4)):
        hatched = [patch for patch in ax.patches if patch.get_hatch()]
        assert len(ax.patches) == 18
        assert len(hatched) == 18 - measured
    drawable(figure, tmp_path)


def test_small_gaps_differ_in_color_and_all_grids_share_a_scale() -> None:
    gaps = {"test20": 0.05, "test50": 0.5, "test100": 1.0, "test200": 2.0, "test500": 4.0}
    cells = [cell(name, gap) for name, gap in gaps.items()]
    light = lightness(plot_grid(cells).axes[0])
    assert all(a - b > 0.05 for a, b in itertools.pairwise(light))
    assert lightness(plot_grid([*cells, cell("test1000", 30.0)]).axes[0])[:5] == light


def lightness(ax: Axes) -> list[float]:
    """Of the measured cells, as somebody sees them who sees no colors."""
    inks = [patch.get_facecolor() for patch in ax.patches if not patch.get_hatch()]
    return [0.2126 * red + 0.7152 * green + 0.0722 * blue for red, green, blue, _ in inks]


def test_sizes_have_a_line_for_each_measured_decoder(tmp_path: object) -> None:
    cells = [
        cell("test50", 1.0),
        cell("test20", 0.5),
        cell("ring50", 9.0),
        cell("test50", 0.2, decoder="Beam-7"),
    ]
    figure = plot_sizes(cells)
    (ax,) = figure.axes
    paper = {
        (float(n), paper_values()["GeoRouteNet-MCS", "Greedy", s, "all"].gap)
        for n, s in ((50, "val50"), (100, "diag100"))
    }
    assert points(ax) == {(20.0, 0.5), (50.0, 1.0), (50.0, 0.2)} | paper
    assert len({x for x, _ in drawn_points(ax) if 40 < x < 60}) == 2  # side by side
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["Greedy", "Beam-7", "paper, on val50 and diag100"]
    drawable(figure, tmp_path)


def test_time_has_a_panel_for_each_set(tmp_path: object) -> None:
    solver = {"weights": "", "method": "LKH-3", "decoder": ""}
    measured = [
        measurement(),
        measurement(decoder="Beam-5", gap=-1e-9, cpu_seconds=800.0),
        measurement(**solver, gap=0.0, cpu_seconds=4.0),
        measurement(set="tsplib27", gap=3.0, instances=27, cpu_seconds=27.0),
        measurement(set="tsplib27", gap=math.nan, decoder="Beam-5"),
    ]
    figure = plot_time(measured)
    first, second = figure.axes
    assert marks(first) == pytest.approx(np.array([(0.5, 0.5), (200.0, 0.0), (1.0, 0.0)]), rel=0.01, abs=1e-3)
    assert marks(second) == pytest.approx(np.array([(1.0, 3.0)]), rel=0.01)
    assert (first.get_title(), second.get_title()) == ("val50, first 4", "tsplib27, first 27")
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["georoutenet on an abacus", "Greedy", "Beam-5", "LKH-3"]
    drawable(figure, tmp_path)
    ticks = [first.xaxis.get_major_formatter()(value) for value in (1e-5, 1e-4, 0.001, 0.1, 1.0, 10.0)]
    assert ticks == ["10 µs", "100 µs", "1 ms", "100 ms", "1 s", "10 s"]


def marks(ax: Axes) -> NDArray[np.float64]:
    """Where the marks are, in the order of the measurements."""
    return np.array([line.get_xydata()[0] for line in ax.lines if len(line.get_xdata()) == 1])  # type: ignore


def test_marks_of_time_do_not_lie_on_one_another() -> None:
    """Of twelve in one place four at the bottom: apart, not below zero, lines to where they belong."""
    measured = [measurement(decoder=f"Beam-{k}", gap=0.5 if k < 8 else 0.0) for k in range(12)]
    figure = plot_time(measured)
    (ax,) = figure.axes
    dots = ax.transData.transform(marks(ax)) / figure.dpi * 72  # in points
    distances = np.hypot(*(dots[:, None] - dots).transpose(2, 0, 1))
    assert distances[~np.eye(12, dtype=bool)].min() >= 7.0  # a mark is as wide
    assert marks(ax)[:, 1].min() > -1e-9
    ends = [line.get_xydata() for line in ax.lines if len(line.get_xdata()) == 2]  # type: ignore[arg-type]
    assert [tuple(end[0]) for end in ends] == [(0.5, each.gap) for each in measured]
    np.testing.assert_array_equal([end[1] for end in ends], marks(ax))


def test_time_shows_packaged_weights_and_solvers_alone() -> None:
    others = [measurement(weights="paper-nar4tsp-pg", gap=7.0), measurement(weights="georoutenet-stage-2")]
    labels = [text.get_text() for text in plot_time([*others, measurement()]).legends[0].get_texts()]
    assert [label for label in labels if " on " in label] == ["georoutenet on an abacus"]
    assert figure_names([], others) == {}


def test_time_shows_one_mark_for_each_contender() -> None:
    """Of a solver's rows that with the most instances; who has fewer than the others is named."""
    solver = {"weights": "", "method": "OR-Tools", "decoder": "at most 1 s"}
    measured = [
        measurement(instances=100, cpu_seconds=50.0),
        measurement(**solver, gap=2.0, instances=20, cpu_seconds=20.0),
        measurement(**solver, gap=3.0, instances=100, cpu_seconds=100.0),
        measurement(**solver | {"method": "PyVRP"}, gap=0.1, instances=20, cpu_seconds=4.0),
    ]
    (ax,) = plot_time(measured).axes
    assert marks(ax) == pytest.approx(np.array([(0.5, 0.5), (1.0, 3.0), (0.2, 0.1)]), rel=0.01)
    assert ax.get_title() == "val50, first 100 (PyVRP: 20)"


def test_which_pictures_there_are() -> None:
    assert figure_names([], []) == {}
    cells = [cell(name, 1.0, weights="other") for name in ("val50", "test50", "test100", "ring50")]
    cells += [cell(name, 1.0) for name in ("test20", "test50", "test100", "ring50")]
    names = figure_names(cells, [measurement()])
    assert list(names) == ["results-interaction", "results-grid-mine", "results-size-mine", "results-time"]
    titles = [make_figure(name, cells, [measurement()]).axes[0].get_title() for name in names]
    assert titles == ["val50, Greedy", "Greedy", "mine: size shift on uniform instances", "val50, first 4"]


@pytest.mark.parametrize("gap", [0.0, 250.0])
def test_extreme_gaps_can_be_drawn(gap: float, tmp_path: object) -> None:
    drawable(plot_grid([cell("test20", gap)]), tmp_path)
    drawable(plot_time([measurement(gap=gap)]), tmp_path)
    drawable(plot_sizes([cell("test20", gap)]), tmp_path)
