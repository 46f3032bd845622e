"""What the tests of `solve` share: instances, variants, and what every result has to keep."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import georoutenet as grn
from georoutenet.problem.instance import Instance
from georoutenet.problem.tour import is_permutation, tour_length

VARIANTS: list[dict[str, Any]] = [
    {"closed": closed, "start": start, "end": end}
    for closed in (True, False)
    for start in (None, 1)
    for end in (None, 0)
]


def random_instance(n: int, seed: int = 0, **options: Any) -> Instance:
    return Instance(np.random.default_rng(seed).random((n, 2)) * 1000, **options)


def check(result: grn.Result, options: dict[str, Any] | None = None) -> None:
    options = options or {}
    instance, closed = result.instance, options.get("closed", True)
    assert is_permutation(result.tour, instance.n)
    assert result.length == tour_length(instance, result.tour, closed=closed)
    assert type(result.length) is (int if instance.rule.is_integer else float)
    assert options.get("start") in (None, result.tour[0])
    assert options.get("end") in (None, result.tour[-1])
    lengths = [step.length for step in result.history]
    assert lengths == sorted(lengths, reverse=True)
    assert result.history[-1].length == pytest.approx(result.length, rel=1e-9, abs=1e-12)
    assert all(seconds >= 0 for seconds in result.timings.values())
    stages = [seconds for stage, seconds in result.timings.items() if stage not in ("total", "compile")]
    assert sum(stages) <= result.timings["total"] + 0.01
