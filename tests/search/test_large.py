from __future__ import annotations

import math
import threading
from itertools import combinations, pairwise

import numpy as np
import pytest

from georoutenet.problem.instance import Instance
from georoutenet.problem.tour import is_permutation, tour_length
from georoutenet.search import greedy_edge, improve, large, local_search, windows
from georoutenet.search.distances import EUCLIDEAN, GEO
from georoutenet.search.neighbors import nearest_neighbors
from georoutenet.search.path import Ends
from georoutenet.stop import AnyOf, Budget, MaxIterations, MaxTime, NoImprovement, Progress


@pytest.fixture
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_search, "WHOLE", 100)
    monkeypatch.setattr(windows, "window_size", lambda n: 60)


def whole_of(n: int, seed: int) -> large.Whole:
    points = np.random.default_rng(seed).random((n, 2))
    tour = greedy_edge(points).astype(np.int32)
    position = np.argsort(tour).astype(np.int32)
    return large.Whole(points[:, 0].copy(), points[:, 1].copy(), nearest_neighbors(points, 7), tour, position)


def length_of(whole: large.Whole) -> float:
    return tour_length(Instance(np.stack([whole.x, whole.y], axis=1)), whole.tour)


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("workers", [2, 3, 4, 5, 8])
@pytest.mark.parametrize("special", [0, 1, 2])
def test_stretches_of_different_workers_do_not_cross(workers: int, pairs: bool, special: int) -> None:
    n = 400
    tour = np.roll(np.random.default_rng(workers).permutation(n - special), 7)
    tour = np.roll(np.append(tour, np.arange(n - special, n)), 100).astype(np.int32)
    found = large.shares(tour, n - special, workers, pairs=pairs, random=np.random.default_rng(1))
    assert len(found) == workers
    assert sorted(np.concatenate([part for own in found for part in own]).tolist()) == list(
        range(n - special)
    )
    sizes = [sum(map(len, own)) for own in found]
    assert max(sizes) - min(sizes) <= (2 if special == 0 else n // workers)
    position = np.argsort(tour)
    label = np.full(n, -1)
    for k, cities in enumerate(part for own in found for part in own):
        label[cities] = k
    along = label[tour]
    along = along[np.append(True, along[1:] != along[:-1])]  # the parts in the order in which they come
    for a, b in combinations(range(label.max() + 1), 2):
        both = along[(along == a) | (along == b)]
        changes = sum(one != other for one, other in pairwise([*both, both[0]]))
        assert changes <= 2, "one lies within a gap of the other"
    assert len(position) == n


@pytest.mark.parametrize("workers", [2, 3, 4])
@pytest.mark.parametrize("pairs", [False, True])
def test_what_all_workers_found_is_one_tour(workers: int, pairs: bool) -> None:
    whole = whole_of(600, workers)
    before = length_of(whole)
    stretches = large.shares(whole.tour, 600, workers, pairs=pairs, random=np.random.default_rng(2))
    sweepers = [large.Sweeper(np.inf, 0.0) for _ in stretches]
    large.play_sweep(whole, (0, 600), stretches, sweepers, 2, [0], lambda: 1.0)
    assert is_permutation(whole.tour, 600)
    np.testing.assert_array_equal(whole.tour[whole.position], np.arange(600))
    gain = sum(sweeper.gain for sweeper in sweepers)
    assert all(sweeper.gain > 0 for sweeper in sweepers)
    assert length_of(whole) == pytest.approx(before - gain, rel=1e-9)


def test_stretches_that_are_not_changed_change_nothing() -> None:
    whole = whole_of(300, 3)
    before = whole.tour.copy()
    stretches = large.shares(whole.tour, 300, 4, pairs=True, random=np.random.default_rng(0))
    number = np.full(300, -1, dtype=np.int32)
    cut = [windows.cut_out(whole, cities, number) for own in stretches for cities in own]
    large.join_up(whole, [(window, window.tour) for window in cut])
    same = {frozenset(pair) for pair in pairwise([*before.tolist(), int(before[0])])}
    assert same == {frozenset(pair) for pair in pairwise([*whole.tour.tolist(), int(whole.tour[0])])}


def test_cities_are_numbered_along_the_tour() -> None:
    given = whole_of(50, 1)
    tour = np.roll(np.append(np.delete(given.tour, np.flatnonzero(given.tour >= 48)), [49, 48]), 5)
    whole, order = large.in_tour_order(given.x, given.y, given.neighbors, tour, 48)
    np.testing.assert_array_equal(order[whole.tour], tour)
    np.testing.assert_array_equal(order[48:], [48, 49])
    np.testing.assert_array_equal(whole.x, given.x[order])
    np.testing.assert_array_equal(order[whole.neighbors], given.neighbors[order])
    assert (np.diff(whole.tour[whole.tour < 48]) == 1).all()


@pytest.mark.parametrize(
    "options", [{}, {"closed": False}, {"start": 1, "end": 0}, {"closed": False, "start": 3}]
)
@pytest.mark.parametrize("workers", [2, 3])
def test_workers_keep_every_promise(options: dict, workers: int, small_windows: None) -> None:
    n, closed = 600, options.get("closed", True)
    instance = Instance(np.random.default_rng(3).random((n, 2)))
    given = Ends(n, **options).arrange(instance, greedy_edge(instance.coordinates))
    given = Ends(n, **options).cut(instance, given)
    before = tour_length(instance, given, closed=closed)
    stop = AnyOf(MaxIterations(3_000), NoImprovement(10_000))  # crossing and walking, twice each
    found = improve(instance, given, stop=stop, seed=2, workers=workers, **options)
    assert is_permutation(found.tour, n)
    assert options.get("start") in (None, found.tour[0])
    assert options.get("end") in (None, found.tour[-1])
    assert found.iterations == 3_000
    assert found.length == tour_length(instance, found.tour, closed=closed) < before
    assert found.history[-1].length == pytest.approx(found.length, rel=1e-9)
    again = improve(instance, given, stop=stop, seed=2, workers=workers, **options)
    np.testing.assert_array_equal(found.tour, again.tour)
    one = improve(instance, given, stop=stop, seed=2, **options)
    assert found.length == pytest.approx(one.length, rel=0.02)


@pytest.mark.parametrize("call", [1, 3, 40])
def test_ctrl_c_stops_all_threads_and_keeps_their_work(call: int, small_windows: None) -> None:
    instance = Instance(np.random.default_rng(6).random((800, 2)))
    start = greedy_edge(instance.coordinates)
    calls: list[Progress] = []

    def interrupt(progress: Progress) -> None:
        calls.append(progress)
        if len(calls) == call:
            raise KeyboardInterrupt

    before = set(threading.enumerate())  # those of other tests
    found = improve(instance, start, stop=MaxTime(60), progress=interrupt, workers=3)
    assert found.interrupted
    assert is_permutation(found.tour, 800)
    assert found.length == tour_length(instance, found.tour) <= tour_length(instance, start)
    assert set(threading.enumerate()) <= before


def test_an_error_in_a_thread_is_raised(monkeypatch: pytest.MonkeyPatch, small_windows: None) -> None:
    sweep = large.Sweeper.sweep

    def fails(self: large.Sweeper, *given: object) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise ValueError("in a thread")
        sweep(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(large.Sweeper, "sweep", fails)
    instance = Instance(np.random.default_rng(6).random((400, 2)))
    with pytest.raises(ValueError, match="in a thread"):
        improve(instance, greedy_edge(instance.coordinates), stop=MaxIterations(10), workers=2)


@pytest.mark.parametrize(
    ("seconds", "kicks", "code", "workers", "crosses"),
    [
        (math.inf, math.inf, EUCLIDEAN, 1, True),
        (16.1, math.inf, EUCLIDEAN, 1, True),
        (15.9, math.inf, EUCLIDEAN, 1, False),
        (8.1, math.inf, EUCLIDEAN, 2, True),
        (60.0, math.inf, GEO, 1, False),
        (math.inf, 160_000, EUCLIDEAN, 3, True),
        (math.inf, 159_999, EUCLIDEAN, 3, False),
    ],
)
def test_tours_are_crossed_where_a_whole_sweep_has_time(
    seconds: float, kicks: float, code: int, workers: int, crosses: bool
) -> None:
    assert large.can_cross(Budget(seconds, kicks), code, 100_000, workers) is crosses


def test_crossing_windows_beats_walking_them(monkeypatch: pytest.MonkeyPatch, small_windows: None) -> None:
    """With as many kicks, windows of 300 cities, 1,500 in all."""
    monkeypatch.setattr(large, "CROSSED", 300)
    instance = Instance(np.random.default_rng(9).random((1_500, 2)))
    start = greedy_edge(instance.coordinates)
    crossed = improve(instance, start, stop=MaxIterations(9_000))
    monkeypatch.setattr(large, "can_cross", lambda *given: False)
    walked = improve(instance, start, stop=MaxIterations(9_000))
    assert crossed.iterations == walked.iterations == 9_000
    assert crossed.length < 0.999 * walked.length
