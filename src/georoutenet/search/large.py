# mypy: disallow-untyped-defs=False
"""Large tours by one thread or by several: sweeps over windows, each thread in stretches of its own.

Where time allows, a population of tours of each window is crossed with the window's present one
(``population.py``); else each window is walked.

What is found in one window changes how the runs of another are joined outside, so two windows of one tour
cannot be searched at a time. Stretches of the tour can: a stretch keeps its ends, whatever happens within.
So can two stretches together, joined by fixed edges, beside a third one that lies between them: no matter how
it is changed, it leads from one to the other. Each sweep begins at another city; two of four give most
threads two stretches that lie apart in the tour, so that all places where it passes itself are searched.
"""

from __future__ import annotations

import functools
import itertools
import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from georoutenet.jit import njit
from georoutenet.search import distances, windows
from georoutenet.search.distances import FREE
from georoutenet.search.population import KICKS as BRED
from georoutenet.search.population import Population, take
from georoutenet.search.side_by_side import in_threads
from georoutenet.search.state import MANY, best_tour, make_search, next_slice
from georoutenet.search.windows import Cities, Window
from georoutenet.stop import Budget

DESCEND, WALK, CROSS = range(3)
"""What a sweep does in each window: to a local optimum, kicks, or a population of tours that are crossed."""
KICKS = 1
"""Kicks per city where windows are walked."""
TOURS, CROSSED = 16, 2_000
"""How many tours of a window are made and crossed, and about how many cities it has then. Two instances of
20,000 cities, 12 s of CPU time, candidates of least alpha, above the expected optimum: 0.36 % with these,
0.38 with 20 tours and 1,500 cities, 0.40 with 16 and 5,000, 0.42 with 12 and 5,000, 0.37 with 1,000 cities;
0.55 where windows are walked. After 30 s 0.34, also where later sweeps make 24, 32 and 45 tours."""
SECONDS, SECONDS_ON_EARTH = 1e-5, {distances.GREAT_CIRCLE: 1.5e-5, distances.GEO: 4.5e-5}
"""What making and crossing a tour takes for each city: fixed estimates, so a busy machine does not change the
result. Where a sweep that crosses has no time for all cities, windows are walked."""
SLACK = 0.2
"""By how many mean edges a kick and its repair may make a window's tour longer, on average; what is shorter
in the end is taken part by part. 20,000 cities, two instances, above the expected optimum after 20 kicks per
city: 0.35 % with 0, 0.31 with 0.1, 0.28 with 0.2, 0.31 with 0.4; after 4 kicks 0.46 with 0, 0.48 with 0.1."""
SHORTEST = 16
"""Cities of a stretch, at least: fewer threads take part where there are fewer."""

Look = Callable[[], float]
"""How many seconds are left, asked between any two slices of work."""


def search_large(run: Any, whole: Whole, rule: Any, places: int, seed: int) -> None:
    """Sweep after sweep until ``run``, that of ``local_search``, has no time or kicks left.

    Every other one crosses tours where there is time; walks in between mend what lies at the windows' borders
    (three instances of 20,000 cities after 8 s: 0.34 % instead of 0.37 with crossing alone while it fits).
    The first is without kicks and ends with all cities at a time, or, where there are several threads, with
    those of each stretch and then, in this thread, with the cities where stretches meet: that is where greedy
    edge leaves its long edges.
    """
    workers = max(1, min(run.workers, places // (2 * SHORTEST)))
    if not isinstance(rule, tuple):
        rule = rule, len(whole.tour)
    for sweep in itertools.count():
        left, own = run.budget(), [seed, sweep]
        if left.seconds <= 0 or (sweep and left.iterations <= 0):
            break
        task = WALK if sweep else DESCEND
        if sweep % 2 and can_cross(left, rule[0] & (FREE - 1), places, workers):
            task = CROSS
        sweepers = [Sweeper(left.iterations, run.mean_edge()) for _ in range(workers)]
        tally = Tally(run, sweepers)
        try:
            if workers == 1:
                sweepers[0].sweep(whole, rule, places, task, own, tally.look)
            else:
                if left.iterations < math.inf:
                    for k, sweeper in enumerate(sweepers):
                        sweeper.kicks = (int(left.iterations) + k) // workers
                random = np.random.default_rng(own)
                stretches = shares(whole.tour, places, workers, pairs=sweep // 2 % 2 == 1, random=random)
                play_sweep(whole, rule, stretches, sweepers, task, own, tally.look)
                if sweep == 0:
                    sweepers[0].descend(whole, rule, meetings(whole, stretches), seed, tally.look)
        finally:
            tally.close()


def can_cross(left: Budget, code: int, places: int, workers: int) -> bool:
    """Whether time and kicks suffice for a sweep over so many cities that crosses tours in all windows."""
    seconds = TOURS * SECONDS_ON_EARTH.get(code, SECONDS) * places / workers
    return left.seconds >= seconds and left.iterations >= TOURS * BRED * places


class Tally:
    """What the threads of a sweep have done, entered into the record as it grows."""

    def __init__(self, run: Any, sweepers: list[Sweeper]) -> None:
        self.run, self.sweepers = run, sweepers
        self.gain, self.done = 0.0, 0
        self.before = run.since_improvement

    def look(self) -> float:
        """The seconds left; a single thread also learns how many kicks are."""
        self._enter()
        left = self.run.budget()
        if len(self.sweepers) == 1:
            self.sweepers[0].kicks = left.iterations
        return float(left.seconds)

    def _enter(self) -> None:
        gain, done = sum(each.gain for each in self.sweepers), sum(each.done for each in self.sweepers)
        if gain != self.gain or done != self.done:
            new, more = gain - self.gain, done - self.done
            self.gain, self.done = gain, done
            last = more - 1 - min(self.sweepers[0].idle, more - 1) if new > 0 and more else -1
            self.run.record(new / self.run.scale, more, last)

    def close(self) -> None:
        """At the end of a sweep by several threads the record does not depend on which was faster."""
        self._enter()
        if len(self.sweepers) > 1:
            self.run.since_improvement = 0 if self.gain > 0 else self.before + self.done


class Whole(NamedTuple):
    """A tour to be searched window by window; the cities from some number on are in no window."""

    x: NDArray[np.float64]
    y: NDArray[np.float64]
    neighbors: NDArray[np.int32]
    tour: Cities
    position: Cities


def in_tour_order(
    x: NDArray[np.float64],
    y: NDArray[np.float64],
    neighbors: NDArray[np.int32],
    tour: NDArray[np.integer],
    places: int,
) -> tuple[Whole, Cities]:
    """The cities numbered along the tour, but for those from ``places`` on, and their former numbers.

    Cities that are near one another are then near in memory too.
    """
    order = np.append(tour[tour < places], np.arange(places, len(tour))).astype(np.int32)
    place = np.empty_like(order)
    place[order] = np.arange(len(order), dtype=np.int32)
    path, position = place[tour], np.empty_like(order)
    position[path] = np.arange(len(order), dtype=np.int32)
    return Whole(x[order], y[order], place[neighbors[order]], path, position), order


Share = tuple[Whole, Any, list[Cities], int, list[int]]
"""What a thread is given; see ``Sweeper.sweep_stretches``."""


class Sweeper:
    """What one thread does in a sweep; for its populations it is the ``run``: workers, budget and record."""

    workers = 1

    def __init__(self, kicks: float, edge: float) -> None:
        self.edge = edge
        """The mean edge, in the kernels' lengths."""
        self.kicks = kicks
        """How many it may still make."""
        self.gain, self.done, self.idle = 0.0, 0, 0
        self.look: Look = lambda: math.inf
        self.found: list[tuple[Window, Cities]] = []

    def budget(self) -> Budget:
        return Budget(self.look(), self.kicks)

    def record(self, gain: float, kicks: int, last: int) -> None:
        """Account for a slice of kicks; ``last`` is the last of them that found a shorter tour, or -1."""
        self.gain += gain
        self.done += kicks
        self.kicks -= kicks
        self.idle = kicks - 1 - last if last >= 0 else self.idle + kicks

    def sweep(self, whole: Whole, rule: Any, places: int, task: int, seed: list[int], look: Look) -> None:
        """Do ``task`` in every window of one tiling; ``DESCEND`` then searches from all cities at a time."""
        self.look = look
        size = CROSSED if task == CROSS else windows.window_size(places)
        random = np.random.default_rng(seed)
        number, spare = np.full(len(whole.tour), -1, dtype=np.int32), np.empty_like(whole.tour)
        x, y = whole.x[:places], whole.y[:places]
        for k, cities in enumerate(windows.tiles(x, y, size, random)):
            if look() <= 0 or (task != DESCEND and self.kicks <= 0):
                return
            window = windows.cut_out(whole, cities, number)
            own = window.cities
            if len(own) < windows.SMALLEST:
                continue
            fixed = (rule[0] & (FREE - 1), window.bound)
            part = make_search(fixed, whole.x[own], whole.y[own], window.neighbors, window.tour, [*seed, k])
            try:
                if task == CROSS:
                    if not self._cross(part, fixed, [*seed, k]):
                        return
                else:
                    self._search(part, fixed, KICKS * len(own) if task == WALK else 0, look)
            finally:
                windows.put_back(whole, window, best_tour(part), spare)
        if task == DESCEND and look() > 0:
            self.descend(whole, rule, whole.tour.copy(), seed[0], look)

    def descend(self, whole: Whole, rule: Any, cities: Cities, seed: int, look: Look) -> None:
        """The whole tour to a local optimum that begins at these cities."""
        from georoutenet.search import kernels

        part = make_search(rule, whole.x, whole.y, whole.neighbors, whole.tour, seed)
        part.queued[:] = False
        part.queued[cities] = True
        part.queue[: len(cities)] = cities
        part.count[kernels.HELD] = len(cities)
        self._search(part._replace(tour=whole.tour, position=whole.position), rule, 0, look)

    def _search(self, part: Any, rule: Any, most: int, look: Look) -> None:
        """To a local optimum, then ``most`` kicks."""
        from georoutenet.search import kernels
        from georoutenet.search.local_search import MARGIN

        part.excess[kernels.MARGIN] = MARGIN * self.edge
        looks = 100
        while part.count[kernels.HELD] > 0 and (left := look()) > 0:
            began = time.perf_counter()
            self.gain += kernels.run(part, rule, 0, looks)[0]
            looks = next_slice(looks, time.perf_counter() - began, left)
        if not most:
            return
        part.excess[kernels.SLACK] = SLACK * self.edge
        kicks = 10
        while most > 0 and (left := look()) > 0 and self.kicks > 0:
            began = time.perf_counter()
            count = int(min(kicks, most, self.kicks))
            gain, last, count = kernels.run(part, rule, count, MANY)
            self.record(gain, count, last)
            most -= count
            kicks = next_slice(count, time.perf_counter() - began, left)
        self.gain += kernels.run(part, rule, 0, 0)[0]  # parts of the walk

    def _cross(self, part: Any, rule: Any, seed: list[int]) -> bool:
        """A population of the window's tours, crossed with the present one; False where there is no time."""
        from georoutenet.search import kernels, local_search

        part.excess[kernels.SLACK] = local_search.SLACK * self.edge
        part.excess[kernels.MARGIN] = local_search.MARGIN * self.edge
        population = Population(self, part, rule)
        found = population.breed(seed, [part.tour.copy()], lambda tour: None, (TOURS,))
        if found is not None and (gain := take(part, rule, found)) > 0:
            self.gain += gain
            self.idle = 0
        return found is not None

    def sweep_stretches(
        self,
        whole: Whole,
        rule: Any,
        stretches: list[Cities],
        task: int,
        seed: list[int],
        look: Look,
    ) -> None:
        """The same in some of the tour's stretches alone, as ``found``: ``whole`` stays as it is."""
        for k, cities in enumerate(stretches):
            number = np.full(len(whole.tour), -1, dtype=np.int32)
            window = windows.cut_out(whole, cities, number)
            own = window.cities
            position = np.empty_like(window.tour)
            position[window.tour] = np.arange(len(own), dtype=np.int32)
            inner = Whole(whole.x[own], whole.y[own], window.neighbors, window.tour, position)
            self.found.append((window, inner.tour))
            fixed = (rule[0] & (FREE - 1), window.bound)
            self.sweep(inner, fixed, window.bound, task, [*seed, k], look)


def shares(
    tour: Cities, places: int, workers: int, *, pairs: bool, random: np.random.Generator
) -> list[list[Cities]]:
    """For each worker stretches of the tour, about as many cities each; none has a city from ``places`` on.

    With ``pairs`` the stretches are half as long, and most workers take two of them as one, so that no two
    pairs cross: in between there are whole pairs, or none of their cities.
    """
    n, shift = len(tour), 0.0
    start = int(random.integers(n))
    if places < n:  # right behind the ends of a path, which lie side by side; other cuts are shifted instead
        start = 1 + int(np.flatnonzero((tour >= places) & (np.roll(tour, -1) < places))[0])
        shift = random.uniform(-0.25, 0.25)
    line = np.roll(tour, -start)[:places]
    count = workers * (2 if pairs else 1)
    cuts = ((np.arange(1, count) + shift) / count * places).astype(np.int64)
    parts = np.split(line, cuts)
    if not pairs:
        return [[part] for part in parts]
    chosen = [(0, workers)]
    for low, high in ((1, workers - 1), (workers + 1, 2 * workers - 1)):
        chosen += [(low + k, high - k) for k in range((high - low + 1) // 2)]
    taken = {part for pair in chosen for part in pair}
    alone = [part for k, part in enumerate(parts) if k not in taken]
    return [[np.concatenate([parts[a], parts[b]])] for a, b in chosen] + ([alone] if alone else [])


def meetings(whole: Whole, stretches: list[list[Cities]]) -> Cities:
    """The cities with neighbors in another worker's stretches, in tour order."""
    share = np.full(len(whole.tour), -1, dtype=np.int16)
    for k, own in enumerate(stretches):
        for cities in own:
            share[cities] = k
    apart = np.zeros(len(share), dtype=np.bool_)
    for column in whole.neighbors.T:
        apart |= share[column] != share
    return whole.tour[apart[whole.tour]]


def play_sweep(
    whole: Whole,
    rule: Any,
    stretches: list[list[Cities]],
    sweepers: list[Sweeper],
    task: int,
    seed: list[int],
    look: Look,
) -> None:
    """A sweep by one thread for each sweeper, the first in this one, which alone asks ``look``."""
    own: list[Share] = [(whole, rule, part, task, [*seed, k]) for k, part in enumerate(stretches)]

    def work(k: int, halted: Callable[[], bool]) -> None:
        sweepers[k].sweep_stretches(*own[k], look if k == 0 else lambda: 0.0 if halted() else math.inf)

    try:
        in_threads([functools.partial(work, k) for k in range(len(sweepers))], lambda: look() > 0)
    finally:
        join_up(whole, [found for sweeper in sweepers for found in sweeper.found])


def join_up(whole: Whole, found: list[tuple[Window, Cities]]) -> None:
    """Give the whole tour the new orders of several windows, none of which changes the ways of another."""
    n = len(whole.tour)
    links, share = np.full((n, 2), -1, dtype=np.int32), np.full(n, -1, dtype=np.int32)
    for k, (window, tour) in enumerate(found):
        share[window.cities] = k
        _link(links, window.cities, tour, window.bound)
    _follow(links, share, whole.tour, whole.position)


@njit(nogil=True, level=1)
def _add(links, a, b):
    links[a, 0 if links[a, 0] < 0 else 1] = b
    links[b, 0 if links[b, 0] < 0 else 1] = a


@njit(nogil=True, level=1)
def _link(links, ids, tour, bound):
    """The edges of a window's tour, without the fixed ones."""
    for step in range(len(tour)):
        a, b = tour[step], tour[step + 1 if step + 1 < len(tour) else 0]
        if min(a, b) < bound or (a - bound) ^ (b - bound) != 1:
            _add(links, ids[a], ids[b])


@njit(nogil=True, level=1)
def _follow(links, share, tour, position):
    """Add the tour's edges between cities of different shares and of none; then go around."""
    n = len(tour)
    for step in range(n):
        a, b = tour[step], tour[step + 1 if step + 1 < n else 0]
        if share[a] != share[b] or share[a] < 0:
            _add(links, a, b)
    before, city = -1, tour[0]
    for step in range(n):
        tour[step] = city
        position[city] = step
        after = links[city, 0] if links[city, 0] != before else links[city, 1]
        before, city = city, after


def try_out(x: NDArray[np.float64], y: NDArray[np.float64], neighbors: NDArray[np.int32]) -> None:
    """Have all of this compiled, by a sweep of two threads over eight cities."""
    tour = np.arange(len(x), dtype=np.int32)
    stretches = [[part] for part in np.split(tour, 2)]
    whole, sweepers = Whole(x, y, neighbors, tour, tour.copy()), [Sweeper(0, 0.0) for _ in stretches]
    play_sweep(whole, (0, 8), stretches, sweepers, DESCEND, [0], lambda: 1.0)
