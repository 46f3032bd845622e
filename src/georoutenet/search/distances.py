# mypy: disallow-untyped-defs=False
"""Distances in compiled code, under every rule."""

from __future__ import annotations

from math import acos, asin, cos, floor, sqrt

import numpy as np
from numba import types
from numba.extending import overload

from georoutenet.jit import INNER, PLAIN, njit

EUCLIDEAN, EUC_2D, CEIL_2D, ATT, GEO, MAN_2D, MAX_2D, EXPLICIT, GREAT_CIRCLE = range(9)

FREE = 16
"""Added to a rule for paths (see ``path.py``): the last city is no place, every way to it costs nothing."""

NEVER = 1e200
"""What it would cost to take out a fixed edge."""


@njit(**INNER)
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
    if rule == GREAT_CIRCLE:  # of places on a stereographic map; an angle, not kilometers
        both = (1.0 + (x1 * x1 + y1 * y1)) * (1.0 + (x2 * x2 + y2 * y2))
        return 2.0 * asin(sqrt(min(1.0, (dx * dx + dy * dy) / both)))
    if rule == MAN_2D:
        return floor(abs(dx) + abs(dy) + 0.5)
    if rule == MAX_2D:
        return floor(max(abs(dx), abs(dy)) + 0.5)
    exact = sqrt((dx * dx + dy * dy) / 10.0)
    rounded = floor(exact + 0.5)
    return rounded + 1.0 if rounded < exact else rounded


@njit(**INNER, forceinline=True)
def place_distance(rule, x, y, i, j):
    """Distance of two places; whole numbers for TSPLIB's rules."""
    if rule > CEIL_2D:
        return rare_distance(rule, x[i], y[i], x[j], y[j])
    i, j = np.uintp(i), np.uintp(j)  # else every access asks whether it counts from the end
    dx = x[i] - x[j]
    dy = y[i] - y[j]
    exact = sqrt(dx * dx + dy * dy)
    if rule == EUCLIDEAN:
        return exact
    return np.floor(exact + 0.5) if rule == EUC_2D else np.ceil(exact)


@njit(**INNER, forceinline=True)
def place_within(rule, x, y, i, j, limit):
    """Without a root: False only where the distance of two places is surely ``limit`` (> 0) or more."""
    if rule > CEIL_2D:
        return True
    i, j = np.uintp(i), np.uintp(j)  # else every access asks whether it counts from the end
    dx = x[i] - x[j]
    dy = y[i] - y[j]
    if rule != EUCLIDEAN:
        limit += 0.5
    return dx * dx + dy * dy < limit * limit


@njit(**INNER, forceinline=True)
def fixed_distance(rule, bound, x, y, i, j):
    """Distance where edges are fixed: those of the cities bound, bound + 1, then bound + 2, bound + 3, ..."""
    if min(i, j) >= bound and (i - bound) ^ (j - bound) == 1:
        return -NEVER
    if rule & FREE and max(i, j) == len(x) - 1:
        return 0.0
    return distance(rule & (FREE - 1), x, y, i, j)


def distance(rule, x, y, i, j):
    """Distance of cities i and j by their rule, or their entry where ``x`` is a matrix.

    ``rule`` is a number, or ``(number, bound)`` where edges are fixed.
    """
    raise NotImplementedError  # compiled code takes the overload


@overload(distance, jit_options={"forceinline": True})
def _choose_distance(rule, x, y, i, j):
    # By type, so that each search is compiled for its own case: a test at run time costs 30 % of the speed.
    if isinstance(rule, types.BaseTuple):
        return lambda rule, x, y, i, j: fixed_distance(rule[0], rule[1], x, y, i, j)
    if x.ndim == 2:
        return lambda rule, x, y, i, j: x[np.uintp(i), np.uintp(j)]
    return lambda rule, x, y, i, j: place_distance(rule, x, y, i, j)


def within(rule, x, y, i, j, limit):
    """False only where ``distance`` is surely ``limit`` (> 0) or more; cheaper, and mostly right."""
    raise NotImplementedError  # compiled code takes the overload


@overload(within, jit_options={"forceinline": True})
def _choose_within(rule, x, y, i, j, limit):
    if isinstance(rule, types.BaseTuple) or x.ndim == 2:
        return lambda rule, x, y, i, j, limit: True
    return lambda rule, x, y, i, j, limit: place_within(rule, x, y, i, j, limit)


@njit(**PLAIN)
def measure(rule, x, y, neighbors, near):
    """Distances to the neighbors."""
    for city in range(len(neighbors)):
        for slot in range(neighbors.shape[1]):
            near[city, slot] = distance(rule, x, y, city, np.int64(neighbors[city, slot]))


@njit(**PLAIN)
def measure_edges(rule, x, y, tour, edges, row):
    """Distances from each city of a tour to the next."""
    for place in range(len(tour)):
        after = tour[place + 1 if place + 1 < len(tour) else 0]
        edges[row, place] = distance(rule, x, y, np.int64(tour[place]), np.int64(after))
