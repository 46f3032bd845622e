from __future__ import annotations

import itertools
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes

import georoutenet as grn
from georoutenet import plot
from georoutenet.errors import InputError
from georoutenet.examples import us_capitals, us_outline
from georoutenet.plot import plot_instances, plot_progress, plot_tour
from georoutenet.problem.instance import Instance
from georoutenet.stop import Progress


def instance(n: int, **options: object) -> Instance:
    return Instance(np.random.default_rng(n).random((n, 2)), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("n", [1, 2, 3, 50, 5000])
def test_any_size_is_drawn(n: int, tmp_path: Path) -> None:
    plot_tour(instance(n), np.arange(n), tmp_path / "tour.png")
    assert (tmp_path / "tour.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "points", [[[1, 1]] * 4, [[0, 0], [1, 0], [5, 0]], [[0, 0], [0, 1e9]], [[1e-300, 0], [0, 1]]]
)
def test_degenerate_shapes(points: list[list[float]], tmp_path: Path) -> None:
    plot_tour(Instance(points), np.arange(len(points)), tmp_path / "tour.png")
    assert (tmp_path / "tour.png").exists()


def test_the_extension_decides_the_format(tmp_path: Path) -> None:
    plot_tour(instance(9), np.arange(9), tmp_path / "tour.svg")
    plot_tour(instance(9), np.arange(9), tmp_path / "tour.PDF")
    assert b"<svg" in (tmp_path / "tour.svg").read_bytes()
    assert (tmp_path / "tour.PDF").read_bytes().startswith(b"%PDF")
    with pytest.raises(InputError, match=r"unknown picture format '.gif'; allowed: .png, .svg, .pdf"):
        plot_tour(instance(9), np.arange(9), tmp_path / "tour.gif")


@pytest.mark.parametrize("name", ["a.png", "a.svg", "a.pdf"])
def test_the_same_tour_gives_the_same_file(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    plot_tour(instance(20), np.arange(20), path)
    first = path.read_bytes()
    plot_tour(instance(20), np.arange(20), path)
    assert path.read_bytes() == first


def test_the_line_is_the_tour() -> None:
    cities, tour = instance(30), np.random.default_rng(0).permutation(30)
    axes = plot_tour(cities, tour).axes[0]
    line = axes.lines[0].get_xydata()
    np.testing.assert_array_equal(line, cities.coordinates[np.append(tour, tour[0])])
    assert axes.get_aspect() == 1.0


def test_geo_files_are_drawn_north_up() -> None:
    cities = Instance([[10.0, 100.0], [20.0, 150.0], [30.0, 120.0]], rule="GEO")
    line = np.asarray(plot_tour(cities, [0, 1, 2]).axes[0].lines[0].get_xydata())
    np.testing.assert_array_equal(line[1], [150.0, 20.0])


def test_degrees_are_drawn_on_a_map_and_measured_on_the_globe() -> None:
    cities = Instance([[0.0, 179.0], [0.0, -179.0], [1.0, 180.0]], name="date line", rule="GREAT_CIRCLE")
    axes = plot_tour(cities, [0, 1, 2]).axes[0]
    line = np.asarray(axes.lines[0].get_xydata())
    np.testing.assert_array_equal(line[:3], cities.plane)
    assert line[0, 0] < line[2, 0] < line[1, 0]
    assert line[2, 1] > line[0, 1] == line[1, 1]
    assert axes.get_title() == "date line  ·  3 cities  ·  length 536.89 km"


def test_title() -> None:
    square = Instance(
        [[0, 0], [0, 3000], [3000, 3000], [3000, 0]], name="square", rule="EUC_2D", optimum=12000
    )
    title = plot_tour(square, [0, 1, 2, 3]).axes[0].get_title()
    assert title == "square  ·  4 cities  ·  length 12,000  ·  gap 0.00 %"
    assert plot_tour(square, [0, 1, 2, 3], title="mine").axes[0].get_title() == "mine"
    assert plot_tour(square).axes[0].get_title() == "square  ·  4 cities"
    bounded = plot_tour(square, [0, 1, 2, 3], lower_bound=11_000).axes[0].get_title()
    assert bounded == title  # the gap says more


def test_titles_say_what_a_bound_proves() -> None:
    square = Instance([[0, 0], [0, 3000], [3000, 3000], [3000, 0]], name="square", rule="EUC_2D")
    for bound, words in ((11_000, "at most 9.091 % above optimal"), (12_000, "proven optimal")):
        title = plot_tour(square, [0, 1, 2, 3], lower_bound=bound).axes[0].get_title()
        assert title == f"square  ·  4 cities  ·  length 12,000  ·  {words}"
        history = [Progress(0.0, 0, 0, 14_000.0), Progress(1.0, 9, 0, 12_000.0, bound)]
        assert (
            plot_progress(square, history).axes[0].get_title() == f"square  ·  14,000 to 12,000  ·  {words}"
        )


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("a\0b\x1b[31m\n", r"a\x00b\x1b[31m\n"),
        ("\ud800", r"\ud800"),
        (r"$\frac{$", r"$\frac{$"),
        ("x" * 5000, "x" * 80 + "..."),
    ],
)
def test_a_name_from_a_file_is_drawn_as_text(name: str, shown: str, tmp_path: Path) -> None:
    """No warning of missing glyphs, no formula, no picture as wide as the name is long."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        instance = Instance(np.eye(3, 2), name=name)
        figure = plot_tour(instance, np.arange(3), tmp_path / "tour.png")
        plot_progress(instance, [Progress(0.0, 0, 0, 1.0)], tmp_path / "progress.png")
        plot_instances([instance], tmp_path / "instances.png")
    assert figure.axes[0].get_title().replace(r"\$", "$").startswith(f"{shown}  ·  3 cities")


def test_a_matrix_is_drawn_where_there_are_coordinates(tmp_path: Path) -> None:
    points, matrix = [[0, 0], [10, 0], [10, 50]], [[0, 1000, 2], [1000, 0, 5], [2, 5, 0]]
    drawn = Instance(points, name="roads", matrix=matrix, latlon=points)  # type: ignore[arg-type]
    axes = plot_tour(drawn, [0, 1, 2]).axes[0]
    assert axes.get_title() == "roads  ·  3 cities  ·  length 1,007"  # not in kilometers
    np.testing.assert_array_equal(axes.lines[0].get_xydata(), [*points, points[0]])
    with pytest.raises(InputError, match="'roads' has distances but no coordinates"):
        plot_tour(drawn.replaced(coordinates=None), [0, 1, 2], tmp_path / "tour.png")
    assert not (tmp_path / "tour.png").exists()
    history = [Progress(0.0, 0, 0, 1010.0), Progress(0.5, 10, 0, 1007.0)]
    plot_progress(drawn.replaced(coordinates=None), history, tmp_path / "search.png")
    assert (tmp_path / "search.png").exists()


def test_cities_shrink_as_they_become_many() -> None:
    sizes = [plot_tour(instance(n)).axes[0].lines[0].get_markersize() for n in (10, 300, 3000)]
    assert sizes[0] > sizes[1] > sizes[2]


def test_edge_probabilities_lie_behind_the_tour() -> None:
    cities = instance(5)
    probabilities = np.zeros((5, 5))
    probabilities[0, 1], probabilities[3, 2], probabilities[1, 4] = 0.9, 0.5, 0.001
    axes = plot_tour(cities, np.arange(5), edge_probabilities=probabilities).axes[0]
    (edges,) = axes.collections
    assert len(edges.get_segments()) == 2  # 0.001 is left out
    assert edges.get_zorder() < axes.lines[0].get_zorder()
    with pytest.raises(InputError, match=r"shape \(5, 5\), got \(4, 4\)"):
        plot_tour(cities, edge_probabilities=np.zeros((4, 4)))
    with pytest.raises(InputError, match="between 0 and 1"):
        plot_tour(cities, edge_probabilities=np.full((5, 5), 1.5))


def test_a_wrong_tour_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        plot_tour(instance(5), [0, 1, 2, 3, 3], tmp_path / "tour.png")
    assert list(tmp_path.iterdir()) == []


def test_panels(tmp_path: Path) -> None:
    instances = [instance(n) for n in (3, 10, 20, 30, 40)]
    figure = plot_instances(instances, tmp_path / "panels.png", columns=3, titles=list("abcde"))
    assert [axes.get_title() for axes in figure.axes] == ["a", "b", "c", "d", "e", ""]
    assert not figure.axes[5].axison
    long = [Instance(np.random.default_rng(k).random((9, 2)) * (1, k)) for k in (1, 5)]
    figure = plot_instances(long, tmp_path / "tours.png", tours=[range(9)] * 2)
    tops = [ax.get_position().y1 for ax in figure.axes]
    assert tops[0] == pytest.approx(tops[1])  # so that their titles stand side by side
    assert all(line.get_marker() != "s" for ax in figure.axes for line in ax.lines)  # no legend explains it
    with pytest.raises(InputError, match="1 tours for 5 instances"):
        plot_instances(instances, tours=[None])
    with pytest.raises(InputError, match="at least one instance"):
        plot_instances([])


def test_the_global_backend_is_left_alone() -> None:
    code = (
        "import sys, numpy, matplotlib; matplotlib.use('svg')\n"
        "from georoutenet.problem.instance import Instance\n"
        "from georoutenet.plot import plot_tour\n"
        "plot_tour(Instance([[0, 0], [1, 1], [1, 0]]), [0, 1, 2])\n"
        "assert matplotlib.get_backend() == 'svg'\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_candidate_lists_are_drawn_like_the_matrix() -> None:
    cities = instance(6)
    neighbors = np.array([[1, 2], [0, 2], [1, 0], [4, 5], [3, 5], [0, 4]])
    chances = np.array([[0.9, 0.1], [0.3, 0.01], [0.5, 0.2], [1.0, 0.0], [0.6, 0.4], [0.7, 0.3]])
    matrix = np.zeros((6, 6))
    np.put_along_axis(matrix, neighbors, chances, axis=1)
    drawn = [
        plot_tour(cities, edge_probabilities=values).axes[0].collections[0]
        for values in (matrix, (neighbors, chances), (np.argwhere(matrix), matrix[matrix > 0]))
    ]
    for other in drawn[1:]:
        np.testing.assert_array_equal(drawn[0].get_segments(), other.get_segments())
        np.testing.assert_array_equal(drawn[0].get_linewidths(), other.get_linewidths())
    assert len(drawn[0].get_segments()) == 6  # 0-1 and 3-4 once, though named in both directions
    with pytest.raises(InputError, match=r"must both be \(6, K\), or edges \(m, 2\) and"):
        plot_tour(cities, edge_probabilities=(neighbors[:5], chances[:5]))
    with pytest.raises(InputError, match=r"cities in 0..5"):
        plot_tour(cities, edge_probabilities=(neighbors + 3, chances))


def test_an_open_path_has_no_way_back() -> None:
    cities, tour = instance(8, optimum=1.0), np.random.default_rng(0).permutation(8)
    axes = plot_tour(cities, tour, closed=False).axes[0]
    np.testing.assert_array_equal(axes.lines[0].get_xydata(), cities.coordinates[tour])
    assert "open path, length" in axes.get_title()
    assert "gap" not in axes.get_title()


def test_progress(tmp_path: Path) -> None:
    history = [Progress(0.5, 0, 0, 130.0), Progress(1.0, 0, 0, 110.0), Progress(2.0, 9, 0, 101.0)]
    figure = plot_progress(
        instance(8, name="eight", optimum=100.0), history, tmp_path / "progress.png", end=3.0
    )
    line = np.asarray(figure.axes[0].lines[0].get_xydata())
    np.testing.assert_allclose(line, [[0.5, 30], [1.0, 10], [2.0, 1], [3.0, 1]])
    assert figure.axes[0].get_ylabel() == "% above the best known"
    assert figure.axes[0].get_title() == "eight  ·  130 to 101"
    (words,) = figure.axes[0].texts
    assert words.get_text() == "first tour"
    assert (tmp_path / "progress.png").exists()
    last = plot_progress(instance(8), history[:1]).axes[0]
    assert last.get_ylabel() == "% above the last tour"
    with pytest.raises(InputError, match="no history"):
        plot_progress(instance(8), [])


def test_progress_shows_the_search_and_no_ticks_on_top_of_each_other() -> None:
    history = [Progress(3.0, 0, 0, 120.0), Progress(3.1, 9, 0, 100.5), Progress(3.2, 20, 0, 100.004)]
    axes = plot_progress(instance(8, optimum=100.0), history, end=4.0).axes[0]
    assert 2.5 < axes.get_xlim()[0] < 3.0  # loading took most of the time
    assert axes.get_yticks().tolist() == [0.0, 0.01, 0.1, 1.0, 10.0]
    early = plot_progress(instance(8, optimum=100.0), history, end=30.0).axes[0]
    assert early.get_xlim()[0] == 0.0


@pytest.mark.parametrize("lengths", [(130.0, 101.0, 100.0), (100.6, 100.0), (100.6, 100.5, 100.0)])
def test_the_words_of_the_first_tour_lie_on_no_line(lengths: tuple[float, ...]) -> None:
    """Also where the length falls late, under whatever stands on the right."""
    history = [Progress(0.1 + 0.5 * k, 0, 0, length) for k, length in enumerate(lengths)]
    figure = plot_progress(instance(8), history, end=1.2)
    figure.draw_without_rendering()
    ax = figure.axes[0]
    (words,) = ax.texts
    box = words.get_window_extent()
    for line in ax.lines:
        at = ax.transData.transform(np.asarray(line.get_xydata()))
        along = np.concatenate([np.linspace(a, b, 500) for a, b in itertools.pairwise(at)] or [at])
        assert not ((along > box.min) & (along < box.max)).all(axis=1).any()
    assert ax.get_window_extent().y1 > box.y1


def legend(axes: Axes) -> list[str]:
    found = axes.get_legend()
    return [] if found is None else [text.get_text() for text in found.get_texts()]


def test_a_legend_says_what_is_what() -> None:
    named = instance(3, columns={"id": ["a", "depot", "c"]}, id_column="id")
    tour = [1, 0, 2]
    assert legend(plot_tour(named).axes[0]) == []
    assert legend(plot_tour(named, tour).axes[0]) == ["start: depot"]
    assert legend(plot_tour(named, tour, closed=False).axes[0]) == ["start: depot", "end: c"]
    axes = plot_tour(instance(3), tour, edge_probabilities=np.eye(3)).axes[0]
    shares = ["in 10 %", "in 50 %", "in 100 % of the network's tours"]
    assert legend(axes) == ["tour", "start", *shares]
    assert legend(plot_tour(instance(300), np.arange(300)).axes[0]) == []  # the start is not marked either
    assert all(legend(axes) == [] for axes in plot_instances([named], tours=[tour]).axes)


def test_edges_look_as_probable_as_they_are() -> None:
    """Differences show: each of these is wider and deeper than the one before, and as in the legend."""
    edges, probabilities = [[0, 1], [1, 2], [2, 3], [3, 4]], [0.1, 0.25, 0.5, 1.0]
    axes = plot_tour(instance(5), np.arange(5), edge_probabilities=(edges, probabilities)).axes[0]
    (drawn,) = axes.collections
    widths, colors = np.asarray(drawn.get_linewidths()), np.asarray(drawn.get_colors())[:, :3]
    assert (np.diff(widths) > 0.5).all()
    assert (np.diff(colors.sum(axis=1)) < -0.1).all()
    lines = axes.get_legend().get_lines()[-3:]  # type: ignore[union-attr]
    np.testing.assert_allclose([line.get_linewidth() for line in lines], widths[[0, 2, 3]])
    np.testing.assert_allclose([line.get_color() for line in lines], colors[[0, 2, 3]])


def test_maps_have_a_scale_in_kilometers() -> None:
    for step in (0.01, 1.0, 20.0):
        cities = Instance([[40.0, 10.0], [40.0, 10.0 + step], [40.0 + step, 10.0]], rule="GREAT_CIRCLE")
        axes = plot_tour(cities, [0, 1, 2]).axes[0]
        (text,) = axes.texts
        kilometers = float(text.get_text().removesuffix(" km").replace(",", ""))
        bar = max((np.ptp(line.get_xdata()) for line in axes.lines if len(line.get_xdata()) == 2), default=0)
        assert bar == pytest.approx(kilometers)  # the map's unit is a kilometer
        low, high = axes.get_xlim()
        assert 1 / 20 < kilometers / (high - low) < 1 / 5
    axes.set_xlim(0.0, np.nextafter(6_000.0, 0.0))  # whose sixth has 3 as its logarithm, rounded
    plot._draw_scale(axes, cities.plane)
    assert axes.texts[-1].get_text() == "1,000 km"
    assert not plot_tour(instance(9), np.arange(9)).axes[0].texts
    assert not plot_tour(Instance([[1.0, 1.0]] * 3, rule="GREAT_CIRCLE"), [0, 1, 2]).axes[0].texts


def test_an_outline_lies_behind_the_cities() -> None:
    axes = plot_tour(us_capitals(), outline=us_outline()).axes[0]
    (land,) = axes.patches
    inside = land.get_path().contains_points(us_capitals().plane)
    assert inside.sum() >= 46  # the line is coarse, and two capitals lie at the sea
    assert land.get_zorder() < axes.lines[0].get_zorder()
    plain = plot_tour(instance(9), outline=[[0, 0], [0, 1], [1, 1]]).axes[0].patches[0]
    assert plain.get_path().contains_points([[0.2, 0.8], [0.8, 0.2]]).tolist() == [True, False]
    with pytest.raises(InputError, match=r"outline must have shape \(m, 2\), got \(3,\)"):
        plot_tour(instance(9), outline=[1.0, 2.0, 3.0])


@pytest.mark.parametrize("wrong", ["abc", [["a", "b"]], [[1, 2], [3]], {"a": 1}, np.zeros((3, 2), complex)])
def test_what_is_no_array_of_numbers_is_an_error_of_ours(wrong: Any) -> None:
    for options in (
        {"outline": wrong},
        {"edge_probabilities": wrong},
        {"edge_probabilities": (wrong, [0.5])},
        {"edge_probabilities": ([[0, 1]], wrong)},
    ):
        with pytest.raises(InputError, match="must be an array of numbers"):
            plot_tour(instance(4), **options)
    for edges in ([[0, 4]], [[0, 1e30]], [[-1, 0]], [[0, float("nan")]]):
        with pytest.raises(InputError, match=r"edges must be of cities in 0\.\.3"):
            plot_tour(instance(4), edge_probabilities=(edges, [0.5]))
    with pytest.raises(InputError, match="a pair of cities and probabilities, got 3"):
        plot_tour(instance(4), edge_probabilities=([[0, 1]], [0.5], 3))  # type: ignore[arg-type]


def test_ways_around_the_earth_leave_the_map() -> None:
    """No line from one side to the other, as wide as the map; edges of the network likewise."""
    ring = np.column_stack([np.zeros(12), np.linspace(-165, 165, 12)])
    earth = Instance(ring, rule="GREAT_CIRCLE")
    span = np.ptp(earth.plane[:, 0])
    edges = (np.array([[0, 11], [0, 1]]), np.array([0.9, 0.8]))
    figure = plot_tour(earth, np.arange(12), edge_probabilities=edges)
    ax = figure.axes[0]
    drawn = [np.asarray(line.get_xydata()) for line in ax.lines if line.get_linestyle() == "-"][:2]
    assert [len(part) for part in drawn] == [13, 2]
    (lines,) = ax.collections
    segments = [*drawn, *lines.get_segments()]  # type: ignore[attr-defined]
    assert len(segments) == 5
    assert all(np.abs(np.diff(part[:, 0])).max() < span / 5 for part in segments)
    left, right = ax.get_xlim()
    assert right - left < 1.07 * span  # what is outside does not widen it
    assert (drawn[0][-1, 0] > right) or (drawn[0][-1, 0] < left)
    assert earth._repr_html_().count("M") < grn.solve(earth)._repr_html_().count("M")
    flat = Instance(ring)
    assert len(plot_tour(flat, np.arange(12)).axes[0].lines) == 3


@pytest.mark.parametrize(
    ("optimum", "bound", "words"),
    [
        (None, None, "the search found no tour shorter than the first"),
        (100.0, None, "nothing to improve: the first tour is as short as the best known"),
        (90.0, None, "the search found no tour shorter than the first"),
        (None, 100.0, "nothing to improve: the first tour is proven optimal"),
        (None, 99.0, "the search found no tour shorter than the first"),
    ],
)
def test_progress_explains_that_nothing_got_shorter(
    optimum: float | None, bound: float | None, words: str
) -> None:
    history = [Progress(0.5, 0, 0, 100.0, bound)]
    axes = plot_progress(instance(8, name="eight", optimum=optimum), history, end=2.0).axes[0]
    assert [text.get_text() for text in axes.texts] == [words]
    assert axes.get_title().startswith("eight  ·  length 100")
