from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from georoutenet.errors import InputError
from georoutenet.problem.instance import DistanceRule, Instance, fill_square, normalize


def scalar_distance(rule: str, a: tuple[float, float], b: tuple[float, float]) -> float:
    """The rules written out one pair at a time, TSPLIB's as its documentation gives them."""
    dx, dy = a[0] - b[0], a[1] - b[1]
    if rule == "GREAT_CIRCLE":
        across = math.cos(math.radians(a[0])) * math.cos(math.radians(b[0]))
        haversine = math.sin(math.radians(dx) / 2) ** 2 + across * math.sin(math.radians(dy) / 2) ** 2
        return 2 * 6371.0088 * math.asin(math.sqrt(haversine))
    if rule == "EUCLIDEAN":
        return math.dist(a, b)
    if rule == "EUC_2D":
        return int(math.sqrt(dx * dx + dy * dy) + 0.5)
    if rule == "CEIL_2D":
        return math.ceil(math.sqrt(dx * dx + dy * dy))
    if rule == "MAN_2D":
        return int(abs(dx) + abs(dy) + 0.5)
    if rule == "MAX_2D":
        return max(int(abs(dx) + 0.5), int(abs(dy) + 0.5))
    if rule == "ATT":
        r = math.sqrt((dx * dx + dy * dy) / 10.0)
        t = int(r + 0.5)
        return t + 1 if t < r else t

    def radians(x: float) -> float:
        degrees = int(x)
        return 3.141592 * (degrees + 5.0 * (x - degrees) / 3.0) / 180.0

    (lat_a, lon_a), (lat_b, lon_b) = map(radians, a), map(radians, b)
    q1, q2, q3 = math.cos(lon_a - lon_b), math.cos(lat_a - lat_b), math.cos(lat_a + lat_b)
    cosine = 0.5 * ((1.0 + q1) * q2 - (1.0 - q1) * q3)
    return int(6378.388 * math.acos(max(-1.0, min(1.0, cosine))) + 1.0)


@pytest.mark.parametrize("rule", [rule for rule in DistanceRule if rule is not DistanceRule.EXPLICIT])
def test_distances_match_a_scalar_implementation(rule: DistanceRule) -> None:
    generator = np.random.default_rng(3)
    earth = rule in (DistanceRule.GEO, DistanceRule.GREAT_CIRCLE)
    scale = 90 if earth else 1000
    points = np.round((generator.random((60, 2)) * 2 - 1) * scale, 2)
    points[1] = points[0]
    instance = Instance(points, rule=rule)
    matrix = instance.distance_matrix()
    assert matrix.dtype == (np.int64 if rule.is_integer else np.float64)
    for i in range(60):
        for j in range(60):
            expected = 0 if i == j else scalar_distance(rule, tuple(points[i]), tuple(points[j]))
            exact = 1e-13 if rule is DistanceRule.GREAT_CIRCLE else 1e-15
            assert matrix[i, j] == pytest.approx(expected, rel=exact, abs=0)
            if i != j:
                assert instance.distance(i, j) == matrix[i, j]


def test_rules_at_the_half() -> None:
    # floor(x + 0.5) rounds 2.5 up; Python's own round would give 2.
    half = [[0.0, 0.0], [2.5, 0.0]]
    assert Instance(half, rule=DistanceRule.EUC_2D).distance(0, 1) == 3
    assert Instance(half, rule=DistanceRule.CEIL_2D).distance(0, 1) == 3
    assert Instance([[0, 0], [2, 0]], rule="CEIL_2D").distance(0, 1) == 2
    assert Instance([[0, 0], [10, 0]], rule="ATT").distance(0, 1) == 4  # sqrt(10) = 3.16, rounded up


def test_geo_coincident_cities_are_one_apart_but_the_diagonal_is_zero() -> None:
    instance = Instance([[10.3, 20.1], [10.3, 20.1]], rule=DistanceRule.GEO)
    assert instance.distance(0, 1) == 1
    assert instance.distance_matrix().tolist() == [[0, 1], [1, 0]]


@pytest.mark.parametrize("n", [1, 2, 3])
def test_small_and_coincident_instances_are_legal(n: int) -> None:
    instance = Instance(np.full((n, 2), 7.5))
    assert (instance.n, len(instance)) == (n, n)
    assert instance.distance_matrix().tolist() == np.zeros((n, n)).tolist()
    assert instance.normalized().tolist() == np.zeros((n, 2)).tolist()


@pytest.mark.parametrize("scale", [1.0, 1e-200, 1e150])
def test_tensors_fill_the_unit_square_as_arrays_do(scale: float) -> None:
    points = scale * np.random.default_rng(0).normal(size=(4, 3, 7, 2))
    points[1, 1] = 7.5
    np.testing.assert_array_equal(fill_square(torch.from_numpy(points)), normalize(points))


def test_coordinates_are_a_read_only_copy() -> None:
    points = np.ones((3, 2), dtype=np.float32)
    instance = Instance(points)
    points[0] = 5
    assert instance.coordinates.dtype == np.float64
    assert instance.coordinates[0, 0] == 1
    with pytest.raises(ValueError, match="read-only"):
        instance.coordinates[0] = 2


@pytest.mark.parametrize(
    ("coordinates", "message"),
    [
        ([], "at least one city"),
        (np.empty((0, 2)), "at least one city"),
        ([1.0, 2.0], r"shape \(n, 2\), got \(2,\)"),
        (np.zeros((2, 3)), r"got \(2, 3\)"),
        (np.zeros((1, 2, 2)), r"got \(1, 2, 2\)"),
        ([[0, 0], [1, math.nan]], "row 1 "),
        ([[0, 0], [1, 2], [math.inf, 0]], "row 2 "),
        ([[0, 0], [1]], "array of numbers"),
        ([["a", "b"]], "array of numbers"),
        ([[10**400, 0]], "array of numbers"),
        ([[-1.7e308, 0], [1.7e308, 0]], "too far apart"),
    ],
)
def test_bad_coordinates(coordinates: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Instance(coordinates)  # type: ignore[arg-type]


def test_words_are_named_as_they_were_given() -> None:
    with pytest.raises(InputError, match=r"could not convert string to float: 'a'$"):
        Instance([[0, 0], [0, "a"]])  # type: ignore[list-item]


def test_other_bad_arguments() -> None:
    with pytest.raises(InputError, match="allowed: EUCLIDEAN, GREAT_CIRCLE, EUC_2D"):
        Instance([[0, 0]], rule="EUC_3D")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="integer rule EUC_2D"):
        Instance([[0, 0], [1e17, 0]], rule=DistanceRule.EUC_2D)
    with pytest.raises(InputError, match="latlon has 1 rows for 2 cities"):
        Instance([[0, 0], [1, 1]], latlon=[[0, 0]])  # type: ignore[arg-type]
    for optimum in (math.nan, -1, 2**2000, "a", np.ones(2)):
        with pytest.raises(InputError, match="optimum"):
            Instance([[0, 0]], optimum=optimum)  # type: ignore[arg-type]


finite = st.floats(-1e6, 1e6)


@settings(deadline=None)
@given(st.lists(st.tuples(finite, finite), min_size=1, max_size=20))
def test_normalized_is_in_the_unit_square_and_keeps_the_aspect(points: list[tuple[float, float]]) -> None:
    instance = Instance(points)
    unit = instance.normalized()
    span = np.ptp(instance.coordinates, axis=0).max()
    assert (unit >= 0).all()
    assert (unit <= 1).all()
    assert unit.max() == (1.0 if span > 0 else 0.0)
    lengths = Instance(unit).distance_matrix() * span
    np.testing.assert_allclose(lengths, instance.distance_matrix(), rtol=1e-6, atol=1e-9)


def test_normalize_works_on_batches() -> None:
    batch = np.random.default_rng(0).random((4, 9, 2)) * [[[3.0, 5.0]]] - 1
    for single, together in zip(batch, normalize(batch), strict=True):
        np.testing.assert_array_equal(Instance(single).normalized(), together)
