from __future__ import annotations

import math
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from georoutenet.errors import InputError, MissingDependencyError
from georoutenet.evaluate.evaluation import evaluate
from georoutenet.evaluate.references import load_references
from georoutenet.evaluate.settings import Settings, parse_decoder
from georoutenet.io.datasets import dataset
from georoutenet.model.config import PolicyConfig
from georoutenet.policy.policy import Policy
from georoutenet.policy.weights import load_policy, save_weights
from georoutenet.problem.tour import gap, tour_lengths
from research.references.solvers import SOLVERS, Solver
from research.report import measure
from research.report.efficiency import SOLVER_NAMES, Measurement, read_measurements
from research.report.measure import (
    mean_seconds,
    measure_all,
    measure_policy,
    measure_solver,
)

CPU = torch.device("cpu")


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    torch.set_num_threads(1)
    torch.manual_seed(5)
    path = tmp_path / "tiny.safetensors"
    policy = Policy(PolicyConfig(hidden=8, heads=2, layers=1, neighbors=3, rbf=4))
    save_weights(path, policy, {"recipe": {"objective": "pg"}})
    return path


class InOrder(Solver):
    """Visits the cities as they are numbered."""

    name = "fast-tsp"

    def __init__(self, *, seconds: float = 1.0) -> None:
        self.settings = {"seconds": seconds}

    def _search(self, cities: np.ndarray, seed: int) -> tuple[np.ndarray, bool]:
        time.sleep(0.002)
        return np.arange(len(cities)), False


@pytest.fixture
def in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SOLVERS, "fast-tsp", InOrder)


@pytest.mark.parametrize("improve", [0.0, 0.005])
def test_a_policy_is_measured_like_an_evaluation(weights: Path, improve: float) -> None:
    settings = parse_decoder("beam-4", limit=5, batch=2, improve=improve)
    policy = load_policy(weights)
    one = measure_policy(policy, weights, "test20", settings, CPU)
    assert (one.method, one.weights, one.set, one.instances, one.batch) == (
        "GeoRouteNet-PG",
        "tiny",
        "test20",
        5,
        2,
    )
    assert one.decoder == ("Beam-4, 0.005 s search" if improve else "Beam-4")
    results = evaluate(weights, "test20", weights.parent / "x.csv", settings, device="cpu")
    if not improve:
        assert one.gap == pytest.approx(results.gaps.mean(), abs=1e-6)
    assert one.gap_low <= one.gap <= one.gap_high
    assert one.parameters == sum(p.numel() for p in policy.parameters())
    assert one.network_seconds + one.decode_seconds + one.improve_seconds == pytest.approx(one.seconds)
    assert min(one.network_seconds, one.decode_seconds, one.probe_seconds) > 0
    assert one.instances_per_second == 5 / one.seconds
    if improve:
        assert one.improve_seconds > 0  # less than asked where tours are proven optimal
        assert one.probe_seconds >= improve
    else:
        assert one.improve_seconds == 0
    assert math.isnan(one.peak_device_bytes)
    assert one.threads == 1


@pytest.mark.usefixtures("in_order")
def test_a_solver_is_measured_by_its_tours() -> None:
    one = measure_solver("fast-tsp:0.5", "test20", 4)
    cities = dataset("test20").coordinates[:4]
    lengths = tour_lengths(cities, np.tile(np.arange(20), (4, 1)))
    assert one.gap == pytest.approx(np.mean(gap(lengths, load_references("test20").lengths[:4])))
    assert (one.method, one.decoder, one.weights, one.batch) == ("fast-tsp", "at most 0.5 s", "", 1)
    assert one.seconds >= 4 * 0.002
    assert one.probe_seconds >= 0.002
    assert math.isnan(one.network_seconds)
    with pytest.raises(InputError, match="a number of seconds, got 'fast-tsp:x'"):
        measure_solver("fast-tsp:x", "test20", 1)
    with pytest.raises(InputError, match="unknown solver"):
        measure_solver("abacus", "test20", 1)


def test_every_solver_has_a_name() -> None:
    assert SOLVER_NAMES.keys() == SOLVERS.keys()


@pytest.mark.usefixtures("in_order")
def test_all_contenders_and_no_twice(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = weights.parent / "cpu.csv"
    settings = [Settings(limit=3), parse_decoder("beam-4", limit=3)]
    seen: list[Measurement] = []

    def missing(**options: object) -> Solver:
        raise MissingDependencyError("LKH is not installed")

    monkeypatch.setitem(SOLVERS, "lkh", missing)  # type: ignore[arg-type]

    def run(*solvers: str, limit: int | None = None) -> list[str]:
        sets = ["test20", "ring50"]
        return measure_all(
            out, [str(weights)], sets, settings, solvers, device=CPU, solver_limit=limit, report=seen.append
        )

    assert run("fast-tsp:1", "lkh") == ["lkh: LKH is not installed"]
    read = read_measurements(out)
    assert [(each.set, each.weights or each.method, each.decoder) for each in read] == [
        (name, *rest)
        for name in ("test20", "ring50")
        for rest in (("tiny", "Greedy"), ("tiny", "Beam-4"), ("fast-tsp", "at most 1 s"))
    ]
    assert [each.key for each in read] == [each.key for each in seen]
    seen.clear()
    run("fast-tsp:1", "fast-tsp:2")
    assert [each.decoder for each in seen] == ["at most 2 s", "at most 2 s"]
    seen.clear()
    run("fast-tsp:1", limit=2)  # other instances are another measurement
    assert [each.instances for each in seen] == [2, 2]


def test_the_probe_is_warm(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[float] = []
    clock = iter([10.0, 16.0])
    monkeypatch.setattr(measure.time, "perf_counter", lambda: next(clock))
    assert mean_seconds(lambda: calls.append(0.0)) == 2.0
    assert len(calls) == 4


@pytest.mark.gpu
def test_a_gpu_has_peak_memory(weights: Path) -> None:
    device = torch.device("cuda")
    one = measure_policy(load_policy(weights, device), weights, "test20", Settings(limit=8), device)
    assert one.peak_device_bytes > 0
