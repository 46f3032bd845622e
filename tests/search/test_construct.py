from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from georoutenet.errors import InputError
from georoutenet.problem.instance import Instance
from georoutenet.problem.tour import is_permutation, tour_length
from georoutenet.search.construct import greedy_edge, nearest_neighbor

cities = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=60)


def slow_nearest_neighbor(points: np.ndarray, start: int) -> list[int]:
    left = set(range(len(points))) - {start}
    tour = [start]
    while left:
        squared = np.square(points - points[tour[-1]]).sum(axis=1)
        tour.append(min(left, key=lambda j: (squared[j], j)))
        left.remove(tour[-1])
    return tour


def slow_greedy_edge(points: np.ndarray) -> set[frozenset[int]]:
    """All edges by (length, cities); the closing edge is left out."""
    n = len(points)
    fragment = {i: i for i in range(n)}
    degree = [0] * n
    taken = set()
    squared = np.square(points[:, None] - points[None]).sum(axis=-1)
    for _, i, j in sorted((squared[a, b], a, b) for a in range(n) for b in range(a + 1, n)):
        if degree[i] < 2 and degree[j] < 2 and fragment[i] != fragment[j]:
            old, new = fragment[j], fragment[i]
            fragment = {c: new if f == old else f for c, f in fragment.items()}
            degree[i] += 1
            degree[j] += 1
            taken.add(frozenset((i, j)))
    return taken


@settings(max_examples=60, deadline=None)
@given(cities, st.integers(0, 1000))
def test_nearest_neighbor_is_the_slow_one_with_ties(points: list[tuple[int, int]], start: int) -> None:
    array = np.array(points, dtype=float)
    start %= len(array)
    assert nearest_neighbor(array, start).tolist() == slow_nearest_neighbor(array, start)


@pytest.mark.parametrize("shape", ["uniform", "clustered", "line"])
@pytest.mark.parametrize("n", [1, 2, 65, 1500])
def test_nearest_neighbor_is_the_slow_one_on_larger_instances(n: int, shape: str) -> None:
    rng = np.random.default_rng(n)
    points = rng.random((n, 2))
    if shape == "clustered":  # most of the grid is empty and a few buckets are full
        points = np.concatenate([points[: n // 2] * 1e-4, points[n // 2 :]])
    if shape == "line":
        points[:, 1] = 0.5
    assert nearest_neighbor(points, n // 2).tolist() == slow_nearest_neighbor(points, n // 2)


@pytest.mark.parametrize("n", [1, 2, 3, 7, 60, 150])
def test_greedy_edge_is_the_slow_one_while_lists_reach(n: int) -> None:
    points = np.random.default_rng(n).random((n, 2))
    tour = greedy_edge(points)
    assert is_permutation(tour, n)
    fast = {frozenset((int(a), int(b))) for a, b in itertools.pairwise(tour)}
    slow = slow_greedy_edge(points)
    # Edges longer than the neighbor lists reach may be found in another order; they are few.
    assert len(fast & slow) >= len(slow) - 0.05 * n
    if n <= 9:
        assert fast == slow


@settings(max_examples=60, deadline=None)
@given(cities)
def test_greedy_edge_always_gives_a_tour(points: list[tuple[int, int]]) -> None:
    assert is_permutation(greedy_edge(np.array(points, dtype=float)), len(points))


def test_greedy_edge_beats_nearest_neighbor_on_average() -> None:
    shorter = 0
    for seed in range(10):
        instance = Instance(np.random.default_rng(seed).random((300, 2)))
        greedy = tour_length(instance, greedy_edge(instance.coordinates))
        shorter += greedy < tour_length(instance, nearest_neighbor(instance.coordinates))
    assert shorter >= 8


def test_all_points_equal() -> None:
    points = np.full((5000, 2), 3.0)
    assert nearest_neighbor(points, 7).tolist() == [7, *range(7), *range(8, 5000)]
    assert is_permutation(greedy_edge(points), 5000)


def test_wrong_start() -> None:
    with pytest.raises(InputError, match=r"0\.\.2, got 3"):
        nearest_neighbor(np.zeros((3, 2)), 3)
    with pytest.raises(InputError, match="shape"):
        greedy_edge(np.zeros(4))
