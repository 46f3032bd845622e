# mypy: disallow-untyped-defs=False, disable-error-code=assignment
"""Chained 3-opt steps on a tour, compiled.

A tour is two arrays: ``tour[p]`` is the city at position p and ``position[c]`` its inverse. Every change is a
sequence of reversals of position ranges. A reversal is its own inverse, so a log of ranges is all that
undoing takes. What the arrays are is said at ``kernels.Search``.
"""

from __future__ import annotations

import numpy as np

from georoutenet.jit import INNER, njit
from georoutenet.search.distances import distance, within

TOLERANCE = 1e-12
"""Smaller gains are rounding noise (coordinates span about 1 for plain Euclidean distances)."""

DEPTH = 10
"""3-opt steps chained at most before a search from one city gives up."""

REACH = 50_000
"""Steps of the tour that a move may span: reversing a longer stretch costs more than the gain is worth.
Measured at 100,000 cities, 15 s: 50,000 and 25,000 equal, 3,000 worse by 0.2 %, 1,000 by 0.4 %."""

CLOSED = 4
"""Added to the kind of a step that closes the tour, see ``find_step``."""

# What ``count`` holds: where the queue begins, how many cities it holds, how many reversals are logged, kicks
# since the walk's record, kicks after which a walk ends, walks ended, those that ended at the best length
# found (since it was found), whether this walk found the best tour itself, kicks at its begin, agreeing walks
# that end the search, kicks far apart among 16.
BEGIN, HELD, LOGGED, IDLE, PATIENCE, WALKS, AGREED, LEADS, BRIDGES, ENOUGH, FAR, COUNTS = range(12)


@njit(**INNER, forceinline=True)
def at(array, place):
    """An entry of an array of whole numbers. A signed place would be compared with 0 at every access."""
    return np.int64(array[np.uintp(place)])


@njit(**INNER, forceinline=True)
def put(array, place, value):
    array[np.uintp(place)] = value


@njit(**INNER, forceinline=True)
def reverse_range(tour, position, i, j):
    """Reverse the positions i..j (going up, around the end of the array if j < i)."""
    n = len(tour)
    count = j - i + 1
    if count <= 0:
        count += n
    if i <= j:
        for _ in range(count // 2):
            a, b = at(tour, i), at(tour, j)
            put(tour, i, b)
            put(tour, j, a)
            put(position, b, i)
            put(position, a, j)
            i += 1
            j -= 1
        return
    for _ in range(count // 2):
        a, b = at(tour, i), at(tour, j)
        put(tour, i, b)
        put(tour, j, a)
        put(position, b, i)
        put(position, a, j)
        i = i + 1 if i + 1 < n else 0
        j = j - 1 if j > 0 else n - 1


@njit(**INNER)
def undo(tour, position, log, count, mark):
    """Take back every reversal logged after the first ``mark``."""
    for entry in range(count[LOGGED] - 1, mark - 1, -1):
        reverse_range(tour, position, np.int64(log[entry, 0]), np.int64(log[entry, 1]))
    count[LOGGED] = mark


@njit(**INNER)
def exchange(tour, position, log, count, a, b, c, d):
    """2-opt: edges ab, cd become ac, bd. Either b, d follow a, c in the tour, or b, d precede them."""
    n = len(position)
    pa, pb = at(position, a), at(position, b)
    after_a = pa + 1 if pa + 1 < n else 0
    if after_a == pb:
        i, j = pb, at(position, c)
    else:
        i, j = pa, at(position, d)
    length = j - i + 1
    if length <= 0:
        length += n
    if 2 * length > n:  # the other side of the cycle is shorter, and the same tour
        i, j = (j + 1 if j + 1 < n else 0), (i - 1 if i > 0 else n - 1)
    logged = count[LOGGED]
    log[logged, 0] = i
    log[logged, 1] = j
    count[LOGGED] = logged + 1
    reverse_range(tour, position, i, j)


@njit(**INNER, forceinline=True)
def push(queue, queued, count, city):
    if not queued[np.uintp(city)]:
        queued[np.uintp(city)] = True
        n = len(queue)
        slot = count[BEGIN] + count[HELD]
        put(queue, slot if slot < n else slot - n, city)
        count[HELD] += 1


@njit(**INNER, forceinline=True)
def pop(queue, queued, count):
    begin = count[BEGIN]
    city = at(queue, begin)
    count[BEGIN] = begin + 1 if begin + 1 < len(queue) else 0
    count[HELD] -= 1
    queued[np.uintp(city)] = False
    return city


@njit(**INNER, forceinline=True)
def beside(tour, place, forward):
    """The city before or after a position."""
    n = len(tour)
    place += 1 if forward else -1
    if place < 0:
        place = n - 1
    elif place == n:
        place = 0
    return at(tour, place)


@njit(**INNER, forceinline=True)
def following(tour, position, city, forward):
    return beside(tour, at(position, city), forward)


@njit(**INNER, forceinline=True)
def rank(n, origin, place, forward):
    """Steps from one position to another in the direction of travel."""
    steps = place - origin if forward else origin - place
    return steps if steps >= 0 else steps + n


@njit(**INNER, forceinline=True)
def find_step(rule, x, y, neighbors, near, tour, position, t1, t2, forward, gain):
    """A sequential 3-opt step from the open edge t1 t2; ``gain`` is what has been saved up to opening it.

    Looks for t3 near t2 and t5 near t4 with positive partial gains (Lin and Kernighan's criterion):
    edges t1t2, t3t4, t5t6 leave, t2t3, t4t5, t6t1 enter. Along the direction of travel from t2:

    - t4 before t3: closing at t4 is a 2-opt move (kind 3); t6 is the neighbor of t5 that keeps one path
      (kind 0).
    - t4 after t3: t2..t3 is cut out as a ring and put back through t5t6, either way around (kinds 1 and 2;
      Or-opt is the case where a side of the ring is short).

    Returns (gain, kind, t3, t4, t5, t6): the first step that makes the tour shorter, with ``CLOSED`` added to
    its kind; otherwise the one that leaves the most gain open; kind -1 where there is none.
    """
    n = len(tour)
    best, best_kind = TOLERANCE, -1
    b3 = b4 = b5 = b6 = t2
    width, place2 = neighbors.shape[1], at(position, t2)
    for first in range(width):
        gain1 = gain - near[np.uintp(t2), np.uintp(first)]
        if gain1 <= TOLERANCE:
            break
        t3 = np.int64(neighbors[np.uintp(t2), np.uintp(first)])
        place3 = at(position, t3)
        rank3 = rank(n, place2, place3, forward)
        if (rank3 == 1) | (rank3 == n - 1) | (min(rank3, n - rank3) > REACH):  # an edge of the tour, or far
            continue
        for side in range(2):
            t4 = beside(tour, place3, forward == (side == 1))
            gain2 = gain1 + distance(rule, x, y, t3, t4)
            if side == 0 and within(rule, x, y, t4, t1, gain2):
                closed = gain2 - distance(rule, x, y, t4, t1)
                if closed > TOLERANCE:
                    return closed, 3 + CLOSED, t3, t4, t1, t2
            for second in range(width):
                gain3 = gain2 - near[np.uintp(t4), np.uintp(second)]
                if gain3 <= TOLERANCE:
                    break
                t5 = np.int64(neighbors[np.uintp(t4), np.uintp(second)])
                place5 = at(position, t5)
                rank5 = rank(n, place2, place5, forward)
                if side == 0:  # not an edge of the tour, nor t1
                    if (rank5 == rank3) | (rank5 == rank3 - 2) | (rank5 == n - 1):
                        continue
                    first_kind, last_kind = 0, 1
                else:  # on the ring, but not t3
                    if (rank5 >= rank3) | ((rank5 == 0) & (rank3 == n - 2)):
                        continue
                    first_kind, last_kind = 1, 2 if rank5 == 0 else 3
                if min(rank5, n - rank5) > REACH:
                    continue
                for kind in range(first_kind, last_kind):
                    t6 = beside(tour, place5, forward == ((rank5 < rank3) if kind == 0 else (kind == 1)))
                    open_gain = gain3 + distance(rule, x, y, t5, t6)
                    if within(rule, x, y, t6, t1, open_gain):
                        closed = open_gain - distance(rule, x, y, t6, t1)
                        if closed > TOLERANCE:
                            return closed, kind + CLOSED, t3, t4, t5, t6
                    if open_gain > best:
                        best, best_kind, b3, b4, b5, b6 = open_gain, kind, t3, t4, t5, t6
    return best, best_kind, b3, b4, b5, b6


@njit(**INNER)
def make_step(tour, position, log, count, kind, t1, t2, t3, t4, t5, t6):
    """A 3-opt move as up to three 2-opt moves; see ``find_step`` for the kinds."""
    if kind == 3:
        exchange(tour, position, log, count, t1, t2, t4, t3)
    elif kind == 0:  # two 2-opt moves in a row
        exchange(tour, position, log, count, t1, t2, t4, t3)
        exchange(tour, position, log, count, t1, t4, t6, t5)
    elif kind == 1:  # t2..t5 and t6..t3 change places
        exchange(tour, position, log, count, t1, t2, t3, t4)
        exchange(tour, position, log, count, t1, t3, t6, t5)
        exchange(tour, position, log, count, t3, t5, t2, t4)
    else:  # t2..t6 and t5..t3 are both reversed
        exchange(tour, position, log, count, t1, t2, t6, t5)
        exchange(tour, position, log, count, t2, t5, t3, t4)


@njit(**INNER, forceinline=True)
def improve_city(rule, x, y, neighbors, near, tour, position, queue, queued, log, touched, count, t1, depth):
    """Shorten the tour by chains of up to ``depth`` steps that start at an edge of ``t1``; returns the gain,
    0 if none was found."""
    mark = count[LOGGED]
    for start in range(2):
        t2 = following(tour, position, t1, start == 0)
        gain = distance(rule, x, y, t1, t2)
        for level in range(depth):
            # Reversing the shorter side may turn the array around, so the direction is read off again.
            forward = following(tour, position, t1, True) == t2
            gain, kind, t3, t4, t5, t6 = find_step(
                rule, x, y, neighbors, near, tour, position, t1, t2, forward, gain
            )
            if kind < 0 or (level + 1 == depth and kind < CLOSED):
                break
            make_step(tour, position, log, count, kind & 3, t1, t2, t3, t4, t5, t6)
            slot = 6 * level
            touched[slot], touched[slot + 1], touched[slot + 2] = t1, t2, t3
            touched[slot + 3], touched[slot + 4], touched[slot + 5] = t4, t5, t6
            if kind >= CLOSED:
                for slot in range(6 * (level + 1)):
                    push(queue, queued, count, np.int64(touched[slot]))
                return gain
            t2 = t6
        if count[LOGGED] > mark:
            undo(tour, position, log, count, mark)
    return 0.0
