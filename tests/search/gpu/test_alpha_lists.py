"""Lists by alpha on emulated blocks: as a slow version makes them, whatever the instance."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from emulated import emulate

from georoutenet.decode.costs import RULES
from georoutenet.problem.instance import DistanceRule
from georoutenet.search.gpu import engine
from georoutenet.search.gpu.cycle import Cycle
from georoutenet.search.gpu.engine import alpha_lists, neighbor_lists
from georoutenet.search.path import Ends
from tests.search.gpu.odd import KINDS, odd
from tests.solver.solved import VARIANTS

F = np.float32


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    emulate(monkeypatch)


class SlowAscent:
    """The shortest tree of all cities but the last, which hangs on its two shortest edges."""

    def __init__(self, places: np.ndarray, rule: int, fixed: bool, free: bool) -> None:
        self.places, self.rule, self.fixed, self.free = places, rule, fixed, free
        self.last = len(places) - 1
        self.penalty = np.zeros(len(places), dtype=F)
        self.cities = list(range(self.last))

    def cost(self, a: int, b: int) -> Any:
        if self.last in (a, b):
            if self.fixed and self.last - 1 in (a, b):
                return F(-1e30)
            if self.free:
                return self.penalty[min(a, b)]
        dx, dy = self.places[a] - self.places[b]
        d = np.sqrt(F(F(dx * dx) + F(dy * dy)))
        d = {0: d, 1: np.floor(F(d + F(0.5))), 2: np.ceil(d)}[self.rule]
        return F(F(self.penalty[a] + self.penalty[b]) + d)

    def grow(self) -> None:
        """``cities`` become the last to join first; of equally near ones the first in the list joins."""
        outside, joined = list(self.cities), list[int]()
        self.parent, self.edge = dict[int, int](), dict.fromkeys(outside, F(1e30))
        while outside:
            at = min(range(len(outside)), key=lambda k: self.edge[outside[k]]) if joined else 0
            city = outside[at]
            outside[at] = outside[-1]
            outside.pop()
            joined.append(city)
            for other in outside:
                if (cost := self.cost(city, other)) < self.edge[other]:
                    self.edge[other], self.parent[other] = cost, city
        self.cities = joined[::-1]
        ranked = sorted(self.cities, key=lambda c: self.cost(c, self.last))
        self.beside = ranked[:2]

    def ascend(self, iterations: int) -> None:
        before = dict[int, int]()
        for i in range(iterations):
            self.grow()
            degree = {c: (c in self.parent) + self.beside.count(c) for c in self.cities}
            for city in self.parent.values():
                degree[city] += 1
            assert sum(degree.values()) == 2 * self.last
            if i == 0:
                lanes = [F(0)] * 32
                for k, city in enumerate(self.cities[:-1]):
                    lanes[k % 32] = F(lanes[k % 32] + self.edge[city])
                while len(lanes) > 1:
                    half = len(lanes) // 2
                    lanes = [F(a + b) for a, b in zip(lanes[:half], lanes[half:], strict=True)]
                first, before = F(F(F(0.5) * lanes[0]) / F(self.last)), degree
            share = F(F(i) / F(iterations))
            step = F(F(first * F(F(1) - share)) * F(F(1) - F(F(0.5) * share)))
            for city in self.cities:
                pull = F(F(F(0.6) * F(degree[city] - 2)) + F(F(0.4) * F(before[city] - 2)))
                self.penalty[city] = F(self.penalty[city] + F(step * pull))
            before = degree
        self.grow()

    def way(self, city: int) -> list[int]:
        cities = [city]
        while cities[-1] in self.parent:
            cities.append(self.parent[cities[-1]])
        return cities

    def alpha(self, a: int, b: int) -> Any:
        if self.last in (a, b):
            longest = self.cost(self.beside[1], self.last)
        else:
            one, two = self.way(a), self.way(b)
            while one[-2:] == two[-2:] and min(len(one), len(two)) > 1:
                one.pop(), two.pop()
            longest = max(self.edge[c] for c in {*one, *two} - {one[-1]})
        return max(F(0), F(self.cost(a, b) - longest))

    def lists(self, among: np.ndarray) -> list[list[int]]:
        found = []
        for city, row in enumerate(among):
            others = row[: min(15, len(among) - 1)].tolist()
            parent = self.parent.get(city)
            if parent is not None and parent not in others:
                others.append(parent)
            kept = sorted(others, key=lambda other: self.alpha(city, other))[: engine.NEAR]
            found.append([other for other in others if other in kept])
        return found


def compare(points: torch.Tensor, ends: Ends, rule: DistanceRule, iterations: int) -> list[SlowAscent]:
    cycle, made = Cycle(ends), []
    places = cycle.places(points, rule)
    own = torch.full((len(points),), ends.n)
    among = neighbor_lists(places[:, : ends.n].contiguous(), own, engine.CANDIDATES)
    found = alpha_lists(places, own + cycle.is_free, among, cycle, rule, iterations)
    for k in range(len(points)):
        slow = SlowAscent(places[k].numpy(), RULES[rule], cycle.fixed < cycle.count, cycle.is_free)
        slow.ascend(iterations)
        for city, expected in enumerate(slow.lists(among[k].numpy())):
            assert found[k, city, : len(expected)].tolist() == expected, (k, city)
            assert not found[k, city, len(expected) :].any()
            assert len(expected) >= min(engine.NEAR, ends.n - 1)
        made.append(slow)
    return made


@pytest.mark.parametrize("kind", KINDS)
def test_as_the_slow_version(kind: str) -> None:
    for n in (5, 9, 24, 70):
        compare(odd(kind, n, count=2), Ends(n), DistanceRule.EUCLIDEAN, 4)


@pytest.mark.parametrize("options", VARIANTS[1:])
def test_paths(options: dict[str, Any]) -> None:
    compare(odd("uniform", 20, count=2), Ends(20, **options), DistanceRule.EUCLIDEAN, 6)


@pytest.mark.parametrize("rule", [DistanceRule.EUC_2D, DistanceRule.CEIL_2D])
def test_rounded_distances(rule: DistanceRule) -> None:
    compare(torch.round(odd("uniform", 30) * 300), Ends(30), rule, 6)


def test_penalties_make_the_tree_look_like_a_tour() -> None:
    """Fewer leaves than in the shortest tree, and lists that hold nearly all edges of a good tour."""
    (slow,) = compare(odd("uniform", 40), Ends(40), DistanceRule.EUCLIDEAN, 30)
    plain = SlowAscent(slow.places, 0, False, False)
    plain.grow()
    leaves = [sum(c not in own.parent.values() for c in own.cities) for own in (slow, plain)]
    assert leaves[0] < 0.6 * leaves[1]


def test_instances_of_several_sizes() -> None:
    points, sizes = odd("uniform", 300, count=3), torch.tensor([300, 7, 40])
    cycle = Cycle(Ends(300))
    places = cycle.places(points, DistanceRule.EUCLIDEAN)

    def lists(places: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
        among = neighbor_lists(places, sizes, engine.CANDIDATES)
        return alpha_lists(places, sizes, among, cycle, DistanceRule.EUCLIDEAN, 2)

    found = lists(places, sizes)
    for k, n in enumerate(sizes.tolist()):
        alone = lists(places[k : k + 1, :n].contiguous(), sizes[k : k + 1])
        assert torch.equal(found[k, :n], alone[0])
        assert not found[k, n:].any()
