"""Instances whose distances are a matrix."""

from __future__ import annotations

import copy
import itertools
import math
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from georoutenet.errors import InputError
from georoutenet.problem import matrix as matrix_module
from georoutenet.problem.instance import DistanceRule, Instance
from georoutenet.problem.tour import tour_length

TRIANGLE = [[0, 3, 7], [3, 0, 1], [7, 1, 0]]  # 0 to 2 is longer than by way of 1


def test_whole_numbers_stay_whole() -> None:
    instance = Instance(matrix=TRIANGLE, name="three")
    assert repr(instance) == "Instance('three', n=3, rule=EXPLICIT)"
    assert (instance.n, len(instance), instance.rule, instance.is_integer) == (
        3,
        3,
        DistanceRule.EXPLICIT,
        True,
    )
    assert instance.distance(0, 2) == 7
    assert instance.distance([0, 1], [1, 2]).tolist() == [3, 1]
    assert instance.distance_matrix().dtype == np.int64
    assert instance.distance_matrix().tolist() == TRIANGLE
    length = tour_length(instance, [2, 0, 1])
    assert (length, type(length)) == (11, int)
    assert tour_length(instance, [2, 1, 0], closed=False) == 4
    assert type(tour_length(Instance(matrix=[[5]]), [0])) is int


def test_floats_stay_floats_even_where_they_are_whole() -> None:
    instance = Instance(matrix=np.array(TRIANGLE, dtype=np.float32))
    assert not instance.is_integer
    assert instance.matrix is not None
    assert instance.matrix.dtype == instance.distance_matrix().dtype == np.float64
    assert type(tour_length(instance, [0, 1, 2])) is float
    assert type(tour_length(Instance(matrix=[[0.0]]), [0])) is float


def test_the_diagonal_is_ignored_whatever_it_holds() -> None:
    for diagonal in (9999.0, math.inf, math.nan, -1.0):
        matrix = np.array(TRIANGLE, dtype=float)
        np.fill_diagonal(matrix, diagonal)
        assert Instance(matrix=matrix).distance_matrix().tolist() == TRIANGLE
    assert Instance(matrix=[[-5, 1], [1, 7]]).distance_matrix().tolist() == [[0, 1], [1, 0]]


def test_the_matrix_is_a_read_only_copy() -> None:
    given = np.array(TRIANGLE, dtype=float)
    instance = Instance(matrix=given)
    given[0, 1] = given[1, 0] = 50
    assert instance.distance(0, 1) == 3
    assert instance.matrix is not None
    with pytest.raises(ValueError, match="read-only"):
        instance.matrix[0, 1] = 2
    taken = instance.distance_matrix()
    taken[0, 1] = 99  # what was handed out belongs to the caller
    assert instance.distance(0, 1) == 3


def test_instances_without_coordinates_say_so() -> None:
    instance = Instance(matrix=TRIANGLE, name="roads")
    assert not instance.has_coordinates
    for ask in (lambda: instance.coordinates, instance.normalized):
        with pytest.raises(InputError, match=r"'roads' has distances but no coordinates, which the network"):
            ask()
    with pytest.raises(AttributeError, match="no attribute 'coordinate'"):
        instance.coordinate  # type: ignore[attr-defined]  # noqa: B018
    for again in (pickle.loads(pickle.dumps(instance)), copy.deepcopy(instance), instance.replaced()):
        assert again.distance_matrix().tolist() == TRIANGLE
        assert not again.has_coordinates


def test_coordinates_beside_a_matrix_are_for_show() -> None:
    points = [[0, 0], [5, 0], [5, 5]]
    instance = Instance(points, matrix=TRIANGLE, latlon=[[1, 2], [3, 4], [5, 6]])
    assert instance.has_coordinates
    assert instance.coordinates.tolist() == points
    assert instance.normalized().tolist() == [[0, 0], [1, 0], [1, 1]]
    assert instance.distance(0, 2) == 7
    assert instance.unit is None
    assert Instance(points, latlon=[[1, 2], [3, 4], [5, 6]]).unit == "km"
    other = instance.replaced(optimum=11, name="other")
    assert (other.optimum, other.name, other.rule) == (11, "other", DistanceRule.EXPLICIT)
    assert other.coordinates.tolist() == points
    far = Instance([[0, 0], [1e300, 0]], matrix=[[0, 1], [1, 0]])  # no length depends on them
    assert tour_length(far, [0, 1]) == 2


def test_instances_are_equal_only_to_themselves() -> None:
    instance = Instance(matrix=TRIANGLE)
    assert instance == instance
    assert instance != Instance(matrix=TRIANGLE)
    assert len({instance, instance, Instance(matrix=TRIANGLE)}) == 2


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        ([], "at least one city, got none"),
        (np.empty((0, 0)), "at least one city, got none"),
        ([1.0, 2.0], r"shape \(n, n\), got \(2,\)"),
        (np.zeros((2, 3)), r"got \(2, 3\)"),
        ([[0, 1], [1]], "array of numbers"),
        ([["a", "b"], ["c", "d"]], "must hold numbers: from city 0 to city 0 it is"),
        ([[0, 1.5], [None, 0]], "from city 1 to city 0 it is None"),
        (np.ones((2, 2), dtype=bool), "from city 0 to city 0 it is .*True"),
        (np.ones((2, 2), dtype=complex), "complex"),
        ([[0, 10**30], [10**30, 0]], "beyond 64 bits"),
        ([[0, 1.5], [10**400, 0]], "must hold numbers|array of numbers"),
        ([[0, math.nan], [math.nan, 0]], "finite and >= 0: from city 0 to city 1 it is nan"),
        ([[0, 1, 2], [1, 0, math.inf], [2, math.inf, 0]], "from city 1 to city 2 it is inf"),
        ([[0, 1], [-1, 0]], "from city 1 to city 0 it is -1.0"),
        ([[0, 2**52], [2**52, 0]], "too large"),
        ([[0, 1e308], [1e308, 0]], "too large"),
        ([[0, 5], [7, 0]], r"asymmetric: from city 0 to city 1 it is 5, back 7\. Give the mean of both"),
        ([[0, 5.0], [5.0 + 1e-7, 0]], r"or use georoutenet\.Asymmetric\(matrix\)"),
        ([[0, 2**50], [2**50 + 1, 0]], "asymmetric"),
    ],
)
def test_bad_matrices(matrix: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Instance(matrix=matrix)  # type: ignore[arg-type]


def test_other_bad_arguments() -> None:
    with pytest.raises(InputError, match=r"needs coordinates \(n, 2\) or a matrix \(n, n\)"):
        Instance()
    with pytest.raises(InputError, match="got the rule EXPLICIT and no matrix"):
        Instance([[0, 0]], rule="EXPLICIT")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="got the rule EUCLIDEAN and a matrix"):
        Instance(matrix=[[0]], rule=DistanceRule.EUCLIDEAN)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="coordinates have 2 rows for 3 cities"):
        Instance([[0, 0], [1, 1]], matrix=TRIANGLE)  # type: ignore[arg-type]
    with pytest.raises(
        InputError, match=r"got \(3, 3\); distances between cities are given as Instance\(mat"
    ):
        Instance(TRIANGLE)  # type: ignore[arg-type]


def test_the_size_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix_module, "LARGEST_MATRIX", 2)
    assert Instance(matrix=np.ones((2, 2))).n == 2
    with pytest.raises(InputError, match="at most 2 cities, got 3"):
        Instance(matrix=np.ones((3, 3)))


def test_rounding_in_the_last_digits_is_no_direction() -> None:
    there = np.random.default_rng(0).random((700, 700))  # more than is compared at a time
    there += there.T
    back = there * (1 + 1e-12 * np.sign(np.arange(700) - np.arange(700)[:, None]))
    instance = Instance(matrix=back)
    matrix = instance.distance_matrix()
    np.testing.assert_array_equal(matrix, matrix.T)
    np.testing.assert_allclose(matrix[~np.eye(700, dtype=bool)], there[~np.eye(700, dtype=bool)], rtol=1e-11)
    back[650, 20] += 1e-6
    with pytest.raises(InputError, match="from city 20 to city 650"):
        Instance(matrix=back)


symmetric = st.integers(1, 7).flatmap(
    lambda n: st.one_of(
        arrays(np.int64, (n, n), elements=st.integers(0, 20)),
        arrays(np.float64, (n, n), elements=st.floats(0, 1e6)),
    )
)


@settings(deadline=None)
@given(symmetric, st.randoms(use_true_random=False))
def test_lengths_are_sums_of_entries(values: np.ndarray, random_source: object) -> None:
    matrix = np.maximum(values, values.T)
    np.fill_diagonal(matrix, 0)
    instance = Instance(matrix=matrix)
    np.testing.assert_array_equal(instance.distance_matrix(), matrix)
    tour = list(range(len(matrix)))
    random_source.shuffle(tour)  # type: ignore[attr-defined]
    steps = [matrix[a, b] for a, b in itertools.pairwise(tour)]
    assert tour_length(instance, tour, closed=False) == pytest.approx(sum(steps), rel=1e-12)
    assert tour_length(instance, tour) == pytest.approx(sum(steps) + matrix[tour[-1], tour[0]], rel=1e-12)


@pytest.mark.parametrize("rule", [rule for rule in DistanceRule if rule is not DistanceRule.EXPLICIT])
def test_a_matrix_of_a_rule_s_distances_measures_as_the_rule(rule: DistanceRule) -> None:
    points = np.random.default_rng(1).uniform(-80, 80, (30, 2)).round(2)
    by_rule = Instance(points, rule=rule)
    by_matrix = Instance(matrix=by_rule.distance_matrix())
    assert by_matrix.is_integer == rule.is_integer
    for seed in range(5):
        tour = np.random.default_rng(seed).permutation(30)
        assert tour_length(by_matrix, tour) == tour_length(by_rule, tour)
