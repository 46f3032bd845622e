"""Solves: each tour is one, of the length it says, within its limit."""

from __future__ import annotations

import random
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from georoutenet.errors import GeoRouteNetWarning
from georoutenet.problem.instance import DistanceRule, Instance
from georoutenet.problem.tour import is_permutation, tour_length
from research.torture import Outcome, overshoot, tally

KIND = "solves"


def _warm() -> None:
    """So that short limits leave room for the network and the search."""
    from georoutenet.solver.stages import warm_up

    if "torch" not in sys.modules:
        warm_up()


def _points(n: int, source: random.Random) -> np.ndarray:
    """Cities spread, in a few places, in one, on a line, huge or tiny."""
    numbers = np.random.default_rng(source.randrange(2**32))
    points = numbers.normal(size=(n, 2))
    shape = source.randrange(5)
    if shape == 0:
        points = points.round(0)
    elif shape == 1:
        points[:, 1] = 0.0
    points = points * source.choice([0.0, 1e-300, 1.0, 1.0, 1e6, 1e150]) + source.choice([0.0, 1.0, -1e9])
    points[source.randrange(n) if source.random() < 0.3 else n :] = points[0]
    return points


def _instance(n: int, source: random.Random) -> Instance:
    rules = [rule for rule in DistanceRule if rule is not DistanceRule.EXPLICIT]
    kind = source.randrange(6)
    if kind == 0:
        numbers = np.random.default_rng(source.randrange(2**32))
        matrix = numbers.integers(0, source.choice([1, 10, 10**9]), (n, n))
        matrix = np.triu(matrix, 1)
        return Instance(matrix=matrix + matrix.T)
    if kind == 1:
        degrees = np.clip(_points(n, source), -80.0, 80.0)
        rule = source.choice([DistanceRule.GREAT_CIRCLE, DistanceRule.GEO])
        return Instance(degrees, rule=rule, columns={"id": [f"city {k}" for k in range(n)]}, id_column="id")
    return Instance(_points(n, source), rule=source.choice(rules))


def _options(n: int, source: random.Random) -> dict[str, Any]:
    options: dict[str, Any] = {"seed": source.randrange(2**64), "closed": source.random() < 0.7}
    options["improve"] = source.random() < 0.7
    for end in ("start", "end"):
        if source.random() < 0.3:
            options[end] = source.randrange(n + 1)
    if source.random() < 0.3:
        options["first"] = source.choice(["network", "greedy-edge", "curve"])
    elif source.random() < 0.2:
        options["decoder"] = source.choice(
            ["greedy", "sample", "beam", "beam-20-views-3-dominance", "greedy-views-2"]
        )
    if source.random() < 0.2:
        options["workers"] = source.choice([1, 2, 3])
    return options


def attack_solves(source: random.Random, folder: Path) -> Outcome:
    """Odd sets of cities under all rules with random options and limits."""
    from georoutenet.solver.api import solve

    _warm()
    n = source.choice([1, 2, 3, 4, 5, 8, 20, 20, 50, 50, 200, source.choice([50, 500, 1500])])
    options = {**_options(n, source), "max_seconds": source.choice([0, 0.001, 0.005, 0.02, 0.05])}
    instance = _instance(n, source)
    began = time.perf_counter()
    result = solve(instance, **options)
    overshoot.append(
        time.perf_counter() - began - options["max_seconds"] - result.timings.get("compile", 0.0)
    )
    tally["solves"] += 1
    _check(instance, result.tour, options)
    assert result.length == tour_length(instance, result.tour, closed=options["closed"])
    assert result.lower_bound is None or result.lower_bound <= result.length * (1 + 1e-9)
    return "accepted"


def _check(instance: Instance, tour: np.ndarray, options: dict[str, Any]) -> None:
    assert is_permutation(tour, instance.n)
    assert tour[0] == options.get("start", tour[0])
    assert tour[-1] == options.get("end", tour[-1])


def attack_batches(source: random.Random, folder: Path) -> Outcome:
    """Several instances in one call, as arrays and as a list."""
    from georoutenet.solver.api import solve_many
    from georoutenet.solver.batch import solve_batch

    _warm()
    n, count = source.choice([1, 2, 3, 5, 20, 50]), source.choice([0, 1, 3, 8])
    options = {**_options(n, source), "max_seconds": source.choice([0, 0.001, 0.01])}
    if source.random() < 0.5:
        instances = [_instance(source.choice([n, 4]), source) for _ in range(count)]
        options = {name: value for name, value in options.items() if name not in ("start", "end")}
        results = solve_many(instances, **options)
        assert len(results) == count
        for instance, result in zip(instances, results, strict=True):
            _check(instance, result.tour, options)
            assert result.length == tour_length(instance, result.tour, closed=options["closed"])
    else:
        points = np.array([_points(n, source) for _ in range(count)]).reshape(count, n, 2)
        rule = source.choice([rule for rule in DistanceRule if rule is not DistanceRule.EXPLICIT])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", GeoRouteNetWarning)
            tours, lengths = solve_batch(points, rule=rule, **options)
        for k in range(count):
            instance = Instance(points[k], rule=rule)
            _check(instance, tours[k], options)
            assert np.isclose(
                lengths[k], tour_length(instance, tours[k], closed=options["closed"]), rtol=1e-12
            )
    tally["solves"] += count
    return "accepted"
