"""Reports of ``solve`` that ask for the best tour so far, and searches ended from outside."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import georoutenet as grn
from georoutenet.problem.generate import uniform
from georoutenet.solver.api import solve_one
from georoutenet.solver.options import SolveOptions
from georoutenet.stop import Progress

CITIES = uniform(1, 150, 5)[0].astype(float)


def matrix() -> grn.Instance:
    return grn.Instance(matrix=np.hypot(*(CITIES[:, None] - CITIES[None]).transpose(2, 0, 1)))


@pytest.mark.parametrize(
    ("instance", "options"),
    [
        (grn.Instance(CITIES), {}),
        (grn.Instance(1000 * CITIES, rule="EUC_2D"), {"seed": 2}),
        (grn.Instance(CITIES), {"closed": False}),
        (grn.Instance(CITIES), {"closed": False, "start": 3, "end": 5}),
        (grn.Instance(CITIES), {"start": 3, "end": 5}),
        (grn.Instance(CITIES), {"workers": 2}),
        (matrix(), {}),
    ],
)
def test_every_tour_that_is_reported_is_one_of_the_length_that_is_said(
    instance: grn.Instance, options: dict[str, Any]
) -> None:
    stages: list[str] = []
    lengths: list[float] = []

    def report(stage: str, at: Progress) -> None:
        tour = at.tour()
        assert (tour is None) == (at.length == np.inf)
        if tour is not None:
            length = grn.tour_length(instance, tour, closed=options.get("closed", True))
            assert length == pytest.approx(at.length, rel=1e-9)
            assert tour[0] == options.get("start", tour[0])
            assert tour[-1] == options.get("end", tour[-1])
            stages.append(stage)
            lengths.append(length)
            tour[:] = 0  # it is the reader's own

    result = grn.solve(instance, stop=grn.MaxIterations(2_000), progress=report, **options)
    assert stages[0] == "first"
    assert set(stages[1:]) == {"improve"}
    assert lengths[0] == result.initial_length
    assert lengths[-1] == pytest.approx(result.length, rel=1e-12)
    assert all(step.tour() is None for step in result.history)


def test_large_instances_report_the_tour_before_the_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("georoutenet.search.local_search.WHOLE", 100)
    monkeypatch.setattr("georoutenet.search.windows.window_size", lambda _: 60)
    instance, seen = grn.Instance(CITIES), 0

    def report(stage: str, at: Progress) -> None:
        nonlocal seen
        if (tour := at.tour()) is not None:
            assert grn.tour_length(instance, tour) >= at.length * (1 - 1e-9)
            seen += stage == "improve"

    grn.solve(instance, stop=grn.MaxIterations(500), progress=report)
    assert seen > 1


def test_the_first_tour_says_how_it_was_made() -> None:
    methods: list[str] = []
    grn.solve(
        CITIES,
        improve=False,
        first="curve",
        progress=lambda stage, at: methods.append(f"{stage} {at.method}"),
    )
    assert methods == ["first space-filling curve"]


@pytest.mark.parametrize("options", [SolveOptions(), SolveOptions(max_seconds=600.0)])
def test_a_search_is_ended_from_outside(options: SolveOptions) -> None:
    cancel = threading.Event()

    def report(stage: str, at: Progress) -> None:
        if stage == "improve":
            cancel.set()

    given = SolveOptions(max_seconds=options.max_seconds, progress=report)
    result = solve_one(grn.Instance(CITIES), given, cancel=cancel)
    assert result.interrupted
    assert sorted(result.tour) == list(range(150))
    assert not solve_one(grn.Instance(CITIES[:5]), SolveOptions()).interrupted


def test_the_longest_time_bounds_a_search_without_a_limit(fake_clock: Any) -> None:
    long = solve_one(grn.Instance(CITIES), SolveOptions(), longest=1e9)
    short = solve_one(grn.Instance(CITIES), SolveOptions(), longest=1.0)
    assert short.timings["total"] < 2.0 < long.timings["total"]  # on a clock that only the search moves
    assert not short.interrupted
