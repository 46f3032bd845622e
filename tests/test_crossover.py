from __future__ import annotations

import numpy as np
import pytest

from georoutenet.crossover import ROOM, merge_all, take_better_parts
from georoutenet.problem.instance import DistanceRule, Instance
from georoutenet.problem.tour import is_permutation, tour_length


def merged(instance: Instance, best: np.ndarray, other: np.ndarray) -> tuple[np.ndarray, float]:
    n = instance.n
    best, other = best.astype(np.int32), other.astype(np.int32)
    edges = np.zeros((3, n))
    for row, tour in enumerate((best, other)):
        edges[row] = instance.distance(tour, np.roll(tour, -1))
    gain = take_better_parts(best, other, edges, np.empty((ROOM, n), dtype=np.int32))
    return best, gain


def grid(n: int, seed: int) -> Instance:
    points = np.random.default_rng(seed).integers(0, 100, (n, 2)).astype(float)
    return Instance(points, rule=DistanceRule.EUC_2D)


def reversed_part(tour: np.ndarray, first: int, last: int) -> np.ndarray:
    changed = tour.copy()
    changed[first:last] = changed[first:last][::-1]
    return changed


@pytest.mark.parametrize("seed", range(30))
def test_the_gain_is_true_and_the_tour_is_one(seed: int) -> None:
    random = np.random.default_rng(seed)
    instance = grid(60, seed)
    tour = random.permutation(60)
    other = tour
    for _ in range(seed % 7):
        first = int(random.integers(0, 54))
        other = reversed_part(other, first, first + int(random.integers(2, 6)))
    found, gain = merged(instance, tour, other)
    assert is_permutation(found, 60)
    assert gain >= 0
    assert tour_length(instance, found) == tour_length(instance, tour) - gain
    assert tour_length(instance, found) <= min(tour_length(instance, tour), tour_length(instance, other))


def test_each_part_is_taken_for_itself() -> None:
    """One part is better in the other tour and one is worse: the better alone is taken."""
    for seed in range(20):
        instance = grid(40, seed)
        tour = np.arange(40)
        change = [tour_length(instance, reversed_part(tour, first, first + 5)) for first in (5, 25)]
        other = reversed_part(reversed_part(tour, 5, 10), 25, 30)
        found, gain = merged(instance, tour, other)
        assert gain == sum(max(0, tour_length(instance, tour) - length) for length in change)
        assert tour_length(instance, found) == tour_length(instance, tour) - gain


def test_parts_that_only_fit_together_are_left() -> None:
    """A double bridge falls apart into two parts, each of which alone makes two cycles."""
    instance = grid(16, 1)
    tour = np.arange(16)
    other = np.concatenate([tour[:4], tour[12:], tour[8:12], tour[4:8]])
    for a, b in ((tour, other), (other, tour)):
        found, gain = merged(instance, a, b)
        assert is_permutation(found, 16)
        assert tour_length(instance, found) == tour_length(instance, a) - gain


def test_the_same_tour_gives_nothing() -> None:
    instance = grid(30, 2)
    tour = np.random.default_rng(0).permutation(30)
    for other in (tour, tour[::-1], np.roll(tour, 7)):
        found, gain = merged(instance, tour, other)
        assert gain == 0
        np.testing.assert_array_equal(found, tour)


@pytest.mark.parametrize("seed", range(10))
def test_all_tours_are_merged_and_the_edges_stay_known(seed: int) -> None:
    random = np.random.default_rng(seed)
    instance = grid(50, seed)
    base = random.permutation(50)
    tours = [base]
    for _ in range(6):
        first = int(random.integers(0, 44))
        tours.append(reversed_part(base, first, first + int(random.integers(2, 6))))
    order = np.array(tours, dtype=np.int32)
    edges = instance.distance(order, np.roll(order, -1, axis=1)).astype(float)
    best, own = order[0].copy(), np.zeros((5, 50))
    own[0] = edges[0]
    gain = merge_all(order, edges, best, own, np.empty((ROOM, 50), dtype=np.int32), 3)
    assert is_permutation(best, 50)
    assert tour_length(instance, best) == edges[0].sum() - gain <= edges.sum(axis=1).min()
    np.testing.assert_array_equal(own[0], instance.distance(best, np.roll(best, -1)))


def test_a_part_that_was_taken_lets_another_in() -> None:
    """A tour that is offered in vain at first is offered again in the next pass."""
    helped = 0
    for seed in range(60):
        random = np.random.default_rng(seed)
        instance = grid(40, seed)
        order = np.array(
            [reversed_part(np.arange(40), *sorted(random.integers(0, 40, 2))) for _ in range(12)],
            dtype=np.int32,
        )
        edges = instance.distance(order, np.roll(order, -1, axis=1)).astype(float)
        gains = []
        for passes in (1, 3):
            best, own = order[0].copy(), np.zeros((5, 40))
            own[0] = edges[0]
            room = np.empty((ROOM, 40), dtype=np.int32)
            gains.append(merge_all(order, edges, best, own, room, passes))
        assert gains[1] >= gains[0]
        helped += gains[1] > gains[0]
    assert helped > 0
