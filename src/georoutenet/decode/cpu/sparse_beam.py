"""Beam search over candidate lists on the CPU, equal to ``reference.beam`` on sparse scores.

A step looks at the unvisited candidates of every partial tour, ``O(W k)``. A tour without one looks at the
nearest unvisited cities; pairs that the network has not scored yet are collected from all tours, scored in
one call and remembered, and the step is done again. Visited cities are bits, ``n / 8`` bytes for each tour,
and parents and cities of every step are stored for reading the tours back, ``8 n W`` bytes in all: nothing
has the size ``n * n``.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numba import uint64

from georoutenet.decode.beam_task import BeamTask, stacked
from georoutenet.decode.common import FLOOR, Decoded
from georoutenet.decode.cpu.beam import Trail, begin_cities, read_back
from georoutenet.decode.cpu.children import LOW, by_child, undominated, unpacked
from georoutenet.decode.cpu.math import mix
from georoutenet.decode.cpu.pairs import ASKED, Pairs, new_pairs, roomy
from georoutenet.decode.cpu.sparse_children import Beams, Lists, children, edge
from georoutenet.decode.cpu.threads import in_ranges
from georoutenet.decode.sparse import fallback_size, pair_scores
from georoutenet.device import memory_available
from georoutenet.errors import InputError
from georoutenet.jit import njit

SCRATCH = 2**30
"""Bytes for the instances searched at once, where one alone does not take more."""


@njit(nogil=True)
def _begin(start: Any, end: int, closed: bool, beams: Beams, trail: Trail) -> int:
    """The first step: the most probable start cities in ascending order; how many there are."""
    n = start.shape[0]
    cities = begin_cities(start, beams.rank.shape[0])
    for w in range(cities.shape[0]):
        city = int(cities[w])
        trail.cities[0, w] = city
        beams.rank[w] = start[city]
        beams.chance[w] = start[city]
        beams.first[w] = city if closed else -1
        beams.length[w] = 0.0
        beams.visited[w] = mix(city + 1)
        for word in range(beams.open.shape[1]):
            rest = min(n - word * 64, 64)
            beams.open[w, word] = ~uint64(0) >> uint64(64 - rest)
        beams.open[w, city >> 6] ^= uint64(1) << uint64(city & 63)
        if end >= 0 and n > 2:
            beams.open[w, end >> 6] ^= uint64(1) << uint64(end & 63)
    return cities.shape[0]


@njit(nogil=True)
def _advance(
    state: Any,
    lists: Lists,
    pairs: Pairs,
    one: Beams,
    other: Beams,
    trail: Trail,
    end: int,
    reach: int,
    dominance: bool,
) -> None:
    """Search until the tours are full or pairs are asked for; ``state`` is [step, beams, children wanted]."""
    n, width = lists.neighbors.shape[0], one.rank.shape[0]
    normalizer = np.empty(width, np.float32)
    keys, chosen = np.empty(2 * state[2], np.uint64), np.empty(width, np.uint64)
    kept = np.empty(width if dominance else 0, np.uint64)
    squares, further = np.empty(reach), np.empty(reach, np.int64)
    for step in range(state[0], n):
        now, following = (one, other) if step % 2 == 1 else (other, one)
        city, alive = trail.cities[step - 1], state[1]
        while True:
            count = children(alive, city, now, lists, pairs, normalizer, state[2], keys, squares, further)
            if count < 0:
                return
            if not dominance:
                by_child(keys, count, alive, n, chosen)
                break
            keys[:count].sort()
            totals = np.empty(count)
            for k in range(count):
                parent, j = divmod(np.int64(keys[k] & LOW), n)
                totals[k] = now.length[parent] + edge(city[parent], j, lists, pairs)[1]
            slots, full = undominated(keys, totals, n, now.first, now.visited, kept)
            if full or count < state[2]:
                count = slots
                by_child(kept, count, alive, n, chosen)
                break
            state[2] *= 2
            keys = np.empty(2 * state[2], np.uint64)
        for w in range(count):
            score, child = unpacked(chosen[w])
            parent, j = child // n, child % n
            logit, distance = edge(city[parent], j, lists, pairs)
            trail.parents[step, w] = parent
            trail.cities[step, w] = j
            following.rank[w] = score
            following.chance[w] = now.chance[parent] + (logit - normalizer[parent])
            following.first[w] = now.first[parent]
            following.length[w] = now.length[parent] + distance
            following.visited[w] = now.visited[parent] + mix(j + 1)
            for word in range(now.open.shape[1]):
                following.open[w, word] = now.open[parent, word]
            following.open[w, j >> 6] ^= uint64(1) << uint64(j & 63)
            if end >= 0 and step == n - 2:
                following.open[w, end >> 6] |= uint64(1) << uint64(end & 63)
        state[0], state[1] = step + 1, count


class _Search:
    """The search of one instance, which stops whenever it needs scores."""

    def __init__(self, task: BeamTask, b: int, width: int) -> None:
        n = task.shape[1]
        self.task, self.b, self.n, self.end = task, b, n, int(task.end[b])
        self.lists = _lists(task, b)
        self.pairs = new_pairs(4 * ASKED)
        words = -(-n // 64)
        self.beams = [
            Beams(
                np.empty(width, np.float32),
                np.empty(width, np.float32),
                np.empty(width, np.int32),
                np.empty(width),
                np.empty(width, np.int64),
                np.empty((width, words), np.uint64),
            )
            for _ in range(2)
        ]
        self.trail = Trail(np.zeros((n, width), np.int32), np.zeros((n, width), np.int32))
        alive = _begin(task.start[b].numpy(), self.end, task.closed, self.beams[0], self.trail)
        self.state = np.array([1, alive, width])

    @property
    def waits(self) -> bool:
        return bool(self.state[0] < self.n)

    def advance(self) -> None:
        self.pairs = roomy(self.pairs)
        settings = self.end, max(1, fallback_size(self.task)), self.task.dominance
        one, other = self.beams
        _advance(self.state, self.lists, self.pairs, one, other, self.trail, *settings)

    def asked(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The pairs to be scored."""
        keys = self.pairs.keys[self.pairs.asked[: self.pairs.counts[1]]]
        return torch.from_numpy(keys // self.n), torch.from_numpy(keys % self.n)

    def answer(self, logits: torch.Tensor) -> None:
        """Take the logits of the pairs asked for."""
        if bool(logits.isnan().any()):
            raise InputError("the scores hold values that are not numbers (NaN)")
        source, target = self.asked()
        places = self.pairs.asked[: len(logits)]
        self.pairs.logits[places] = logits.numpy()
        self.pairs.values[places] = self.task.weighted(logits, self.b, source, target).numpy()
        if self.task.costs is not None:
            self.pairs.distances[places] = self.task.costs.distances(self.b, source, target).numpy()
        self.pairs.counts[1] = 0

    def result(self) -> Decoded:
        costs, alive = self.task.costs, int(self.state[1])
        beams = self.beams[(self.n - 1) % 2]
        best = np.argsort(-beams.rank[:alive], kind="stable")
        lengths = None
        if costs is not None:
            lengths = beams.length[:alive].copy()
            if costs.closed and self.n > 1:
                ends = self.trail.cities[self.n - 1, :alive], beams.first[:alive]
                last, first = (torch.from_numpy(part.astype(np.int64)) for part in ends)
                lengths += costs.distances(self.b, last, first).numpy()
            best = best[np.argsort(lengths[best], kind="stable")]
        best = best[: self.task.keep]
        tours = np.empty((len(best), self.n), np.int64)
        for k, w in enumerate(best):
            read_back(self.trail, w, tours[k])
        return Decoded(
            torch.from_numpy(tours)[None],
            torch.from_numpy(beams.chance[best])[None],
            None if lengths is None else torch.from_numpy(lengths[best])[None],
        )


def _lists(task: BeamTask, b: int) -> Lists:
    assert task.neighbors is not None
    n = task.shape[1]
    neighbors, logits = task.neighbors[b], task.logits[b].clamp(min=FLOOR)
    if bool(logits.isnan().any()):
        raise InputError("the scores hold values that are not numbers (NaN)")
    source = torch.arange(n)[:, None].expand_as(neighbors)
    values = task.weighted(logits, b, source, neighbors)
    largest = logits.double().amax(dim=1) if neighbors.shape[1] else torch.zeros(n, dtype=torch.float64)
    return Lists(
        neighbors.numpy(),
        logits.numpy(),
        (logits.double() - largest[:, None]).exp().numpy(),
        largest.numpy(),
        values.numpy(),
        torch.sort(values, dim=1, descending=True, stable=True).indices.int().numpy(),
        np.empty((0, 0)) if task.costs is None else task.costs.distances(b, source, neighbors).numpy(),
        np.empty((0, 2)) if task.coordinates is None else task.coordinates[b].numpy(),
    )


def memory_needed(n: int, candidates: int, width: int) -> int:
    """Bytes that the search of one instance takes, without the pairs that it asks for."""
    return n * width * 8 + 2 * width * (n // 8 + 32) + n * candidates * 40


def beam(task: BeamTask) -> Decoded:
    """Beam search over candidates, equal to ``reference.beam``; instances are shared among threads."""
    assert task.neighbors is not None
    batch, n = task.shape
    width = min(task.width, math.factorial(n)) if n < 13 else task.width
    if width * n >= 1 << 32:
        raise InputError(f"width times cities must stay below 2^32, got {width} x {n}")
    needed, free = memory_needed(n, task.neighbors.shape[2], width), memory_available("cpu")
    if needed > free:
        raise InputError(
            f"a beam of {width:,} over {n:,} cities needs {needed / 2**30:.1f} GiB of memory, and "
            f"{free / 2**30:.1f} GiB are free; a width of about {max(1, width * free // needed):,} would fit"
        )
    together = max(1, SCRATCH // needed)
    parts = [range(low, min(low + together, batch)) for low in range(0, batch, together)]
    return stacked([found for part in parts for found in _beam(task, part, width)], filled=task.filled)


def _beam(task: BeamTask, instances: range, width: int) -> list[Decoded]:
    """Searches that run side by side, so that one call scores the pairs that all of them ask for."""
    searches = [_Search(task, b, width) for b in instances]
    while waiting := [search for search in searches if search.waits]:

        def work(low: int, high: int, waiting: list[_Search] = waiting) -> None:
            for search in waiting[low:high]:
                search.advance()

        in_ranges(len(waiting), work)
        asking = [search for search in waiting if search.waits]
        if not asking:
            break
        pairs = [search.asked() for search in asking]
        sizes = [len(source) for source, _ in pairs]
        source, target = (torch.cat(part) for part in zip(*pairs, strict=True))
        instance = torch.tensor([search.b for search in asking]).repeat_interleave(torch.tensor(sizes))
        logits = pair_scores(task, instance, source, target).cpu()
        for search, part in zip(asking, logits.split(sizes), strict=True):
            search.answer(part)
    return [search.result() for search in searches]
