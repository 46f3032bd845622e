from __future__ import annotations

import numpy as np
import pytest

from georoutenet.problem.instance import Instance
from georoutenet.problem.tour import is_permutation, tour_length
from georoutenet.search.space_filling import space_filling_curve


def test_the_curve_passes_a_grid_from_neighbor_to_neighbor() -> None:
    for side in (2, 4, 16, 64):
        grid = np.stack(np.meshgrid(np.arange(side), np.arange(side)), axis=-1).reshape(-1, 2)
        order = space_filling_curve(grid)
        steps = np.abs(np.diff(grid[order], axis=0)).sum(axis=1)
        assert (steps == 1).all()


def test_the_tour_is_short() -> None:
    cities = Instance(np.random.default_rng(0).random((5000, 2)))
    length = tour_length(cities, space_filling_curve(cities.coordinates))
    assert length / np.sqrt(5000) < 0.7124 * 1.45  # the constant of shortest tours of random cities


@pytest.mark.parametrize(
    "points", [[[1, 2]], [[3, 3]] * 5, [[0, 0], [5, 0], [2, 0]], [[1e300, 0], [-1e300, 1]]]
)
def test_degenerate_cities(points: list) -> None:
    assert is_permutation(space_filling_curve(np.array(points, dtype=float)), len(points))
