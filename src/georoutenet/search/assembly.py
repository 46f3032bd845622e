# mypy: disallow-untyped-defs=False, disable-error-code=assignment
"""Edge assembly crossover (Nagata and Kobayashi, INFORMS Journal on Computing 25, 2013), compiled.

The edges that only one of two tours has, taken in turn from the one and the other, form *AB-cycles*. Swap the
edges that tour A has of one such cycle for those of tour B: out comes A with a small part of B in it, in one
ring or several. Rings are joined, the smallest first, each by the two edges that cost the least. So a child
has A's edges but for a few of B's and very few new ones. Of the children of a pair the one takes A's place
that costs the population the least variety for what it gains: each edge is counted, and variety is the
entropy of these counts (their selection).

A child costs time in proportion to its AB-cycle and to the rings that are joined, not to the tour.
"""

from __future__ import annotations

from collections import namedtuple
from math import log as ln

import numpy as np
from numpy.typing import NDArray

from georoutenet.jit import INNER, PLAIN, njit
from georoutenet.search.distances import distance
from georoutenet.search.kernels import draw
from georoutenet.search.steps import TOLERANCE

Room = namedtuple(
    "Room",
    [
        "only",  # (n, 4) int32: the other ends of edges that only A (0, 1) or only B (2, 3) has
        "left",  # (n, 2) int32: how many of them are left
        "cities",  # (n,) int32: those that have such edges, and
        "order",  # (n + 2,) int32: the order in which AB-cycles are taken
        "path",  # (4 n + 4,) int32: the cities of the walk along such edges
        "seen",  # (n, 2) int32: where on it a city stands, at an even place and at an odd one
        "cycle",  # (4 n + 4,) int32: the cities of all AB-cycles
        "begin",  # (n + 2,) int32: where each begins
        "tour",  # (n,) int32: tour A, and
        "position",  # (n,) int32: where on it a city stands
        "cuts",  # (CHANGES,) int32: the places of A, in order, after which an AB-cycle cuts it
        "mate",  # (2 CHANGES,) int32: which ends of parts are linked: 2 k begins part k, 2 k + 1 ends it
        "ring",  # (CHANGES,) int32: which ring a part is on
        "size",  # (CHANGES,) int32: how many cities a ring has, and
        "first",  # (CHANGES,) int32: one of them
        "members",  # (n,) int32: those of one ring
        "log",  # (CHANGES, 3) int32: changed links: city, slot, what was there
        "edges",  # (CHANGES, 3) int32: edges removed (0) and added (1)
        "links",  # (CHANGES, 3) int32: the changed links of the best child: city, slot, what is there
        "told",  # (CHANGES * pairs, 3) int32: edges removed and added of all children of a generation
        "held",  # (4,) int64: how much of these four is in use
    ],
)
ENDS = 12
"""Other ends of a city's edges that are counted."""
CHANGES = 4096
"""Links that a child may change; larger AB-cycles are left out."""
HOPELESS = 0.3
"""By how many mean edges an AB-cycle may make the tour longer before its rings are joined, which shortens it
now and then; others are left out. 5,000 cities, 32 tours: 0.45 ms a city and 0.036 % instead of 0.57 and
0.041 without; 0.35 ms with 0, but fnl4461 ends at 0.012 instead of 0.003 % after 10 s."""
LOGGED, EDGES, LINKS, TOLD = range(4)  # in ``held``


def make_room(n: int, pairs: int) -> Room:
    """For crossing so many pairs of tours of n cities in a generation."""
    whole = lambda *shape: np.zeros(shape, dtype=np.int32)  # noqa: E731
    return Room(
        only=whole(n, 4),
        left=whole(n, 2),
        cities=whole(n),
        order=whole(n + 2),
        path=whole(4 * n + 4),
        seen=np.full((n, 2), -1, dtype=np.int32),
        cycle=whole(4 * n + 4),
        begin=whole(n + 2),
        tour=whole(n),
        position=whole(n),
        cuts=whole(CHANGES),
        mate=whole(2 * CHANGES),
        ring=whole(CHANGES),
        size=whole(CHANGES),
        first=whole(CHANGES),
        members=whole(n),
        log=whole(CHANGES, 3),
        edges=whole(CHANGES, 3),
        links=whole(CHANGES, 3),
        told=whole(CHANGES * pairs, 3),
        held=np.zeros(4, dtype=np.int64),
    )


@njit(**INNER, forceinline=True)
def _has(links, tour, a, b):
    return links[tour, a, 0] == b or links[tour, a, 1] == b


@njit(**INNER, forceinline=True)
def _find_cycles(links, a, b, room, random):
    """Take the edges that only one tour has apart into AB-cycles, at random; returns their number.

    Each begins with an edge of A.
    """
    only, left, cities, seen = room.only, room.left, room.cities, room.seen
    path, cycle, begin = room.path, room.cycle, room.begin
    many = 0
    for city in range(len(left)):
        own = other = 0
        for slot in range(2):
            end = links[a, city, slot]
            if not _has(links, b, city, end):
                only[city, own] = end
                own += 1
            end = links[b, city, slot]
            if not _has(links, a, city, end):
                only[city, 2 + other] = end
                other += 1
        left[city, 0], left[city, 1] = own, other
        if own > 0:
            cities[many] = city
            many += 1
    found = filled = length = 0
    while True:
        if length == 0:
            start = np.int64(0)
            while many > 0:
                start = draw(random, many)
                if left[cities[start], 0] > 0:
                    break
                many -= 1
                cities[start] = cities[many]
            if many == 0:
                break
            path[0] = cities[start]
            seen[path[0], 0] = 0
        city, which = np.int64(path[length]), length & 1  # an edge of A leads on from even places
        slot = draw(random, 2) if left[city, which] == 2 else np.int64(0)
        end = np.int64(only[city, 2 * which + slot])
        _forget(only, left, city, which, end)
        _forget(only, left, end, which, city)
        length += 1
        parity = length & 1
        before = np.int64(seen[end, parity])
        if before < 0:
            path[length] = end
            seen[end, parity] = length
            continue
        around = length - before
        for k in range(before, length):
            cycle[filled + (k - before + (before & 1)) % around] = path[k]
            seen[path[k], k & 1] = -1
        begin[found] = filled
        found += 1
        filled += around
        length = before
        if length > 0:
            seen[end, parity] = length
    begin[found] = filled
    return found


@njit(**INNER, forceinline=True)
def _forget(only, left, city, which, end):
    if only[city, 2 * which] == end:
        only[city, 2 * which] = only[city, 2 * which + 1]
    left[city, which] -= 1


@njit(**INNER, forceinline=True)
def _relink(links, a, room, city, old, new):
    """The way from a city to another leads elsewhere."""
    slot = 0 if links[a, city, 0] == old else 1
    logged = room.held[LOGGED]
    room.log[logged, 0], room.log[logged, 1], room.log[logged, 2] = city, slot, old
    room.held[LOGGED] = logged + 1
    links[a, city, slot] = new


@njit(**INNER, forceinline=True)
def _note(room, one, other, added):
    noted = room.held[EDGES]
    room.edges[noted, 0], room.edges[noted, 1], room.edges[noted, 2] = one, other, added
    room.held[EDGES] = noted + 1


@njit(**INNER, forceinline=True)
def _part(cuts, many, place):
    """The part of A that a place lies in: the first with its cut not before it, or 0, which goes around."""
    low, high = 0, many
    while low < high:
        middle = (low + high) >> 1
        if cuts[middle] < place:
            low = middle + 1
        else:
            high = middle
    return low if low < many else 0


@njit(**INNER, forceinline=True)
def _end(cuts, many, n, here, there):
    """Which end of which part is at place ``here`` of A, cut off from place ``there`` beside it."""
    ends = there == here + 1 or (there == 0 and here == n - 1)
    return 2 * _part(cuts, many, here) + (1 if ends else 0)


@njit(**INNER, forceinline=True)
def _find_rings(room, first, length):
    """Number the rings that tour A becomes by an AB-cycle; returns how many they are."""
    cycle, position, cuts, mate = room.cycle, room.position, room.cuts, room.mate
    ring, size, member = room.ring, room.size, room.first
    n = len(position)
    many = length // 2
    for k in range(many):
        one, other = position[cycle[first + 2 * k]], position[cycle[first + 2 * k + 1]]
        cut = min(one, other) if abs(one - other) == 1 else n - 1
        place = k
        while place > 0 and cuts[place - 1] > cut:
            cuts[place] = cuts[place - 1]
            place -= 1
        cuts[place] = cut
    for k in range(many):  # the edge of B from the end of each edge of A to the begin of the next
        c0, c1 = position[cycle[first + 2 * k]], position[cycle[first + 2 * k + 1]]
        after = first + (2 * k + 2 if 2 * k + 2 < length else 0)
        c2, c3 = position[cycle[after]], position[cycle[after + 1]]
        one, other = _end(cuts, many, n, c1, c0), _end(cuts, many, n, c2, c3)
        mate[one], mate[other] = other, one
    for k in range(many):
        ring[k] = -1
    rings = 0
    for start in range(many):
        if ring[start] >= 0:
            continue
        size[rings] = 0
        member[rings] = room.tour[cuts[start]]
        end = 2 * start
        while ring[end >> 1] < 0:
            part = end >> 1
            ring[part] = rings
            size[rings] += cuts[part] - cuts[part - 1] if part > 0 else cuts[0] + n - cuts[many - 1]
            end = np.int64(mate[end ^ 1])
        rings += 1
    return rings


@njit(**INNER, forceinline=True)
def _join_rings(rule, x, y, neighbors, links, a, room, rings, many):
    """Join all rings to one; returns the gain, or -inf where a ring has no neighbors outside."""
    ring, size, first, members = room.ring, room.size, room.first, room.members
    cuts, position = room.cuts, room.position
    width = neighbors.shape[1]
    total = 0.0
    for _ in range(rings - 1):
        least, smallest = len(position) + 1, 0
        for k in range(rings):
            if 0 < size[k] < least:
                least, smallest = np.int64(size[k]), k
        best = -np.inf
        b1 = b2 = b3 = b4 = np.int64(-1)
        before, city = np.int64(-1), np.int64(first[smallest])
        for k in range(least):
            members[k] = city
            for slot in range(width):
                near = np.int64(neighbors[city, slot])
                if ring[_part(cuts, many, position[near])] == smallest:
                    continue
                joined = distance(rule, x, y, city, near)
                for side in range(4):
                    c, d = np.int64(links[a, city, side & 1]), np.int64(links[a, near, side >> 1])
                    gain = distance(rule, x, y, city, c) + distance(rule, x, y, near, d) - joined
                    gain -= distance(rule, x, y, c, d)
                    if gain > best:
                        best, b1, b2, b3, b4 = gain, city, c, near, d
            after = np.int64(links[a, city, 0])
            if after == before:
                after = np.int64(links[a, city, 1])
            before, city = city, after
        if b1 < 0 or room.held[LOGGED] + 4 > CHANGES or room.held[EDGES] + 4 > CHANGES:
            return -np.inf
        _relink(links, a, room, b1, b2, b3)
        _relink(links, a, room, b2, b1, b4)
        _relink(links, a, room, b3, b4, b1)
        _relink(links, a, room, b4, b3, b2)
        _note(room, b1, b2, 0)
        _note(room, b3, b4, 0)
        _note(room, b1, b3, 1)
        _note(room, b2, b4, 1)
        total += best
        into = ring[_part(cuts, many, position[b3])]
        for part in range(many):
            if ring[part] == smallest:
                ring[part] = into
        size[into] += size[smallest]
        size[smallest] = 0
    return total


def make_tally(n: int) -> NDArray[np.int32]:
    """How many tours have an edge: of each city other ends (0) and how many tours go there (1)."""
    tally = np.zeros((n, ENDS, 2), dtype=np.int32)
    tally[:, :, 0] = -1
    return tally


@njit(**INNER, forceinline=True)
def _count(tally, city, end):
    for slot in range(ENDS):
        if tally[city, slot, 0] == end:
            return np.int64(tally[city, slot, 1])
    return np.int64(0)


@njit(**INNER, forceinline=True)
def _tell(tally, city, end, change):
    """One tour more or less has an edge; where a city has too many ends, the rarest is forgotten."""
    rarest = 0
    for slot in range(ENDS):
        if tally[city, slot, 0] == end:
            tally[city, slot, 1] += change
            return
        if tally[city, slot, 1] < tally[city, rarest, 1]:
            rarest = slot
    if change > 0 and tally[city, rarest, 1] < 2:
        tally[city, rarest, 0], tally[city, rarest, 1] = end, change


@njit(**INNER, forceinline=True)
def _entropy(count, tours):
    return -count / tours * ln(count / tours) if count > 0 else 0.0


@njit(**INNER, forceinline=True)
def cross(rule, x, y, neighbors, links, a, b, tours, tally, children, room, random):
    """Give tour ``a`` the child of tours ``a`` and ``b`` that loses the least variety for its gain.

    ``links (..., n, 2)`` are the neighbors of each city on each tour, ``tally`` how many of ``tours`` have an
    edge, at most ``children`` are made. Returns the gain, 0 where no child is shorter. What changes in
    the tally is appended to ``room.told``.
    """
    log, edges, told, held = room.log, room.edges, room.told, room.held
    cycle, begin, order = room.cycle, room.begin, room.order
    cycles = _find_cycles(links, a, b, room, random)
    if cycles == 0:
        return 0.0
    _go_around(links, a, room.tour)
    for place in range(len(room.tour)):
        room.position[room.tour[place]] = place
    best, best_gain = 0.0, 0.0
    begun = held[TOLD]
    kept = begun
    held[LINKS] = 0
    for k in range(cycles):
        order[k] = k
    for child in range(min(children, cycles)):
        other = child + draw(random, cycles - child)
        order[child], order[other] = order[other], order[child]
        first = np.int64(begin[order[child]])
        length = np.int64(begin[order[child] + 1]) - first
        if 2 * length + 8 > CHANGES:
            continue
        gain = removed = 0.0
        for k in range(0, length, 2):
            c0 = np.int64(cycle[first + k])
            c1 = np.int64(cycle[first + k + 1])
            c2 = np.int64(cycle[first + (k + 2 if k + 2 < length else 0)])
            edge = distance(rule, x, y, c0, c1)
            removed += edge
            gain += edge - distance(rule, x, y, c1, c2)
        if gain <= -HOPELESS * removed / (length // 2):
            continue
        held[LOGGED] = held[EDGES] = 0
        for k in range(0, length, 2):
            c0 = np.int64(cycle[first + k])
            c1 = np.int64(cycle[first + k + 1])
            c2 = np.int64(cycle[first + (k + 2 if k + 2 < length else 0)])
            back = np.int64(cycle[first + (k - 1 if k > 0 else length - 1)])
            _note(room, c0, c1, 0)
            _note(room, c1, c2, 1)
            _relink(links, a, room, c0, c1, back)
            _relink(links, a, room, c1, c0, c2)
        rings = _find_rings(room, first, length)
        if rings > 1:
            gain += _join_rings(rule, x, y, neighbors, links, a, room, rings, length // 2)
        if gain > TOLERANCE:
            lost = 0.0
            for k in range(held[EDGES]):
                count = _count(tally, edges[k, 0], edges[k, 1])
                lost += _entropy(count, tours) - _entropy(count + 2 * edges[k, 2] - 1, tours)
            worth = gain / max(lost, 1e-9)
            if worth > best:
                best, best_gain = worth, gain
                kept, held[LINKS] = begun + held[EDGES], held[LOGGED]
                for k in range(held[EDGES]):
                    for part in range(3):
                        told[begun + k, part] = edges[k, part]
                for k in range(held[LOGGED]):
                    room.links[k, 0], room.links[k, 1] = log[k, 0], log[k, 1]
                    room.links[k, 2] = links[a, log[k, 0], log[k, 1]]
        for k in range(held[LOGGED] - 1, -1, -1):
            links[a, log[k, 0], log[k, 1]] = log[k, 2]
    for k in range(held[LINKS]):
        links[a, room.links[k, 0], room.links[k, 1]] = room.links[k, 2]
    held[TOLD] = kept
    return best_gain


@njit(**PLAIN)
def cross_pairs(rule, x, y, neighbors, links, lengths, tally, order, first, last, children, room, random):
    """Cross tour ``order[k]`` with ``order[k + 1]`` for k in first..last-1; returns the sum of gains.

    The last of ``order`` is a copy, in ``links``, of what the tour after the others was before this
    generation: so nobody reads what another thread changes. ``random (N, 1)`` is each pair's own.
    """
    total = 0.0
    for k in range(first, last):
        a, b = np.int64(order[k]), np.int64(order[k + 1])
        gain = cross(rule, x, y, neighbors, links, a, b, len(lengths), tally, children, room, random[k])
        lengths[a] -= gain
        total += gain
    return total


@njit(**PLAIN)
def count_told(tally, room):
    """Take into the tally what was told of changes."""
    for k in range(room.held[TOLD]):
        one, other, change = room.told[k, 0], room.told[k, 1], 2 * room.told[k, 2] - 1
        _tell(tally, one, other, change)
        _tell(tally, other, one, change)
    room.held[TOLD] = 0


@njit(**PLAIN)
def link(tour, links, k, tally):
    """Enter tour ``k`` of a population."""
    n = len(tour)
    for place in range(n):
        city, after = tour[place], tour[place + 1 if place + 1 < n else 0]
        before = tour[place - 1 if place > 0 else n - 1]
        links[k, city, 0], links[k, city, 1] = before, after
        _tell(tally, city, after, 1)
        _tell(tally, city, before, 1)


@njit(**PLAIN)
def unlink(links, k, tour):
    """Write tour ``k`` of a population as an order of cities."""
    _go_around(links, k, tour)


@njit(**INNER, forceinline=True)
def _go_around(links, k, tour):
    before, city = np.int64(-1), np.int64(0)
    for place in range(len(tour)):
        tour[place] = city
        after = np.int64(links[k, city, 0])
        if after == before:
            after = np.int64(links[k, city, 1])
        before, city = city, after
