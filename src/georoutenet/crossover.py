# mypy: disallow-untyped-defs=False
"""The better parts of two tours in one: partition crossover (Whitley, Hains and Howe, GECCO 2009).

Take away the edges that two tours share, and what is left falls into parts that have no city in common.
Inside one part the edges of either tour may be taken, whatever is taken elsewhere, as long as the whole stays
one cycle; that is tested by going around it. So a tour that is longer in all may still shorten another.
"""

from __future__ import annotations

from georoutenet.jit import INNER, PLAIN, njit

TOLERANCE = 1e-12
"""Smaller gains are rounding noise."""

ROOM = 8
"""Rows of whole numbers that merging needs, one entry per city each."""

_BEFORE, _AFTER, _PARENT, _PART, _CHOSEN, _ORDER = 0, 2, 4, 5, 6, 7  # of ``best``; of ``other`` one more


@njit(**INNER)
def _root(room, city):
    while room[_PARENT, city] != city:
        room[_PARENT, city] = room[_PARENT, room[_PARENT, city]]
        city = room[_PARENT, city]
    return city


@njit(**INNER)
def _go_around(room):
    """From city 0, along the other tour's edges in chosen parts; returns the number of cities met."""
    n = room.shape[1]
    city, before = 0, -1
    for step in range(n):
        room[_ORDER, step] = city
        part = room[_PART, city]
        which = 1 if part >= 0 and room[_CHOSEN, part] else 0
        after = room[_BEFORE + which, city]
        if after == before:
            after = room[_AFTER + which, city]
        before, city = city, after
        if city == 0:
            return step + 1
    return n


@njit(**INNER, forceinline=True)
def _has(room, which, a, b):
    """Whether a tour has the edge a b."""
    return room[_BEFORE + which, a] == b or room[_AFTER + which, a] == b


@njit(**PLAIN)
def take_better_parts(best, other, edges, room):
    """Shorten the tour ``best`` by parts of the tour ``other``; returns the gain.

    ``edges`` (3, n) holds the distances from each city of a tour to the next, ``best``'s in the first row and
    ``other``'s in the second; the third and ``room`` (ROOM, n) are room to work in.
    """
    n = len(best)
    if n < 5:
        return 0.0
    for place in range(n):
        room[_PARENT, place] = place
        room[_PART, place] = -1
        ahead = place + 1 if place + 1 < n else 0
        room[_AFTER, best[place]], room[_BEFORE, best[ahead]] = best[ahead], best[place]
        room[_AFTER + 1, other[place]], room[_BEFORE + 1, other[ahead]] = other[ahead], other[place]
    for which in range(2):
        for place in range(n):
            tour = best if which == 0 else other
            a, b = tour[place], tour[place + 1 if place + 1 < n else 0]
            if not _has(room, 1 - which, a, b):
                room[_PART, a] = room[_PART, b] = 0
                room[_PARENT, _root(room, a)] = _root(room, b)
    parts = 0  # in the order of their lowest cities
    for city in range(n):
        room[_CHOSEN, city] = -1
    for city in range(n):
        if room[_PART, city] >= 0:
            root = _root(room, city)
            if room[_CHOSEN, root] < 0:
                room[_CHOSEN, root] = parts
                edges[2, parts] = 0.0
                parts += 1
            room[_PART, city] = room[_CHOSEN, root]
    for part in range(parts):
        room[_CHOSEN, part] = 0
    for place in range(n):
        ahead = place + 1 if place + 1 < n else 0
        if not _has(room, 1, best[place], best[ahead]):
            edges[2, room[_PART, best[place]]] += edges[0, place]
        if not _has(room, 0, other[place], other[ahead]):
            edges[2, room[_PART, other[place]]] -= edges[1, place]
    total = 0.0
    for part in range(parts):
        if edges[2, part] > TOLERANCE:
            room[_CHOSEN, part] = 1
            if _go_around(room) == n:
                total += edges[2, part]
            else:
                room[_CHOSEN, part] = 0
    if total > 0.0:
        _go_around(room)
        for place in range(n):
            best[place] = room[_ORDER, place]
    return total


@njit(**PLAIN)
def merge_all(tours, edges, best, own, room, passes):
    """Take the better parts of all ``tours (M, n)`` into the tour ``best``; returns the gain.

    ``edges (M, n)`` are the distances from each city of the tours to the next, and the first row of ``own (5,
    n)`` those of ``best``, kept up to date; the other rows and ``room (ROOM, n)`` are room to work in. A part
    that is taken may let others in, so the tours are offered again and again, at most ``passes`` times, until
    none of them has helped since the last that did.
    """
    n, total, in_vain = len(best), 0.0, 0
    for offer in range(passes * len(tours)):
        if in_vain == len(tours):
            break
        k = offer % len(tours)
        other = tours[k]
        for place in range(n):
            own[1, place] = edges[k, place]
            own[3, best[place]] = own[0, place]
            own[4, other[place]] = edges[k, place]
        gain = take_better_parts(best, other, own, room)
        in_vain += 1
        if gain > 0.0:
            total += gain
            in_vain = 0
            for place in range(n):
                a, b = best[place], best[place + 1 if place + 1 < n else 0]
                if room[_AFTER, a] == b:
                    own[0, place] = own[3, a]
                elif room[_BEFORE, a] == b:
                    own[0, place] = own[3, b]
                elif room[_AFTER + 1, a] == b:
                    own[0, place] = own[4, a]
                else:
                    own[0, place] = own[4, b]
    return total


@njit(**PLAIN)
def merge_from(tours, edges, grown, lengths, best, own, room, passes):
    """Let each of the first of ``tours (M, n)`` take the better parts of all, then these of one another.

    ``grown (rounds, bases, n)`` and ``lengths (rounds, bases, n)`` say how many there are of them and of
    rounds, and become tours and the lengths of their edges after each round. The shortest at the end is
    ``best``; ``own (5, n)`` and ``room (ROOM, n)`` are room to work in. Which part fits depends on what is
    there already, so tours that begin apart end apart.
    """
    rounds, bases, n = grown.shape
    shortest, least = 0, 0.0
    for turn in range(rounds):
        for k in range(bases):
            for place in range(n):
                if turn == 0:
                    best[place], own[0, place] = tours[k, place], edges[k, place]
                else:
                    best[place], own[0, place] = grown[turn - 1, k, place], lengths[turn - 1, k, place]
            if turn == 0:
                merge_all(tours, edges, best, own, room, passes)
            else:
                merge_all(grown[turn - 1], lengths[turn - 1], best, own, room, passes)
            length = 0.0
            for place in range(n):
                grown[turn, k, place], lengths[turn, k, place] = best[place], own[0, place]
                length += own[0, place]
            if k == 0 or length < least:
                shortest, least = k, length
    for place in range(n):
        best[place] = grown[rounds - 1, shortest, place]
