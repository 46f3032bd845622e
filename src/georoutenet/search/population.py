"""Tours that were shortened apart from one another, and crossed until nothing is left to gain.

Each tour of a population begins as strips at a random angle and is shortened by the local search and a few
kicks. Edge assembly crossover (``assembly.py``) then brings the best parts of all together. Where time is
short fewer tours are made; where there is plenty, one population follows another, with the shortest tours of
those before among its own.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from georoutenet.search.side_by_side import in_threads
from georoutenet.search.state import MANY, best_tour, go_to, make_search, next_slice

SIZES = 16, 45, 120, 250
"""How many tours a population has each time that they are crossed."""
KICKS = 0.1
"""Of each tour, for each city."""
CHILDREN = 30
"""Of a pair of tours, at most."""
IDLE = 20
"""Generations without a shorter best tour after which crossing ends."""
LEAST = 16
"""Tours that are worth crossing: fewer are no better than walks that take as long."""

Tours = NDArray[np.int32]


class Population:
    """Makes populations for a search; ``run`` is the search, ``state`` its kernels' arrays."""

    def __init__(self, run: Any, state: Any, rule: Any) -> None:
        self.run, self.state, self.rule = run, state, rule
        self.given = state.tour.copy()
        self.kicks = max(1, int(KICKS * len(state.tour)))
        self.seed: list[int] = []
        self.tours: list[Tours] = []
        self.making, self.crossing = 0.0, 0.0
        """Seconds a tour, as last measured; 0 where nothing was."""

    def breed(
        self,
        seed: list[int],
        champions: list[Tours],
        better: Callable[[Tours], None],
        sizes: Sequence[int] = SIZES,
    ) -> Tours | None:
        """Make tours and cross them, until the search ends or all are made; the shortest one.

        ``champions`` are crossed with them; ``better`` hears of each tour that is shorter than those before.
        None where there is no time for enough of them.
        """
        self.seed, self.tours, found = seed, [], None
        if not self.making and self._affordable(LEAST) == LEAST:
            self._make(1)
        for size in sizes:
            count = self._affordable(size)
            if count < LEAST or count <= len(self.tours):
                break
            self._make(count)
            if len(self.tours) < LEAST:
                break
            began, tours = self._left(), self.tours + champions
            found = cross(
                self.state, self.rule, tours, [*seed, len(tours)], self._goes_on, self.run.workers, better
            )
            self.crossing = (began - self._left()) / len(self.tours)
        return found

    def _affordable(self, size: int) -> int:
        """How many tours there is time to make and cross, up to ``size``."""
        made = len(self.tours)
        size = min(size, made + self._kicks_left() // self.kicks)
        if not self.making:
            return size
        crossing = self.crossing or self.making
        return max(made, int(min(size, (self._left() + made * self.making) / (self.making + crossing))))

    def _make(self, count: int) -> None:
        """Make tours until there are so many, each with its own random numbers, by all workers."""
        began, workers, first, made = self._left(), self.run.workers, len(self.tours), dict[int, Tours]()
        kicks, kicked, told = self._kicks_left(), [0] * workers, 0

        def tell() -> None:
            nonlocal told
            kicks_made = sum(kicked)
            self.run.record(0.0, kicks_made - told, -1)
            told = kicks_made

        def work(worker: int, halted: Callable[[], bool]) -> None:
            for k in range(first + worker, count, workers):
                state = self._random_search(k)
                goal = min(self.kicks, kicks - (k - first) * self.kicks)
                if not shorten(state, self.rule, goal, halted, kicked, worker):
                    break
                made[k] = best_tour(state)
                if worker == 0:  # in the search's own thread
                    tell()

        try:
            in_threads([functools.partial(work, worker) for worker in range(workers)], self._goes_on)
        finally:
            tell()
        self.tours += [made[k] for k in sorted(made)]
        self.making = max(began - self._left(), 1e-9) / max(1, len(made))

    def _kicks_left(self) -> int:
        left = self.run.budget().iterations
        return int(min(left, MANY)) if left > 0 else 0

    def _left(self) -> float:
        """Seconds left by the clock that ends the search; without one nobody asks what takes how long."""
        left = self.run.budget().seconds
        return float(min(left, 1e9)) if left > 0 else 0.0

    def _goes_on(self) -> bool:
        return self._left() > 0

    def _random_search(self, k: int) -> Any:
        """A search that begins with a tour of its own, but for edges that are fixed.

        It goes up and down strips of random width at a random angle, which takes a third of the time of a
        random order to shorten (10,000 cities); in a random order where distances are given as a matrix.
        """
        from georoutenet.search import kernels

        state, random = self.state, np.random.default_rng([*self.seed, k])
        x, y, n = state.x, state.y, len(state.tour)
        if x.ndim == 2:
            order = random.permutation(n)
        else:
            angle, width = random.uniform(0, 2 * np.pi), random.uniform(1, 4)
            across, along = x * np.cos(angle) + y * np.sin(angle), y * np.cos(angle) - x * np.sin(angle)
            strip = np.floor((across - across.min()) / max(np.ptp(across), 1e-300) * np.sqrt(n / width))
            order = np.lexsort((np.where(strip % 2, along, -along), strip))
        tour = order.astype(np.int32)
        if isinstance(self.rule, tuple):
            tour = in_order_but_for_fixed(self.rule, state, self.given, order)
        other = make_search(self.rule, x, y, state.neighbors, tour, [*self.seed, k])
        for what in kernels.SLACK, kernels.MARGIN:
            other.excess[what] = state.excess[what]
        other.count[kernels.FAR] = state.count[kernels.FAR]
        return other


def in_order_but_for_fixed(rule: Any, state: Any, given: Tours, order: NDArray[np.int64]) -> Tours:
    """The cities in this order, but that each follows the one that it is bound to in the given tour."""
    from georoutenet.search import kernels

    n, rank = len(order), np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(n)
    kernels.measure_edges(rule, state.x, state.y, given, edges := np.empty((3, n)), 1)
    loose = edges[1] >= 0
    begin = 1 + int(np.argmax(loose))
    tour, follows = np.roll(given, -begin), ~np.roll(loose, 1 - begin)
    first = np.maximum.accumulate(np.where(follows, 0, np.arange(n)))  # of the cities bound to one another
    return np.asarray(tour[np.argsort(rank[tour][first], kind="stable")])


def cross(
    state: Any,
    rule: Any,
    tours: list[Tours],
    seed: list[int],
    goes_on: Callable[[], bool],
    workers: int = 1,
    better: Callable[[Tours], None] = lambda tour: None,
) -> Tours:
    """Cross copies of tours until nothing is gained; the shortest. Of ``state`` the cities are used.

    What comes out is the same for any number of ``workers``.
    """
    from georoutenet.search import assembly

    n, count = len(state.tour), len(tours)
    links, tally = np.empty((count + workers, n, 2), dtype=np.int32), assembly.make_tally(n)
    lengths = np.empty(count)
    for k, tour in enumerate(tours):
        lengths[k] = length_of(state, rule, tour)
        assembly.link(tour, links, k, tally)
        if not goes_on():
            return tours[int(lengths[: k + 1].argmin())]
    gains, shares = [0.0] * workers, np.linspace(0, count, workers + 1).astype(int)
    rooms = [assembly.make_room(n, int(pairs)) for pairs in np.diff(shares)]
    random = np.random.default_rng(seed)

    def work(worker: int, halted: Callable[[], bool]) -> None:
        mine = slice(shares[worker], shares[worker + 1])
        order_of_mine, bits_of_mine = np.append(order[mine], count + worker).astype(np.int32), bits[mine]
        first, last, pairs = 0, len(bits_of_mine), 1
        while first < last and not halted():
            began, until = time.perf_counter(), min(first + pairs, last)
            gains[worker] += assembly.cross_pairs(
                rule, state.x, state.y, state.neighbors, links, lengths, tally, order_of_mine, first, until,
                CHILDREN, rooms[worker], bits_of_mine,
            )  # fmt: skip
            pairs, first = next_slice(until - first, time.perf_counter() - began), until

    jobs = [functools.partial(work, worker) for worker in range(workers)]
    best, idle, found = lengths.min(), 0, tours[int(lengths.argmin())].copy()
    better(found)
    while idle < IDLE and goes_on():
        order = random.permutation(count)
        bits = random.integers(1, 2**63, (count, 1), dtype=np.uint64)
        for worker in range(workers):  # the tour after its last one, as it is before others change it
            links[count + worker] = links[order[shares[worker + 1] % count]]
        gains[:] = [0.0] * workers
        in_threads(jobs, goes_on)
        for room in rooms:
            assembly.count_told(tally, room)
        idle += 1
        if lengths.min() < best:
            best, idle = lengths.min(), 0
            assembly.unlink(links, int(lengths.argmin()), found)
            better(found)
        if not any(gains):
            break
    return found


def shorten(
    state: Any, rule: Any, kicks: int, halted: Callable[[], bool], kicked: list[int], worker: int
) -> bool:
    """To a local optimum and through so many kicks; whether that came to its end."""
    from georoutenet.search import kernels

    looks = count = 100
    while state.count[kernels.HELD] > 0:
        if halted():
            return False
        began = time.perf_counter()
        kernels.run(state, rule, 0, looks)
        looks = next_slice(looks, time.perf_counter() - began)
    while kicks > 0:
        if halted():
            return False
        began, count = time.perf_counter(), min(count, kicks)
        kernels.run(state, rule, count, MANY)
        kicks, kicked[worker] = kicks - count, kicked[worker] + count
        count = next_slice(count, time.perf_counter() - began)
    return True


def take(state: Any, rule: Any, found: Tours) -> float:
    """Make a tour, or the best one with its better parts, the best; by how much that is shorter, or 0."""
    from georoutenet.search import kernels

    best = best_tour(state).copy()
    before = length_of(state, rule, best)
    gain = float(kernels.merge(rule, state.x, state.y, best, found.copy(), state.edges, state.room))
    saved = before - length_of(state, rule, found)
    if saved > gain:
        best, gain = found, saved
    if gain <= kernels.TOLERANCE:
        return 0.0
    go_to(state, best)
    return gain


def length_of(state: Any, rule: Any, tour: Tours) -> float:
    """In the kernels' lengths, without fixed edges."""
    from georoutenet.search import kernels

    kernels.measure_edges(rule, state.x, state.y, tour, state.edges, 1)
    return float(np.maximum(state.edges[1], 0.0).sum())
