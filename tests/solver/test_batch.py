"""``solve_batch``: the tours of ``solve_many`` from array to array, valid whatever happens."""

from __future__ import annotations

import itertools
import threading
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from solved import VARIANTS

import georoutenet as grn
from georoutenet.errors import GeoRouteNetWarning, InputError
from georoutenet.problem.instance import Instance
from georoutenet.problem.tour import is_permutation, tour_length
from georoutenet.solver import batch

FEW = grn.MaxIterations(30)


def odd(kind: str, count: int, n: int) -> np.ndarray:
    random = np.random.default_rng(n)
    points = random.random((count, n, 2)) * 1000
    if kind == "duplicates":
        points[:] = points[:, random.integers(0, max(1, n // 3), n)]
    elif kind == "one place":
        points[:] = points[:, :1]
    elif kind == "collinear":
        points[..., 1] = 2 * points[..., 0]
    elif kind == "lattice":
        points = np.round(points / 250)
    return points


def check(
    points: np.ndarray, tours: Any, lengths: Any, options: dict[str, Any], rule: str = "EUCLIDEAN"
) -> None:
    closed = options.get("closed", True)
    assert tours.shape == points.shape[:2]
    assert tours.dtype == np.int64
    assert lengths.shape == points.shape[:1]
    assert lengths.dtype == np.float64
    for cities, tour, length in zip(points, tours, lengths, strict=True):
        assert is_permutation(tour, len(cities))
        assert length == tour_length(Instance(cities, rule=rule), tour, closed=closed)
        assert options.get("start") in (None, tour[0])
        assert options.get("end") in (None, tour[-1])


def test_what_is_not_searched_compiles_no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "load_compiled", lambda *_: pytest.fail("the search is compiled"))
    points = odd("uniform", 3, 9)
    for first in ("curve", "greedy-edge"):
        check(points, *grn.solve_batch(points, improve=False, first=first, device="cpu"), {})


@pytest.mark.parametrize("options", VARIANTS)
@pytest.mark.parametrize(
    ("kind", "n"), [("uniform", 5), ("duplicates", 9), ("lattice", 24), ("collinear", 12)]
)
def test_the_tours_are_those_of_solve_many(options: dict[str, Any], kind: str, n: int) -> None:
    points = odd(kind, 4, n)
    for more in ({}, {"stop": FEW, "seed": 5}, {"first": "curve", "improve": False}):
        given = {**options, **more, "device": "cpu"}
        many = grn.solve_many(list(points), **given)
        tours, lengths = grn.solve_batch(points, **given)
        check(points, tours, lengths, options)
        np.testing.assert_array_equal(tours, [each.tour for each in many])
        assert lengths.tolist() == [each.length for each in many]


@pytest.mark.parametrize("options", VARIANTS)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 6])
def test_few_cities_have_the_shortest_of_all_tours(options: dict[str, Any], n: int) -> None:
    if n == 1 and options["start"]:
        options = {**options, "start": None}
    for kind in ("uniform", "one place", "lattice"):
        points = odd(kind, 3, n)
        tours, lengths = grn.solve_batch(points, **options)
        check(points, tours, lengths, options)
        for cities, length in zip(points, lengths, strict=True):
            every = [
                tour_length(Instance(cities), tour, closed=options["closed"])
                for tour in itertools.permutations(range(n))
                if options["start"] in (None, tour[0]) and options["end"] in (None, tour[-1])
            ]
            assert length == pytest.approx(min(every), rel=1e-12)


def test_what_goes_in_comes_out() -> None:
    points = odd("uniform", 3, 8)
    tours, lengths = grn.solve_batch(points)
    for given in (points.tolist(), list(points), np.asfortranarray(points)):
        np.testing.assert_array_equal(grn.solve_batch(given)[0], tours)
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        cities = torch.from_numpy(points).to(dtype)
        order, length = grn.solve_batch(cities)
        assert (order.dtype, length.dtype, order.device) == (torch.int64, torch.float64, cities.device)
        check(cities.double().numpy(), order.numpy(), length.numpy(), {})
    alone = grn.solve_batch(torch.from_numpy(points), tours=False)
    assert alone.tolist() == grn.solve_batch(points, tours=False).tolist() == lengths.tolist()


@pytest.mark.parametrize("n", [2, 7])
def test_no_instances(n: int) -> None:
    tours, lengths = grn.solve_batch(np.empty((0, n, 2)), max_seconds=1)
    assert tours.shape == (0, n)
    assert lengths.shape == (0,)


@pytest.mark.parametrize("rule", ["EUC_2D", "CEIL_2D", "ATT", "GREAT_CIRCLE"])
def test_rules(rule: str) -> None:
    points = odd("uniform", 3, 9) / 12
    tours, lengths = grn.solve_batch(points, rule=rule)
    check(points, tours, lengths, {}, rule)
    many = grn.solve_many([Instance(cities, rule=rule) for cities in points])
    np.testing.assert_array_equal(tours, [each.tour for each in many])


def test_chunks_and_workers_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    points = odd("uniform", 11, 10)
    tours, _ = grn.solve_batch(points, workers=1)
    monkeypatch.setattr(batch, "CHUNK", 3)
    for workers in (1, 2, 5):
        np.testing.assert_array_equal(grn.solve_batch(points, workers=workers)[0], tours)


def test_the_network_makes_the_first_tours() -> None:
    points = odd("uniform", 3, 12)
    given: dict[str, Any] = {"decoder": "beam-8-views-2", "improve": False, "device": "cpu"}
    tours, lengths = grn.solve_batch(points, **given)
    many = grn.solve_many(list(points), **given)
    check(points, tours, lengths, {})
    np.testing.assert_array_equal(tours, [each.tour for each in many])


def with_value(row: tuple[int, ...], value: float) -> np.ndarray:
    points = odd("uniform", 4, 6)
    points[row] = value
    return points


@pytest.mark.parametrize(
    ("points", "options", "message"),
    [
        (
            with_value((2, 5, 1), np.nan),
            {},
            r"instance 2 .*coordinates must be finite: row 5 .* is \(.*, nan\)",
        ),
        (with_value((3, 0), np.inf), {}, r"instance 3 .*row 0 .* \(inf, inf\)"),
        (with_value((1, 0), 1e200), {}, "instance 1 .*too far apart|instance 1 .*overflow"),
        (with_value((1, 4, 0), 95), {"rule": "GREAT_CIRCLE"}, r"instance 0 .*row 0"),
        (np.zeros((6, 2)), {}, r"shape \(B, n, 2\) with n >= 1, got \(6, 2\); solve takes one instance"),
        (np.zeros((2, 6, 3)), {}, r"shape \(B, n, 2\) with n >= 1, got \(2, 6, 3\)"),
        (np.zeros((2, 0, 2)), {}, "with n >= 1"),
        ([np.zeros((3, 2)), np.zeros((4, 2))], {}, r"row 0 has 3 values, row 1 has 4"),
        (np.zeros((2, 6, 2), dtype=bool), {}, "must be numbers, got bool"),
        (torch.zeros(2, 6, 2, dtype=torch.bool), {}, "must be numbers, got bool"),
        (torch.zeros(2, 6, 2, dtype=torch.complex64), {}, "must be numbers, got complex"),
        (torch.zeros(2, 6, 2, requires_grad=True), {}, r"give tensor.detach\(\)"),
        (np.array([[["a", "b"]]]), {}, r"array of numbers of shape \(B, n, 2\)"),
        (odd("uniform", 2, 6), {"rule": "EXPLICIT"}, "unknown distance rule 'EXPLICIT'; allowed: EUCLIDEAN"),
        (odd("uniform", 2, 6), {"start": 6}, r"start must be a city in 0..5, got 6"),
        (odd("uniform", 2, 6), {"start": "K1"}, "no city is called 'K1'"),
        (odd("uniform", 2, 6), {"tours": "no"}, "tours must be True or False, got 'no'"),
    ],
)
def test_what_is_refused(points: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        grn.solve_batch(points, **options)


@pytest.mark.parametrize("options", VARIANTS)
def test_without_time_every_tour_follows_a_curve(options: dict[str, Any]) -> None:
    points = odd("duplicates", 5, 20)
    with pytest.warns(GeoRouteNetWarning, match=r"time ended before 5 of 5 instances"):
        tours, lengths = grn.solve_batch(points, max_seconds=0, **options)
    check(points, tours, lengths, options)


@dataclass
class Looks:
    """A limit in which time ends after so many looks at the clock."""

    left: int

    def budget(self, progress: grn.stop.Progress) -> grn.stop.Budget:
        self.left -= 1
        return grn.stop.Budget(seconds=1000.0 if self.left > 0 else 0.0)


def test_time_that_ends_on_the_way() -> None:
    points = odd("uniform", 40, 20)
    with pytest.warns(GeoRouteNetWarning, match=r"time ended before \d+ of 40 instances") as caught:
        tours, lengths = grn.solve_batch(points, stop=Looks(100), workers=1)
    check(points, tours, lengths, {})
    missed = int(str(caught[0].message).split()[3])
    assert 0 < missed < 40
    with pytest.warns(GeoRouteNetWarning):
        curves, long = grn.solve_batch(points, max_seconds=0)
    np.testing.assert_array_equal(tours[-missed:], curves[-missed:])
    assert (lengths <= long).all()
    assert lengths[0] < long[0]


@pytest.mark.parametrize("improve", [True, False])
def test_what_the_network_made_is_kept_where_time_then_ends(
    monkeypatch: pytest.MonkeyPatch, improve: bool
) -> None:
    points, limit = odd("uniform", 6, 20), Looks(10_000)
    made = np.array([np.roll(np.arange(20), k) for k in range(6)])

    def ask(group: batch.Group) -> None:
        group.tours, limit.left = list(made), 0

    monkeypatch.setattr(batch.Group, "ask_network", ask)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tours, lengths = grn.solve_batch(points, first="network", improve=improve, stop=limit)
    np.testing.assert_array_equal(tours, made)
    check(points, tours, lengths, {})
    assert [str(each.message)[:30] for each in caught] == ["time ended before 6 of 6 instan"[:30]] * improve


def test_a_network_that_was_to_be_asked_and_was_not_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass
    class Little:
        """0.15 s are left at every look: 0.03 for each, and the network asks for more."""

        def budget(self, progress: grn.stop.Progress) -> grn.stop.Budget:
            return grn.stop.Budget(seconds=0.15)

    points = odd("uniform", 5, 20)
    short: dict[str, Any] = {"improve": False, "stop": Little(), "device": "cpu"}
    with pytest.warns(GeoRouteNetWarning, match="no time to ask the network about 5 of 5 instances"):
        check(points, *grn.solve_batch(points, first="network", **short), {})
    with pytest.warns(GeoRouteNetWarning, match="no time to ask the network about 5 of 5 instances"):
        grn.solve_batch(points, **short)  # without a search it is asked unless another first tour is named
    check(points, *grn.solve_batch(points, first="greedy-edge", **short), {})
    monkeypatch.setattr("georoutenet.solver.stages.NETWORK", 10)  # not for want of time
    grn.solve_batch(points, weights="georoutenet-50", **{**short, "improve": True})


def test_a_limit_that_is_never_met_changes_nothing() -> None:
    points = odd("uniform", 5, 12)
    tours, _ = grn.solve_batch(points, max_seconds=1000)
    np.testing.assert_array_equal(tours, grn.solve_batch(points)[0])


def test_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "CHUNK", 4)
    points, seen = odd("uniform", 10, 8), list[tuple[str, Any]]()
    lengths = grn.solve_batch(points, tours=False, progress=lambda *step: seen.append(step))
    done = [step.iterations for _, step in seen]
    assert done == sorted(done)
    assert done[-1] == 10
    assert {4, 8} <= set(done)
    assert {stage for stage, _ in seen} == {"batch"}
    assert seen[-1][1].length == pytest.approx(lengths.mean())


def test_ctrl_c_ends_the_call_and_its_threads() -> None:
    def interrupt(stage: str, step: object) -> None:
        raise KeyboardInterrupt

    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        grn.solve_batch(odd("uniform", 200, 60), progress=interrupt)
    assert threading.active_count() == before


def test_a_failure_in_a_thread_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("out of luck")

    monkeypatch.setattr("georoutenet.search.local_search.improve", fail)
    with pytest.raises(RuntimeError, match="out of luck"):
        grn.solve_batch(odd("uniform", 5, 8), workers=2)
