"""Distances that differ by direction, and their doubled instance."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import georoutenet
from georoutenet.errors import InputError
from georoutenet.problem.asymmetric import Asymmetric
from georoutenet.problem.tour import tour_length

ROUND = [[0, 1, 9], [9, 0, 1], [1, 9, 0]]


def doubled_tour(tour: list[int], n: int) -> np.ndarray:
    """Arrive at n + i, leave from i."""
    return np.array([[n + city, city] for city in tour]).ravel()


def test_the_shorter_direction_is_found() -> None:
    problem = Asymmetric(ROUND, name="round")
    assert (problem.length([0, 1, 2]), problem.length([2, 1, 0])) == (3, 27)
    assert type(problem.length([0, 1, 2])) is int
    assert type(Asymmetric(np.array(ROUND) / 2).length([0, 1, 2])) is float
    for order in (doubled_tour([0, 1, 2], 3), doubled_tour([1, 2, 0], 3)[::-1]):
        assert problem.length(problem.tour(order)) == 3
    assert problem.doubled().name == "round"
    assert georoutenet.Asymmetric is Asymmetric


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 4), st.integers(0, 10**6), st.booleans())
def test_the_shortest_tours_are_the_same(n: int, seed: int, whole: bool) -> None:
    generator = np.random.default_rng(seed)
    matrix = generator.integers(0, 20, (n, n)) if whole else generator.random((n, n))
    problem = Asymmetric(matrix)
    doubled = problem.doubled()
    assert doubled.n == 2 * n
    assert doubled.is_integer == whole
    shortest = min(problem.length(list(tour)) for tour in itertools.permutations(range(n)))
    rest = itertools.permutations(range(1, 2 * n))
    best = min(([0, *tour] for tour in rest), key=lambda tour: tour_length(doubled, tour))
    found = problem.tour(best)
    assert sorted(found.tolist()) == list(range(n))
    assert problem.length(found) == pytest.approx(shortest, rel=1e-12)
    if n > 1:  # the two edges between two doubled cities are one
        assert tour_length(doubled, best) == pytest.approx(shortest + n * problem.bonus, rel=1e-12)


@settings(deadline=None)
@given(st.integers(2, 12).flatmap(lambda n: st.permutations(range(n))), st.integers(0, 99))
def test_lengths_differ_by_the_bonus(tour: list[int], seed: int) -> None:
    n = len(tour)
    problem = Asymmetric(np.random.default_rng(seed).integers(0, 1000, (n, n)))
    length = tour_length(problem.doubled(), doubled_tour(tour, n))
    assert length == problem.length(tour) + n * problem.bonus


@settings(deadline=None)
@given(st.integers(1, 8).flatmap(lambda n: st.permutations(range(2 * n))))
def test_any_doubled_tour_gives_a_tour(order: list[int]) -> None:
    n = len(order) // 2
    problem = Asymmetric(np.random.default_rng(n).random((n, n)))
    assert sorted(problem.tour(order).tolist()) == list(range(n))


def test_errors() -> None:
    with pytest.raises(InputError, match="finite and >= 0: from city 0 to city 1 it is -1"):
        Asymmetric([[0, -1], [1, 0]])
    with pytest.raises(InputError, match="5 entries for 6 cities"):
        Asymmetric(ROUND).tour(range(5))
    with pytest.raises(InputError, match="2 entries for 3 cities"):
        Asymmetric(ROUND).length([0, 1])
