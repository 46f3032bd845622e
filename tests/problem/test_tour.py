from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from georoutenet.errors import InputError
from georoutenet.io.files import write_instance, write_tour
from georoutenet.problem.instance import DistanceRule, Instance
from georoutenet.problem.tour import canonical, check_tour, gap, is_permutation, tour_length, tour_lengths


def uniform(n: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).random((n, 2))


cases = st.integers(1, 30).flatmap(lambda n: st.tuples(st.permutations(range(n)), st.integers(0, 2**32 - 1)))


def literal_length(points: np.ndarray, tour: list[int]) -> float:
    return math.fsum(math.dist(points[a], points[b]) for a, b in zip(tour, tour[1:] + tour[:1], strict=True))


@settings(deadline=None)
@given(cases)
def test_length_against_a_literal_sum(case: tuple[list[int], int]) -> None:
    tour, seed = case
    points = uniform(len(tour), seed)
    assert tour_length(Instance(points), tour) == pytest.approx(literal_length(points, tour), rel=1e-12)


@settings(deadline=None)
@given(cases, st.floats(0, 2 * math.pi), st.floats(-100, 100), st.floats(0.01, 100))
def test_length_under_shift_rotation_reflection_scale_and_relabeling(
    case: tuple[list[int], int], angle: float, shift: float, scale: float
) -> None:
    tour, seed = case
    points = uniform(len(tour), seed)
    length = tour_length(Instance(points), tour)
    cosine, sine = math.cos(angle), math.sin(angle)
    for other, factor in [
        (points + np.array([shift, -2 * shift]), 1.0),
        (points @ np.array([[cosine, -sine], [sine, cosine]]), 1.0),
        (points * [-1.0, 1.0], 1.0),
        (points[:, ::-1], 1.0),
        (points * scale, scale),
    ]:
        assert tour_length(Instance(other), tour) == pytest.approx(factor * length, rel=1e-9, abs=1e-9)
    relabeled = np.random.default_rng(seed + 1).permutation(len(tour))  # new number of each city
    moved = np.empty_like(points)
    moved[relabeled] = points
    assert tour_length(Instance(moved), relabeled[tour]) == pytest.approx(length, rel=1e-12)


@settings(deadline=None)
@given(cases, st.integers(0, 40))
def test_canonical_is_one_form_for_all_writings_of_a_tour(case: tuple[list[int], int], by: int) -> None:
    tour, seed = case
    form = canonical(tour)
    assert is_permutation(form, len(tour))
    assert form[0] == 0
    np.testing.assert_array_equal(canonical(form), form)
    np.testing.assert_array_equal(canonical(np.roll(tour, by)), form)
    np.testing.assert_array_equal(canonical(np.roll(tour, by)[::-1]), form)
    instance = Instance(uniform(len(tour), seed))
    assert tour_length(instance, form) == pytest.approx(tour_length(instance, tour), rel=1e-12)


def test_canonical_tells_different_tours_apart() -> None:
    assert canonical([0, 1, 2, 3]).tolist() != canonical([0, 2, 1, 3]).tolist()
    assert canonical([2, 0, 3, 1]).tolist() == [0, 2, 1, 3]


@pytest.mark.parametrize("rule", [rule for rule in DistanceRule if rule is not DistanceRule.EXPLICIT])
def test_one_two_and_three_cities(rule: DistanceRule) -> None:
    points = [[0.0, 0.0], [3.0, 4.0], [3.0, 0.0]]
    one = tour_length(Instance(points[:1], rule=rule), [0])
    assert one == 0
    assert isinstance(one, int if rule.is_integer else float)
    two = Instance(points[:2], rule=rule)
    assert tour_length(two, [1, 0]) == 2 * two.distance(0, 1)
    three = Instance(points, rule=rule)
    total = three.distance(2, 0) + three.distance(0, 1) + three.distance(1, 2)
    assert tour_length(three, [2, 0, 1]) == total
    opened = tour_length(three, [2, 0, 1], closed=False)
    assert opened == three.distance(2, 0) + three.distance(0, 1)
    assert tour_length(Instance(points[:1], rule=rule), [0], closed=False) == 0


def test_above_65535_cities() -> None:
    # A tour cast to 16 bits would visit the first cities twice.
    n = 70_001
    instance = Instance(np.column_stack([np.arange(n, dtype=float), np.zeros(n)]), rule=DistanceRule.EUC_2D)
    assert tour_length(instance, np.arange(n)) == 2 * (n - 1)
    order = np.random.default_rng(0).permutation(n)
    expected = np.abs(order - np.roll(order, -1)).sum()
    assert tour_length(instance, order) == expected
    assert canonical(order)[0] == 0
    assert not is_permutation(np.arange(n) % 65_536, n)


def test_many_tours_at_once_agree_with_one_at_a_time() -> None:
    generator = np.random.default_rng(1)
    for batch, tours, n in [(1, 1, 1), (3, 2, 2), (4, 5, 17)]:
        points = generator.random((batch, n, 2))
        orders = np.array([[generator.permutation(n) for _ in range(tours)] for _ in range(batch)])
        lengths = tour_lengths(points, orders)
        assert lengths.shape == (batch, tours)
        assert lengths.dtype == np.float64
        for b in range(batch):
            for m in range(tours):
                assert lengths[b, m] == pytest.approx(
                    tour_length(Instance(points[b]), orders[b, m]), rel=1e-14
                )
        np.testing.assert_array_equal(tour_lengths(points, orders[:, 0]), lengths[:, 0])
        np.testing.assert_array_equal(tour_lengths(points, orders.astype(np.uint8)), lengths)


def test_more_tours_than_one_block() -> None:
    generator = np.random.default_rng(2)
    points = generator.random((5, 1000, 2))
    orders = generator.permuted(np.tile(np.arange(1000), (5, 60, 1)), axis=-1)
    lengths = tour_lengths(points, orders)
    for b in range(5):
        np.testing.assert_allclose(
            lengths[b], tour_lengths(points[b : b + 1], orders[b : b + 1])[0], rtol=1e-13
        )
        assert lengths[b, -1] == pytest.approx(tour_length(Instance(points[b]), orders[b, -1]), rel=1e-13)


def test_an_empty_batch_has_no_lengths() -> None:
    assert tour_lengths(np.zeros((0, 5, 2)), np.zeros((0, 3, 5), dtype=int)).shape == (0, 3)


@pytest.mark.parametrize(
    ("points", "tours"), [((3, 4, 2), (2, 4)), ((4, 2), (1, 4)), ((3, 4, 3), (3, 4)), ((3, 4, 2), (3,))]
)
def test_shapes_that_do_not_fit(points: tuple[int, ...], tours: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="do not fit together"):
        tour_lengths(np.zeros(points), np.zeros(tours, dtype=int))


@pytest.mark.parametrize(
    ("tour", "message"),
    [
        ([0, 1], "2 entries for 3 cities"),
        ([0, 1, 3], r"city 3; cities are 0\.\.2"),
        ([0, -1, 2], "city -1"),
        ([0, 1, 1], "city 1 2 times and leaves out city 2"),
        ([0.0, 1.0, 2.0], "whole city numbers"),
        ([[0, 1, 2]], "whole city numbers"),
        ([[0], [1, 2]], "whole city numbers"),
        ([True, False, True], "whole city numbers"),
        (["0", "1", "2"], "whole city numbers"),
        ([0, 1, 2**70], "whole city numbers"),
        (np.array([0, 1, 2**63], dtype=np.uint64), "city 9223372036854775808"),
    ],
)
def test_bad_tours(tour: list, message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_tour(tour, 3)
    with pytest.raises(InputError):
        tour_length(Instance(np.eye(3)[:, :2]), tour)


def test_gap() -> None:
    assert gap(110, 100) == pytest.approx(10.0)
    assert gap(0, 0) == 0.0
    assert gap(1, 0) == math.inf
    np.testing.assert_allclose(gap([1.0, 2.0, 0.0], [1.0, 1.0, 0.0]), [0.0, 100.0, 0.0])


@pytest.mark.parametrize("given", [np.zeros((3, 2)), "cities.csv", None])
def test_only_an_instance_says_how_to_measure(given: Any, tmp_path: Path) -> None:
    """Arrays have no rule; what else was given is named."""
    message = f"an Instance is needed, got {type(given).__name__}"
    with pytest.raises(InputError, match=message):
        tour_length(given, [0, 1, 2])
    for name in ("cities.csv", "cities.tsp"):
        with pytest.raises(InputError, match=message):
            write_instance(tmp_path / name, given)
    with pytest.raises(InputError, match=message):
        write_tour(tmp_path / "tour.csv", [0, 1, 2], given)
