"""The laptop recipe keeps its promise: below 8 % greedy gap within five minutes on two CPU cores."""

from __future__ import annotations

from pathlib import Path

import numba
import numpy as np
import pytest

from georoutenet.policy.weights import load_policy
from georoutenet.train.recipe import read_recipe
from georoutenet.train.trainer import Trainer
from georoutenet.train.validation import mean_length, validation_set

RECIPE = "laptop"


@numba.njit(cache=False)
def held_karp(distance: np.ndarray) -> float:
    """Length of the optimal tour by dynamic programming over subsets; the tour begins at the last city."""
    m = distance.shape[0] - 1
    length = np.full((1 << m, m), np.inf)
    for j in range(m):
        length[1 << j, j] = distance[m, j]
    for subset in range(1, 1 << m):
        for j in range(m):
            here = length[subset, j]
            if here < np.inf:
                for k in range(m):
                    if not subset >> k & 1:
                        larger = subset | 1 << k
                        length[larger, k] = min(length[larger, k], here + distance[j, k])
    return (length[(1 << m) - 1] + distance[m, :m]).min()


def test_held_karp_on_cities_around_a_circle() -> None:
    angle = 2 * np.pi * np.array([0, 3, 1, 4, 2]) / 5
    cities = np.stack([np.cos(angle), np.sin(angle)], 1)
    distance = np.linalg.norm(cities[:, None] - cities, axis=-1)
    assert held_karp(distance) == pytest.approx(5 * 2 * np.sin(np.pi / 5))


@pytest.mark.slow
def test_the_laptop_recipe_learns_within_five_minutes(tmp_path: Path) -> None:
    recipe = read_recipe(RECIPE)
    Trainer(recipe, tmp_path).run(max_seconds=290)
    coords = validation_set(recipe)[:100]
    cities = coords.double().numpy()
    optimal = np.mean([held_karp(np.linalg.norm(x[:, None] - x, axis=-1)) for x in cities])
    found = mean_length(load_policy(tmp_path / "last.safetensors"), coords)
    assert found / optimal - 1 < 0.08
