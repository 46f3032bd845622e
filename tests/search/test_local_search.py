from __future__ import annotations

import itertools
import os
import signal
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from georoutenet.errors import InputError
from georoutenet.jit import njit
from georoutenet.problem.instance import DistanceRule, Instance
from georoutenet.problem.tour import is_permutation, tour_length
from georoutenet.search import ascent, distances, kernels, steps
from georoutenet.search.construct import greedy_edge
from georoutenet.search.local_search import (
    compile_kernels,
    improve,
    kernel_coordinates,
    kind_of,
)
from georoutenet.search.neighbors import nearest_neighbors, spatial_points
from georoutenet.search.state import SLICE, best_tour, make_search, next_slice
from georoutenet.stop import AnyOf, MaxIterations, MaxTime, NoImprovement, Progress

# Of the search's inner functions, those that are tested by themselves.
improve_city = njit(lambda *given: steps.improve_city(*given))
kick = njit(lambda *given: kernels.kick(*given))
take_back = njit(lambda *given: kernels.take_back(*given))
segments_in_a_row = njit(lambda *given: kernels.segments_in_a_row(*given))
segments_far_apart = njit(lambda *given: kernels.segments_far_apart(*given))
distance = njit(lambda *given: distances.distance(*given))

RULES = [rule for rule in DistanceRule if rule is not DistanceRule.EXPLICIT]


def random_instance(n: int, seed: int = 0, rule: DistanceRule = DistanceRule.EUCLIDEAN) -> Instance:
    points = np.random.default_rng(seed).random((n, 2))
    if rule in (DistanceRule.GEO, DistanceRule.GREAT_CIRCLE):
        points = np.round(points * [120.0, 300.0] - [60.0, 150.0], 2)
    elif rule.is_integer:
        points = np.round(points * 1000)
    return Instance(points, rule=rule)


def optimum(instance: Instance) -> float:
    matrix = instance.distance_matrix()
    rest = range(1, instance.n)
    return min(
        sum(matrix[a, b] for a, b in itertools.pairwise((0, *order, 0)))
        for order in itertools.permutations(rest)
    )


@pytest.mark.parametrize("rule", RULES)
def test_kernel_distances_are_the_instance_s(rule: DistanceRule) -> None:
    instance = random_instance(300, 1, rule)
    code, x, y, scale = kernel_coordinates(instance)
    i, j = np.random.default_rng(2).integers(0, 300, (2, 2000))
    i, j = i[i != j], j[i != j]
    ours = np.array([distance(code, x, y, a, b) for a, b in zip(i, j, strict=True)]) / scale
    np.testing.assert_allclose(ours, instance.distance(i, j), rtol=0 if rule.is_integer else 1e-14)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("n", [4, 5, 6, 7, 8])
def test_small_instances_are_solved(n: int, rule: DistanceRule) -> None:
    for seed in range(5):
        instance = random_instance(n, seed, rule)
        tour = np.random.default_rng(seed).permutation(n)
        result = improve(instance, tour, stop=MaxIterations(200))
        assert result.length == pytest.approx(optimum(instance), rel=1e-12)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 50, 400])
def test_length_is_exact_and_never_longer(n: int, rule: DistanceRule) -> None:
    instance = random_instance(n, n, rule)
    given_tour = np.random.default_rng(n).permutation(n)
    result = improve(instance, given_tour, stop=MaxIterations(300))
    assert is_permutation(result.tour, n)
    assert result.length == tour_length(instance, result.tour)
    assert type(result.length) is (int if rule.is_integer else float)
    assert result.length <= tour_length(instance, given_tour)
    assert result.history[-1].length == pytest.approx(result.length, rel=1e-9)
    lengths = [entry.length for entry in result.history]
    assert lengths == sorted(lengths, reverse=True)


points = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=25)


@settings(max_examples=80, deadline=None)
@given(points, st.integers(0, 2**32 - 1), st.sampled_from(RULES), st.integers(1, 12))
def test_any_small_instance(cities: list[tuple[int, int]], seed: int, rule: DistanceRule, k: int) -> None:
    instance = Instance(np.array(cities, dtype=float), rule=rule)
    start = np.random.default_rng(seed).permutation(instance.n)
    lists = nearest_neighbors(spatial_points(instance), k)
    result = improve(instance, start, neighbors=lists, seed=seed, stop=MaxIterations(50))
    assert is_permutation(result.tour, instance.n)
    assert result.length == tour_length(instance, result.tour) <= tour_length(instance, start)
    assert result.history[-1].length == pytest.approx(result.length, abs=1e-9)


def state_of(instance: Instance, start: NDArray[np.int64] | None = None, k: int = 8) -> Any:
    code, x, y, _ = kernel_coordinates(instance)
    start = np.arange(instance.n) if start is None else start
    return code, make_search(code, x, y, nearest_neighbors(instance.coordinates, k), start, 0)


def look_at(state: Any, code: int, city: int, depth: int) -> float:
    arrays = (state.tour, state.position, state.queue, state.queued, state.log, state.touched, state.count)
    lists = (state.neighbors, state.near)
    gain: float = improve_city(code, state.x, state.y, *lists, *arrays, city, depth)
    return gain


@pytest.mark.parametrize("n", [5, 12, 200])
@pytest.mark.parametrize("depth", [1, 10])
def test_every_move_of_a_city_shortens_the_tour_by_its_gain(n: int, depth: int) -> None:
    instance = random_instance(n, 3, DistanceRule.EUC_2D)
    code, state = state_of(instance)
    length = tour_length(instance, state.tour)
    for look in range(3 * n):
        state.count[steps.LOGGED] = 0
        gain = look_at(state, code, look % n, depth)
        assert gain >= 0
        length -= gain
        assert tour_length(instance, state.tour) == length
        np.testing.assert_array_equal(state.tour[state.position], np.arange(n))


def test_no_3_opt_step_is_overlooked() -> None:
    """Complete lists, one step: a tour that no city improves has no improving 2-opt move among all pairs."""
    for seed in range(5):
        instance = random_instance(12, seed, DistanceRule.EUC_2D)
        code, state = state_of(instance, np.random.default_rng(seed).permutation(12), k=11)
        kernels.run(state, code, 0, 10**9)
        order, matrix = state.tour, instance.distance_matrix()
        for i, j in itertools.combinations(range(12), 2):
            a, b, c, d = order[i], order[(i + 1) % 12], order[j], order[(j + 1) % 12]
            assert matrix[a, b] + matrix[c, d] <= matrix[a, c] + matrix[b, d]


def swapped(tour: NDArray[np.int32], first: int, b: int, c: int, d: int) -> list[int]:
    """The segments after position ``first`` as d, c, b, the obvious way; read from position first + 1."""
    turned = np.roll(tour, -first - 1).tolist()
    rest = turned[b + c + d :]
    return [*turned[b + c : b + c + d], *turned[b : b + c], *turned[:b], *rest]


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_a_kick_swaps_three_segments_and_is_taken_back(data: st.DataObject) -> None:
    n = data.draw(st.integers(4, 30))
    instance = random_instance(n, n, DistanceRule.EUC_2D)
    code, state = state_of(instance)
    first = data.draw(st.integers(0, n - 1))
    b = data.draw(st.integers(1, n - 3))
    c = data.draw(st.integers(1, n - 2 - b))
    d = data.draw(st.integers(1, n - 1 - b - c))
    before = state.tour.copy()
    wanted = swapped(before, first, b, c, d)
    arrays = (state.tour, state.position, state.queue, state.queued, state.spare, state.count)
    gain, where = kick(code, state.x, state.y, *arrays, first, b, c, d)
    assert where == first
    assert np.roll(state.tour, -first - 1).tolist() == wanted
    assert tour_length(instance, before) - tour_length(instance, state.tour) == gain
    take_back(state.tour, state.position, state.spare, state.log, state.count, first, b, c, d)
    np.testing.assert_array_equal(state.tour, before)
    np.testing.assert_array_equal(state.position[before], np.arange(n))


@pytest.mark.parametrize("n", [5, 8, 60])
def test_segments_fit_into_the_tour(n: int) -> None:
    _, state = state_of(random_instance(n, 1), k=4)
    for k in range(300):
        if k % 2:
            first, *lengths = segments_in_a_row(state.random, n, 50)
        else:
            first, *lengths = segments_far_apart(
                distances.EUCLIDEAN, state.x, state.y, state.tour, state.random
            )
        assert 0 <= first < n
        assert min(lengths) >= 1
        assert sum(lengths) <= n - 1


def groups_far_apart(count: int, side: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Lattices of ``side`` x ``side`` cities, and where they are."""
    corners = 1000.0 * np.stack(np.divmod(np.random.default_rng(4).permutation(100)[:count], 10), axis=1)
    lattice = np.stack(np.meshgrid(np.arange(side), np.arange(side)), axis=-1).reshape(-1, 2)
    return (corners[:, None] + lattice).reshape(-1, 2), corners


def test_kicks_far_apart_take_the_edges_between_groups() -> None:
    cities, _ = groups_far_apart(10, 7)
    code, state = state_of(Instance(cities), greedy_edge(cities))
    long = 0
    for _ in range(100):
        first, *lengths = segments_far_apart(code, state.x, state.y, state.tour, state.random)
        places = (first + np.cumsum([0, *lengths])) % len(cities)
        ends = cities[state.tour[places]] - cities[state.tour[(places + 1) % len(cities)]]
        long += int((np.hypot(*ends.T) > 100).sum())
    assert long > 40  # of 400; by chance 8


def test_groups_far_apart_are_joined_in_the_best_order() -> None:
    """The way through the corners of the groups; inside each a unit per city and twice the way across."""
    cities, corners = groups_far_apart(12, 7)
    around = improve(Instance(corners), np.arange(12), stop=MaxIterations(2000)).length
    found = improve(Instance(cities), greedy_edge(cities), stop=MaxIterations(5000)).length
    assert found < around + 12 * (48 + 2 * 6 * np.sqrt(2))


def test_an_unfinished_walk_gives_its_better_parts() -> None:
    instance = random_instance(400, 12, DistanceRule.EUC_2D)
    code, state = state_of(instance)
    kernels.run(state, code, 0, 10**9)
    state.excess[kernels.SLACK] = state.excess[kernels.MARGIN] = tour_length(instance, state.tour) / 400
    state.count[steps.PATIENCE], state.count[steps.BRIDGES] = 10**9, 20
    gained = 0.0
    for _ in range(60):
        state.count[steps.IDLE] = 10**9  # a new walk
        kernels.run(state, code, 100, 10**9)
        best = tour_length(instance, best_tour(state))
        gain, last, kicks = kernels.run(state, code, 0, 0)
        assert (last, kicks, state.excess[kernels.BEHIND]) == (-1, 0, 0.0)
        assert tour_length(instance, state.tour) == best - gain
        np.testing.assert_array_equal(state.tour[state.position], np.arange(400))
        gained += gain
    assert gained > 0


@pytest.mark.parametrize("bridges", [0, 3])
def test_the_best_tour_is_kept_on_walks_through_longer_ones(bridges: int) -> None:
    instance = random_instance(60, 3, DistanceRule.EUC_2D)
    code, state = state_of(instance)
    kernels.run(state, code, 0, 10**9)
    best = length = tour_length(instance, state.tour)
    state.excess[kernels.SLACK] = state.excess[kernels.MARGIN] = length / 60
    state.count[steps.PATIENCE], state.count[steps.BRIDGES] = 40, bridges
    longer = 0
    for _ in range(600):
        gain, last, _ = kernels.run(state, code, 1, 10**9)
        best -= gain
        assert (gain > 0) == (last == 0)
        assert tour_length(instance, best_tour(state)) == best
        assert tour_length(instance, state.tour) == best + state.excess[kernels.BEHIND]
        np.testing.assert_array_equal(state.tour[state.position], np.arange(60))
        longer += state.excess[kernels.BEHIND] > 0
    assert longer > 0
    assert state.count[steps.WALKS] > 10
    assert best < length


def test_the_log_never_overflows() -> None:
    """A repair that would need more room than the log has stops early and stays undoable."""
    instance = random_instance(3000, 4)
    start = np.random.default_rng(0).permutation(3000)
    code, state = state_of(instance, start)
    state.excess[kernels.MARGIN] = 1e9
    kernels.run(state, code, 1, 10**9)
    assert kernels.LOG - 3 * kernels.DEPTH < state.count[steps.LOGGED] <= kernels.LOG
    assert state.count[steps.HELD] > 0
    assert is_permutation(state.tour, 3000)


def test_same_seed_same_tour() -> None:
    instance = random_instance(300, 5)
    start = greedy_edge(instance.coordinates)
    first = improve(instance, start, stop=MaxIterations(200), seed=3)
    again = improve(instance, start, stop=MaxIterations(200), seed=3)
    other = improve(instance, start, stop=MaxIterations(200), seed=4)
    np.testing.assert_array_equal(first.tour, again.tour)
    assert first.iterations == again.iterations == 200
    assert not np.array_equal(first.tour, other.tour)


def test_kicks_improve_on_the_first_local_optimum() -> None:
    instance = random_instance(500, 6)
    start = greedy_edge(instance.coordinates)
    local = improve(instance, start, stop=MaxIterations(0))
    better = improve(instance, start, stop=MaxIterations(5000))
    assert local.iterations == 0
    assert better.length < 0.995 * local.length < local.length < tour_length(instance, start)


def test_two_thousand_cities_are_near_the_known_constant() -> None:
    """Random uniform tours are about 0.7124 sqrt(n) (1 + 0.33 / sqrt(n)) long."""
    instance = random_instance(2000, 7)
    result = improve(instance, greedy_edge(instance.coordinates), stop=MaxIterations(2000))
    assert result.length < 1.06 * 0.7124 * np.sqrt(2000)


@pytest.mark.parametrize("shape", ["equal", "collinear", "pairs"])
def test_degenerate_points(shape: str) -> None:
    n = 200
    cities = np.zeros((n, 2))
    if shape == "collinear":
        cities[:, 0] = np.random.default_rng(0).permutation(n)
    if shape == "pairs":
        cities = np.repeat(np.random.default_rng(0).random((n // 2, 2)), 2, axis=0)
    instance = Instance(cities)
    result = improve(instance, np.random.default_rng(1).permutation(n), stop=MaxIterations(2000))
    assert is_permutation(result.tour, n)
    if shape == "equal":
        assert result.length == 0.0
    if shape == "collinear":
        assert result.length == 2.0 * (n - 1)
    if shape == "pairs":
        single = Instance(cities[::2])
        alone = improve(single, greedy_edge(cities[::2]), stop=MaxIterations(2000)).length
        assert result.length < 1.1 * alone


@pytest.mark.parametrize("factor", [1e-200, 1e150])
def test_extreme_scales(factor: float) -> None:
    unit = random_instance(60, 8)
    scaled = Instance(unit.coordinates * factor)
    start = np.arange(60)
    ours = improve(scaled, start, stop=MaxIterations(500)).length
    assert ours == pytest.approx(factor * improve(unit, start, stop=MaxIterations(500)).length, rel=0.02)


def test_no_improvement_stops_exactly() -> None:
    instance = random_instance(100, 9)
    seen: list[Progress] = []
    result = improve(instance, np.arange(100), stop=NoImprovement(500), progress=seen.append)
    assert seen[-1].since_improvement == 500
    assert result.iterations == seen[-1].iterations >= 500


@pytest.mark.parametrize("n", [200, 400, 20_000])
@pytest.mark.parametrize("seconds", [0.0, 20.0])
def test_time_limits_are_kept(n: int, seconds: float, fake_clock: Any) -> None:
    instance = random_instance(n, 10)
    start = np.arange(n)
    compile_kernels(path=False, **kind_of(instance))  # as ``improve`` calls it
    began = fake_clock.seconds
    result = improve(instance, start, stop=AnyOf(MaxTime(seconds), MaxIterations(10**9)))
    took = fake_clock.seconds - began
    assert is_permutation(result.tour, n)
    assert seconds <= took < seconds + 20 * fake_clock.step  # looks at the clock after the limit
    assert result.seconds == pytest.approx(took, abs=3 * fake_clock.step)


def test_a_search_looks_at_the_clock_in_time() -> None:
    assert next_slice(100, took=SLICE, left=1.0) == 100
    assert next_slice(100, took=2 * SLICE, left=1.0) == 50
    assert next_slice(100, took=SLICE / 100, left=1.0) == 400  # at most fourfold
    assert next_slice(100, took=SLICE, left=SLICE / 10) == 10
    assert next_slice(100, took=10.0, left=0.0) == 1


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals")
def test_ctrl_c_returns_the_best_so_far() -> None:
    instance = random_instance(1000, 11)

    def show(progress: Progress) -> None:
        if progress.iterations > 0 and timer.ident is None:
            timer.start()

    timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
    result = improve(instance, np.arange(1000), stop=MaxTime(30), progress=show)
    timer.join()
    assert result.interrupted
    assert result.length == tour_length(instance, result.tour) < tour_length(instance, np.arange(1000))


def test_ctrl_c_while_compiled_code_makes_an_array(monkeypatch: pytest.MonkeyPatch) -> None:
    def prove(self: ascent.Ascent) -> float:  # as CPython and Numba report it
        try:
            try:
                raise KeyboardInterrupt
            except KeyboardInterrupt as interrupt:
                raise SystemError("_numba_unpickle") from interrupt
        except SystemError as inner:
            raise SystemError("complete_bound") from inner

    monkeypatch.setattr(ascent.Ascent, "prove", prove)
    result = improve(random_instance(50), np.arange(50), stop=MaxIterations(10))
    assert result.interrupted
    assert result.tour.tolist() == list(range(50))


def test_wrong_input() -> None:
    instance = random_instance(6)
    with pytest.raises(InputError, match="stop must be"):
        improve(instance, np.arange(6), stop=3.0)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="5 entries for 6 cities"):
        improve(instance, np.arange(5))
    for neighbors in (np.zeros((5, 2), int), np.zeros((6, 2)), np.full((6, 1), 6), np.arange(6)[:, None]):
        with pytest.raises(InputError, match="neighbor"):
            improve(instance, np.arange(6), neighbors=neighbors)
