from __future__ import annotations

import itertools
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from georoutenet.errors import InputError
from georoutenet.problem.instance import Instance
from georoutenet.search import neighbors
from georoutenet.search.neighbors import (
    candidate_neighbors,
    delaunay_edges,
    nearest_neighbors,
    power_of_two_scale,
    spatial_points,
)


def by_sorting(points: np.ndarray, k: int) -> np.ndarray:
    """The slow, obvious version: sort all other points by (distance, index)."""
    n = len(points)
    squared = np.square(points[:, None] - points[None]).sum(axis=-1)
    rows = []
    for i in range(n):
        others = [j for j in range(n) if j != i]
        rows.append(sorted(others, key=lambda j: (squared[i, j], j))[:k])
    return np.array(rows, dtype=np.int32).reshape(n, min(k, n - 1))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=40),
    st.integers(1, 12),
)
def test_grid_points_with_many_ties(cities: list[tuple[int, int]], k: int) -> None:
    points = np.array(cities, dtype=float)
    for all_pairs in (0, neighbors.ALL_PAIRS):  # by the tree, and by comparing all pairs
        with patch.object(neighbors, "ALL_PAIRS", all_pairs):
            np.testing.assert_array_equal(nearest_neighbors(points, k), by_sorting(points, k))


@pytest.mark.parametrize("n", [1, 2, 3, 9, 200])
@pytest.mark.parametrize("k", [1, 5, 300])
def test_random_points(n: int, k: int) -> None:
    points = np.random.default_rng(n).random((n, 2))
    found = nearest_neighbors(points, k)
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, by_sorting(points, k))


def test_a_large_pile_of_coincident_points_stays_fast() -> None:
    points = np.zeros((20_000, 2))
    points[-1] = 1.0
    found = nearest_neighbors(points, 3)
    np.testing.assert_array_equal(found[0], [1, 2, 3])
    np.testing.assert_array_equal(found[2], [0, 1, 3])
    np.testing.assert_array_equal(found[15_000], [0, 1, 2])
    np.testing.assert_array_equal(found[-1], [0, 1, 2])


@pytest.mark.parametrize("factor", [2.0**-700, 2.0**700])
def test_extreme_scales_give_the_same_lists(factor: float) -> None:
    points = np.random.default_rng(5).random((50, 2))
    np.testing.assert_array_equal(nearest_neighbors(points * factor, 6), nearest_neighbors(points, 6))


def test_power_of_two_scale() -> None:
    assert power_of_two_scale(np.zeros((3, 2))) == 1.0
    scale = power_of_two_scale(np.array([[0.0, 0.0], [3e200, 1.0]]))
    assert 0.5 <= 3e200 * scale <= 1.0
    assert np.frexp(scale)[0] == 0.5


def test_geo_neighbors_cross_the_date_line() -> None:
    instance = Instance([[0.0, 179.0], [0.0, -179.0], [0.0, 170.0]], rule="GEO")
    assert nearest_neighbors(spatial_points(instance), 1)[0, 0] == 1


def test_wrong_input() -> None:
    with pytest.raises(InputError, match="k must be at least 1, got 0"):
        nearest_neighbors(np.zeros((3, 2)), 0)
    with pytest.raises(InputError, match="shape"):
        nearest_neighbors(np.zeros(3), 1)


@pytest.mark.parametrize("n", [1, 2, 4, 8, 30, 200])
def test_candidates_are_the_nearest_and_some_of_every_quadrant(n: int) -> None:
    points = np.random.default_rng(n).random((n, 2))
    lists = candidate_neighbors(Instance(points), nearest=3, per_quadrant=2, among=n)
    everyone = nearest_neighbors(points, max(1, n - 1))
    for i in range(n):
        needed = set(everyone[i, :3])
        for right in (False, True):
            for above in (False, True):
                quadrant = [j for j in everyone[i] if tuple(points[j] >= points[i]) == (right, above)]
                needed |= set(quadrant[:2])
        assert needed <= set(lists[i])
        assert len(set(lists[i])) == len(lists[i])
        distances = np.hypot(*(points[lists[i]] - points[i]).T)
        assert (np.diff(distances) >= 0).all()


def test_candidates_lead_out_of_a_cluster() -> None:
    cluster = np.random.default_rng(0).random((15, 2)) * 0.01
    points = np.concatenate([cluster, cluster + np.array([1.0, 0.0])])
    lists = candidate_neighbors(Instance(points))
    assert (lists[:15] >= 15).any()
    assert not (nearest_neighbors(points, 8)[:15] >= 15).any()


@pytest.mark.parametrize("shape", ["uniform", "rows", "pairs"])
def test_a_triangulation_has_the_shortest_tree(shape: str) -> None:
    """Known of Delaunay's: some shortest tree has none but its edges. Kruskal is the slow way."""
    random = np.random.default_rng(1)
    points = random.random((150, 2))
    if shape == "rows":
        points = np.stack(np.meshgrid(np.arange(50.0), [0.0, 300.0, 900.0]), axis=-1).reshape(-1, 2)
    if shape == "pairs":
        points = np.repeat(points[:75], 2, axis=0)
    instance = Instance(points)
    matrix = instance.distance_matrix()

    def tree(edges: set[tuple[int, int]]) -> float:
        label, total = np.arange(len(points)), 0.0
        for a, b in sorted(edges, key=lambda edge: matrix[edge]):
            if label[a] != label[b]:
                label[label == label[b]] = label[a]
                total += matrix[a, b]
        assert (label == label[0]).all()
        return total

    found = {(int(min(edge)), int(max(edge))) for edge in delaunay_edges(instance)}
    if shape == "pairs":  # of coincident cities one is a corner
        found |= {(2 * k, 2 * k + 1) for k in range(75)}
    everyone = set(itertools.combinations(range(len(points)), 2))
    assert tree(found) == pytest.approx(tree(everyone), rel=1e-12)
    assert len(found) < 3 * len(points)


def test_nothing_is_triangulated_on_a_line_or_without_places() -> None:
    line = Instance(np.stack([np.arange(200.0), np.arange(200.0)], axis=1))
    for instance in (line, Instance(np.zeros((200, 2))), Instance(matrix=line.distance_matrix())):
        assert delaunay_edges(instance).shape == (0, 2)
