from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from georoutenet.problem.instance import DistanceRule, Instance
from georoutenet.problem.tour import is_permutation, tour_length
from georoutenet.search import distances, greedy_edge, improve, local_search, windows
from georoutenet.search.neighbors import nearest_neighbors
from georoutenet.search.path import Ends
from georoutenet.search.state import make_search
from georoutenet.stop import MaxIterations, MaxTime


@pytest.fixture
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_search, "WHOLE", 20)
    monkeypatch.setattr(windows, "window_size", lambda n: 30)


def edges(order: np.ndarray) -> set[frozenset[int]]:
    return {frozenset(pair) for pair in pairwise([*order.tolist(), int(order[0])])}


def state_of(n: int, seed: int) -> Any:
    points = np.random.default_rng(seed).random((n, 2))
    tour = np.random.default_rng(seed + 1).permutation(n)
    return make_search(
        distances.EUCLIDEAN, points[:, 0], points[:, 1], nearest_neighbors(points, 5), tour, seed
    )


@pytest.mark.parametrize(("n", "size"), [(1, 1), (10, 3), (500, 30), (1000, 5000)])
def test_tiles_hold_every_city_once(n: int, size: int) -> None:
    x, y = np.random.default_rng(n).random((2, n))
    tiles = list(windows.tiles(x, y, size, np.random.default_rng(1)))
    assert sorted(np.concatenate(tiles).tolist()) == list(range(n))
    assert max(map(len, tiles)) <= 2 * size + 2
    if (n, size) == (500, 30):  # compact: far smaller than the square they tile
        spans = [np.ptp(x[tile]) * np.ptp(y[tile]) for tile in tiles]
        assert np.mean(spans) < 0.25


def cases() -> list[tuple[int, list[int]]]:
    """Positions in the tour that a window takes."""
    chosen = [
        (12, [0, 1, 2, 3, 4]),
        (12, [10, 11, 0, 1, 5, 6, 7]),  # around the end of the array
        (12, [11, 0, 3, 5, 6]),  # 3 is alone
        (12, list(range(12))),  # everything
        (12, [0, 2, 4, 6, 8]),  # nothing but single cities
    ]
    random = np.random.default_rng(0)
    for _ in range(40):
        n = int(random.integers(4, 40))
        chosen.append((n, random.permutation(n)[: random.integers(1, n + 1)].tolist()))
    return chosen


@pytest.mark.parametrize(("n", "places"), cases())
def test_a_window_that_is_not_changed_changes_nothing(n: int, places: list[int]) -> None:
    """Compared with the plain description: runs of the tour inside, joined by the ways outside."""
    state = state_of(n, n)
    before = state.tour.copy()
    inside = {int(before[place]) for place in places}
    kept = {
        c
        for c in inside
        if {int(before[state.position[c] - 1]), int(before[(state.position[c] + 1) % n])} & inside
    }
    window = windows.cut_out(state, before[places], number := np.full(n, -1, dtype=np.int32))
    assert set(window.cities.tolist()) == kept
    assert (number == -1).all()
    if len(kept) < 4:
        return
    assert sorted(window.tour.tolist()) == list(range(len(kept)))
    for a, b in pairwise([*window.tour.tolist(), int(window.tour[0])]):
        fixed = min(a, b) >= window.bound and (a - window.bound) ^ (b - window.bound) == 1
        ends = frozenset((int(window.cities[a]), int(window.cities[b])))
        assert fixed == (ends not in edges(before)) or len(kept) == n
    for city, row in enumerate(window.neighbors):
        wanted = [c for c in state.neighbors[window.cities[city]].tolist() if c in kept]
        found = window.cities[row].tolist()
        assert found[: len(wanted)] == wanted
        assert city not in row
    windows.put_back(state, window, window.tour, np.empty_like(before))
    assert edges(state.tour) == edges(before)
    np.testing.assert_array_equal(state.tour[state.position], np.arange(n))


def test_a_changed_window_keeps_the_ways_outside() -> None:
    for seed in range(20):
        n = 60
        state = state_of(n, seed)
        before = state.tour.copy()
        chosen = np.sort(np.random.default_rng(seed).permutation(n)[:40])
        window = windows.cut_out(state, before[chosen], np.full(n, -1, dtype=np.int32))
        # Any order that keeps the pairs together is a tour: shuffle the pairs and turn some around.
        random = np.random.default_rng(seed)
        blocks = [[c] for c in range(window.bound)]
        blocks += [[c, c + 1] for c in range(window.bound, len(window.cities), 2)]
        random.shuffle(blocks)
        new = np.array([c for block in blocks for c in (block if random.random() < 0.5 else block[::-1])])
        windows.put_back(state, window, new.astype(np.int32), np.empty_like(before))
        assert is_permutation(state.tour, n)
        np.testing.assert_array_equal(state.tour[state.position], np.arange(n))
        inside = set(window.cities.tolist())
        outside = {edge for edge in edges(before) if not edge <= inside}
        assert outside <= edges(state.tour)


VARIANTS = [
    {"closed": closed, "start": start, "end": end}
    for closed in (True, False)
    for start in (None, 1)
    for end in (None, 0)
]


@pytest.mark.parametrize("options", VARIANTS)
@pytest.mark.parametrize("rule", [rule for rule in DistanceRule if rule is not DistanceRule.EXPLICIT])
def test_windows_keep_every_promise(rule: DistanceRule, options: dict, small_windows: None) -> None:
    n = 150
    points = np.random.default_rng(3).random((n, 2)) * 50
    instance = Instance(points if rule is DistanceRule.EUCLIDEAN else points.round(), rule=rule)
    given = Ends(n, **options).arrange(instance, np.random.default_rng(4).permutation(n))
    before = tour_length(instance, given, closed=options["closed"])
    found = improve(instance, given, stop=MaxIterations(400), seed=2, **options)
    assert is_permutation(found.tour, n)
    assert options["start"] in (None, found.tour[0])
    assert options["end"] in (None, found.tour[-1])
    assert found.iterations == 400
    assert found.length == tour_length(instance, found.tour, closed=options["closed"]) < 0.5 * before
    assert found.history[-1].length == pytest.approx(found.length, rel=1e-9)
    again = improve(instance, given, stop=MaxIterations(400), seed=2, **options)
    np.testing.assert_array_equal(found.tour, again.tour)


@pytest.mark.parametrize("shape", ["equal", "line", "grid"])
def test_degenerate_cities(shape: str, small_windows: None) -> None:
    n = 100
    points = {
        "equal": np.zeros((n, 2)),
        "line": np.stack([np.random.default_rng(0).permutation(n), np.zeros(n)], axis=1),
        "grid": np.stack(np.divmod(np.arange(n), 10), axis=1),
    }[shape]
    found = improve(Instance(points), np.random.default_rng(1).permutation(n), stop=MaxIterations(2000))
    assert is_permutation(found.tour, n)
    assert found.length == pytest.approx(
        {"equal": 0.0, "line": 2.0 * (n - 1), "grid": 100.0}[shape], rel=0.05
    )


def test_windows_find_what_the_whole_search_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    instance = Instance(np.random.default_rng(5).random((1000, 2)))
    start = greedy_edge(instance.coordinates)
    whole = improve(instance, start, stop=MaxIterations(3000)).length
    monkeypatch.setattr(local_search, "WHOLE", 500)
    monkeypatch.setattr(windows, "window_size", lambda n: 200)
    first = improve(instance, start, stop=MaxIterations(0))
    parts = improve(instance, start, stop=MaxIterations(3000))
    assert first.iterations == 0
    assert parts.length == pytest.approx(whole, rel=0.01)
    assert parts.length < first.length < tour_length(instance, start)


def test_ctrl_c_in_a_window_keeps_what_was_found(
    monkeypatch: pytest.MonkeyPatch, small_windows: None
) -> None:
    instance = Instance(np.random.default_rng(6).random((300, 2)))
    calls = []

    def interrupt(progress: object) -> None:
        calls.append(progress)
        if len(calls) == 30:
            raise KeyboardInterrupt

    found = improve(instance, np.arange(300), stop=MaxTime(60), progress=interrupt)
    assert found.interrupted
    assert is_permutation(found.tour, 300)
    assert found.length == tour_length(instance, found.tour) < tour_length(instance, np.arange(300))
    assert found.length == pytest.approx(found.history[-1].length, rel=1e-9)
