"""Beam search on the CPU, equal to ``reference.beam`` child by child.

What makes it fast: ``exp`` of the logits is taken once per instance, so a partial tour's normalizer is a
masked sum; rows are sorted once, so a parent's children come best first and the scan stops at the score
that can no longer make the beam; parents and cities are stored per step and tours read back at the end.
No step sorts its beam: partial tours stand in the order of (parent, city), as in every backend. All memory
is allocated once and used for instance after instance.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch

from georoutenet.decode.beam_task import BeamTask, stacked
from georoutenet.decode.common import Decoded
from georoutenet.decode.cpu.children import LOW, by_child, children, packed, undominated, unpacked
from georoutenet.decode.cpu.math import (
    LANES,
    LOWEST,
    TINY,
    exact_weights,
    exponentials,
    has_nan,
    masked_sum,
    mix,
    row_top,
)
from georoutenet.decode.cpu.threads import in_ranges
from georoutenet.errors import InputError
from georoutenet.jit import njit


class Tables(NamedTuple):
    """What is known of an instance before the search."""

    weights: Any  # (n, padded) float64: exp(z - largest)
    largest: Any  # (n,) float64: the largest logit of each row
    values: Any  # (n, n) float32: what ranks the children of each city, best first
    order: Any  # (n, n) int32: the cities that ``values`` belong to


class Partial(NamedTuple):
    """The partial tours of one step; the last three only for dominance."""

    rank: Any  # (W,) float32
    chance: Any  # (W,) float32 log-probabilities
    mask: Any  # (W, padded) uint8: 1 where a city may come next
    first: Any  # (W,) int32, or -1 where it does not matter
    length: Any  # (W,) float64
    visited: Any  # (W,) int64: sum of the hashes of the visited cities


class Trail(NamedTuple):
    """How every partial tour came about."""

    parents: Any  # (n, W) int32
    cities: Any  # (n, W) int32


@njit(nogil=True)
def _normalizers(alive: int, city: Any, logits: Any, weights: Any, tops: Any, mask: Any, out: Any) -> None:
    """Logs of the denominators of Eq. masked_transition, rounded to float32."""
    spare = np.zeros((1, weights.shape[1]))
    for w in range(alive):
        i = city[w]
        top, total = tops[i], masked_sum(weights, i, mask, w)
        if not total > TINY:
            top = exact_weights(logits, i, mask, w, spare, 0)
            total = masked_sum(spare, 0, mask, w)
        out[w] = np.float32(top + math.log(total))


@njit(nogil=True)
def _fill_tables(logits: Any, values: Any, tables: Tables) -> bool:
    """Sort and exponentiate every row; False when a logit is not a number."""
    n = logits.shape[0]
    scores = logits.reshape(1, n, n)
    bits = scores.view(np.int32)
    keys, scratch = np.empty(n, np.uint64), np.empty(n)
    if has_nan(logits.reshape(-1)):
        return False
    for i in range(n):
        for j in range(n):
            keys[j] = packed(values[i, j], j)
        keys.sort()
        tables.largest[i] = row_top(bits, 0, i)
        exponentials(scores, 0, i, tables.largest[i], tables.weights, i, scratch)
        tables.weights[i, n:] = 0.0
        for j in range(n):
            tables.values[i, j], tables.order[i, j] = unpacked(keys[j])
    return True


@njit(nogil=True)
def begin_cities(start: Any, width: int) -> Any:
    """The most probable start cities in ascending order."""
    keys = np.empty(start.shape[0], np.uint64)
    count = 0
    for j in range(start.shape[0]):
        if start[j] > -np.inf:
            keys[count] = packed(start[j], j)
            count += 1
    keys[:count].sort()
    return np.sort(keys[: min(count, width)] & LOW)


@njit(nogil=True)
def _begin(start: Any, end: int, width: int, closed: bool, now: Partial, trail: Trail) -> int:
    """The first step: a partial tour for each start city; how many there are."""
    n = start.shape[0]
    cities = begin_cities(start, width)
    count = cities.shape[0]
    for w in range(count):
        city = int(cities[w])
        trail.cities[0, w] = city
        now.rank[w] = start[city]
        now.chance[w] = start[city]
        now.mask[w, :n] = 1
        now.mask[w, n:] = 0
        now.mask[w, city] = 0
        if end >= 0 and n > 2:
            now.mask[w, end] = 0
        now.first[w] = city if closed else -1
        now.length[w] = 0.0
        now.visited[w] = mix(city + 1)
    return count


@njit(nogil=True)
def _search(
    start: Any,
    end: int,
    logits: Any,
    tables: Tables,
    now: Partial,
    following: Partial,
    trail: Trail,
    dominance: bool,
    closed: bool,
    distances: Any,
) -> Any:
    """Beam search over one instance; how many full tours it holds, their ranks and log-probabilities."""
    n = logits.shape[0]
    width = now.rank.shape[0]
    alive = _begin(start, end, width, closed, now, trail)
    normalizer = np.empty(width, np.float32)
    keys, chosen = np.empty(2 * width, np.uint64), np.empty(width, np.uint64)
    kept = np.empty(width if dominance else 0, np.uint64)
    wanted = width
    for step in range(1, n):
        city = trail.cities[step - 1]
        _normalizers(alive, city, logits, tables.weights, tables.largest, now.mask, normalizer)
        while True:
            count = children(
                alive, now.rank, city, normalizer, tables.values, tables.order, now.mask, wanted, keys
            )
            if not dominance:
                by_child(keys, count, alive, n, chosen)
                break
            keys[:count].sort()
            totals = np.empty(count)
            for k in range(count):
                parent, j = divmod(np.int64(keys[k] & LOW), n)
                totals[k] = now.length[parent] + distances[city[parent], j]
            slots, full = undominated(keys, totals, n, now.first, now.visited, kept)
            if full or count < wanted:
                count = slots
                by_child(kept, count, alive, n, chosen)
                break
            wanted *= 2
            keys = np.empty(2 * wanted, np.uint64)
        words, following_words = now.mask.view(np.uint64), following.mask.view(np.uint64)
        for w in range(count):
            score, child = unpacked(chosen[w])
            parent, j = child // n, child % n
            i = city[parent]
            trail.parents[step, w] = parent
            trail.cities[step, w] = j
            following.rank[w] = score
            following.chance[w] = now.chance[parent] + (max(logits[i, j], LOWEST) - normalizer[parent])
            for word in range(words.shape[1]):
                following_words[w, word] = words[parent, word]
            following.mask[w, j] = 0
            if end >= 0 and step == n - 2:
                following.mask[w, end] = 1
            if dominance:
                following.first[w] = now.first[parent]
                following.length[w] = now.length[parent] + distances[i, j]
                following.visited[w] = now.visited[parent] + mix(j + 1)
        alive = count
        now, following = following, now
    return alive, now.rank[:alive], now.chance[:alive]


@njit(nogil=True)
def read_back(trail: Trail, w: int, tour: Any) -> None:
    """Write the tour that ends as the ``w``-th one."""
    for step in range(tour.shape[0] - 1, -1, -1):
        tour[step] = trail.cities[step, w]
        w = trail.parents[step, w]


@njit(nogil=True)
def _lengths(trail: Trail, alive: int, points: Any, distances: Any, closed: bool) -> Any:
    """Lengths of the full tours, edge by edge as ``Costs.lengths`` adds them."""
    n = trail.cities.shape[0]
    lengths = np.zeros(alive)
    tour = np.empty(n, np.int64)
    for w in range(alive):
        read_back(trail, w, tour)
        for step in range(n if closed and n > 1 else n - 1):
            i, j = tour[step], tour[(step + 1) % n]
            if distances.shape[0] == n:
                lengths[w] += distances[i, j]
            else:
                x, y = points[i, 0] - points[j, 0], points[i, 1] - points[j, 1]
                lengths[w] += math.sqrt(x * x + y * y)
    return lengths


def beam(task: BeamTask) -> Decoded:
    """Beam search, equal to ``reference.beam``; instances are shared among threads."""
    batch, n = task.shape
    width = min(task.width, math.factorial(n)) if n < 13 else task.width
    if width * n >= 1 << 32:
        raise InputError(f"width times cities must stay below 2^32, got {width} x {n}")

    padded = -(-n // LANES) * LANES

    def work(low: int, high: int) -> list[Decoded]:
        square = (n, n)
        tables = Tables(
            np.empty(square), np.empty(n), np.empty(square, np.float32), np.empty(square, np.int32)
        )
        trail = Trail(np.zeros((n, width), np.int32), np.zeros((n, width), np.int32))
        now, following = _partial(width, padded), _partial(width, padded)
        return [_beam(task, b, tables, now, following, trail) for b in range(low, high)]

    return stacked([part for parts in in_ranges(batch, work) for part in parts], filled=task.filled)


def _partial(width: int, padded: int) -> Partial:
    return Partial(
        np.empty(width, np.float32),
        np.empty(width, np.float32),
        np.empty((width, padded), np.uint8),
        np.empty(width, np.int32),
        np.empty(width),
        np.empty(width, np.int64),
    )


def _beam(task: BeamTask, b: int, tables: Tables, now: Partial, following: Partial, trail: Trail) -> Decoded:
    n = task.shape[1]
    logits = task.logits[b].numpy()
    if not _fill_tables(logits, task.values(slice(b, b + 1))[0].numpy(), tables):
        raise InputError("the scores hold values that are not numbers (NaN)")
    distances, points = np.empty((0, 0)), np.empty((0, 2))
    if task.costs is not None:
        points = task.costs.coordinates[b].numpy()
        if task.dominance or not task.costs.is_euclidean:
            distances = task.costs.matrices(slice(b, b + 1))[0].numpy()
    alive, rank, chance = _search(
        task.start[b].numpy(),
        int(task.end[b]),
        logits,
        tables,
        now,
        following,
        trail,
        task.dominance,
        task.closed,
        distances,
    )
    best = np.argsort(-rank, kind="stable")
    lengths = None
    if task.costs is not None:
        lengths = _lengths(trail, alive, points, distances, task.closed)
        best = best[np.argsort(lengths[best], kind="stable")]
    best = best[: task.keep]
    tours = np.empty((len(best), n), np.int64)
    for k, w in enumerate(best):
        read_back(trail, w, tours[k])
    return Decoded(
        torch.from_numpy(tours)[None],
        torch.from_numpy(chance[best])[None],
        None if lengths is None else torch.from_numpy(lengths[best])[None],
    )
