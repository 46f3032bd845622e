"""Parts of the beam search over candidate lists: the children of partial tours, and what they cost."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba import uint64

from georoutenet.decode.cpu.children import packed, select, unpacked
from georoutenet.decode.cpu.math import TINY
from georoutenet.decode.cpu.pairs import Pairs, ask, place_of
from georoutenet.jit import njit

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
    first: Any  # (W,) int32, or -1 where it does not matter
    length: Any  # (W,) float64; 0 without a cost
    visited: Any  # (W,) int64: sum of the hashes of the visited cities
    open: Any  # (W, words) uint64: bits of the cities that may come next


@njit(nogil=True)
def _is_open(beams: Beams, w: int, j: int) -> bool:
    return (beams.open[w, j >> 6] >> uint64(j & 63)) & uint64(1) != uint64(0)


@njit(nogil=True)
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


@njit(nogil=True)
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


@njit(nogil=True)
def _further_normalizer(i: int, n: int, count: int, further: Any, pairs: Pairs) -> Any:
    """The same over pairs outside the lists."""
    top = -np.inf
    for k in range(count):
        top = max(top, np.float64(pairs.logits[place_of(pairs, i * n + further[k])]))
    total = 0.0
    for k in range(count):
        total += math.exp(np.float64(pairs.logits[place_of(pairs, i * n + further[k])]) - top)
    return np.float32(top + math.log(total))


@njit(nogil=True)
def _ask_further(i: int, n: int, count: int, further: Any, pairs: Pairs) -> bool:
    """Whether all pairs are known; those that are not are asked for."""
    known = True
    for k in range(count):
        place = ask(pairs, i * n + further[k])
        known &= place >= 0 and not math.isnan(pairs.logits[max(place, 0)])
    return known


@njit(nogil=True)
def children(
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


@njit(nogil=True)
def edge(i: int, j: int, lists: Lists, pairs: Pairs) -> Any:
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
