# mypy: disallow-untyped-defs=False
"""Large tours piece by piece: the cities of a window with the rest of the tour as fixed edges.

In an array a reversal takes time in proportion to the tour. So a large tour is searched window by window:
the tour's runs through a few thousand cities that lie together are joined by fixed edges, which stand for
the ways outside, and searched as a small closed tour of their own. What is found is a tour of all cities
again when the ways outside are put back in, forward or backward. Windows tile the plane; each sweep turns
and shifts the tiles, so that no border stays in place.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from georoutenet.jit import njit

SMALLEST = 8
"""Windows of fewer cities are left to the next sweep."""

Cities = NDArray[np.int32]


def window_size(n: int) -> int:
    """Cities of a window: putting one back takes time in proportion to ``n``, searching it to its size."""
    return max(3_000, int(10 * math.sqrt(n)))


def tiles(
    x: NDArray[np.float64], y: NDArray[np.float64], size: int, random: np.random.Generator
) -> Iterator[Cities]:
    """All cities in groups of about ``size`` or fewer: columns of a turned plane, cut into tiles."""
    angle = random.uniform(0.0, math.pi)
    across = x * math.cos(angle) + y * math.sin(angle)
    along = y * math.cos(angle) - x * math.sin(angle)
    columns = _pieces(np.argsort(across, kind="stable"), math.sqrt(len(x) * size), random)
    for column in columns:
        yield from _pieces(column[np.argsort(along[column], kind="stable")], size, random)


def _pieces(order: NDArray[np.integer], size: float, random: np.random.Generator) -> list[Cities]:
    """The order in equal pieces of about ``size``, the first of them cut short by chance."""
    count = max(1, round(len(order) / size))
    width = len(order) / count
    cuts = np.arange(random.random() * width, len(order), width).astype(np.int64)
    return [piece.astype(np.int32) for piece in np.split(order, cuts) if len(piece)]


class Window(NamedTuple):
    """A part of a tour. Its cities are numbered anew: those at the ends of its runs last, in pairs from
    ``bound`` on, each pair the two ends of a way outside."""

    cities: Cities
    tour: Cities  # in the window's numbers, like all that follows
    neighbors: NDArray[np.int32]
    bound: int
    outside: NDArray[np.int64]  # where each way outside begins in the whole tour
    lengths: NDArray[np.int64]  # how many cities it has


def cut_out(search: Any, cities: Cities, number: NDArray[np.int32]) -> Window:
    """The window of these cities, without those that have no neighbor in the tour among them.

    ``number`` is -1 for every city, before and after.
    """
    return Window(*_cut_out(search.tour, search.position, search.neighbors, cities, number))


@njit(nogil=True, level=1)
def _cut_out(tour, position, neighbors, cities, number):
    n = len(tour)
    places = np.sort(position[cities])
    m = len(places)
    first = np.empty(m, dtype=np.int64)  # of each run of two or more cities, positions in the tour
    last = np.empty(m, dtype=np.int64)
    runs = 0
    begin = 0
    if places[0] == 0 and places[-1] == n - 1:  # a run goes around the end of the array
        while begin < m - 1 and places[begin + 1] == places[begin] + 1:
            begin += 1
        begin = (begin + 1) % m
    low = high = np.int64(places[begin])
    inside = np.int64(0)
    for k in range(1, m + 1):
        place = np.int64(places[(begin + k) % m])
        if k < m and place == (high + 1) % n:
            high = place
            continue
        if low != high:
            first[runs], last[runs] = low, high
            inside += (high - low) % n - 1
            runs += 1
        low = high = place

    ids = np.empty(inside + 2 * runs, dtype=np.int32)
    order = np.empty(len(ids), dtype=np.int32)
    outside = np.empty(runs, dtype=np.int64)
    lengths = np.empty(runs, dtype=np.int64)
    filled = step = 0
    for run in range(runs):
        place = first[run]
        while True:
            if place == first[run]:
                new = inside + 2 * ((run - 1) % runs) + 1
            elif place == last[run]:
                new = inside + 2 * run
            else:
                new = np.int64(filled)
                filled += 1
            ids[new] = tour[place]
            number[tour[place]] = new
            order[step] = new
            step += 1
            if place == last[run]:
                break
            place = (place + 1) % n
        outside[run] = (last[run] + 1) % n
        lengths[run] = (first[(run + 1) % runs] - last[run] - 1) % n

    lists = np.empty((len(ids), neighbors.shape[1]), dtype=np.int32)
    for step in range(len(order)):
        city = order[step]
        width = 0
        for near in neighbors[ids[city]]:
            if number[near] >= 0:
                lists[city, width] = number[near]
                width += 1
        # Lists have one length; the last entry is repeated, else a neighbor in the tour stands in.
        fill = lists[city, width - 1] if width else order[step - 1]
        lists[city, width:] = fill
    number[ids] = -1
    return ids, order, lists, inside, outside, lengths


def put_back(search: Any, window: Window, found: Cities, spare: Cities) -> None:
    """Give the whole tour the window's new order; ``spare`` is room for a tour."""
    _put_back(search.tour, search.position, spare, window.cities, found, *window[3:])


@njit(nogil=True, level=1)
def _put_back(tour, position, spare, ids, found, bound, outside, lengths):
    n, m = len(tour), len(found)
    filled = 0
    for step in range(m):
        a, b = found[step] - bound, found[(step + 1) % m] - bound
        spare[filled] = ids[found[step]]
        filled += 1
        if min(a, b) < 0 or a ^ b != 1:
            continue
        way = a >> 1
        for k in range(lengths[way]):
            place = outside[way] + (k if a & 1 == 0 else lengths[way] - 1 - k)
            spare[filled] = tour[place if place < n else place - n]
            filled += 1
    for place in range(n):
        tour[place] = spare[place]
        position[spare[place]] = place
