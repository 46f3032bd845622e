"""The search under a matrix of distances: the same as by coordinates, and right without any geometry."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from georoutenet.problem.instance import DistanceRule, Instance
from georoutenet.problem.tour import is_permutation, tour_length
from georoutenet.search.construct import greedy_edge_in_matrix
from georoutenet.search.local_search import improve
from georoutenet.search.neighbors import candidate_neighbors, instance_neighbors, nearest_in_matrix
from georoutenet.search.space_filling import nearest_city_tour
from georoutenet.stop import MaxIterations

RULES = [rule for rule in DistanceRule if rule is not DistanceRule.EXPLICIT]
VARIANTS = [
    {"closed": closed, "start": start, "end": end}
    for closed in (True, False)
    for start in (None, 1)
    for end in (None, 0)
]
# Any symmetric matrix: most break the triangle inequality; small numbers give ties and zeros.
KINDS = ["few numbers", "integers", "floats", "zeros", "tiny", "huge"]


def random_matrix(n: int, seed: int, kind: str) -> np.ndarray:
    generator = np.random.default_rng(seed)
    if kind in ("few numbers", "integers"):
        matrix = generator.integers(0, 4 if kind == "few numbers" else 1000, (n, n))
    elif kind == "zeros":
        matrix = np.zeros((n, n), dtype=np.int64)
    else:
        matrix = generator.random((n, n)) * {"floats": 1.0, "tiny": 1e-200, "huge": 1e200}[kind]
    return np.minimum(matrix, matrix.T)


def shortest(instance: Instance, *, closed: bool = True, start: int | None = None, end: int | None = None):
    tours = (np.array(order) for order in itertools.permutations(range(instance.n)))
    allowed = [tour for tour in tours if start in (None, tour[0]) and end in (None, tour[-1])]
    return min(tour_length(instance, tour, closed=closed) for tour in allowed)


# ---- neighbors and first tours


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 40), st.integers(1, 12), st.integers(0, 10**6), st.sampled_from(KINDS))
def test_nearest_cities(n: int, k: int, seed: int, kind: str) -> None:
    matrix = Instance(matrix=random_matrix(n, seed, kind)).matrix
    assert matrix is not None
    lists = nearest_in_matrix(matrix, k)
    assert lists.shape == (n, min(k, n - 1))
    for city in range(n):
        others = sorted(set(range(n)) - {city}, key=lambda other: (matrix[city, other], (other - city) % n))
        assert lists[city].tolist() == others[:k]


def test_more_rows_than_are_sorted_at_a_time() -> None:
    points = np.random.default_rng(0).random((600, 2))
    by_points, by_matrix = Instance(points), Instance(matrix=Instance(points).distance_matrix())
    np.testing.assert_array_equal(instance_neighbors(by_points, 7), instance_neighbors(by_matrix, 7))


@settings(deadline=None, max_examples=60)
@given(st.integers(2, 9), st.integers(0, 10**6), st.sampled_from(KINDS))
def test_greedy_edge_takes_the_shortest_edges_that_fit(n: int, seed: int, kind: str) -> None:
    instance = Instance(matrix=random_matrix(n, seed, kind))
    matrix = instance.matrix
    assert matrix is not None
    degree, part, total = [0] * n, list(range(n)), 0.0
    for a, b in sorted(itertools.combinations(range(n), 2), key=lambda edge: (matrix[edge], edge)):
        if degree[a] < 2 and degree[b] < 2 and part[a] != part[b]:
            degree[a], degree[b], total = degree[a] + 1, degree[b] + 1, total + matrix[a, b]
            old = part[b]
            part = [part[a] if each == old else each for each in part]
    tour = greedy_edge_in_matrix(matrix)
    assert is_permutation(tour, n)
    assert tour_length(instance, tour, closed=False) == pytest.approx(total, rel=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, 2, 3, 50, 300])
def test_first_tours_visit_every_city(n: int, kind: str) -> None:
    instance = Instance(matrix=random_matrix(n, n, kind))
    assert instance.matrix is not None
    assert is_permutation(greedy_edge_in_matrix(instance.matrix), n)
    walk = nearest_city_tour(instance.matrix)
    assert is_permutation(walk, n)
    for step in range(1, min(n, 10)):
        left = np.setdiff1d(np.arange(n), walk[:step])
        assert instance.matrix[walk[step - 1], walk[step]] == instance.matrix[walk[step - 1], left].min()


# ---- the search


@pytest.mark.parametrize("options", VARIANTS)
@pytest.mark.parametrize("rule", RULES)
def test_a_matrix_of_a_rule_s_distances_gives_the_same_tours(rule: DistanceRule, options: dict) -> None:
    generator = np.random.default_rng(5)
    points = generator.uniform(0, 80, (70, 2)).round(2)
    by_rule = Instance(points, rule=rule)
    matrix = by_rule.distance_matrix()
    if rule is DistanceRule.EUCLIDEAN:  # rounded as in the kernels, which have no hypot
        away = points[:, None] - points
        matrix = np.sqrt(np.square(away[..., 0]) + np.square(away[..., 1]))
    by_matrix = Instance(matrix=matrix)
    lists, given = candidate_neighbors(by_rule), generator.permutation(70)
    expected, found = (
        improve(instance, given, neighbors=lists, stop=MaxIterations(300), seed=3, **options)
        for instance in (by_rule, by_matrix)
    )
    assert found.tour.tolist() == expected.tour.tolist()
    assert found.length == pytest.approx(expected.length, rel=1e-14)
    assert type(found.length) is type(expected.length)


@pytest.mark.parametrize("options", VARIANTS)
@pytest.mark.parametrize("kind", KINDS)
def test_small_matrices_are_solved(kind: str, options: dict) -> None:
    for n in (2, 3, 4, 5, 7):
        instance = Instance(matrix=random_matrix(n, n, kind))
        given = np.random.default_rng(n).permutation(n)
        found = improve(instance, given, stop=MaxIterations(300), **options)
        assert is_permutation(found.tour, n)
        assert options["start"] in (None, found.tour[0])
        assert options["end"] in (None, found.tour[-1])
        assert found.length == tour_length(instance, found.tour, closed=options["closed"])
        assert found.length == pytest.approx(shortest(instance, **options), rel=1e-12)


@settings(deadline=None, max_examples=40)
@given(st.integers(4, 60), st.integers(0, 10**6), st.sampled_from(KINDS), st.sampled_from(VARIANTS))
def test_a_tour_never_gets_longer(n: int, seed: int, kind: str, options: dict) -> None:
    instance = Instance(matrix=random_matrix(n, seed, kind))
    given = np.random.default_rng(seed).permutation(n)
    found = improve(instance, given, stop=MaxIterations(50), seed=seed, **options)
    assert is_permutation(found.tour, n)
    assert found.length == tour_length(instance, found.tour, closed=options["closed"])
    lengths = [step.length for step in found.history]
    assert lengths == sorted(lengths, reverse=True)
    assert found.length <= lengths[0]
