"""Held and Karp's ascent on an instance: candidate edges for the search, and a lower bound on every tour.

The compiled part, and what it rests on, is in ``one_tree.py``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from georoutenet.problem.instance import Instance
from georoutenet.problem.tour import Tour, tour_length
from georoutenet.search.neighbors import candidate_neighbors, delaunay_edges
from georoutenet.search.state import next_slice

Floats = NDArray[np.float64]

WIDTH = 6
"""Alpha-nearest cities in the search's neighbor lists."""
ITERATIONS = 100
"""Of the ascent before a search, up to ``FEW`` cities; fewer above, in proportion, where time is short."""
FEW = 2_000
SHARE, PER_CITY, PER_PAIR = 0.1, 2.5e-7, 1.4e-9
"""Of the time left, what an ascent may take above ``FEW`` cities; the seconds that an iteration takes per
city, and a tree over all pairs per pair: fixed estimates, so a busy machine does not change the result."""
FEW_IN_CLUSTERS = 150
"""Cities in clusters take four times the iterations, above so many: pr264's bound was 15 % low without."""
BOUND = 400
"""Iterations for a bound: on tsplib36 0.005 % below that of 5,000, at worst 0.04 (benchmarks/bound.py)."""
MORE, SMALLER = 300, 0.25
"""Iterations of ``tighten``, and by how much its steps are smaller than those before. Of 18 pairs of numbers
on tsplib36 among the cheapest with which all bounds are within 0.1 % of those of 5,000 iterations."""
COMPLETE = 20_000
"""Cities up to which a tree over all pairs is grown; there is no bound above."""
PROVEN = 5_000
"""Cities up to which a search begins with a bound, however short its time: the tree takes 0.05 s there."""
ROUNDS = (0.1, 0.3, 0.6, 1.0)
"""After these shares of the iterations the sparse graph is given the edges that a tree over all pairs has."""
FIRST_STEP = 0.4
"""The first step in mean edges of the given tour; Volgenant and Jonker's is half a mean edge of the tree."""
LEVELS, APART, PULL = 6, 4.0, 0.1
"""Clusterings at most, each at twice the distance of the one before; how many median edges of the tree the
nearest clusters are apart; what share of a single city's step they move by, all levels together, in
proportion to the edges between them. Measured on boards with rows of holes: 0.5 and more never converges."""


class Ascent:
    """Penalties on the cities of an instance, and the shortest 1-tree under them."""

    def __init__(
        self,
        code: int,
        x: Floats,
        y: Floats,
        lists: NDArray[np.int32],
        tour: Tour,
        more: NDArray[np.int64] | None = None,
    ) -> None:
        """``code``, ``x`` and ``y`` are the kernels'; ``lists``, ``tour`` and the edges ``more`` (m, 2) make
        the sparse graph."""
        from georoutenet.search.distances import measure_edges

        n = len(x)
        self.code, self.x, self.y, self.lists = code, x, y, lists
        self.more = [np.stack([tour, np.roll(tour, -1)], axis=1).astype(np.int64)]
        if more is not None:
            self.more.append(more)
        self.pi, self.best_pi, self.proven_pi = np.zeros((3, n))
        self.tree = np.full((n, 4), 2, dtype=np.int32)
        self.groups, self.factors = np.zeros((0, n), dtype=np.int32), np.zeros(0)
        self.complete = True
        """Whether no clock ended it."""
        self.value = -math.inf
        """The best bound proven so far, in the kernels' lengths."""
        edges = np.empty((1, n))
        measure_edges(code, x, y, tour.astype(np.int32), edges, 0)
        self.first_step = FIRST_STEP * float(edges.mean())
        self._link()

    def _link(self) -> None:
        from georoutenet.search.one_tree import sparse_graph

        self.graph = sparse_graph(self.code, self.x, self.y, self.lists, np.concatenate(self.more))

    def run(self, first: int, last: int, iterations: int, goes_on: Callable[[], bool] | None = None) -> bool:
        """Of the ``iterations`` those from ``first`` to ``last``, in slices; whether all were made."""
        from georoutenet.search.one_tree import ascend

        step = max(1, min(last - first, 20_000 // len(self.x)))
        found = -math.inf
        while first < last:
            if goes_on is not None and not goes_on():
                return False
            until = min(first + step, last)
            began = time.perf_counter()
            best_pi, value = ascend(
                *self.graph,
                self.pi,
                self.tree,
                self.groups,
                self.factors,
                first,
                until,
                iterations,
                self.first_step,
            )
            if value >= found:
                found, self.best_pi = value, best_pi
            step = next_slice(step, time.perf_counter() - began)
            first = until
        return True

    def climb(
        self,
        iterations: int,
        shares: tuple[float, ...],
        *,
        proves: bool = True,
        goes_on: Callable[[], bool] | None = None,
    ) -> bool:
        """All iterations, a tree over all pairs after each of these shares of them; whether all were made."""
        first = 0
        for share in shares:
            if first:
                self._link()
            last = int(share * iterations)
            if not self.run(first, last, iterations, goes_on):
                return False
            first = last
            if proves:
                self.prove()
        return True

    def tighten(self, seconds: float, goes_on: Callable[[], bool] | None = None) -> None:
        """Go on from the best penalties for a better bound, where a ``SHARE`` of the seconds left suffices.

        What the search looks for does not change by it: its candidates are those from before.
        """
        n = len(self.x)
        takes = MORE * PER_CITY * n + len(ROUNDS) * PER_PAIR * n * n
        if n > FEW or self.value == -math.inf or takes > SHARE * seconds:
            return
        self.pi, self.first_step = self.proven_pi.copy(), SMALLER * self.first_step
        self._link()
        self.climb(MORE, ROUNDS, goes_on=goes_on)

    def neighbors(self, width: int) -> NDArray[np.int32]:
        """The alpha-nearest of every city in the sparse graph, in order of distance."""
        from georoutenet.search.one_tree import alpha_nearest, tree_of

        tree, cost = tree_of(*self.graph, self.best_pi)
        return alpha_nearest(*self.graph, self.best_pi, tree, cost, min(width, len(self.x) - 1))

    def prove(self) -> float:
        """Grow a tree over all pairs of cities; the sparse graph gets its edges. Returns the best bound."""
        from georoutenet.search.one_tree import complete_bound

        value, parent, second = complete_bound(self.code, self.x, self.y, self.best_pi)
        if value >= self.value:
            self.value, self.proven_pi = value, self.best_pi.copy()
        else:  # what the ascent reached holds on the sparse graph alone: back, and smaller steps
            self.best_pi, self.pi = self.proven_pi.copy(), self.proven_pi.copy()
            self.factors = 0.5 * self.factors
        own = np.arange(len(parent))
        self.more += [np.stack([own, parent], axis=1), np.stack([own, second], axis=1)]
        return self.value

    def bound(self, instance: Instance, scale: float) -> Any:
        """The best bound proven, in the instance's lengths; None where none was.

        What rounding may have added is taken off: each of some 2 n additions, and each distance, is wrong by
        half a unit in the last place at most. Where tours are whole numbers, so is the bound: rounded up.
        """
        from georoutenet.search.distances import GREAT_CIRCLE

        if self.value == -math.inf:
            return None
        n = len(self.x)
        noise = 1e-15 * n * (abs(self.value) + n * float(np.abs(self.best_pi).max()))
        if self.code == GREAT_CIRCLE:  # places on the unit sphere are rounded, however near they are
            noise += 1e-15 * n
        if instance.is_integer:
            return max(0, math.ceil(self.value - max(noise, 1e-6)))
        return max(0.0, (self.value - noise) / scale)

    def find_clusters(self) -> None:
        """Clusters: cut the graph's shortest tree at edges much longer than most, then at longer ones."""
        from georoutenet.search.one_tree import PARENT, tree_of

        n = len(self.x)
        tree, lengths = tree_of(*self.graph, np.zeros(n))
        parent = np.where(tree[:, PARENT] < 0, np.arange(n), tree[:, PARENT])
        edges = lengths[lengths > 0]
        limits = APART * np.median(edges) * 2.0 ** np.arange(LEVELS) if len(edges) else np.empty(0)
        limits = limits[limits < lengths.max()]
        groups = [np.where(lengths > limit, np.arange(n), parent) for limit in limits]
        for k, group in enumerate(groups):
            while (group != group[group]).any():
                group = group[group]
            groups[k] = group
        self.groups = np.array(groups, dtype=np.int32).reshape(-1, n)
        between = np.array([lengths[lengths > limit].mean() for limit in limits])
        self.factors = PULL / max(1, len(limits)) * between / lengths.mean()


def prepare(
    code: int,
    x: Floats,
    y: Floats,
    lists: NDArray[np.int32],
    tour: Tour,
    *,
    more: NDArray[np.int64] | None = None,
    iterations: int | None = None,
    seconds: float = math.inf,
    goes_on: Callable[[], bool] | None = None,
) -> Ascent:
    """An ascent of these iterations (by size, if not given) on the graph of ``lists``, tour and ``more``.

    Up to ``FEW`` cities, and above where a ``SHARE`` of the ``seconds`` left suffices, trees over all pairs
    show clusters and edges that the graph lacks, and prove a bound.
    """
    n = len(x)
    given = iterations is not None
    fit = (SHARE * seconds - (1 + len(ROUNDS)) * PER_PAIR * n * n) / (PER_CITY * n)
    thorough = given or n <= FEW or fit >= ITERATIONS
    if iterations is None:
        iterations = ITERATIONS if thorough else int(ITERATIONS * FEW / n) + 1
    ascent = Ascent(code, x, y, lists, tour, more)
    ascent.find_clusters()
    if thorough:
        ascent.prove()
        if len(ascent.groups) and n > FEW_IN_CLUSTERS and not given:
            iterations *= 4 if n <= FEW else int(min(4, fit / ITERATIONS))
    shares, proves = ROUNDS if thorough else (1.0,), thorough or n <= PROVEN
    ascent.complete = ascent.climb(iterations, shares, proves=proves, goes_on=goes_on)
    return ascent


def lower_bound(instance: Instance, tour: Tour, *, iterations: int = BOUND) -> Any:
    """A length that no closed tour of ``instance`` is shorter than: int where lengths are, else float.

    Held and Karp's bound, converged to about 0.02 %; on random cities it is 0.7 to 0.8 % below the optimum.
    ``tour`` is any tour, the shorter the better. None above ``COMPLETE`` cities.
    """
    from georoutenet.search.local_search import kernel_coordinates

    n = instance.n
    if n <= 3:
        return tour_length(instance, np.arange(n))
    if n > COMPLETE:
        return None
    code, x, y, scale = kernel_coordinates(instance)
    lists, more = candidate_neighbors(instance), delaunay_edges(instance)
    return prepare(code, x, y, lists, tour, more=more, iterations=iterations).bound(instance, scale)
