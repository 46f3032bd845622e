from __future__ import annotations

import os
import signal
import threading

import numpy as np
import pytest

from georoutenet.problem.instance import DistanceRule, Instance
from georoutenet.problem.tour import is_permutation, tour_length
from georoutenet.search import greedy_edge, improve, kernels, side_by_side
from georoutenet.search.local_search import kernel_coordinates
from georoutenet.search.neighbors import nearest_neighbors
from georoutenet.search.state import best_tour, make_search
from georoutenet.stop import Budget, MaxIterations, MaxTime, Progress


@pytest.fixture(autouse=True)
def short_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_by_side, "ROUND", 200)


def instance_of(n: int, seed: int = 0) -> Instance:
    points = np.random.default_rng(seed).random((n, 2))
    return Instance((1000 * points).round(), rule=DistanceRule.EUC_2D)


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("options", [{}, {"closed": False}, {"start": 3, "end": 5}])
def test_the_same_for_the_same_seed_workers_and_kicks(workers: int, options: dict) -> None:
    instance = instance_of(150)
    given = greedy_edge(instance.coordinates)
    stop = MaxIterations(1501)
    found, again = (improve(instance, given, stop=stop, seed=1, workers=workers, **options) for _ in "ab")
    np.testing.assert_array_equal(found.tour, again.tour)
    assert found.iterations == 1501
    assert is_permutation(found.tour, 150)
    assert found.length == tour_length(instance, found.tour, closed=options.get("closed", True))
    assert found.history[-1].length == found.length


def test_workers_walk_apart() -> None:
    instance = instance_of(1000, 1)
    given = greedy_edge(instance.coordinates)
    tours = [improve(instance, given, stop=MaxIterations(500), workers=k).tour for k in (1, 2)]
    assert not np.array_equal(*tours)


def test_walks_go_on_after_a_meeting() -> None:
    """A walker keeps its own tour, which is as much longer than the best of all as it says."""
    instance = instance_of(400, 4)
    code, x, y, _ = kernel_coordinates(instance)
    lists, given = nearest_neighbors(instance.coordinates, 6), greedy_edge(instance.coordinates)
    walkers = [side_by_side.Walker(make_search(code, x, y, lists, given, seed)) for seed in range(3)]
    for walker in walkers:
        kernels.run(walker.state, code, 0, 10**9)
        walker.state.excess[kernels.SLACK] = 5.0
        walker.state.count[kernels.PATIENCE], walker.state.count[kernels.BRIDGES] = 150, 20
        walker.kicks = 400
    best = tour_length(instance, walkers[0].state.tour)
    apart = 0
    for _ in range(10):
        gain, done = side_by_side.play_round(walkers, code, lambda: True)
        best -= gain
        assert done == 1200
        for walker in walkers:
            state = walker.state
            assert tour_length(instance, best_tour(state)) == best
            assert tour_length(instance, state.tour) == best + state.excess[kernels.BEHIND]
            np.testing.assert_array_equal(state.tour[state.position], np.arange(400))
            apart += state.excess[kernels.BEHIND] > 0
    assert apart > 15


def test_walks_that_agree_end_the_search() -> None:
    instance = instance_of(60, 2)
    given, stop = greedy_edge(instance.coordinates), MaxIterations(1_000_000)
    found = improve(instance, given, stop=stop, agreed=4, workers=2)
    assert found.lower_bound < found.length  # not what ended it
    assert 0 < found.iterations < 100_000
    alone = improve(instance, given, stop=stop, agreed=4)
    assert found.length == alone.length


@pytest.mark.parametrize("workers", [2, 4])
def test_a_limit_ends_a_round_that_would_take_hours(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_by_side, "ROUND", 10**9)
    looks: list[int] = []

    class Looks:
        """Time is over at the hundredth look at the clock."""

        def budget(self, progress: Progress) -> Budget:
            looks.append(progress.iterations)
            return Budget(seconds=1.0 if len(looks) < 100 else 0.0)

    before = threading.active_count()
    instance = instance_of(300, 5)
    given = greedy_edge(instance.coordinates)
    found = improve(instance, given, stop=Looks(), workers=workers)
    assert threading.active_count() == before
    assert len(looks) < 110
    assert found.iterations > 0
    assert found.length == tour_length(instance, found.tour) < tour_length(instance, given)


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals")
def test_ctrl_c_ends_all_threads_and_keeps_the_best() -> None:
    instance = instance_of(1000, 3)
    given = greedy_edge(instance.coordinates)
    improve(instance_of(10), np.arange(10), stop=MaxIterations(1))  # compile before the signal
    before = threading.active_count()
    sent: list[int] = []

    def report(progress: Progress) -> None:
        if progress.iterations > 0 and not sent:
            sent.append(progress.iterations)
            os.kill(os.getpid(), signal.SIGINT)

    found = improve(instance, given, stop=MaxTime(30), workers=2, progress=report)
    assert found.interrupted
    assert threading.active_count() == before
    assert found.length == tour_length(instance, found.tour) < tour_length(instance, given)


def test_an_error_in_a_report_leaves_no_thread() -> None:
    before = threading.active_count()

    def report(progress: Progress) -> None:
        if progress.iterations > 500:
            raise RuntimeError("seen enough")

    with pytest.raises(RuntimeError, match="seen enough"):
        improve(instance_of(300), np.arange(300), stop=MaxTime(30), workers=3, progress=report)
    assert threading.active_count() == before
