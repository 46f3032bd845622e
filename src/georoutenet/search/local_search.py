"""Tour in, shorter tour out: chained 3-opt steps and kicks, walks, and tours that are crossed.

The local search looks at one city at a time (a queue plays the part of don't-look bits) and makes sequential
3-opt moves, which include 2-opt and Or-opt, chained in the manner of Lin and Kernighan (``steps.py``). At the
local optimum a double bridge of three segments in a row disturbs the tour, and only the cities it touched
are looked at again (``kernels.py``). Changes that make the tour a little longer are kept now and then.

Kicks alone end in a trap that no single one leads out of. Two ways lead out. A *walk* of as many kicks as
there are cities begins with a kick for every fiftieth of them all over the best tour; at its end those
parts of its tour that are shorter are taken into the best tour, each for itself (``crossover.py``), and the
next one begins. That is best where there are few cities or little time. Otherwise a *population* of tours,
each shortened on its own, is crossed until nothing is gained (``population.py``), and then the next one.

Tours of more than ``WHOLE`` cities are searched window by window, by one thread or several (``large.py``),
with a small population in each window, or a walk where time is short.
"""

from __future__ import annotations

import functools
import itertools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from georoutenet.clock import compiled_seconds, watch_compiler
from georoutenet.errors import InputError
from georoutenet.jit import interrupts
from georoutenet.problem.globe import EARTH_RADIUS_KM, stereographic
from georoutenet.problem.instance import DistanceRule, Instance
from georoutenet.problem.tour import Tour, check_tour, tour_length
from georoutenet.search.ascent import WIDTH, prepare
from georoutenet.search.neighbors import (
    candidate_neighbors,
    delaunay_edges,
    nearest_neighbors,
    power_of_two_scale,
)
from georoutenet.search.path import Ends
from georoutenet.search.population import SIZES, Population, length_of, take
from georoutenet.search.state import MANY, best_tour, make_search, next_slice
from georoutenet.stop import Budget, MaxTime, Progress, Stop

SLACK = 0.1
"""By how many mean edges a kick and its repair may make the tour longer, on average; see ``kernels.run``."""
MARGIN = 1.0
"""By how many mean edges more before the repair looks deeper, which costs most of its time."""
BRIDGES, CITIES_PER_BRIDGE = 20, 50
"""Kicks in a row with which a walk leaves the best tour, at least, and one for so many cities. Measured at
1,000 cities, uniform and in clusters, 8 runs of 1 s each: mean gap 0.093 and 0.048 % with 10, 0.024 and 0.027
with 20, 0.058 and 0.038 with 30. After 300 kicks per city, above the best of these runs: three instances of
3,000 cities 0.054 with 20, 0.000 with 60, 0.026 with 90, 0.055 with 120; one of 10,000 0.051 with 20, 0.000
with 100, 0.023 with 200."""
SHORTEST_WALK = 300
"""Kicks of a walk, at least; as many as there are cities where those are more."""
BREED = 300
"""Cities from which a search crosses tours from the beginning; smaller ones are walked on until stuck. Mean
gap of walks and of crossed tours, 24 uniform instances each, in CPU time: 200 cities, 0.06 s, 0.0022 and
0.0010 %; 500, 0.12 s, 0.060 and 0.056, 0.25 s, both 0.014; 1,000, 0.15 s, 0.20 and 0.19, 0.5 s, 0.057 and
0.015, 1 s, 0.045 and 0.002; 5,000 (two), 10 s, 0.112 and 0.009."""
CHAMPIONS = 15
"""Shortest tours of earlier populations, at most, that the next one has among its own."""
STUCK = 40
"""Kicks for each city (of at least ``SHORTEST_WALK``) that have found nothing when walks are stuck."""
FAR = 3
"""Kicks in 16 of long edges far apart, where cities lie in clusters: no other changes how these are joined.
Six boards of 2,500 to 4,000 holes in rows far apart, 4 s: about 2 % above the best known without, 0.55 with
1, 0.27 with 3. Uniform cities get none: 0.08 instead of 0.003 % at 1,000 cities, 1 s."""
PROVEN = 1 + 1e-9
"""A tour that exceeds the lower bound by less is the shortest: the bound has some rounding taken off."""
TABLE = 3_000
"""Cities up to which distances on the globe are tabulated."""
WHOLE = 10_000
"""Tours up to this size are searched as one, larger ones window by window."""


RESERVE = 2.0
"""Seconds kept for the end of a search by windows, per second that measuring the given tour takes."""


@dataclass(frozen=True)
class Improved:
    """What a search found."""

    tour: Tour
    length: Any
    """int under a TSPLIB rule, else float; exactly ``tour_length(instance, tour, closed=closed)``."""
    iterations: int
    """Perturbations tried after the first local optimum."""
    seconds: float
    history: list[Progress] = field(repr=False)
    """The given tour, then the state each time the clock was read after an improvement."""
    interrupted: bool = False
    """Whether Ctrl-C ended the search; the tour is the best so far."""
    lower_bound: Any = None
    """No closed tour is shorter; None for paths, where lists were given, and for many cities:
    above 5,000 where time is short, above ``WHOLE`` in any case."""


def improve(
    instance: Instance,
    tour: ArrayLike,
    *,
    neighbors: ArrayLike | None = None,
    stop: Stop = MaxTime(1.0),  # noqa: B008 (frozen)
    seed: int = 0,
    progress: Callable[[Progress], None] | None = None,
    start: int | None = None,
    end: int | None = None,
    closed: bool = True,
    agreed: int = 0,
    workers: int = 1,
    tight_bound: bool = False,
) -> Improved:
    """Shorten ``tour`` under the instance's own distance rule until ``stop``; never returns a longer one.

    ``closed=False`` shortens a path, whose way back to the first city does not count. The tour begins at
    ``start`` and ends at ``end`` where these are given; a tour that does not is put right first.

    ``neighbors (n, k)`` are candidate cities per city, nearest first (those of least alpha when not given,
    see ``ascent.py``; above ``WHOLE`` cities ``candidate_neighbors``). The result is the same for the same
    seed where iterations alone, not time, limit the search. The clock starts with the call, but not before
    the search is compiled: seconds, once per machine. A tour that the lower bound proves to be the shortest
    ends it. So do ``agreed`` walks (if not 0) that, away from the best tour, came back to its length, and a
    population that ends at the length of the best tour before it.

    ``workers`` threads search side by side (``side_by_side.py``, ``large.py``); the result depends on their
    number. ``tight_bound`` spends up to a tenth of the time on a better lower bound, to 2,000 cities; the
    tours are the same.
    """
    began = time.perf_counter()
    ends = Ends(instance.n, start=start, end=end, closed=closed)
    given = ends.arrange(instance, check_tour(tour, instance.n))
    if not hasattr(stop, "budget"):
        raise InputError(f"stop must be a stopping criterion such as MaxTime(1.0), got {stop!r}")
    run = _Run(instance, given, ends, stop, progress)
    interrupted = False
    if instance.n >= 4:
        before = time.perf_counter()
        compile_kernels(path=ends.is_path, **kind_of(instance))
        run.begin = began + time.perf_counter() - before
        run.agreed, run.workers = agreed, workers
        run.tight_bound = tight_bound and not ends.is_path
        try:
            with interrupts():
                run.search(None if neighbors is None else _checked_neighbors(neighbors, instance), seed)
        except KeyboardInterrupt:
            interrupted = True
    try:
        return run.result(interrupted)
    except KeyboardInterrupt:
        return run.result(True)


class _Run:
    """One search: the kernels' arrays, the clock and the record."""

    def __init__(
        self,
        instance: Instance,
        given: Tour,
        ends: Ends,
        stop: Stop,
        report: Callable[[Progress], None] | None,
    ) -> None:
        self.instance, self.given, self.ends, self.stop, self.report = instance, given, ends, stop, report
        self.begin = time.perf_counter()
        self.initial = tour_length(instance, given, closed=ends.closed)
        # Where there are many cities, putting the tour together and measuring it at the end takes time too.
        self.reserve = RESERVE * (time.perf_counter() - self.begin) if instance.n > WHOLE else 0.0
        self.saved = 0.0
        self.iterations = 0
        self.since_improvement = 0
        self.history = [Progress(0.0, 0, 0, float(self.initial))]
        self.scale = 1.0
        self.state: Any = None
        self.whole: Any = None  # the tour where it is searched window by window, and
        self.order = np.empty(0, dtype=np.int32)  # what its cities are called outside
        self.lower_bound: Any = None
        self.agreed, self.workers, self.tight_bound = 0, 1, False
        self.ended = False  # whether walks agree

    def search(self, neighbors: NDArray[np.int32] | None, seed: int) -> None:
        from georoutenet.search import kernels

        code, x, y, self.scale = kernel_coordinates(self.instance)
        lists, far = neighbors, 0
        if lists is None:
            lists = candidate_neighbors(self.instance)
            if self.instance.n <= WHOLE:
                goes_on = lambda: self.budget().seconds > 0  # noqa: E731
                more, left = delaunay_edges(self.instance), self.budget().seconds
                ascent = prepare(code, x, y, lists, self.given, more=more, seconds=left, goes_on=goes_on)
                far = FAR if len(ascent.groups) else 0
                if not self.ends.is_path:
                    self.lower_bound = ascent.bound(self.instance, self.scale)
                if ascent.complete:
                    lists = ascent.neighbors(WIDTH)
                if self.tight_bound:
                    ascent.tighten(self.budget().seconds, goes_on)
                    self.lower_bound = ascent.bound(self.instance, self.scale)
        flag, special, x, y, lists, tour = self.ends.as_cycle(x, y, lists, self.given)
        rule: Any = (code + flag, len(x) - special if special == 2 else len(x)) if special else code
        places = len(x) - special  # the cities at the ends of a path are in no window
        if self.instance.n > WHOLE:
            from georoutenet.search.large import in_tour_order, search_large

            self.whole, self.order = in_tour_order(x, y, lists, tour, places)
            self._tell()
            return search_large(self, self.whole, rule, places, seed)
        self.state = state = make_search(rule, x, y, lists, tour, seed)
        self._tell()
        self.descend(state, rule)
        state.count[kernels.ENOUGH] = self.agreed
        self._prepare_walks(state, far)
        if self.instance.n < BREED:
            self._walk(state, rule, [seed])
        population, champions = Population(self, state, rule), list[NDArray[np.int32]]()
        for turn in itertools.count(1):
            if self.ended or not self._may_kick():
                break
            compiled = compiled_seconds()
            compile_crossing(path=self.ends.is_path, matrix=x.ndim == 2)
            self.begin += compiled_seconds() - compiled
            before = length_of(state, rule, best_tour(state))
            better = functools.partial(self._join, state, rule)
            if self.agreed:  # for its own opinion; small ones first
                found = population.breed([seed, turn], [], better, SIZES[: (turn + 1) // 2])
            else:
                found = population.breed([seed, turn], champions[-CHAMPIONS:], better)
            if found is None:
                self._walk(state, rule, [seed, turn])
                continue
            champions.append(found)
            if self.agreed and abs(length_of(state, rule, found) - before) <= kernels.TOLERANCE * len(x):
                self.ended = True

    def mean_edge(self) -> float:
        """In the kernels' lengths."""
        return self.scale * self._progress().length / self.instance.n

    def descend(self, state: Any, rule: Any) -> None:
        """To a local optimum, in slices short enough for the clock."""
        from georoutenet.search import kernels

        looks = 100
        while state.count[kernels.HELD] > 0 and (left := self.budget()).seconds > 0:
            began = time.perf_counter()
            self.record(kernels.run(state, rule, 0, looks)[0] / self.scale, 0, -1)
            looks = next_slice(looks, time.perf_counter() - began, left.seconds)

    def _prepare_walks(self, state: Any, far: int) -> None:
        """How much longer a kick may make the tour, how long walks are, and how they begin."""
        from georoutenet.search import kernels

        n, edge = len(state.tour), self.mean_edge()
        state.excess[kernels.SLACK], state.excess[kernels.MARGIN] = SLACK * edge, MARGIN * edge
        state.count[kernels.BRIDGES] = max(BRIDGES, n // CITIES_PER_BRIDGE)
        state.count[kernels.PATIENCE] = max(SHORTEST_WALK, n)
        state.count[kernels.FAR] = far

    def _walk(self, state: Any, rule: Any, seed: list[int]) -> None:
        """Walk after walk until nothing was found for long or the search ends."""
        patience = STUCK * max(SHORTEST_WALK, len(state.tour))
        if self.workers > 1:
            self._perturb_side_by_side(state, rule, patience, seed)
        else:
            self._perturb(state, rule, patience)

    def _perturb(self, state: Any, rule: Any, patience: int) -> None:
        from georoutenet.search import kernels

        kicks, idle = 10, 0
        while idle < patience and (left := self.budget()).seconds > 0 and left.iterations > 0:
            began = time.perf_counter()
            count = int(min(kicks, left.iterations, patience - idle))
            gain, last, count = kernels.run(state, rule, count, MANY)
            idle = count - 1 - last if last >= 0 else idle + count
            self.record(gain / self.scale, count, last)
            if 0 < state.count[kernels.ENOUGH] <= state.count[kernels.AGREED]:
                self.ended = True
                break
            kicks = next_slice(count, time.perf_counter() - began, left.seconds)
        self.record(kernels.run(state, rule, 0, 0)[0] / self.scale, 0, -1)  # parts of an unfinished walk

    def _perturb_side_by_side(self, state: Any, rule: Any, patience: int, seed: list[int]) -> None:
        from georoutenet.search import kernels
        from georoutenet.search.side_by_side import ROUND, Walker, meet, play_round

        walkers, idle = [Walker(state)], 0
        for k in range(1, self.workers):
            own = make_search(rule, state.x, state.y, state.neighbors, state.tour, [seed[0], k, *seed[1:]])
            own.count[:], own.excess[:] = state.count, state.excess
            own.queued[:] = False
            walkers.append(Walker(own))
        while idle < patience and self._may_kick():
            whole = int(min(self.budget().iterations, ROUND * len(walkers)))
            for k, walker in enumerate(walkers):
                walker.kicks = whole // len(walkers) + (k < whole % len(walkers))
            gain, done = play_round(walkers, rule, lambda: self.budget().seconds > 0)
            idle = 0 if gain > 0 else idle + done
            self.record(gain / self.scale, done, done - 1 if gain > 0 else -1)
            if state.count[kernels.ENOUGH] > 0:
                agreed = sum(int(walker.state.count[kernels.AGREED]) for walker in walkers)
                if agreed >= state.count[kernels.ENOUGH]:
                    self.ended = True
                    break
        for walker in walkers:
            walker.gain = kernels.run(walker.state, rule, 0, 0)[0]
        self.record(meet(walkers, rule) / self.scale, 0, -1)

    def _join(self, state: Any, rule: Any, found: NDArray[np.int32]) -> None:
        """Take a tour, or its better parts, as the best one."""
        if (gain := take(state, rule, found)) > 0:
            self.record(gain / self.scale, 0, -1)

    def _may_kick(self) -> bool:
        left = self.budget()
        return left.seconds > 0 and left.iterations > 0

    def budget(self) -> Budget:
        progress = self._progress()
        if self.lower_bound is not None and progress.length <= self.lower_bound * PROVEN:
            return Budget(seconds=0.0)  # proven to be the shortest
        left = self.stop.budget(progress)
        return Budget(left.seconds - self.reserve, left.iterations)

    def _progress(self) -> Progress:
        return Progress(
            time.perf_counter() - self.begin,
            self.iterations,
            self.since_improvement,
            float(self.initial) - self.saved,
            self.lower_bound,
        )

    def record(self, gain: float, iterations: int, last: int) -> None:
        """Account for a slice of work; ``last`` is its last improving iteration or -1."""
        self.saved += gain
        self.iterations += iterations
        self.since_improvement = iterations - 1 - last if last >= 0 else self.since_improvement + iterations
        if iterations == 0 and gain > 0:
            self.since_improvement = 0
        if last >= 0 or (iterations == 0 and gain > 0):
            self.history.append(self._progress())
        self._tell()

    def _tell(self) -> None:
        if self.report is not None:
            self.report(replace(self._progress(), current=lambda: self._best()[0].copy()))

    def _best(self) -> tuple[Tour, Any]:
        """A copy of the best tour so far, and its length."""
        if self.state is not None or self.whole is not None:
            best = best_tour(self.state) if self.whole is None else self.order[self.whole.tour]
            found = self.ends.from_cycle(best.astype(np.int64))
            length = tour_length(self.instance, found, closed=self.ends.closed)
            if length < self.initial:
                return found, length
        return self.given, self.initial

    def result(self, interrupted: bool) -> Improved:
        tour, length = self._best()
        seconds = time.perf_counter() - self.begin
        return Improved(tour, length, self.iterations, seconds, self.history, interrupted, self.lower_bound)


def uses_table(instance: Instance) -> bool:
    """Whether the kernels look distances up: given ones, and those on the globe, slow to compute."""
    return instance.matrix is not None or (
        instance.rule in (DistanceRule.GEO, DistanceRule.GREAT_CIRCLE) and instance.n <= min(TABLE, WHOLE)
    )


def kernel_coordinates(instance: Instance) -> tuple[int, NDArray[np.float64], NDArray[np.float64], float]:
    """The kernels' code for the rule, their coordinates, and by how much their lengths are scaled."""
    from georoutenet.search import distances

    if uses_table(instance):  # as ``x``, and nothing as ``y``
        matrix = instance.distance_matrix().astype(np.float64) if instance.matrix is None else instance.matrix
        scale = 1.0 if instance.is_integer else power_of_two_scale(matrix)
        return distances.EXPLICIT, matrix * scale, np.empty(0), scale
    coordinates, scale = instance.coordinates, 1.0
    if instance.rule is DistanceRule.EUCLIDEAN:
        scale = power_of_two_scale(coordinates)
        coordinates = coordinates * scale
    elif instance.rule is DistanceRule.GEO:  # TSPLIB's degrees.minutes and its value of pi
        degrees = np.trunc(coordinates)
        coordinates = 3.141592 * (degrees + 5.0 * (coordinates - degrees) / 3.0) / 180.0
    elif instance.rule is DistanceRule.GREAT_CIRCLE:
        coordinates, scale = stereographic(coordinates), 1.0 / EARTH_RADIUS_KM
    x, y = np.ascontiguousarray(coordinates.T)
    return getattr(distances, instance.rule.value), x, y, scale


def _checked_neighbors(neighbors: ArrayLike, instance: Instance) -> NDArray[np.int32]:
    n = instance.n
    lists = np.asarray(neighbors)
    if lists.ndim != 2 or len(lists) != n or not np.issubdtype(lists.dtype, np.integer):
        raise InputError(
            f"neighbors must be whole city numbers of shape ({n}, k), got {lists.dtype} {lists.shape}"
        )
    if lists.size and (lists.min() < 0 or lists.max() >= n):
        raise InputError(f"neighbors must be cities in 0..{n - 1}, got {lists.min()}..{lists.max()}")
    if (lists == np.arange(n)[:, None]).any():
        raise InputError("a city cannot be a neighbor of itself")
    return lists.astype(np.int32)


def kind_of(instance: Instance) -> dict[str, bool]:
    """What ``compile_kernels`` has to know of an instance."""
    crossed = instance.n >= BREED
    return {"large": instance.n > WHOLE, "matrix": uses_table(instance), "crossed": crossed}


@functools.cache
def compile_kernels(
    *, path: bool = False, large: bool = False, matrix: bool = False, crossed: bool = False
) -> None:
    """Run the kernels once on a tiny instance, so that no time limit is spent on compiling them."""
    from georoutenet.search import distances, kernels

    x, y, neighbors, rule = _tiny(path or large, matrix)
    if large:
        from georoutenet.search.large import try_out

        try_out(x, y, neighbors)
    else:
        prepare(distances.EUCLIDEAN, x, y, neighbors, np.arange(8)).neighbors(3)
    kernels.run(make_search(rule, x, y, neighbors, np.arange(8), 0), rule, 0, 8)
    if crossed:
        compile_crossing(path=path or large, matrix=matrix)


@functools.cache
def compile_crossing(*, path: bool, matrix: bool) -> None:
    """The same for the crossing of tours."""
    from georoutenet.search import assembly, kernels
    from georoutenet.search.population import cross

    x, y, neighbors, rule = _tiny(path, matrix)
    state = make_search(rule, x, y, neighbors, np.arange(8), 0)
    watch_compiler()
    cross(state, rule, [state.tour, np.roll(state.tour, 1)], [0], lambda: True)
    assembly.unlink(
        np.stack([np.roll(state.tour, 1), np.roll(state.tour, -1)], axis=1)[None], 0, state.best.copy()
    )
    kernels.merge(rule, x, y, state.best, state.tour.copy(), state.edges, state.room)


def _tiny(path: bool, matrix: bool) -> tuple[Any, Any, NDArray[np.int32], Any]:
    """Eight cities on a circle as the kernels take them: places, neighbors and rule."""
    from georoutenet.search import distances

    angles = np.arange(8) * (math.pi / 4)
    x, y = np.cos(angles), np.sin(angles)
    neighbors = nearest_neighbors(np.stack([x, y], axis=1), 5)
    if matrix:
        x, y = np.hypot(x - x[:, None], y - y[:, None]), np.empty(0)
    rule: Any = (distances.EUCLIDEAN, 6) if path else distances.EUCLIDEAN
    return x, y, neighbors, rule
