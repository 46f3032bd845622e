"""Beam search over candidate lists on the CPU, equal to ``reference.beam`` on sparse scores.

A step looks at the unvisited candidates of every partial tour, ``O(W k)``. A tour without one looks at the
nearest unvisited cities; pairs that the network has not scored yet are collected from all tours, scored in
one call and remembered, and the step is done again. Visited cities are bits, ``n / 8`` bytes for each tour,
and parents and cities of every step are stored for reading the tours back, ``8 n W`` bytes in all: nothing
has the size ``n * n``.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from numba import njit, uint64

from georoutenet.decode.beam_task import BeamTask, stacked
from georoutenet.decode.common import FLOOR, Decoded
from georoutenet.decode.numba_beam import Trail, begin_cities, read_back
from georoutenet.decode.numba_children import LOW, by_child, packed, select, unpacked
from georoutenet.decode.numba_math import TINY, mix
from georoutenet.decode.numba_pairs import ASKED, Pairs, ask, new_pairs, place_of, roomy
from georoutenet.decode.sparse import fallback_size, pair_scores
from georoutenet.decode.threads import in_ranges
from georoutenet.errors import InputError

SCRATCH = 2**30
"""Bytes for the instances searched at once, where one alone does not take more."""

_BRUIJN = 0x03F79D71B4CB0A89
_BIT = np.zeros(64, np.int64)  # which bit is set, by the upper six bits of a product
for _k in range(64):
    _BIT[((_BRUIJN << _k) & (2**64 - 1)) >> 58] = _k


class Lists(NamedTuple):
    """What is known of an instance before the search, ``(n, k)`` each unless said otherwise."""

    neighbors: Any  # int64, ascending
    logits: Any  # float32
    weights: Any  # float64: exp(z - largest)
    largest: Any  # (n,) float64
    values: Any  # float32: what ranks the children
    order: Any  # int32: columns from the best value to the worst
    distances: Any  # float64; (0, 0) without a cost
    points: Any  # (n, 2) float64; (0, 2) without coordinates


class Beams(NamedTuple):
    """The partial tours of one step."""

    rank: Any  # (W,) float32
    chance: Any  # (W,) float32 log-probabilities
    first: Any  # (W,) int32
    length: Any  # (W,) float64; 0 without a cost
    visited: Any  # (W,) uint64: sum of the hashes of the visited cities
    open: Any  # (W, words) uint64: bits of the cities that may come next


@njit(cache=True, nogil=True)
def _is_open(beams: Beams, w: int, j: int) -> bool:
    return (beams.open[w, j >> 6] >> uint64(j & 63)) & uint64(1) != uint64(0)


@njit(cache=True, nogil=True)
def _further(beams: Beams, w: int, i: int, points: Any, squares: Any, cities: Any) -> int:
    """The unvisited cities nearest to ``i``, or all without coordinates, ascending; how many there are."""
    found, size = 0, cities.shape[0]
    near = points.shape[0] > 0
    for word in range(beams.open.shape[1]):
        bits = beams.open[w, word]
        while bits != uint64(0):
            lowest = bits & (~bits + uint64(1))
            bits ^= lowest
            j = word * 64 + _BIT[(lowest * uint64(_BRUIJN)) >> uint64(58)]
            if not near:
                cities[found] = j
                found += 1
                continue
            x, y = points[j, 0] - points[i, 0], points[j, 1] - points[i, 1]
            square = x * x + y * y
            if found == size and not square < squares[found - 1]:
                continue
            found = min(found + 1, size)
            at = found - 1
            while at > 0 and squares[at - 1] > square:  # equal ones stay in front: their index is lower
                squares[at] = squares[at - 1]
                cities[at] = cities[at - 1]
                at -= 1
            squares[at] = square
            cities[at] = j
    if near:
        cities[:found].sort()
    return found


@njit(cache=True, nogil=True)
def _candidate_normalizer(beams: Beams, w: int, i: int, lists: Lists) -> Any:
    """Log of the denominator over the unvisited candidates, rounded to float32; whether there are any."""
    total, found, top = 0.0, False, -np.inf
    for c in range(lists.neighbors.shape[1]):
        if _is_open(beams, w, lists.neighbors[i, c]):
            found = True
            total += lists.weights[i, c]
    if not found:
        return np.float32(0.0), False
    if total > TINY:
        return np.float32(lists.largest[i] + math.log(total)), True
    for c in range(lists.neighbors.shape[1]):
        if _is_open(beams, w, lists.neighbors[i, c]):
            top = max(top, np.float64(lists.logits[i, c]))
    total = 0.0
    for c in range(lists.neighbors.shape[1]):
        if _is_open(beams, w, lists.neighbors[i, c]):
            total += math.exp(np.float64(lists.logits[i, c]) - top)
    return np.float32(top + math.log(total)), True


@njit(cache=True, nogil=True)
def _further_normalizer(i: int, n: int, count: int, further: Any, pairs: Pairs) -> Any:
    """The same over pairs outside the lists."""
    top = -np.inf
    for k in range(count):
        top = max(top, np.float64(pairs.logits[place_of(pairs, i * n + further[k])]))
    total = 0.0
    for k in range(count):
        total += math.exp(np.float64(pairs.logits[place_of(pairs, i * n + further[k])]) - top)
    return np.float32(top + math.log(total))


@njit(cache=True, nogil=True)
def _ask_further(i: int, n: int, count: int, further: Any, pairs: Pairs) -> bool:
    """Whether all pairs are known; those that are not are asked for."""
    known = True
    for k in range(count):
        place = ask(pairs, i * n + further[k])
        known &= place >= 0 and not math.isnan(pairs.logits[max(place, 0)])
    return known


@njit(cache=True, nogil=True)
def _children(
    alive: int,
    city: Any,
    beams: Beams,
    lists: Lists,
    pairs: Pairs,
    normalizer: Any,
    wanted: int,
    keys: Any,
    squares: Any,
    further: Any,
) -> int:
    """The ``wanted`` best children as keys in any order; how many there are, or -1 when pairs are unknown."""
    n, candidates = lists.neighbors.shape
    count = 0
    bound = np.float32(-np.inf)
    known = True
    for w in range(alive):
        i = city[w]
        normalizer[w], found = _candidate_normalizer(beams, w, i, lists)
        options = candidates
        if not found:
            options = _further(beams, w, i, lists.points, squares, further)
            known &= _ask_further(i, n, options, further, pairs)
            if known:
                normalizer[w] = _further_normalizer(i, n, options, further, pairs)
        if not known:
            continue  # only to learn what else is not known
        for k in range(options):
            if found:
                column = lists.order[i, k]
                j = lists.neighbors[i, column]
                score = beams.rank[w] + (lists.values[i, column] - normalizer[w])
                if score < bound:
                    break  # the row goes from best to worst
                if not _is_open(beams, w, j):
                    continue
            else:
                j = further[k]
                value = pairs.values[place_of(pairs, i * n + j)]
                score = beams.rank[w] + (value - normalizer[w])
            if count == keys.shape[0]:
                select(keys, count, wanted)
                count = wanted
                bound = unpacked(keys[:count].max())[0]
            keys[count] = packed(score, w * n + j)
            count += 1
    if not known:
        return -1
    if count > wanted:
        select(keys, count, wanted)
        count = wanted
    return count


@njit(cache=True, nogil=True)
def _edge(i: int, j: int, lists: Lists, pairs: Pairs) -> Any:
    """Logit and distance of a pair, from the list if it is there."""
    low, high = 0, lists.neighbors.shape[1]
    while low < high:
        middle = (low + high) >> 1
        if lists.neighbors[i, middle] < j:
            low = middle + 1
        else:
            high = middle
    with_cost = lists.distances.shape[0] > 0
    if low < lists.neighbors.shape[1] and lists.neighbors[i, low] == j:
        return lists.logits[i, low], lists.distances[i, low] if with_cost else 0.0
    place = place_of(pairs, i * lists.neighbors.shape[0] + j)
    return pairs.logits[place], pairs.distances[place] if with_cost else 0.0


@njit(cache=True, nogil=True)
def _undominated(
    keys: Any,
    count: int,
    width: int,
    city: Any,
    beams: Beams,
    lists: Lists,
    pairs: Pairs,
    closed: bool,
    kept: Any,
) -> Any:
    """As ``numba_beam._undominated``, with distances from the lists."""
    n = lists.neighbors.shape[0]
    size = 16
    while size < 2 * width:
        size *= 2
    wrap = uint64(size - 1)
    table = np.full(size, -1, np.int32)
    states, totals = np.empty(width, np.uint64), np.empty(width)
    slots = 0
    for k in range(count):
        child = int(keys[k] & LOW)
        parent, j = child // n, child % n
        first = beams.first[parent] if closed else -1
        ends = (uint64(first + 1) << uint64(32)) | uint64(j + 1)
        state = mix(beams.visited[parent] + mix(uint64(j + 1)) + mix(ends))
        total = beams.length[parent] + _edge(city[parent], j, lists, pairs)[1]
        place = state & wrap
        while table[place] >= 0 and states[table[place]] != state:
            place = (place + uint64(1)) & wrap
        slot = table[place]
        if slot < 0:
            if slots == width:
                return slots, True
            table[place] = slots
            states[slots], totals[slots], kept[slots] = state, total, keys[k]
            slots += 1
        elif total < totals[slot]:
            totals[slot], kept[slot] = total, keys[k]
    return slots, False


@njit(cache=True, nogil=True)
def _begin(start: Any, end: int, beams: Beams, trail: Trail) -> int:
    """The first step: the most probable start cities in ascending order; how many there are."""
    n = start.shape[0]
    cities = begin_cities(start, beams.rank.shape[0])
    for w in range(cities.shape[0]):
        city = int(cities[w])
        trail.cities[0, w] = city
        beams.rank[w] = start[city]
        beams.chance[w] = start[city]
        beams.first[w] = city
        beams.length[w] = 0.0
        beams.visited[w] = mix(uint64(city + 1))
        for word in range(beams.open.shape[1]):
            rest = min(n - word * 64, 64)
            beams.open[w, word] = ~uint64(0) >> uint64(64 - rest)
        beams.open[w, city >> 6] ^= uint64(1) << uint64(city & 63)
        if end >= 0 and n > 2:
            beams.open[w, end >> 6] ^= uint64(1) << uint64(end & 63)
    return cities.shape[0]


@njit(cache=True, nogil=True)
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
    closed: bool,
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
            count = _children(alive, city, now, lists, pairs, normalizer, state[2], keys, squares, further)
            if count < 0:
                return
            if not dominance:
                by_child(keys, count, alive, n, chosen)
                break
            keys[:count].sort()
            slots, full = _undominated(keys, count, width, city, now, lists, pairs, closed, kept)
            if full or count < state[2]:
                count = slots
                by_child(kept, count, alive, n, chosen)
                break
            state[2] *= 2
            keys = np.empty(2 * state[2], np.uint64)
        for w in range(count):
            score, child = unpacked(chosen[w])
            parent, j = child // n, child % n
            logit, distance = _edge(city[parent], j, lists, pairs)
            trail.parents[step, w] = parent
            trail.cities[step, w] = j
            following.rank[w] = score
            following.chance[w] = now.chance[parent] + (logit - normalizer[parent])
            following.first[w] = now.first[parent]
            following.length[w] = now.length[parent] + distance
            following.visited[w] = now.visited[parent] + mix(uint64(j + 1))
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
                np.empty(width, np.uint64),
                np.empty((width, words), np.uint64),
            )
            for _ in range(2)
        ]
        self.trail = Trail(np.zeros((n, width), np.int32), np.zeros((n, width), np.int32))
        alive = _begin(task.start[b].numpy(), self.end, self.beams[0], self.trail)
        self.state = np.array([1, alive, width])

    @property
    def waits(self) -> bool:
        return bool(self.state[0] < self.n)

    def advance(self) -> None:
        self.pairs = roomy(self.pairs)
        settings = self.end, max(1, fallback_size(self.task)), self.task.dominance, self.task.closed
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
    from georoutenet.neural import memory_available

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
    return stacked([found for part in parts for found in _beam(task, part, width)])


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
