from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from georoutenet.problem.instance import DistanceRule, Instance
from georoutenet.search import greedy_edge, improve
from georoutenet.search.ascent import Ascent, lower_bound, prepare
from georoutenet.search.local_search import kernel_coordinates
from georoutenet.search.neighbors import candidate_neighbors, nearest_neighbors
from georoutenet.search.one_tree import complete_bound
from georoutenet.stop import MaxIterations

RULES = [rule for rule in DistanceRule if rule is not getattr(DistanceRule, "EXPLICIT", None)]


def optimum(instance: Instance) -> float:
    matrix = instance.distance_matrix()
    return min(
        sum(matrix[a, b] for a, b in itertools.pairwise((0, *order, 0)))
        for order in itertools.permutations(range(1, instance.n))
    )


def shortest_one_tree(matrix: np.ndarray) -> float:
    """The slow way: for each leaf of a shortest tree (Kruskal) its second edge; the best of all leaves."""
    n = len(matrix)
    edges = sorted(itertools.combinations(range(n), 2), key=lambda edge: matrix[edge])
    label, tree = list(range(n)), []
    for a, b in edges:
        if label[a] != label[b]:
            tree.append((a, b))
            label = [label[a] if each == label[b] else each for each in label]
    degree = [sum(city in edge for edge in tree) for city in range(n)]
    seconds = [
        min(matrix[edge] for edge in edges if leaf in edge and edge not in tree)
        for leaf in range(n)
        if degree[leaf] == 1
    ]
    return sum(matrix[edge] for edge in tree) + max(seconds)


def test_the_tree_over_all_pairs_is_the_shortest() -> None:
    for seed in range(20):
        instance = Instance(np.random.default_rng(seed).random((9, 2)))
        pi = np.random.default_rng(seed + 1).normal(0, 0.2, 9)
        code, x, y, scale = kernel_coordinates(instance)
        matrix = instance.distance_matrix() * scale + pi + pi[:, None]
        found = complete_bound(code, x, y, pi)[0]
        assert found == pytest.approx(shortest_one_tree(matrix) - 2 * pi.sum(), abs=1e-12)


points = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=7)


@settings(max_examples=60, deadline=None)
@given(points, st.sampled_from(RULES))
def test_no_tour_is_below_the_bound(cities: list[tuple[int, int]], rule: DistanceRule) -> None:
    instance = Instance(np.array(cities, dtype=float), rule=rule)
    bound = lower_bound(instance, np.arange(instance.n))
    rounding = 4e-16 if instance.n == 3 else 0.0  # the bound is then a length, added up in some order
    assert 0 <= bound <= optimum(instance) * (1 + rounding)
    assert isinstance(bound, int) == rule.is_integer


def test_a_matrix_of_distances_has_a_bound() -> None:
    points = np.random.default_rng(3).random((60, 2))
    plane = Instance(points)
    own = Instance(matrix=plane.distance_matrix())
    start = greedy_edge(points)
    assert lower_bound(own, start) == pytest.approx(lower_bound(plane, start), rel=2e-3)


@pytest.mark.parametrize("n", [100, 500])
def test_the_bound_is_near_the_tour(n: int) -> None:
    instance = Instance(np.random.default_rng(n).random((n, 2)))
    found = improve(instance, greedy_edge(instance.coordinates), stop=MaxIterations(20 * n))
    bound = lower_bound(instance, found.tour)
    assert 0.975 * found.length < bound <= found.length


def test_clusters_far_apart_are_bounded_too() -> None:
    """Each cluster has to be entered and left; without moving whole clusters the bound is a third lower."""
    random = np.random.default_rng(0)
    points = (100 * random.random((10, 1, 2)) + 0.1 * random.random((10, 30, 2))).reshape(-1, 2)
    instance = Instance(points)
    found = improve(instance, greedy_edge(points), stop=MaxIterations(5000))
    assert lower_bound(instance, found.tour) > 0.94 * found.length


def test_alpha_lists_hold_more_edges_of_good_tours() -> None:
    instance = Instance(np.random.default_rng(5).random((400, 2)))
    start = greedy_edge(instance.coordinates)
    tour = improve(instance, start, stop=MaxIterations(20_000)).tour
    code, x, y, _ = kernel_coordinates(instance)
    lists = candidate_neighbors(instance)

    def missed(lists: np.ndarray) -> int:
        ways = ((tour, np.roll(tour, 1)), (tour, np.roll(tour, -1)))
        return sum(int((lists[a] != b[:, None]).all(axis=1).sum()) for a, b in ways)

    alpha = prepare(code, x, y, lists, start).neighbors(5)
    assert missed(alpha) < missed(nearest_neighbors(instance.coordinates, 5))
    near = instance.distance(np.arange(400)[:, None], alpha)
    assert (np.diff(near, axis=1) >= 0).all()
    assert (alpha != np.arange(400)[:, None]).all()


def test_alpha_of_tree_edges_is_nothing_and_of_others_what_a_tree_with_them_costs_more() -> None:
    instance = Instance(np.random.default_rng(6).random((8, 2)))
    code, x, y, scale = kernel_coordinates(instance)
    ascent = Ascent(code, x, y, nearest_neighbors(instance.coordinates, 7), np.arange(8))
    lists = ascent.neighbors(3)
    matrix = instance.distance_matrix() * scale

    def tree(with_edge: tuple[int, int]) -> float:
        edges = sorted(itertools.combinations(range(8), 2), key=lambda edge: matrix[edge])
        label, total = list(range(8)), 0.0
        for a, b in [with_edge, *edges]:
            if label[a] != label[b]:
                total += matrix[a, b]
                label = [label[a] if each == label[b] else each for each in label]
        return total

    for city in range(8):
        others = [other for other in range(8) if other != city]
        by_alpha = sorted(others, key=lambda other: (round(tree((city, other)), 12), matrix[city, other]))
        assert set(lists[city].tolist()) == set(by_alpha[:3])


@pytest.mark.parametrize("n", [5, 60, 199, 700])
def test_a_tight_bound_changes_no_tour(n: int) -> None:
    instance = Instance(np.random.default_rng(n).random((n, 2)))
    start = greedy_edge(instance.coordinates)
    stop = MaxIterations(2 * n)
    plain, tight = (improve(instance, start, stop=stop, tight_bound=each) for each in (False, True))
    np.testing.assert_array_equal(plain.tour, tight.tour)
    best = lower_bound(instance, plain.tour, iterations=3_000)
    assert plain.lower_bound <= tight.lower_bound <= tight.length
    assert tight.lower_bound == pytest.approx(best, rel=3e-4)
    path = improve(instance, start, stop=MaxIterations(5), closed=False, tight_bound=True)
    assert path.lower_bound is None


def test_a_tight_bound_where_there_is_time() -> None:
    instance = Instance(np.random.default_rng(3).random((600, 2)))
    code, x, y, _ = kernel_coordinates(instance)
    ascent = prepare(code, x, y, candidate_neighbors(instance), greedy_edge(instance.coordinates))
    before = ascent.value
    ascent.tighten(0.3)  # a tenth of it is too little
    ascent.tighten(math.inf, lambda: False)
    assert ascent.value == before
    ascent.tighten(math.inf)
    assert ascent.value > before


def test_nothing_is_said_of_large_instances() -> None:
    instance = Instance(np.random.default_rng(0).random((20_001, 2)))
    assert lower_bound(instance, np.arange(20_001)) is None
