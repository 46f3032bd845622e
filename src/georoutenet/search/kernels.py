# mypy: disallow-untyped-defs=False
"""The compiled part of the local search: distances, tour reversals, the 3-opt step, the kick.

A tour is two arrays: ``tour[p]`` is the city at position p and ``position[c]`` its inverse. Every change is a
sequence of reversals of position ranges. A reversal is its own inverse, so a log of ranges is all that
undoing takes. All that calls one another lives in this one file, because Numba's cache watches single files.
Small functions are inlined by force: the compiler would leave some of them as calls, three times slower.
"""

from __future__ import annotations

from collections import namedtuple
from math import acos, ceil, cos, floor, sqrt

import numpy as np
from numba import njit, types
from numba.extending import overload

EUCLIDEAN, EUC_2D, CEIL_2D, ATT, GEO, MAN_2D, MAX_2D, EXPLICIT = range(8)

FREE = 8
"""Added to a rule for paths (see ``path.py``): the last city is no place, every way to it costs nothing."""

NEVER = 1e200
"""What it would cost to take out a fixed edge."""

TOLERANCE = 1e-12
"""Smaller gains are rounding noise (coordinates span about 1 for plain Euclidean distances)."""

DEPTH = 3
"""3-opt steps chained at most before a search from one city gives up."""

REACH = 50_000
"""Steps of the tour that a move may span: reversing a longer stretch costs more than the gain is worth.
Measured at 100,000 cities, 15 s: 50,000 and 25,000 equal, 3,000 worse by 0.2 %, 1,000 by 0.4 %."""

LOG = 1024
"""Reversals that one kick and its repair may take; the repair stops short of it."""

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
        "ends",  # (2,) int64: where the queue begins, how many cities it holds
        "log",  # (LOG, 2) int64: reversed ranges since the last accepted tour
        "logged",  # (1,) int64: how many
        "touched",  # (6 * DEPTH,) int32: end points of the edges changed by the search from one city
        "random",  # (1,) uint64
        "best",  # (n,) int32: the best tour, where the present one is longer
        "excess",  # (2,) float64: by how much it is longer, by how much it may be
        "places",  # the first so many cities are places that a kick may walk to
    ],
)


@njit(cache=True, nogil=True)
def rare_distance(rule, x1, y1, x2, y2):
    """Distance under the rules that few instances have."""
    if rule == GEO:
        q1 = cos(y1 - y2)
        q2 = cos(x1 - x2)
        q3 = cos(x1 + x2)
        cosine = 0.5 * ((1.0 + q1) * q2 - (1.0 - q1) * q3)
        return floor(6378.388 * acos(min(1.0, max(-1.0, cosine))) + 1.0)
    dx = x1 - x2
    dy = y1 - y2
    if rule == MAN_2D:
        return floor(abs(dx) + abs(dy) + 0.5)
    if rule == MAX_2D:
        return floor(max(abs(dx), abs(dy)) + 0.5)
    square = dx * dx + dy * dy
    if rule == CEIL_2D:
        return ceil(sqrt(square))
    exact = sqrt(square / 10.0)
    rounded = floor(exact + 0.5)
    return rounded + 1.0 if rounded < exact else rounded


@njit(cache=True, nogil=True, forceinline=True)
def place_distance(rule, x, y, i, j):
    """Distance of two places; whole numbers for TSPLIB's rules."""
    if rule > EUC_2D:
        return rare_distance(rule, x[i], y[i], x[j], y[j])
    dx = x[i] - x[j]
    dy = y[i] - y[j]
    exact = sqrt(dx * dx + dy * dy)
    return exact if rule == EUCLIDEAN else floor(exact + 0.5)


def _given_distance(rule, x, y, i, j):
    raise NotImplementedError  # compiled code takes the overload


@overload(_given_distance)
def _choose_given_distance(rule, x, y, i, j):
    if x.ndim == 2:
        return lambda rule, x, y, i, j: x[i, j]
    return lambda rule, x, y, i, j: place_distance(rule, x, y, i, j)


@njit(cache=True, nogil=True, forceinline=True)
def given_distance(rule, x, y, i, j):
    """Distance of two places by their rule, or their entry where ``x`` is a matrix."""
    return _given_distance(rule, x, y, i, j)


@njit(cache=True, nogil=True, forceinline=True)
def fixed_distance(rule, bound, x, y, i, j):
    """Distance where edges are fixed: those of the cities bound, bound + 1, then bound + 2, bound + 3, ..."""
    if min(i, j) >= bound and (i - bound) ^ (j - bound) == 1:
        return -NEVER
    if rule & FREE and max(i, j) == len(x) - 1:
        return 0.0
    return given_distance(rule & 7, x, y, i, j)


def _distance(rule, x, y, i, j):
    raise NotImplementedError  # compiled code takes the overload


@overload(_distance)
def _choose_distance(rule, x, y, i, j):
    # By type, so that each search is compiled for its own case: a test at run time costs 30 % of the speed.
    if isinstance(rule, types.BaseTuple):
        return lambda rule, x, y, i, j: fixed_distance(rule[0], rule[1], x, y, i, j)
    return lambda rule, x, y, i, j: given_distance(rule, x, y, i, j)


@njit(cache=True, nogil=True, forceinline=True)
def distance(rule, x, y, i, j):
    """Distance of cities i and j. ``rule`` is a number, or ``(number, bound)`` where edges are fixed."""
    return _distance(rule, x, y, i, j)


@njit(cache=True, nogil=True)
def measure(rule, x, y, neighbors, near):
    """Distances to the neighbors."""
    for city in range(len(neighbors)):
        for slot in range(neighbors.shape[1]):
            near[city, slot] = distance(rule, x, y, city, np.int64(neighbors[city, slot]))


@njit(cache=True, nogil=True)
def reverse_range(search, i, j):
    """Reverse the positions i..j (going up, around the end of the array if j < i)."""
    tour, position = search.tour, search.position
    n = len(tour)
    count = j - i + 1
    if count <= 0:
        count += n
    for _ in range(count // 2):
        a, b = tour[i], tour[j]
        tour[i], tour[j] = b, a
        position[b], position[a] = i, j
        i = i + 1 if i + 1 < n else 0
        j = j - 1 if j > 0 else n - 1


@njit(cache=True, nogil=True)
def reverse_logged(search, i, j):
    logged = search.logged[0]
    search.log[logged, 0] = i
    search.log[logged, 1] = j
    search.logged[0] = logged + 1
    reverse_range(search, i, j)


@njit(cache=True, nogil=True)
def undo(search, mark):
    """Take back every reversal logged after the first ``mark``."""
    for entry in range(search.logged[0] - 1, mark - 1, -1):
        reverse_range(search, search.log[entry, 0], search.log[entry, 1])
    search.logged[0] = mark


@njit(cache=True, nogil=True)
def exchange(search, a, b, c, d):
    """2-opt: edges ab, cd become ac, bd. Either b, d follow a, c in the tour, or b, d precede them."""
    position = search.position
    n = len(position)
    after_a = position[a] + 1 if position[a] + 1 < n else 0
    if after_a == position[b]:
        i, j = position[b], position[c]
    else:
        i, j = position[a], position[d]
    count = j - i + 1
    if count <= 0:
        count += n
    if 2 * count > n:  # the other side of the cycle is shorter, and the same tour
        i, j = (j + 1 if j + 1 < n else 0), (i - 1 if i > 0 else n - 1)
    reverse_logged(search, i, j)


@njit(cache=True, nogil=True, forceinline=True)
def push(search, city):
    if not search.queued[city]:
        search.queued[city] = True
        n = len(search.queue)
        slot = search.ends[0] + search.ends[1]
        search.queue[slot if slot < n else slot - n] = city
        search.ends[1] += 1


@njit(cache=True, nogil=True, forceinline=True)
def pop(search):
    city = np.int64(search.queue[search.ends[0]])
    search.ends[0] = search.ends[0] + 1 if search.ends[0] + 1 < len(search.queue) else 0
    search.ends[1] -= 1
    search.queued[city] = False
    return city


@njit(cache=True, nogil=True, forceinline=True)
def following(search, city, forward):
    n = len(search.tour)
    p = search.position[city]
    if forward:
        return np.int64(search.tour[p + 1 if p + 1 < n else 0])
    return np.int64(search.tour[p - 1 if p > 0 else n - 1])


@njit(cache=True, nogil=True, forceinline=True)
def rank(search, origin, city, forward):
    """Steps from ``origin`` to ``city`` in the direction of travel."""
    steps = search.position[city] - search.position[origin]
    if not forward:
        steps = -steps
    return steps if steps >= 0 else steps + len(search.tour)


@njit(cache=True, nogil=True)
def step(search, rule, level, t1, t2, forward, gain):
    """One sequential 3-opt step from the open edge t1 t2; ``gain`` is what has been saved up to opening it.

    Looks for t3 near t2 and t5 near t4 with positive partial gains (Lin and Kernighan's criterion):
    edges t1t2, t3t4, t5t6 leave, t2t3, t4t5, t6t1 enter. Along the direction of travel from t2:

    - t4 before t3: closing at t4 is a 2-opt move; t6 is the neighbor of t5 that keeps one path.
    - t4 after t3: t2..t3 is cut out as a ring and put back through t5t6, either way around
      (Or-opt is the case where a side of the ring is short).

    Makes the first improving move and returns (its gain, -1). Otherwise makes the move that leaves the most
    gain open and returns (that gain, t6): the caller may go on from t1, t6. (0, -1) when there is neither.
    """
    x, y, neighbors, near = search.x, search.y, search.neighbors, search.near
    n = len(x)
    best, best_kind = TOLERANCE, -1
    b3 = b4 = b5 = b6 = t2
    after2, before2 = following(search, t2, True), following(search, t2, False)
    for first in range(neighbors.shape[1]):
        gain1 = gain - near[t2, first]
        if gain1 <= TOLERANCE:
            break
        t3 = np.int64(neighbors[t2, first])
        if t3 == after2 or t3 == before2:  # one of them is t1  # noqa: SIM109 (compiled code)
            continue
        rank3 = rank(search, t2, t3, forward)
        if min(rank3, n - rank3) > REACH:
            continue
        for side in range(2):
            t4 = following(search, t3, side == 1)
            if not forward:
                t4 = following(search, t3, side == 0)
            gain2 = gain1 + distance(rule, x, y, t3, t4)
            if side == 0:
                closed = gain2 - distance(rule, x, y, t4, t1)
                if closed > TOLERANCE:
                    exchange(search, t1, t2, t4, t3)
                    touch(search, level, t1, t2, t3, t4, t1, t2)
                    return closed, -1
            after4, before4 = following(search, t4, True), following(search, t4, False)
            for second in range(neighbors.shape[1]):
                gain3 = gain2 - near[t4, second]
                if gain3 <= TOLERANCE:
                    break
                t5 = np.int64(neighbors[t4, second])
                if t5 == after4 or t5 == before4:  # one of them is t3  # noqa: SIM109
                    continue
                rank5 = rank(search, t2, t5, forward)
                if min(rank5, n - rank5) > REACH:
                    continue
                if side == 0:
                    if t5 == t1:
                        continue
                    t6 = following(search, t5, forward == (rank5 < rank3))
                    if t6 == t4:
                        continue
                    open_gain = gain3 + distance(rule, x, y, t5, t6)
                    closed = open_gain - distance(rule, x, y, t6, t1)
                    if closed > TOLERANCE:
                        apply(search, level, 0, t1, t2, t3, t4, t5, t6)
                        return closed, -1
                    if open_gain > best:
                        best, best_kind, b3, b4, b5, b6 = open_gain, 0, t3, t4, t5, t6
                else:
                    if rank5 > rank3:
                        continue
                    for kind in range(1, 3):
                        if (kind == 1 and t5 == t3) or (kind == 2 and t5 == t2):
                            continue
                        t6 = following(search, t5, forward == (kind == 1))
                        open_gain = gain3 + distance(rule, x, y, t5, t6)
                        closed = open_gain - distance(rule, x, y, t6, t1)
                        if closed > TOLERANCE:
                            apply(search, level, kind, t1, t2, t3, t4, t5, t6)
                            return closed, -1
                        if open_gain > best:
                            best, best_kind, b3, b4, b5, b6 = open_gain, kind, t3, t4, t5, t6
    if best_kind < 0:
        return 0.0, -1
    apply(search, level, best_kind, t1, t2, b3, b4, b5, b6)
    return best, b6


@njit(cache=True, nogil=True, forceinline=True)
def touch(search, level, t1, t2, t3, t4, t5, t6):
    touched = search.touched
    first = 6 * level
    touched[first], touched[first + 1], touched[first + 2] = t1, t2, t3
    touched[first + 3], touched[first + 4], touched[first + 5] = t4, t5, t6


@njit(cache=True, nogil=True)
def apply(search, level, kind, t1, t2, t3, t4, t5, t6):
    """Make a 3-opt move as two or three 2-opt moves; see ``step`` for the kinds."""
    if kind == 0:  # two 2-opt moves in a row
        exchange(search, t1, t2, t4, t3)
        exchange(search, t1, t4, t6, t5)
    elif kind == 1:  # t2..t5 and t6..t3 change places
        exchange(search, t1, t2, t3, t4)
        exchange(search, t1, t3, t6, t5)
        exchange(search, t3, t5, t2, t4)
    else:  # t2..t6 and t5..t3 are both reversed
        exchange(search, t1, t2, t6, t5)
        exchange(search, t2, t5, t3, t4)
    touch(search, level, t1, t2, t3, t4, t5, t6)


@njit(cache=True, nogil=True)
def improve_city(search, rule, t1):
    """Shorten the tour by moves that start at an edge of ``t1``; returns the gain, 0 if none was found."""
    mark = search.logged[0]
    for start in range(2):
        t2 = following(search, t1, start == 0)
        gain = distance(rule, search.x, search.y, t1, t2)
        for level in range(DEPTH):
            # Reversing the shorter side may turn the array around, so the direction is read off again.
            forward = following(search, t1, True) == t2
            gain, t2 = step(search, rule, level, t1, t2, forward, gain)
            if t2 < 0:
                break
        if t2 < 0 and gain > 0.0:
            for slot in range(6 * (level + 1)):
                push(search, np.int64(search.touched[slot]))
            return gain
        undo(search, mark)
    return 0.0


@njit(cache=True, nogil=True)
def descend(search, rule, looks, keep_log):
    """Look at queued cities until none is left or ``looks`` were looked at; returns the total gain."""
    total = 0.0
    while search.ends[1] > 0 and looks > 0:
        if not keep_log:
            search.logged[0] = 0
        elif search.logged[0] + 3 * DEPTH > LOG:
            break
        looks -= 1
        total += improve_city(search, rule, pop(search))
    return total


@njit(cache=True, nogil=True)
def draw(search, bound):
    """A whole number in 0..bound-1 (xorshift64*)."""
    state = search.random[0]
    state ^= state >> np.uint64(12)
    state ^= state << np.uint64(25)
    state ^= state >> np.uint64(27)
    search.random[0] = state
    high = (state * np.uint64(2685821657736338717)) >> np.uint64(33)
    return np.int64(high) % bound


@njit(cache=True, nogil=True)
def cuts_nearby(search, steps):
    """Positions of four edges that lie near one another, around the tour, the widest gap before the first.

    The first begins at a city drawn at random, the others where three walks along neighbor lists end.
    """
    n = len(search.tour)
    cuts = np.empty(4, dtype=np.int64)
    origin = draw(search, search.places)
    for k in range(4):
        city = origin
        for _ in range(steps if k else 0):
            near = np.int64(search.neighbors[city, draw(search, search.neighbors.shape[1])])
            if near < search.places:
                city = near
        place = np.int64(search.position[city])
        while (cuts[:k] == place).any():  # taken: the next edge
            place = (place + 1) % n
        cuts[k] = place
    cuts.sort()
    widest, first = cuts[0] + n - cuts[3], 0
    for k in range(1, 4):
        if cuts[k] - cuts[k - 1] > widest:
            widest, first = cuts[k] - cuts[k - 1], k
    return cuts[first], cuts[(first + 1) % 4], cuts[(first + 2) % 4], cuts[(first + 3) % 4]


@njit(cache=True, nogil=True)
def kick(search, rule, steps):
    """Double bridge of nearby edges: the segments B C D between them become D C B. Returns the gain.

    Does nothing where it would cut a fixed edge.
    """
    tour = search.tour
    n = len(tour)
    cuts = cuts_nearby(search, steps)
    total = 0.0
    for cut in cuts:
        city, after = np.int64(tour[cut]), np.int64(tour[(cut + 1) % n])
        total += distance(rule, search.x, search.y, city, after)
        push(search, city)
        push(search, after)
    if total < 0.0:  # a fixed edge is among them
        return 0.0
    before, last = cuts[0], cuts[3]
    d_end = (before + last - cuts[2]) % n
    c_end = (before + last - cuts[1]) % n
    reverse_logged(search, (before + 1) % n, last)
    reverse_logged(search, (before + 1) % n, d_end)
    reverse_logged(search, (d_end + 1) % n, c_end)
    reverse_logged(search, (c_end + 1) % n, last)
    for cut in (before, d_end, c_end, last):
        total -= distance(rule, search.x, search.y, np.int64(tour[cut]), np.int64(tour[(cut + 1) % n]))
    return total


@njit(cache=True, nogil=True)
def remember(search):
    """Keep the tour as it was before the logged reversals as the best one."""
    logged = search.logged[0]
    undo(search, 0)
    search.best[:] = search.tour
    for entry in range(logged):
        reverse_range(search, search.log[entry, 0], search.log[entry, 1])


@njit(cache=True, nogil=True)
def perturb(search, rule, kicks, steps):
    """Kick and repair locally, ``kicks`` times; keep what exceeds the best tour by no more than allowed.

    Returns by how much the best tour got shorter, and the last kick that did it or -1.
    """
    total = 0.0
    last = -1
    for iteration in range(kicks):
        search.logged[0] = 0
        gain = kick(search, rule, steps)
        gain += descend(search, rule, np.int64(1) << 62, True)
        excess = search.excess[0] - gain
        if excess > search.excess[1]:
            undo(search, 0)
        elif excess > TOLERANCE:
            if search.excess[0] == 0.0:
                remember(search)
            search.excess[0] = excess
        else:
            search.excess[0] = 0.0
            total -= excess
            if excess < -TOLERANCE:
                last = iteration
    return total, last
