from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import georoutenet as grn
from georoutenet.errors import InputError
from georoutenet.stop import AnyOf, Budget, Gap, MaxIterations, MaxTime, NoImprovement, Progress

HERE = Progress(seconds=1.5, iterations=100, since_improvement=30, length=7.0)


def test_what_is_left() -> None:
    assert MaxTime(2).budget(HERE) == Budget(seconds=0.5)
    assert MaxIterations(150).budget(HERE) == Budget(iterations=50)
    assert NoImprovement(40).budget(HERE) == Budget(iterations=10)
    both = AnyOf(MaxTime(2), MaxIterations(150), NoImprovement(40))
    assert both.budget(HERE) == Budget(seconds=0.5, iterations=10)
    assert AnyOf(MaxTime(math.inf)).budget(HERE).seconds == math.inf


@pytest.mark.parametrize("seconds", [-1, float("nan"), "3", None, True])
def test_max_time_refuses(seconds: Any) -> None:
    with pytest.raises(InputError, match="MaxTime needs seconds >= 0"):
        MaxTime(seconds)


@pytest.mark.parametrize("kind", [MaxIterations, NoImprovement])
@pytest.mark.parametrize("iterations", [-1, 2.5, "3", None, math.inf])
def test_iterations_refuse(kind: type, iterations: Any) -> None:
    with pytest.raises(InputError, match=f"{kind.__name__} needs a whole number >= 0, got {iterations!r}"):
        kind(iterations)


def test_any_of_refuses() -> None:
    with pytest.raises(InputError, match="at least one"):
        AnyOf()
    with pytest.raises(InputError, match="got 3"):
        AnyOf(3)  # type: ignore[arg-type]


def test_a_gap_needs_a_bound_and_is_in_percent() -> None:
    at = Progress(1.0, 5, 2, 102.0)
    assert Gap(2.0).budget(at) == Budget()
    assert Gap(2.0).budget(replace(at, lower_bound=100.0)) == Budget(seconds=0.0)
    assert Gap(1.9).budget(replace(at, lower_bound=100.0)) == Budget()
    assert AnyOf(Gap(2.0), MaxIterations(9)).budget(replace(at, lower_bound=100.0)).seconds == 0.0
    with pytest.raises(InputError, match="percent >= 0"):
        Gap(-1.0)
    with pytest.raises(InputError, match="percent >= 0, got '1'"):
        Gap("1")  # type: ignore[arg-type]


def test_a_gap_that_is_never_reached_ends_all_the_same() -> None:
    cities = np.random.default_rng(0).random((30, 2))
    for result in (grn.solve(cities, stop=grn.Gap(0.0)), grn.solve_many([cities], stop=grn.Gap(0.0))[0]):
        assert sorted(result.tour) == list(range(30))
    tours, _ = grn.solve_batch(cities[None], stop=grn.Gap(0.0))
    assert sorted(tours[0]) == list(range(30))
