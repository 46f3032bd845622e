"""Populations of tours: what a search with them promises."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from georoutenet.problem.instance import DistanceRule, Instance
from georoutenet.problem.tour import is_permutation, tour_length
from georoutenet.search import greedy_edge, improve, local_search, population
from georoutenet.search.neighbors import nearest_neighbors
from georoutenet.search.state import make_search
from georoutenet.stop import Budget, MaxIterations, NoImprovement, Progress

ENDS: list[dict[str, Any]] = [{}, {"closed": False}, {"start": 3, "end": 5}, {"start": 7, "closed": False}]


def instance_of(n: int, seed: int = 0) -> Instance:
    return Instance(np.random.default_rng(seed).random((n, 2)))


@pytest.fixture
def crossings(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, float]]:
    """The length of the shortest tour of each population before it is crossed, and after."""
    monkeypatch.setattr(local_search, "BREED", 50)
    seen = []
    crossed = population.cross

    def cross(state: Any, rule: Any, tours: list, *given: Any) -> Any:
        found = crossed(state, rule, tours, *given)
        before = min(population.length_of(state, rule, tour) for tour in tours)
        seen.append((before, population.length_of(state, rule, found)))
        return found

    monkeypatch.setattr(population, "cross", cross)
    return seen


@pytest.mark.parametrize("options", ENDS)
def test_the_same_for_the_same_seed_and_kicks_whatever_the_workers(crossings: list, options: dict) -> None:
    instance = instance_of(120)
    given = greedy_edge(instance.coordinates)
    found = [
        improve(instance, given, stop=MaxIterations(600), seed=1, workers=workers, **options)
        for workers in (1, 1, 2, 3)
    ]
    assert len(crossings) >= 4
    for each in found:
        np.testing.assert_array_equal(each.tour, found[0].tour)
        assert each.iterations == 600
    assert is_permutation(found[0].tour, 120)
    assert found[0].length == tour_length(instance, found[0].tour, closed=options.get("closed", True))


@pytest.mark.parametrize("rule", [DistanceRule.EUC_2D, DistanceRule.GEO, "matrix"])
def test_other_distances(crossings: list, rule: Any) -> None:
    random = np.random.default_rng(4)
    kind = DistanceRule.GEO if rule == "matrix" else rule
    instance = Instance(random.random((90, 2)) * (1e6 if kind is DistanceRule.EUC_2D else 60), rule=kind)
    given = greedy_edge(instance.coordinates)
    if rule == "matrix":
        instance = Instance(matrix=instance.distance_matrix())
    found = improve(instance, given, stop=MaxIterations(900))
    assert crossings
    assert all(after <= before for before, after in crossings)
    assert found.length == tour_length(instance, found.tour)
    assert found.length < tour_length(instance, given)


def test_crossing_shortens_what_kicks_left(crossings: list) -> None:
    instance = instance_of(700, 2)
    improve(instance, greedy_edge(instance.coordinates), stop=MaxIterations(2_000))
    before, after = crossings[0]
    assert after < 0.999 * before


def test_threads_cross_as_one_does() -> None:
    """None reads a tour that another is changing."""
    instance = instance_of(120, 8)
    code, x, y, _ = local_search.kernel_coordinates(instance)
    lists = local_search.candidate_neighbors(instance)
    random = np.random.default_rng(0)
    tours = [random.permutation(120).astype(np.int32) for _ in range(41)]  # much to change, long
    state = local_search.make_search(code, x, y, lists, tours[0], 0)
    found = [
        population.cross(state, code, tours, [5], lambda: True, workers) for workers in (1, 2, 3, 7, 40) * 2
    ]
    for each in found:
        np.testing.assert_array_equal(each, found[0])


def test_a_search_that_is_stuck_goes_over_to_crossing(
    crossings: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_search, "BREED", 1_000)
    monkeypatch.setattr(local_search, "STUCK", 2)
    instance = instance_of(100)
    found = improve(instance, greedy_edge(instance.coordinates), stop=MaxIterations(12_345))
    assert crossings
    assert found.iterations == 12_345


def test_kicks_that_are_too_few_for_a_population_are_made_in_walks(crossings: list) -> None:
    instance = instance_of(100)
    stop = MaxIterations(10 * population.LEAST - 1)
    found = improve(instance, greedy_edge(instance.coordinates), stop=stop)
    assert not crossings
    assert found.iterations == 10 * population.LEAST - 1


def test_populations_that_agree_end_a_search(crossings: list) -> None:
    instance = instance_of(60, 3)
    stop = MaxIterations(10**7)
    found = improve(instance, greedy_edge(instance.coordinates), stop=stop, agreed=1)
    assert found.iterations < 10**5
    again = improve(instance, greedy_edge(instance.coordinates), stop=MaxIterations(30_000), seed=9)
    assert found.length == pytest.approx(again.length, rel=1e-12)


def test_reports_are_of_the_best_tour(crossings: list) -> None:
    instance, reports = instance_of(80), list[float]()

    def look(at: Progress) -> None:
        tour = at.tour()
        assert tour is not None
        assert at.length == pytest.approx(tour_length(instance, tour), rel=1e-9)
        reports.append(at.length)

    given = greedy_edge(instance.coordinates)
    found = improve(instance, given, stop=MaxIterations(4_000), seed=2, progress=look)
    assert len(crossings) > 2
    assert all(after <= before for before, after in itertools.pairwise(reports))
    assert found.length == pytest.approx(reports[-1], rel=1e-9)
    assert found.history[-1].length == pytest.approx(found.length, rel=1e-9)


def test_cities_at_one_place() -> None:
    points = np.repeat(np.random.default_rng(1).random((8, 2)), 50, axis=0)
    instance = Instance(points)
    found = improve(instance, np.random.default_rng(0).permutation(400), stop=MaxIterations(3_000))
    assert is_permutation(found.tour, 400)
    shortest = improve(Instance(points[::50]), np.arange(8), stop=MaxIterations(500))
    assert found.length == pytest.approx(shortest.length, rel=1e-9)


def test_what_crossing_gains_is_an_improvement(crossings: list) -> None:
    instance = instance_of(300, 6)
    kicks = 45 * 30
    found = improve(instance, greedy_edge(instance.coordinates), stop=NoImprovement(kicks))
    after, before = crossings[0][1], crossings[0][0]
    assert after < before
    assert found.iterations > kicks
    gained = [step for step in found.history if step.iterations >= population.LEAST * 30]
    assert gained[0].since_improvement == 0


def test_ctrl_c_returns_what_was_crossed(crossings: list, monkeypatch: pytest.MonkeyPatch) -> None:
    instance = instance_of(200, 7)
    cross = population.cross

    def interrupted(*given: Any) -> Any:
        found = cross(*given)
        if len(crossings) == 1:
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr(population, "cross", interrupted)
    given, reports = greedy_edge(instance.coordinates), list[Progress]()
    found = improve(instance, given, stop=MaxIterations(10**6), progress=reports.append)
    assert found.interrupted
    scale = found.length / crossings[0][1]
    assert scale == pytest.approx(2.0 ** round(np.log2(scale)), rel=1e-9)  # the kernels' unit of length
    assert found.iterations == population.LEAST * 20
    assert len({report.iterations for report in reports}) > population.LEAST  # heard of each tour


def test_a_limit_that_leaves_no_time_for_crossing_is_spent_on_walks(crossings: list) -> None:
    left = [0.0]
    run = SimpleNamespace(workers=1, budget=lambda: Budget(seconds=left[0]))
    instance = instance_of(60)
    given = greedy_edge(instance.coordinates).astype(np.int32)
    code, x, y, _ = local_search.kernel_coordinates(instance)
    state = local_search.make_search(code, x, y, local_search.candidate_neighbors(instance), given, 0)
    made = population.Population(run, state, code)
    made.making, left[0] = 1.0, population.LEAST + 1.0
    assert made._affordable(population.LEAST) < population.LEAST
    left[0] = 2.0 * population.LEAST
    assert made._affordable(population.LEAST) == population.LEAST
    made.crossing = 0.1
    assert made._affordable(100) == 29


def test_better_parts_of_a_tour_are_taken_or_all_of_it() -> None:
    instance = instance_of(60)
    short = improve(instance, np.arange(60), stop=MaxIterations(2_000)).tour.astype(np.int32)
    one, two = short.copy(), short.copy()
    one[40:44] = one[40:44][::-1]
    two[5:9], two[40:44] = two[5:9][::-1], two[40:44][::-1]
    length = {
        name: tour_length(instance, tour) for name, tour in (("short", short), ("one", one), ("two", two))
    }
    assert length["short"] < length["one"] < length["two"]
    x, y = np.ascontiguousarray(instance.coordinates.T)
    state = make_search(0, x, y, nearest_neighbors(instance.coordinates, 8), two, 0)
    for found, name, before in ((one, "one", "two"), (two, "one", "one"), (short, "short", "one")):
        assert population.take(state, 0, found) == pytest.approx(length[before] - length[name], abs=1e-12)
        assert tour_length(instance, state.tour) == pytest.approx(length[name])
        np.testing.assert_array_equal(state.tour[state.position], np.arange(60))
