"""Nearest cities and neighborhoods against plain loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from georoutenet.model import geometry
from georoutenet.model.geometry import nearest, neighborhood


def brute_force(points: np.ndarray, count: int) -> list[list[int]]:
    rows = []
    for i, p in enumerate(points):
        squared = ((points - p).astype(points.dtype) ** 2).sum(-1)
        others = sorted((np.sqrt(squared[j]), j) for j in range(len(points)) if j != i)
        rows.append([j for _, j in others[:count]])
    return rows


POINTS = {
    "uniform": np.random.default_rng(0).random((150, 2)),
    "grid": np.stack(np.meshgrid(np.arange(12), np.arange(12)), -1).reshape(-1, 2) / 16,
    "coincident": np.repeat(np.random.default_rng(1).random((8, 2)), 15, axis=0),
    "one place": np.full((70, 2), 0.5),
    "line": np.stack([np.linspace(0, 1, 90), np.zeros(90)], -1),
}


@pytest.mark.parametrize("kind", POINTS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_nearest_by_rows_and_by_tree(kind: str, dtype: type, monkeypatch: pytest.MonkeyPatch) -> None:
    points = POINTS[kind].astype(dtype)
    for count in (1, 7, 16):
        expected = brute_force(points, count)
        by_rows = nearest(torch.from_numpy(points)[None], count)
        monkeypatch.setattr(geometry, "TREE_FROM", 0)
        by_tree = nearest(torch.from_numpy(points)[None], count)
        monkeypatch.undo()
        monkeypatch.setattr(geometry, "SORT_BLOCK", 400)
        by_blocks = nearest(torch.from_numpy(points)[None], count)
        monkeypatch.undo()
        for index, distance in (by_rows, by_tree, by_blocks):
            assert index[0].tolist() == expected
            exact = np.sqrt(((points[:, None] - points[index[0]]) ** 2).sum(-1))
            np.testing.assert_allclose(distance[0], exact, rtol=1e-6)


@pytest.mark.parametrize("kind", POINTS)
def test_neighborhood_keeps_the_ties(kind: str) -> None:
    points = POINTS[kind]
    d = np.sqrt(((points[:, None] - points[None]) ** 2).sum(-1))
    near = neighborhood(torch.from_numpy(points)[None], 10)
    for i in range(len(points)):
        reach = np.sort(np.delete(d[i], i))[9]
        expected = {i} | {j for j in range(len(points)) if d[i, j] <= reach}
        inside = near.index[0, i][near.mask[0, i]].tolist()
        assert inside[0] == i
        assert len(inside) == len(set(inside))
        assert set(inside) == expected


def test_neighborhood_of_few_cities() -> None:
    for n in (1, 2, 5, 11):
        near = neighborhood(torch.rand(2, n, 2), 10)
        assert near.index.shape == (2, n, n)
        assert near.mask.all()
