"""The GPU's search on emulated blocks: step by step as the slow version, valid on whatever it is given."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
import torch
from emulated import count_as_compiled, emulate

import georoutenet as grn
from georoutenet.crossover import take_better_parts
from georoutenet.decode.common import rolled
from georoutenet.decode.costs import RULES
from georoutenet.errors import GeoRouteNetWarning, InputError
from georoutenet.kernels.cuda.compile import read_source
from georoutenet.problem.instance import DistanceRule, Instance
from georoutenet.problem.tour import is_permutation, tour_length
from georoutenet.search.gpu import engine
from georoutenet.search.gpu.cycle import Cycle, curves, padded, tour_lengths
from georoutenet.search.gpu.engine import Walks, improve_batch, neighbor_lists
from georoutenet.search.path import Ends
from georoutenet.search.space_filling import space_filling_curve
from tests.search.gpu import slow_search
from tests.search.gpu.odd import KINDS, odd
from tests.search.gpu.slow_search import SlowSearch, bits
from tests.solver.solved import VARIANTS


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    emulate(monkeypatch)
    monkeypatch.setattr(engine, "ITERATIONS", 2)


def compare(points: torch.Tensor, ends: Ends, rule: DistanceRule, kicks: int, walks: int = 1) -> SlowSearch:
    """Kick by kick; returns the slow search of the last walk."""
    first = Cycle(ends).arrange(curves(points))
    fast = Walks(points, first, ends=ends, rule=rule, walks=walks, seed=3)
    cycle = fast.cycle
    slow = []
    for k in range(len(points) * walks):
        low, high = fast.states[k, :2].numpy().view(np.uint32).tolist()
        slow.append(
            SlowSearch(
                fast.places[k // walks].numpy(),
                fast.lists[k // walks].numpy(),
                fast.tours[k].tolist(),
                high << 32 | low,
                rule=RULES[rule],
                fixed=cycle.fixed,
                free=cycle.is_free,
                tolerance=engine.TOLERANCE if rule is DistanceRule.EUCLIDEAN else 0.5,
                patience=max(engine.SHORTEST_WALK, cycle.count),
                margin=engine.MARGIN,
            )
        )
        slow[-1].descend()
    fast.run(0)
    for kick in range(kicks + 1):
        if kick:
            fast.run(1)
        for k, own in enumerate(slow):
            if kick:
                own.one_kick()
            low, high = fast.states[k, :2].numpy().view(np.uint32).tolist()
            assert fast.tours[k].tolist() == own.tour, (kick, k)
            assert fast.best[k].tolist() == own.best, (kick, k)
            assert high << 32 | low == own.random
            assert fast.states[k, 3:7].tolist() == [own.idle, own.walks, own.agreed, own.leads]
            assert int(fast.states[k, 8]) == bits(float(own.behind))
    return slow[-1]


@pytest.mark.parametrize("kind", KINDS)
def test_step_by_step(kind: str) -> None:
    n = {"uniform": 40, "lattice": 30, "clusters": 24}.get(kind, 12)
    compare(odd(kind, n), Ends(n), DistanceRule.EUCLIDEAN, 12)


@pytest.mark.parametrize("n", [5, 6, 7, 8, 9, 10])
def test_few_cities_step_by_step(n: int) -> None:
    compare(odd("uniform", n, count=2), Ends(n), DistanceRule.EUCLIDEAN, 8)


def test_walks_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Walks so short that many end: merged, agreed, begun again; two for each instance."""
    monkeypatch.setattr(engine, "SHORTEST_WALK", 4)
    n = 18
    slow = compare(odd("uniform", n, 5), Ends(n), DistanceRule.EUCLIDEAN, 60, walks=2)
    assert slow.walks >= 2


def flawed(tour: list[int], random: np.random.Generator, flaws: int) -> list[int]:
    """A tour with some short stretches reversed."""
    for _ in range(flaws):
        i = int(random.integers(0, len(tour) - 6))
        j = i + int(random.integers(2, 6))
        tour = tour[:i] + tour[i:j][::-1] + tour[j:]
    return tour


def test_walks_end_with_the_better_parts_of_two_tours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flaws here in the best tour, there in the walk's: as on the CPU those of the best one go."""
    n, ends, gains = 40, Ends(40), list[float]()

    def merge(*arguments: Any) -> float:
        gains.append(take_better_parts(*arguments))
        return gains[-1]

    monkeypatch.setattr(slow_search, "take_better_parts", merge)
    points = odd("uniform", n, count=12)
    fast = Walks(points, curves(points), ends=ends)
    fast.run(0)
    for k in range(len(points)):
        random = np.random.default_rng(k)
        good = fast.tours[k].tolist()
        best, other = flawed(good, random, 3), flawed(good, random, 1 + k % 3)
        low, high = fast.states[k, :2].numpy().view(np.uint32).tolist()
        lists, places = fast.lists[k].numpy(), fast.places[k].numpy()
        slow = SlowSearch(
            places, lists, other, high << 32 | low, tolerance=engine.TOLERANCE, patience=engine.SHORTEST_WALK
        )
        slow.best, slow.behind, slow.idle = list(best), np.float32(0.5), slow.patience
        slow.slack, slow.margin = fast.states[k, 9:11].numpy().view(np.float32)
        slow.one_kick()
        fast.best[k], fast.tours[k] = torch.tensor(best), torch.tensor(other)
        fast.states[k, [3, 7, 8]] = torch.tensor([slow.patience, 1, bits(0.5)], dtype=torch.int32)
        fast.active = torch.tensor([k], dtype=torch.int32)
        fast.run(1)
        assert fast.tours[k].tolist() == slow.tour
        assert fast.best[k].tolist() == slow.best
        assert fast.states[k, 3:7].tolist() == [slow.idle, slow.walks, slow.agreed, slow.leads]
    assert sum(gain > 0 for gain in gains) > 6


@pytest.mark.parametrize("options", VARIANTS[1:])
def test_paths_step_by_step(options: dict[str, Any]) -> None:
    compare(odd("uniform", 16), Ends(16, **options), DistanceRule.EUCLIDEAN, 8)


@pytest.mark.parametrize("rule", [DistanceRule.EUC_2D, DistanceRule.CEIL_2D])
def test_rounded_distances_step_by_step(rule: DistanceRule) -> None:
    compare(torch.round(odd("uniform", 20) * 300), Ends(20), rule, 8)


def test_neighbor_lists() -> None:
    """Nearest first, ties by number, room kept for each quadrant: by sorting."""
    for kind in KINDS:
        for n in (5, 8, 9, 33, 70):
            places = Cycle(Ends(n)).places(odd(kind, n), DistanceRule.EUCLIDEAN)
            found = neighbor_lists(places, torch.tensor([n]))[0].numpy()
            cities = places[0].numpy()
            for city in range(n):
                dx, dy = (cities - cities[city]).T
                squared = (dx * dx + dy * dy).astype(np.float32)
                near = np.argsort(np.sqrt(squared), kind="stable")
                near = near[near != city][: engine.AMONG].tolist()
                kept, skipped, empty = list[int](), list[int](), {0, 1, 2, 3}
                for other in near:
                    quadrant = (dx[other] >= 0) + 2 * (dy[other] >= 0)
                    left = min(8, n - 1) - len(kept)
                    if left and (quadrant in empty or left > len(empty)):
                        kept.append(other)
                        empty -= {quadrant}
                    elif left:
                        skipped.append(other)
                kept += skipped[: min(8, n - 1) - len(kept)]
                expected = sorted(kept, key=near.index)
                assert found[city, : len(expected)].tolist() == expected, (kind, n, city)


def test_curves_are_those_of_the_cpu() -> None:
    points = torch.cat([odd(kind, 40) for kind in KINDS[:6]])
    np.testing.assert_array_equal(curves(points), space_filling_curve(points.numpy()))


@pytest.mark.parametrize("options", VARIANTS)
@pytest.mark.parametrize("kind", KINDS)
def test_tours_are_valid_and_never_longer(kind: str, options: dict[str, Any]) -> None:
    n = 6 + 5 * KINDS.index(kind)
    points, ends = odd(kind, n, count=2), Ends(n, **options)
    first = Cycle(ends).arrange(curves(points))
    found = improve_batch(points, first, ends=ends, kicks=6, walks=2)
    before = tour_lengths(points, first, DistanceRule.EUCLIDEAN, closed=ends.closed)
    for cities, tour, length, old in zip(points, found.tours, found.lengths, before, strict=True):
        assert is_permutation(tour.numpy(), n)
        assert ends.fits(tour.tolist())
        exact = tour_length(Instance(cities.numpy()), tour.numpy(), closed=ends.closed)
        assert float(length) == pytest.approx(exact, rel=1e-12, abs=1e-300)
        assert float(length) <= float(old)
    if kind == "uniform":
        shortest = grn.solve_batch(points, device="cpu", tours=False, **options)
        assert found.lengths.tolist() == pytest.approx(shortest.tolist(), rel=1e-9)


@pytest.mark.parametrize(("kind", "n"), [("uniform", 257), ("lattice", 500), ("duplicates", 1024)])
def test_large_tours(kind: str, n: int) -> None:
    """More cities than a lane each, blocks of one warp, indices of more than eight bits."""
    points = odd(kind, n)
    first = curves(points)
    if n == 1024:  # a descent takes long here: from a tour with a single flaw
        first = torch.from_numpy(np.lexsort(points[0].numpy().T))[None]
        first[0, :3] = first[0, :3].flip(0)
    found = improve_batch(points, first, ends=Ends(n), kicks=2)
    assert is_permutation(found.tours[0].numpy(), n)
    assert float(found.lengths) < float(tour_lengths(points, first, DistanceRule.EUCLIDEAN, closed=True))


def test_slices_and_company_change_nothing() -> None:
    points, ends = odd("uniform", 20, count=3), Ends(20)
    first = curves(points)
    whole = Walks(points, first, ends=ends, seed=1)
    whole.run(10)
    sliced = Walks(points[2:], first[2:], ends=ends, seed=1)
    for kicks in (0, 3, 1, 6):
        sliced.run(kicks)
    assert torch.equal(sliced.tours, whole.tours[2:])
    assert torch.equal(sliced.states, whole.states[2:])
    other = Walks(points, first, ends=ends, seed=2)
    other.run(10)
    assert not torch.equal(other.states[:, :2], whole.states[:, :2])


def test_instances_of_several_sizes_are_searched_as_alone() -> None:
    sizes = (5, 8, 40, 23, 9)
    instances = [odd("clusters" if n == 23 else "uniform", n)[0].numpy() for n in sizes]
    points, given = padded(instances)
    assert points.shape == (5, 40, 2)
    found = improve_batch(points, curves(points, given), ends=Ends(40), kicks=12, sizes=given, walks=2)
    for cities, tour, length in zip(instances, found.tours, found.lengths, strict=True):
        n, alone = len(cities), torch.from_numpy(cities)[None]
        first = rolled(curves(alone), 0)
        own = improve_batch(alone, first, ends=Ends(n), kicks=12, walks=2)
        assert tour.tolist() == [*rolled(own.tours, 0)[0].tolist(), *range(n, 40)]
        assert float(length) == pytest.approx(float(own.lengths), rel=1e-15)


def test_walks_that_agree_or_find_nothing_retire() -> None:
    points = odd("uniform", 8, count=2)
    asked = iter(range(100))
    found = improve_batch(
        points, curves(points), ends=Ends(8), kicks=math.inf, agreed=2, goes_on=lambda: next(asked) < 99
    )
    assert next(asked) < 99
    assert int(found.kicks.sum()) > 2 * engine.SHORTEST_WALK
    idle = improve_batch(points, curves(points), ends=Ends(8), kicks=math.inf, idle=10)
    assert int(idle.kicks.sum()) == 2 * engine.KICKS_PER_LAUNCH


def test_walks_agree_although_gains_are_rounded() -> None:
    """The sum of float32 gains is off by some 1e-6 after a walk: taken at its word, hardly any two agree."""
    points = odd("uniform", 50, count=2)
    found = improve_batch(points, curves(points), ends=Ends(50), kicks=2000, agreed=7)
    assert int(found.kicks.max()) < 2000


def test_the_host_has_the_numbers_of_the_sources() -> None:
    """What lies where in shared memory and in a walk's state is said in both."""
    for file in ("search.cu", "alpha_lists.cu"):
        source = read_source(file)
        numbers = dict(re.findall(r"constexpr int (\w+) = (\d+);", source))
        for name, value in (("NEAR", engine.NEAR), ("LOG", engine.LOG), ("AMONG", engine.CANDIDATES)):
            assert int(numbers.get(name, value)) == value, (file, name)
        assert "NEAR" in numbers
    (words,) = re.findall(r"enum \{ (RANDOM_LOW.*?) \}", read_source("search.cu"))
    place = {name: k for k, name in enumerate(words.split(", "))}
    assert {name: place[name] for name in ("AGREED", "KICKS", "LAST", "STATE")} == {
        "AGREED": engine.AGREED, "KICKS": engine.KICKS, "LAST": engine.LAST, "STATE": engine.STATE
    }  # fmt: skip


def test_what_the_gpu_does_not_search() -> None:
    def refused(n: int, message: str, **options: Any) -> None:
        points = odd("uniform", n)
        with pytest.raises(InputError, match=message):
            Walks(points, curves(points), **{"ends": Ends(n), **options})

    refused(4, "the GPU searches 5 to 1,024 cities, got 4")
    refused(1025, "the GPU searches 5 to 1,024 cities, got 1,025")
    refused(1024, "got 1,024 and the free end of a path", ends=Ends(1024, closed=False))
    refused(9, "the GPU measures by EUCLIDEAN, EUC_2D, CEIL_2D, got ATT", rule=DistanceRule.ATT)
    refused(9, "depth must be 1 to 5, got 6", depth=6)


def test_a_search_that_cannot_be_launched_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is launched once before it is used, and what fails is said once."""
    device = torch.device("cpu")
    caches = (engine.problem, engine.compiles)
    for cache in caches:
        cache.cache_clear()
    count_as_compiled(monkeypatch)
    assert [engine.compiles(device, kernel) for kernel in engine.SEARCH.values()] == [True] * 4
    for cache in caches:
        cache.cache_clear()
    count_as_compiled(monkeypatch, launch="invalid device function")
    kernel = engine.SEARCH[256, True]
    with pytest.warns(GeoRouteNetWarning, match=r"the CPU searches .*invalid device function") as said:
        assert [engine.compiles(device, kernel) for _ in range(2)] == [False] * 2
    assert len(said) == 1
    for cache in caches:
        cache.cache_clear()


@pytest.mark.parametrize("noise", [0.0, engine.TOLERANCE])
def test_gains_of_rounding_noise(noise: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Float32 knows coordinates of 10^9 to 64: taken for gains, noise fills the room of a repair."""
    monkeypatch.setattr(engine, "TOLERANCE", noise)
    points = odd("uniform", 10, count=20) * 1e9
    search = Walks(points, curves(points), ends=Ends(10), rule=DistanceRule.CEIL_2D, walks=2, seed=1)
    search.run(0)
    search.run(30)
    for tours in (search.tours, search.best):
        assert torch.equal(tours.sort(dim=1).values, torch.arange(10, dtype=torch.int16).repeat(40, 1))
    behind = search.states[:, 8].view(torch.float32)
    assert not noise or bool((behind[behind > 0] > 100).all())
