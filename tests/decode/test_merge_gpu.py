"""Merging on emulated blocks gives the tours of the CPU, and so does a GPU where there is one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from emulated import count_as_compiled, emulate

from georoutenet.decode import decode_views
from georoutenet.decode import merge as on_cpu
from georoutenet.decode.costs import RULES, Costs, as_costs
from georoutenet.decode.gpu import lengths
from georoutenet.decode.gpu import merge as on_gpu
from georoutenet.decode.merge import BITS, PASSES, ROUNDS, merge_tours
from georoutenet.errors import GeoRouteNetWarning
from georoutenet.model.scores import Scores
from georoutenet.problem.instance import DistanceRule, Instance

KINDS = ("uniform", "lattice", "duplicates", "one place", "far away")


def made(kind: str, n: int, batch: int, rule: DistanceRule, closed: bool) -> Costs:
    random = np.random.default_rng([n, batch])
    points = random.random((batch, n, 2)) * 100
    if kind == "lattice":
        points = np.floor(points / 20) + 0.25 * (rule is DistanceRule.EUCLIDEAN)
    elif kind == "duplicates":
        points = points[:, random.integers(0, max(1, n // 3), n)]
    elif kind == "one place":
        points = np.repeat(points[:, :1], n, axis=1)
    elif kind == "far away":
        points = 1e7 + points
    costs = as_costs(
        batch, n, torch.device("cpu"), instances=[Instance(one, rule=rule) for one in points], closed=closed
    )
    assert costs is not None
    assert costs.instances is None
    return costs


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("closed", [True, False])
def test_emulated_lengths_are_those_of_the_cpu(
    rule: DistanceRule, closed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    emulate(monkeypatch)
    for n in (2, 3, 31, 32, 33, 34, 65, 200):
        for kind in KINDS:
            costs, tours = made(kind, n, 3, rule, closed), found(n, 3, 3, 4)
            measured = lengths.lengths(costs.coordinates, tours, closed=closed, rule=RULES[rule])
            assert torch.equal(measured, costs.lengths(tours))


def found(n: int, batch: int, count: int, flaws: int, low: int = 0, high: int = 0) -> torch.Tensor:
    """Tours that differ in places: with some stretches turned around, cities moved, and some equal."""
    random = np.random.default_rng([n, batch, count])
    tours = np.empty((batch, count, n), np.int64)
    for b in range(batch):
        base = random.permutation(n)
        for k in range(count):
            tour = base.copy()
            for _ in range(random.integers(0, flaws + 1)):
                i, j = np.sort(random.integers(low, n + 1 - high, 2))
                j = min(j, i + 12) if random.random() < 0.8 else j
                tour[i:j] = tour[i:j][::-1]
                if random.random() < 0.3 and j - i > 1:
                    tour[i:j] = np.roll(tour[i:j], 1)
            turned = np.roll(tour, random.integers(n))[:: random.choice([-1, 1])]
            tours[b, k] = tour if low or high else turned
    return torch.from_numpy(tours)


def compare(tours: torch.Tensor, costs: Costs, bases: int) -> int:
    """How many of the instances got a shorter tour."""
    lengths = costs.lengths(tours)
    lengths[-1, bases::2] = torch.inf  # not there
    offered = on_cpu._offered(tours, lengths, costs)
    wanted = on_cpu._on_cpu(offered, costs, bases)
    merged = on_gpu.merge(*offered, costs, bases, PASSES, ROUNDS, BITS)
    # Cycles: where they begin and in which direction they go is not said.
    n = tours.shape[2]
    assert torch.equal(on_cpu._opened(merged, n, None, None), on_cpu._opened(wanted, n, None, None))
    shortest = lengths[:, :bases].amin(1)
    after = costs.lengths(on_cpu._opened(merged, n, None, None)[:, None])[:, 0]
    assert bool((after <= shortest * (1 + 1e-9)).all())
    return int((after < shortest - 1e-9).sum())


@pytest.mark.parametrize(
    ("rule", "kind"),
    [
        *((DistanceRule.EUCLIDEAN, kind) for kind in KINDS),
        (DistanceRule.EUC_2D, "lattice"),
        (DistanceRule.CEIL_2D, "uniform"),
    ],
)
@pytest.mark.parametrize("closed", [True, False])
def test_emulated_merging_is_that_of_the_cpu(
    rule: DistanceRule, kind: str, closed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    emulate(monkeypatch)
    shorter = 0
    for n in (4, 5, 6, 9, 32, 33, 65):
        costs = made(kind, n, 3, rule, closed)
        for count, bases in ((2, 1), (5, 3), (12, 12)):
            shorter += compare(found(n, 3, count, 1 + n // 12), costs, min(bases, count))
    assert shorter > 10 or kind == "one place"


@pytest.mark.parametrize("n", [300, 512, 513, 1024])
def test_emulated_merging_of_many_cities(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    emulate(monkeypatch)
    assert compare(found(n, 1, 5, 20), made("uniform", n, 1, DistanceRule.EUCLIDEAN, n == 512), 3) > 0


def test_what_cannot_be_launched_is_left_to_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each kernel is launched once before it is used, and what fails is said once."""
    device, caches = torch.device("cpu"), (on_gpu.problem, on_gpu._compiles, lengths.problem)
    for cache in caches:
        cache.cache_clear()
    count_as_compiled(monkeypatch)
    assert [on_gpu._compiles(device, kernel) for kernel in on_gpu.MERGE.values()] == [True] * 3
    assert lengths.problem(device) == ""
    for cache in caches:
        cache.cache_clear()
    count_as_compiled(monkeypatch, launch="invalid device function")
    assert "invalid device function" in lengths.problem(device)
    kernel = on_gpu.kernel_for(50)
    with pytest.warns(GeoRouteNetWarning, match=r"the CPU merges .*invalid device function") as said:
        assert [on_gpu._compiles(device, kernel) for _ in range(2)] == [False] * 2
    assert len(said) == 1
    for cache in caches:
        cache.cache_clear()


@pytest.mark.gpu
@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("rule", [DistanceRule.EUCLIDEAN, DistanceRule.EUC_2D])
def test_a_gpu_merges_as_the_cpu_does(rule: DistanceRule, closed: bool) -> None:
    for n, batch, count, bases in ((4, 9, 3, 2), (50, 300, 48, 8), (127, 40, 60, 8), (600, 5, 30, 12)):
        for fixed in ((), ("start",), ("end",), ("start", "end")):
            costs = made("uniform", n, batch, rule, closed)
            tours = found(n, batch, count, n // 8, int("start" in fixed), int("end" in fixed))
            ends: dict[str, Any] = {name: tours[:, 0, 0 if name == "start" else -1] for name in fixed}
            wanted = merge_tours(tours, costs.lengths(tours), costs, bases=bases, **ends)
            there = Costs(costs.coordinates.cuda(), None, closed, rule)
            assert on_gpu.merges(there.coordinates.device, n + 1, rule)
            given = tours.cuda()
            assert torch.equal(there.lengths(given).cpu(), costs.lengths(tours))
            merged = merge_tours(given, there.lengths(given), there, bases=bases, **ends)
            assert torch.equal(merged.cpu(), wanted)


@pytest.mark.gpu
@pytest.mark.parametrize("text", ["greedy-views-8-merge", "beam-80-views-8-dominance-merge"])
def test_views_on_a_gpu_are_merged_as_on_the_cpu(text: str) -> None:
    points = torch.rand(20, 40, 2, generator=torch.Generator().manual_seed(7), dtype=torch.float64)

    def score(seen: torch.Tensor) -> Scores:
        here = seen.cpu().round(decimals=4)  # views are not the same to the last bit everywhere
        logits = -20 * torch.cdist(here, here) + 3 * torch.sin(40 * (here[:, None] - here[:, :, None]).sum(3))
        scores = Scores(here.sum(2).log_softmax(1), logits.double().round(decimals=3).float())
        return Scores(scores.start.to(seen.device), scores.logits.to(seen.device))

    for fixed in ({}, {"start": 3}, {"start": 3, "end": 8, "closed": False}):
        options: dict[str, Any] = {"keep": 3, "batch": 32, **fixed}
        wanted = decode_views(score, points, text, **options)
        found = decode_views(score, points.cuda(), text, device="cuda", **options)
        assert torch.equal(found.tours.cpu(), wanted.tours)
        assert wanted.lengths is not None
        assert found.lengths is not None
        assert torch.equal(found.lengths.cpu(), wanted.lengths)
