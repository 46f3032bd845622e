from __future__ import annotations

import numpy as np
import pytest

from georoutenet.problem.instance import Instance
from georoutenet.search import neighbors, tree
from georoutenet.search.neighbors import candidate_neighbors, nearest_neighbors

random = np.random.default_rng(3)
POINTS = {
    "uniform": random.random((2_000, 2)),
    "on a sphere": random.normal(size=(1_500, 3)),
    "many ties": random.integers(0, 15, (2_000, 2)).astype(float),
    "piles": np.repeat(random.random((20, 2)), 60, axis=0),
    "one place": np.zeros((300, 2)),
    "a line": np.stack([random.permutation(500), np.zeros(500)], axis=1).astype(float),
    "far apart": np.concatenate([random.random((400, 2)), 1e6 + random.random((400, 2))]),
    "two": np.array([[0.0, 1.0], [2.0, 3.0]]),
}


@pytest.mark.parametrize("shape", POINTS)
@pytest.mark.parametrize("k", [1, 7, 20])
def test_the_tree_finds_what_the_plain_version_finds(shape: str, k: int) -> None:
    points = POINTS[shape]
    np.testing.assert_array_equal(tree.Tree(points).lists(k), nearest_neighbors(points, k))


@pytest.mark.parametrize("shape", [shape for shape in POINTS if shape != "on a sphere"])
def test_the_tree_keeps_the_same_candidates(shape: str) -> None:
    points = POINTS[shape]
    plain = candidate_neighbors(Instance(points), among=20)
    found = tree.Tree(points).lists(20, plane=points, nearest=5, per_quadrant=2)
    assert found is not None
    if found.shape == plain.shape:
        np.testing.assert_array_equal(found, plain)
    else:  # its width is what the widest row can be, filled up with the next nearest
        assert found.shape[1] == 11 > plain.shape[1]
        assert all(set(few) <= set(more) for few, more in zip(plain.tolist(), found.tolist(), strict=True))
    assert all(len(set(row)) == found.shape[1] for row in found.tolist())


def test_large_instances_take_the_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    instance = Instance(POINTS["uniform"])
    plain = nearest_neighbors(instance.coordinates, 8), candidate_neighbors(instance, among=20)
    monkeypatch.setattr(neighbors, "MANY", 500)
    np.testing.assert_array_equal(nearest_neighbors(instance.coordinates, 8), plain[0])
    np.testing.assert_array_equal(candidate_neighbors(instance), plain[1])


def test_threads_and_a_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "ROWS", 100)
    built = tree.Tree(POINTS["uniform"])
    asked = iter([True] * 5 + [False] * 100)
    assert built.lists(5, goes_on=lambda: next(asked)) is None
    np.testing.assert_array_equal(built.lists(5, workers=3), built.lists(5))
