"""Edge assembly crossover against slow, plain versions of its parts."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from georoutenet.jit import PLAIN, njit
from georoutenet.problem.instance import DistanceRule, Instance
from georoutenet.search import assembly
from georoutenet.search.local_search import kernel_coordinates
from georoutenet.search.neighbors import nearest_neighbors
from georoutenet.search.population import length_of
from georoutenet.search.state import make_search

find_cycles = njit(
    lambda links, a, b, room, random: assembly._find_cycles(links, a, b, room, random), **PLAIN
)
find_rings = njit(lambda room, first, length: assembly._find_rings(room, first, length), **PLAIN)


def edges_of(tour: np.ndarray) -> Counter[frozenset[int]]:
    return Counter(frozenset(pair) for pair in zip(tour.tolist(), np.roll(tour, -1).tolist(), strict=True))


def entered(tours: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    n = len(tours[0])
    links, tally = np.empty((len(tours) + 1, n, 2), dtype=np.int32), assembly.make_tally(n)
    for k, tour in enumerate(tours):
        assembly.link(tour.astype(np.int32), links, k, tally)
    return links, tally


def followed(links: np.ndarray, k: int) -> np.ndarray:
    tour = np.empty(links.shape[1], dtype=np.int32)
    assembly.unlink(links, k, tour)
    return tour


def cross_all(
    rule: Any, x: Any, y: Any, neighbors: Any, links: Any, lengths: Any, tally: Any, room: Any, random: Any
) -> float:
    """One generation."""
    count = len(lengths)
    order = np.append(random.permutation(count), count).astype(np.int32)
    links[count] = links[order[0]]
    bits = random.integers(1, 2**63, (count, 1), dtype=np.uint64)
    gain = assembly.cross_pairs(rule, x, y, neighbors, links, lengths, tally, order, 0, count, 30, room, bits)
    assembly.count_told(tally, room)
    return float(gain)


def near_copy(tour: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Another tour that has most edges of this one."""
    tour = tour.copy()
    for _ in range(random.integers(1, 5)):
        i, j = np.sort(random.choice(len(tour) + 1, 2, replace=False))
        tour[i:j] = tour[i:j][::-1].copy()
    return tour


def pairs() -> list[tuple[np.ndarray, np.ndarray, int]]:
    found = []
    for n in (8, 9, 17, 60, 61, 200):
        for seed in range(8):
            random = np.random.default_rng([n, seed])
            a = random.permutation(n)
            found.append((a, near_copy(a, random) if seed % 2 else random.permutation(n), seed))
    return found


def test_cycles_take_every_edge_that_one_tour_has_once_and_alternate() -> None:
    for a, b, seed in pairs():
        n = len(a)
        links, _ = entered([a, b])
        room, bits = assembly.make_room(n, 9), np.array([seed + 1], dtype=np.uint64)
        cycles = find_cycles(links, 0, 1, room, bits)
        of_a, of_b = Counter[frozenset[int]](), Counter[frozenset[int]]()
        for k in range(cycles):
            cycle = room.cycle[room.begin[k] : room.begin[k + 1]].tolist()
            assert len(cycle) >= 4
            assert len(cycle) % 2 == 0
            for place, city in enumerate(cycle):
                edge = frozenset((city, cycle[(place + 1) % len(cycle)]))
                (of_b if place % 2 else of_a)[edge] += 1
        assert of_a == edges_of(a) - edges_of(b)
        assert of_b == edges_of(b) - edges_of(a)
        assert (room.seen == -1).all()  # as the next pair needs it


def test_rings_are_those_that_a_walk_finds() -> None:
    for a, b, seed in pairs():
        n = len(a)
        links, _ = entered([a, b])
        room, bits = assembly.make_room(n, 9), np.array([seed + 1], dtype=np.uint64)
        cycles = find_cycles(links, 0, 1, room, bits)
        room.tour[:] = a
        room.position[a] = np.arange(n)
        for k in range(cycles):
            first, last = room.begin[k : k + 2]
            cycle = room.cycle[first:last].tolist()
            edges = edges_of(a)
            for place, city in enumerate(cycle):
                edges[frozenset((city, cycle[(place + 1) % len(cycle)]))] += 1 if place % 2 else -1
            beside: dict[int, list[int]] = {city: [] for city in range(n)}
            for edge in +edges:
                one, other = edge
                beside[one].append(other)
                beside[other].append(one)
            rings, left = [], set(range(n))
            while left:
                ring, waiting = set(), [min(left)]
                while waiting:
                    city = waiting.pop()
                    if city not in ring:
                        ring.add(city)
                        waiting += beside[city]
                rings.append(ring)
                left -= ring
            many = find_rings(room, int(first), int(last - first))
            assert sorted(map(len, rings)) == sorted(room.size[:many].tolist())
            for number in range(many):  # its cities: those of its parts
                cities = set()
                for part in np.flatnonzero(room.ring[: len(cycle) // 2] == number):
                    begin = int(room.cuts[part - 1]) if part else int(room.cuts[len(cycle) // 2 - 1]) - n
                    cities |= {int(a[place % n]) for place in range(begin + 1, int(room.cuts[part]) + 1)}
                assert cities in rings
                assert int(room.first[number]) in cities


@pytest.mark.parametrize("kind", ["plane", "rounded", "matrix", "path"])
@pytest.mark.parametrize("n", [8, 13, 50, 120])
def test_tours_stay_tours_of_the_lengths_kept(n: int, kind: str) -> None:
    random = np.random.default_rng(n)
    points = random.random((n, 2)) * (1 if kind == "plane" else 1000)
    rule = DistanceRule.EUCLIDEAN if kind == "plane" else DistanceRule.EUC_2D
    instance = Instance(points, rule=rule)
    if kind == "matrix":
        instance = Instance(matrix=np.rint(instance.distance_matrix()).astype(np.int64))
    code, x, y, _ = kernel_coordinates(instance)
    rule_given: Any = (code, n - 2) if kind == "path" else code  # the last two cities stay beside each other
    neighbors = nearest_neighbors(points, min(6, n - 1))
    tours = []
    for _ in range(9):
        tour = random.permutation(n - 2 if kind == "path" else n)
        tours.append(np.append(tour, [n - 2, n - 1]) if kind == "path" else tour)
    state = make_search(rule_given, x, y, neighbors, tours[0], 0)
    links, tally = entered(tours)
    lengths = np.array([length_of(state, rule_given, tour.astype(np.int32)) for tour in tours])
    room, before = assembly.make_room(n, 9), lengths.copy()
    for generation in range(12):
        old = lengths.sum()
        gain = cross_all(rule_given, x, y, neighbors, links, lengths, tally, room, random)
        assert gain == pytest.approx(old - lengths.sum(), abs=1e-6)
        counted = Counter[frozenset[int]]()
        for k in range(len(tours)):
            tour = followed(links, k)
            np.testing.assert_array_equal(np.sort(tour), np.arange(n))
            assert lengths[k] == pytest.approx(length_of(state, rule_given, tour), abs=1e-6)
            counted += edges_of(tour)
            if kind == "path":
                assert frozenset((n - 2, n - 1)) in edges_of(tour)
        for city in range(
            n
        ):  # where a city had more than ENDS ends, some are forgotten, none is wrong by more
            for end, times in tally[city]:
                if generation > 8 and times > 0:
                    assert times <= counted[frozenset((city, int(end)))]
    assert (lengths <= before + 1e-9).all()
    assert lengths.sum() < 0.9 * before.sum()


def test_counts_are_exact_where_there_is_room_for_them() -> None:
    random = np.random.default_rng(3)
    points = random.random((80, 2))
    first = random.permutation(80)
    tours = [first] + [near_copy(first, random) for _ in range(5)]  # each city has few other ends
    code, x, y, _ = kernel_coordinates(Instance(points))
    neighbors = nearest_neighbors(points, 6)
    links, tally = entered(tours)
    state = make_search(code, x, y, neighbors, first, 0)
    lengths = np.array([length_of(state, code, tour.astype(np.int32)) for tour in tours])
    assert cross_all(code, x, y, neighbors, links, lengths, tally, assembly.make_room(80, 6), random) > 0
    counted = sum((edges_of(followed(links, k)) for k in range(6)), Counter[frozenset[int]]())
    told = Counter(
        {frozenset((c, int(end))): int(times) for c in range(80) for end, times in tally[c] if times}
    )
    assert told == counted
