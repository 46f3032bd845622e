from __future__ import annotations

import itertools

import numpy as np
import pytest

from georoutenet.errors import InputError
from georoutenet.problem.instance import DistanceRule, Instance
from georoutenet.problem.tour import is_permutation, tour_length
from georoutenet.search import improve
from georoutenet.search.path import Ends
from georoutenet.stop import MaxIterations

RULES = [rule for rule in DistanceRule if rule is not DistanceRule.EXPLICIT]
VARIANTS = [
    {"closed": closed, "start": start, "end": end}
    for closed in (True, False)
    for start in (None, 1)
    for end in (None, 0)
]


def random_instance(n: int, seed: int, rule: DistanceRule) -> Instance:
    points = np.random.default_rng(seed).random((n, 2))
    if rule in (DistanceRule.GEO, DistanceRule.GREAT_CIRCLE):
        points = np.round(points * 50, 2)
    elif rule.is_integer:
        points = np.round(points * 100)
    return Instance(points, rule=rule)


def shortest(instance: Instance, closed: bool, start: int | None, end: int | None) -> float:
    matrix = instance.distance_matrix()
    lengths = [
        sum(matrix[a, b] for a, b in itertools.pairwise(order))
        + (matrix[order[-1], order[0]] if closed else 0)
        for order in itertools.permutations(range(instance.n))
        if start in (None, order[0]) and end in (None, order[-1])
    ]
    return min(lengths)


@pytest.mark.parametrize("options", VARIANTS)
@pytest.mark.parametrize("n", [2, 3, 4, 5, 7])
def test_small_paths_are_solved(n: int, options: dict) -> None:
    for seed, rule in enumerate(RULES):
        instance = random_instance(n, seed, rule)
        given = np.random.default_rng(seed).permutation(n)
        found = improve(instance, given, stop=MaxIterations(200), **options)
        assert is_permutation(found.tour, n)
        assert options["start"] in (None, found.tour[0])
        assert options["end"] in (None, found.tour[-1])
        assert found.length == tour_length(instance, found.tour, closed=options["closed"])
        assert found.length == pytest.approx(shortest(instance, **options), rel=1e-12)


@pytest.mark.parametrize("options", VARIANTS)
def test_a_given_path_never_gets_longer(options: dict) -> None:
    instance = random_instance(120, 7, DistanceRule.EUC_2D)
    given = Ends(120, **options).arrange(instance, np.random.default_rng(0).permutation(120))
    before = tour_length(instance, given, closed=options["closed"])
    found = improve(instance, given, stop=MaxIterations(300), **options)
    assert found.history[0].length == before
    assert (
        found.length
        == found.history[-1].length
        == tour_length(instance, found.tour, closed=options["closed"])
    )
    assert found.length < 0.5 * before
    assert options["start"] in (None, found.tour[0])
    assert options["end"] in (None, found.tour[-1])


def test_an_open_path_is_shorter_than_the_tour_it_is_part_of() -> None:
    instance = random_instance(60, 3, DistanceRule.EUCLIDEAN)
    tour = improve(instance, np.arange(60), stop=MaxIterations(2000)).tour
    ends = Ends(60, closed=False)
    path = ends.cut(instance, tour)
    longest = instance.distance(tour, np.roll(tour, -1)).max()
    assert tour_length(instance, path, closed=False) == pytest.approx(tour_length(instance, tour) - longest)
    found = improve(instance, path, stop=MaxIterations(2000), closed=False)
    assert found.length <= tour_length(instance, path, closed=False)


def test_a_tour_that_fits_is_left_alone() -> None:
    instance = random_instance(9, 1, DistanceRule.EUCLIDEAN)
    tour = np.random.default_rng(1).permutation(9)
    for options in (
        {},
        {"start": tour[0]},
        {"end": tour[-1], "closed": False},
        {"start": tour[0], "end": tour[-1]},
    ):
        np.testing.assert_array_equal(Ends(9, **options).arrange(instance, tour), tour)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"start": 5}, r"start must be a city in 0..4, got 5"),
        ({"end": -1}, r"end must be a city in 0..4, got -1"),
        ({"start": 2, "end": 2}, "same city 2"),
    ],
)
def test_wrong_ends(options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Ends(5, **options)
