# mypy: disallow-untyped-defs=False, disable-error-code=assignment
"""The compiled search: kicks, repairs by chained 3-opt steps, walks away from the best tour and back.

No function here makes an array, so all are compiled without Numba's counting of references, which took more
than half of the time. Those with one caller are inlined by force; ``run`` is the one entry, so the search is
compiled once per kind of distance.
"""

from __future__ import annotations

from collections import namedtuple
from math import log as ln

import numpy as np

from georoutenet.crossover import take_better_parts
from georoutenet.jit import INNER, PLAIN, njit
from georoutenet.search.distances import distance, measure_edges
from georoutenet.search.steps import (
    AGREED,
    BRIDGES,
    COUNTS,  # noqa: F401
    DEPTH,
    ENOUGH,
    FAR,
    HELD,
    IDLE,
    LEADS,
    LOGGED,
    PATIENCE,
    TOLERANCE,
    WALKS,
    at,
    improve_city,
    pop,
    push,
    put,
    reverse_range,
    undo,
)

LOG = 1024
"""Reversals that one kick and its repair may take; the repair stops short of it."""

SEGMENT = 50
"""Cities in each of the three segments that a kick puts into another order, at most. At 1,000 uniform cities,
1 s, 40 runs each: mean gap 0.12 % with 10, 0.07 with 30, 0.03 with 50 and 100, 0.04 with 200, and 0.045 with
four edges near one another in the plane instead; on groups and lattices 0.011 with these, 0.002 with 50."""

MOST_DRAWN = 64
"""Edges drawn, at most, of which a kick far apart takes the most promising."""

Search = namedtuple(
    "Search",
    [
        "x",  # (n,) float64; for GEO the latitude in radians; (n, n) where it is the matrix of distances
        "y",  # (n,) float64; for GEO the longitude in radians
        "neighbors",  # (n, k) int32, nearest first
        "near",  # (n, k) float64, how far they are
        "tour",  # (n,) int32
        "position",  # (n,) int32
        "queue",  # (n,) int32, ring buffer of the cities to look at
        "queued",  # (n,) bool: the complement of the don't-look bits
        "waiting",  # (n,) int32: the cities that are left to be looked at more deeply
        "waits",  # (n,) bool: whether a city is among them
        "log",  # (LOG, 2) int32: reversed ranges since the last accepted tour
        "touched",  # (6 * DEPTH,) int32: end points of the edges changed by the search from one city
        "random",  # (1,) uint64
        "best",  # (n,) int32: the shortest tour of all, where the present one is longer
        "spare",  # (n,) int32: room for the segments of a kick
        "edges",  # (3, n) float64, and
        "room",  # (ROOM, n) int32: to merge two tours
        "count",  # (COUNTS,) int64, see ``steps.py``
        "excess",  # (3,) float64, see below
    ],
)

# What ``excess`` holds: by how much a kick may make the tour longer (on average), by how much the tour is
# longer than the best one, how much more than allowed is worth a deeper look.
SLACK, BEHIND, MARGIN = range(3)


@njit(**INNER, forceinline=True)
def copy(source, target):
    for k in range(len(source)):
        target[k] = source[k]


@njit(**INNER, forceinline=True)
def draw(random, bound):
    """A whole number in 0..bound-1 (xorshift64*)."""
    state = random[0]
    state ^= state >> np.uint64(12)
    state ^= state << np.uint64(25)
    state ^= state >> np.uint64(27)
    random[0] = state
    high = (state * np.uint64(2685821657736338717)) >> np.uint64(33)
    return (np.int64(high) * bound) >> 31


@njit(**INNER, forceinline=True)
def draw_unit(random):
    """A number above 0 and up to 1."""
    return (draw(random, 1 << 30) + 1) / (1 << 30)


@njit(**INNER)
def swap_segments(tour, position, spare, first, b, c, d):
    """The segments of b, c and d cities that follow position ``first`` in the order d, c, b."""
    n = len(tour)
    total = b + c + d
    place = first
    for k in range(total):
        place = place + 1 if place + 1 < n else 0
        put(spare, k, at(tour, place))
    place = first
    for k in range(total):
        place = place + 1 if place + 1 < n else 0
        source = k + b + c if k < d else (k - d + b if k < c + d else k - c - d)
        city = at(spare, source)
        put(tour, place, city)
        put(position, city, place)


@njit(**INNER, forceinline=True)
def segments_in_a_row(random, n, longest):
    """Three segments that follow one another, of up to ``longest`` cities each: position before, lengths."""
    longest = max(1, min(longest, (n - 1) // 3))
    first = draw(random, n)
    return first, 1 + draw(random, longest), 1 + draw(random, longest), 1 + draw(random, longest)


@njit(**INNER)
def segments_far_apart(rule, x, y, tour, random):
    """The three segments between four long edges, wherever they are, as above.

    The first is the longest of some edges drawn at random, the others those whose length exceeds the way to
    the first the most. Where cities lie in groups, these are the edges between groups.
    """
    n = len(tour)
    drawn = MOST_DRAWN >> draw(random, 5)
    p0 = p1 = p2 = p3 = np.int64(-1)
    origin = np.int64(-1)
    for k in range(4):
        best, place = -np.inf, draw(random, n)
        for _ in range(drawn):
            other = draw(random, n)
            city, after = np.int64(tour[other]), np.int64(tour[other + 1 if other + 1 < n else 0])
            value = distance(rule, x, y, city, after)
            if k > 0:
                if city == origin or after == origin:
                    continue
                value -= min(distance(rule, x, y, city, origin), distance(rule, x, y, after, origin))
            if value > best:
                best, place = value, other
        while place == p0 or place == p1 or place == p2:  # taken: the next edge  # noqa: SIM109
            place = place + 1 if place + 1 < n else 0
        if k == 0:
            p0 = place
            origin = np.int64(tour[place])
        elif k == 1:
            p1 = place
        elif k == 2:
            p2 = place
        else:
            p3 = place
    return _between(n, p0, p1, p2, p3)


@njit(**INNER)
def _between(n, p0, p1, p2, p3):
    """The three segments between the edges after four positions that leave out the widest gap."""
    if p0 > p1:
        p0, p1 = p1, p0
    if p2 > p3:
        p2, p3 = p3, p2
    if p0 > p2:
        p0, p2 = p2, p0
    if p1 > p3:
        p1, p3 = p3, p1
    if p1 > p2:
        p1, p2 = p2, p1
    b, c, d, outside = p1 - p0, p2 - p1, p3 - p2, p0 + n - p3
    widest = max(b, c, d, outside)
    if outside == widest:
        return p0, b, c, d
    if b == widest:
        return p1, c, d, outside
    if c == widest:
        return p2, d, outside, b
    return p3, outside, b, c


@njit(**INNER)
def kick(rule, x, y, tour, position, queue, queued, spare, count, first, b, c, d):
    """Double bridge: the segments of b, c and d cities after position ``first`` in the order d, c, b.

    Returns the gain and ``first``, or -1 where it would cut a fixed edge and does nothing.
    """
    n = len(tour)
    total = 0.0
    for step in (0, b, b + c, b + c + d):
        place = first + step if first + step < n else first + step - n
        city, after = np.int64(tour[place]), np.int64(tour[place + 1 if place + 1 < n else 0])
        total += distance(rule, x, y, city, after)
        push(queue, queued, count, city)
        push(queue, queued, count, after)
    if total < 0.0:  # a fixed edge is among them
        return 0.0, np.int64(-1)
    swap_segments(tour, position, spare, first, b, c, d)
    for step in (0, d, d + c, b + c + d):
        place = first + step if first + step < n else first + step - n
        city, after = np.int64(tour[place]), np.int64(tour[place + 1 if place + 1 < n else 0])
        total -= distance(rule, x, y, city, after)
    return total, first


@njit(**INNER)
def take_back(tour, position, spare, log, count, first, b, c, d):
    """Undo the repair of a kick, then the kick."""
    undo(tour, position, log, count, 0)
    if first >= 0:
        swap_segments(tour, position, spare, first, d, c, b)


@njit(**INNER)
def leave_best(tour, position, spare, log, count, best, first, b, c, d):
    """Keep the tour as it was before the kick as the best, the tour as it is."""
    logged = count[LOGGED]
    take_back(tour, position, spare, log, count, first, b, c, d)
    copy(tour, best)
    if first >= 0:
        swap_segments(tour, position, spare, first, b, c, d)
    for entry in range(logged):
        reverse_range(tour, position, np.int64(log[entry, 0]), np.int64(log[entry, 1]))
    count[LOGGED] = logged


@njit(**PLAIN)
def merge(rule, x, y, best, other, edges, room):
    """Take the better parts of another tour into ``best``; returns the gain."""
    measure_edges(rule, x, y, best, edges, 0)
    measure_edges(rule, x, y, other, edges, 1)
    return take_better_parts(best, other, edges, room)


@njit(**INNER)
def end_walk(rule, x, y, tour, position, best, edges, room, count, excess):
    """Take the better parts of the walk's tour into the best tour and go back to it. Returns the gain."""
    gain = 0.0
    if excess[BEHIND] > 0.0:
        gain = merge(rule, x, y, best, tour, edges, room)
        copy(best, tour)
        for place in range(len(tour)):
            position[tour[place]] = place
    else:
        copy(tour, best)
    if gain > 0.0 or count[LEADS]:
        count[AGREED] = 0
    elif excess[BEHIND] <= 0.0 and count[WALKS] > 0:
        count[AGREED] += 1
    count[WALKS] += 1
    count[IDLE] = 0
    count[LEADS] = 0
    excess[BEHIND] = 0.0
    return gain


@njit(**PLAIN)
def run(search, rule, kicks, looks):
    """Without kicks: look at queued cities until none is left or ``looks`` were looked at; returns the gain.

    Without either: end the walk where it is, and return what its parts shorten the best tour by.

    With kicks: kick and repair locally, so many times; keep what exceeds the walk's record by no more than
    allowed. A walk without a record for ``PATIENCE`` kicks ends, and so does one that meets the best tour;
    the next begins at the best tour with ``BRIDGES`` kicks. Returns by how much the best tour got shorter,
    and the last kick that did it or -1.
    """
    x, y, neighbors, near, tour = search.x, search.y, search.neighbors, search.near, search.tour
    position, queue, queued, log = search.position, search.queue, search.queued, search.log
    touched, random, best = search.touched, search.random, search.best
    spare, count, excess = search.spare, search.count, search.excess
    waiting, waits = search.waiting, search.waits
    n = len(tour)
    total = 0.0
    last = -1
    if kicks == 0 and looks == 0:
        total = end_walk(rule, x, y, tour, position, best, search.edges, search.room, count, excess)
        return total, -1, 0
    for iteration in range(max(1, kicks)):
        gain = 0.0
        first = b = c = d = np.int64(-1)
        restart = kicks > 0 and count[IDLE] >= count[PATIENCE]
        count[LOGGED] = 0
        if restart:
            merged = end_walk(rule, x, y, tour, position, best, search.edges, search.room, count, excess)
            if merged > 0.0:
                total += merged
                last = iteration
            for _ in range(count[BRIDGES]):
                first, b, c, d = segments_in_a_row(random, n, SEGMENT)
                gain += kick(rule, x, y, tour, position, queue, queued, spare, count, first, b, c, d)[0]
        elif kicks > 0:
            if draw(random, 16) < count[FAR]:
                first, b, c, d = segments_far_apart(rule, x, y, tour, random)
            else:
                first, b, c, d = segments_in_a_row(random, n, SEGMENT)
            gain, first = kick(rule, x, y, tour, position, queue, queued, spare, count, first, b, c, d)
        left = looks
        allowed = -excess[SLACK] * ln(draw_unit(random)) if kicks > 0 else 0.0
        deep = kicks == 0 or restart
        depth = DEPTH if deep else 1
        waiting_count = 0
        while left > 0:
            if count[HELD] == 0:
                if waiting_count == 0:
                    break
                # Mostly the repair has undone the kick, and the tour is what it was.
                hopeless = abs(gain) <= TOLERANCE or -gain > allowed + excess[MARGIN]
                for k in range(waiting_count):
                    waits[waiting[k]] = False
                    if not hopeless:
                        push(queue, queued, count, np.int64(waiting[k]))
                waiting_count = 0
                depth = DEPTH
                continue
            if deep:
                count[LOGGED] = 0
            elif count[LOGGED] + 3 * DEPTH > LOG:
                for k in range(waiting_count):
                    waits[waiting[k]] = False
                break
            left -= 1
            city = pop(queue, queued, count)
            gained = improve_city(
                rule, x, y, neighbors, near, tour, position, queue, queued, log, touched, count, city, depth
            )
            gain += gained
            if gained > 0.0 and not deep and abs(gain) <= TOLERANCE:  # the tour is what it was
                while count[HELD] > 0:
                    pop(queue, queued, count)
                continue
            if depth < DEPTH and gained == 0.0 and not waits[city]:
                waits[city] = True
                waiting[waiting_count] = city
                waiting_count += 1
        if kicks == 0:
            return gain, -1, 0
        if restart or gain >= -allowed:
            if gain < -TOLERANCE and excess[BEHIND] == 0.0 and not restart:
                leave_best(tour, position, spare, log, count, best, first, b, c, d)
            excess[BEHIND] -= gain
        else:
            take_back(tour, position, spare, log, count, first, b, c, d)
        count[IDLE] += 1
        if excess[BEHIND] < -TOLERANCE:
            total -= excess[BEHIND]
            excess[BEHIND] = 0.0
            last = iteration
            count[LEADS] = 1
            count[AGREED] = 0
        elif excess[BEHIND] <= TOLERANCE:
            excess[BEHIND] = 0.0
            if count[BRIDGES] > 0 and count[WALKS] > 0 and not count[LEADS]:  # met the best tour
                count[IDLE] = count[PATIENCE]
        if count[ENOUGH] > 0 and count[AGREED] >= count[ENOUGH]:
            return total, last, iteration + 1
    return total, last, kicks
