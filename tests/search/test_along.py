from __future__ import annotations

import numpy as np
import pytest

from georoutenet.problem.instance import Instance
from georoutenet.problem.tour import is_permutation, tour_length
from georoutenet.search import along
from georoutenet.search.space_filling import space_filling_curve


def plain_pass(points: np.ndarray, tour: list[int], reach: int) -> list[int]:
    """The same moves, each written as the tour that it makes and measured whole."""
    instance = Instance(points)
    for p in range(len(tour)):
        for _ in range(along.AGAIN):
            if p + 3 >= len(tour):
                break
            best, after = tour_length(instance, tour) - 1e-12, None
            for q in range(p + 2, min(len(tour) - 2, p + reach) + 1):
                head, middle, tail = tour[: p + 1], tour[p + 1 : q + 1], tour[q + 1 :]
                moved = [middle[::-1]]
                for size in range(1, min(along.LONGEST, len(middle) - 1) + 1):
                    first, last = middle[:size], middle[-size:]
                    moved += [middle[size:] + first, middle[size:] + first[::-1]]
                    moved += [last + middle[:-size], last[::-1] + middle[:-size]]
                for middle in moved:
                    length = tour_length(instance, head + middle + tail)
                    if length < best:
                        best, after = length, head + middle + tail
            if after is None:
                break
            tour = after
    return tour


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("reach", [2, 5, 9])
def test_a_pass_makes_the_moves_that_a_slow_version_makes(seed: int, reach: int) -> None:
    points = np.random.default_rng(seed).random((40, 2))
    start = space_filling_curve(points) if seed % 2 else np.random.default_rng(seed + 9).permutation(40)
    order, found = points[start].copy(), start.copy()
    along._pass(order, found, 0, 40, reach)
    assert found.tolist() == plain_pass(points, start.tolist(), reach)
    np.testing.assert_array_equal(order, points[found])


@pytest.mark.parametrize("n", [4, 5, 30, 20_000])
def test_tours_get_shorter_and_keep_their_ends(n: int) -> None:
    points = np.random.default_rng(n).random((n, 2))
    tour = space_filling_curve(points)
    found = along.shorten_along(points, tour, lambda: True)
    assert is_permutation(found, n)
    assert (found[0], found[-1]) == (tour[0], tour[-1])
    instance = Instance(points)
    before, after = tour_length(instance, tour), tour_length(instance, found)
    assert after <= before * (0.86 if n == 20_000 else 1)


def test_the_clock_ends_it_between_blocks() -> None:
    points = np.random.default_rng(1).random((20_000, 2))
    tour = space_filling_curve(points)
    asked = iter([True, True, False])
    found = along.shorten_along(points, tour, lambda: next(asked))
    assert is_permutation(found, len(tour))
    last = 2 * along.BLOCK + max(along.REACHES)
    np.testing.assert_array_equal(found[last:], tour[last:])
    assert not np.array_equal(found, tour)
