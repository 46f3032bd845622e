"""A search that is stuck begins again, and the better parts of both are taken."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from georoutenet.problem.instance import Instance
from georoutenet.problem.tour import is_permutation, tour_length
from georoutenet.search import greedy_edge, improve, local_search
from georoutenet.search.local_search import _Run, kernel_coordinates
from georoutenet.search.neighbors import nearest_neighbors
from georoutenet.search.path import Ends
from georoutenet.search.state import best_tour, make_search
from georoutenet.stop import MaxIterations, Progress

ENDS: list[dict[str, Any]] = [{}, {"closed": False}, {"start": 3, "end": 5}, {"start": 7, "closed": False}]


def instance_of(n: int, seed: int = 0) -> Instance:
    return Instance(np.random.default_rng(seed).random((n, 2)))


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, np.ndarray]]:
    """Seeds and first tours of all searches that were begun; a search is stuck after some walks."""
    searches: list[tuple[Any, np.ndarray]] = []

    def recorded(rule: Any, x: Any, y: Any, neighbors: Any, tour: Any, seed: Any) -> Any:
        if len(tour) > 8:  # else it is there to be compiled
            searches.append((seed, tour.copy()))
        return make_search(rule, x, y, neighbors, tour, seed)

    monkeypatch.setattr(local_search, "make_search", recorded)
    monkeypatch.setattr(local_search, "STUCK", 2)
    return searches


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("options", ENDS)
def test_it_begins_again_with_the_given_tour(begun: list, workers: int, options: dict) -> None:
    instance = instance_of(100)
    given = greedy_edge(instance.coordinates)
    stop = MaxIterations(12_345)
    found, again = (improve(instance, given, stop=stop, seed=1, workers=workers, **options) for _ in "ab")
    np.testing.assert_array_equal(found.tour, again.tour)
    assert found.iterations == 12_345
    assert is_permutation(found.tour, 100)
    assert found.length == tour_length(instance, found.tour, closed=options.get("closed", True))
    seeds = [str(seed) for seed, _ in begun[: len(begun) // 2]]
    assert len(seeds) > 3 * workers
    assert len(set(seeds)) == len(seeds)
    afresh = [tour for seed, tour in begun if isinstance(seed, list) and len(seed) == 3 and seed[1] == 0]
    assert afresh
    for tour in afresh:
        np.testing.assert_array_equal(tour, begun[0][1])


def test_what_is_found_meanwhile_counts_once_it_is_joined(begun: list) -> None:
    instance = instance_of(80)
    reports: list[float] = []

    def look(at: Progress) -> None:
        tour = at.tour()
        assert tour is not None
        assert at.length == pytest.approx(tour_length(instance, tour), rel=1e-9)
        reports.append(at.length)

    found = improve(
        instance, greedy_edge(instance.coordinates), stop=MaxIterations(6_000), seed=2, progress=look
    )
    assert len(begun) > 2
    assert all(after <= before for before, after in itertools.pairwise(reports))
    assert found.length == pytest.approx(reports[-1], rel=1e-9)


def worse(tour: np.ndarray, places: range, random: np.random.Generator) -> np.ndarray:
    """The tour with two of its runs of a few cities turned around."""
    tour = tour.copy()
    for place in random.choice(np.array(places[:-10:12]), 2, replace=False):
        tour[place : place + 7] = tour[place : place + 7][::-1].copy()
    return tour


@pytest.mark.parametrize("options", ENDS)
@pytest.mark.parametrize("swapped", [False, True])
def test_the_better_parts_of_both(options: dict, swapped: bool) -> None:
    instance = instance_of(150, 5)
    random = np.random.default_rng(0)
    good = improve(instance, greedy_edge(instance.coordinates), stop=MaxIterations(3000), **options).tour
    tours = [worse(good, range(10, 70), random), worse(good, range(80, 140), random)]
    ends = Ends(150, start=options.get("start"), end=options.get("end"), closed=options.get("closed", True))
    code, x, y, scale = kernel_coordinates(instance)
    lists = nearest_neighbors(instance.coordinates, 6)
    states = []
    for tour in reversed(tours) if swapped else tours:
        flag, special, xs, ys, near, cycle = ends.as_cycle(x, y, lists, tour)
        rule: Any = (code + flag, len(xs) - special if special == 2 else len(xs)) if special else code
        states.append(make_search(rule, xs, ys, near, cycle, 0))
    run = _Run(instance, ends.from_cycle(best_tour(states[0]).astype(np.int64)), ends, MaxIterations(0), None)
    run.state, run.scale = states[0], scale
    run._join(*states, rule)
    length = tour_length(instance, good, closed=ends.closed)
    found = run.result(False)
    assert found.length == pytest.approx(length, rel=1e-12)
    assert found.history[-1].length == pytest.approx(length, rel=1e-9)
    assert found.length < min(tour_length(instance, tour, closed=ends.closed) for tour in tours)
