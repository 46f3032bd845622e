"""Large instances through ``solve``, by clocks that tests set."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import chain, repeat
from typing import Any

import numpy as np
import pytest

import georoutenet as grn
from georoutenet.problem.instance import Instance
from georoutenet.problem.tour import is_permutation, tour_length
from georoutenet.search import local_search, neighbors, windows
from georoutenet.search.construct import greedy_edge
from georoutenet.search.space_filling import space_filling_curve
from georoutenet.solver import large

POINTS = np.random.default_rng(5).random((1_000, 2))


@pytest.fixture(autouse=True)
def small_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (neighbors, large):
        monkeypatch.setattr(module, "MANY", 300)
    monkeypatch.setattr(local_search, "WHOLE", 300)
    monkeypatch.setattr(windows, "window_size", lambda n: 200)


def left(*seconds: float) -> Any:
    """A clock with so many seconds left, question by question."""
    answers: Iterator[float] = chain(seconds, repeat(seconds[-1]))
    return lambda: next(answers)


def test_greedy_edge_takes_the_lists_of_the_search() -> None:
    instance = Instance(POINTS)
    tour, method, lists = large.first_tour(instance, 1, left(math.inf), 0.0)
    assert method == "greedy edge"
    np.testing.assert_array_equal(lists, neighbors.candidate_neighbors(instance))
    length = tour_length(instance, tour)
    assert length == pytest.approx(tour_length(instance, greedy_edge(POINTS)), rel=0.03)


@pytest.mark.parametrize(
    ("clock", "has_lists"), [((0.0,), False), ((1.0, 1.0, 0.0), False), ((1.0, 1.0, 1.0, 0.0), True)]
)
def test_without_time_the_tour_follows_a_curve(clock: tuple[float, ...], has_lists: bool) -> None:
    tour, method, lists = large.first_tour(Instance(POINTS), 1, left(*clock), 0.0)
    assert method == "space-filling curve"
    assert (lists is not None) == has_lists
    np.testing.assert_array_equal(tour, space_filling_curve(POINTS))


@pytest.mark.parametrize("rule", ["EUCLIDEAN", "EUC_2D", "GEO"])
def test_a_curve_is_shortened(rule: str) -> None:
    points = POINTS if rule == "EUCLIDEAN" else (POINTS * 50).round(2)
    instance = Instance(points, rule=rule)
    tour = space_filling_curve(points)
    found = large.shorten_curve(instance, tour, closed=True, left=left(math.inf))
    assert tour_length(instance, found) < 0.9 * tour_length(instance, tour)


@pytest.mark.parametrize("options", [{}, {"first": "curve"}, {"workers": 3}, {"closed": False, "start": 7}])
def test_large_instances_are_solved(options: dict[str, Any]) -> None:
    stop = grn.MaxIterations(2_000)
    result = grn.solve(POINTS, stop=stop, **options)
    assert is_permutation(result.tour, 1_000)
    assert result.tour[0] == options.get("start", result.tour[0])
    assert result.iterations == 2_000
    assert result.length == tour_length(result.instance, result.tour, closed=result.closed)
    lengths = [at.length for at in result.history]
    assert lengths == sorted(lengths, reverse=True)
    np.testing.assert_array_equal(grn.solve(POINTS, stop=stop, **options).tour, result.tour)
    if not options:
        whole = grn.solve(POINTS[:300], stop=stop)
        assert result.length / 1_000**0.5 == pytest.approx(whole.length / 300**0.5, rel=0.1)


def test_a_curve_without_search_is_left_as_it_is() -> None:
    result = grn.solve(POINTS, first="curve", improve=False)
    np.testing.assert_array_equal(result.tour, space_filling_curve(POINTS))


def test_a_given_tour_is_searched_by_lists_made_for_it() -> None:
    given = np.random.default_rng(1).permutation(1_000)
    result = grn.solve(POINTS, initial_tour=given, stop=grn.MaxIterations(500))
    assert result.length < 0.1 * tour_length(result.instance, given)


def test_ctrl_c_while_compiled_code_makes_lists_leaves_a_tour(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> Any:
        raise SystemError("returned a result with an exception set") from KeyboardInterrupt()

    monkeypatch.setattr(large, "candidates_of_many", interrupted)
    result = grn.solve(POINTS, max_seconds=30)
    assert result.interrupted
    assert result.method == "space-filling curve"
    assert is_permutation(result.tour, 1_000)
