# mypy: disallow-untyped-defs=False
"""Near cities of very many: a k-d tree, compiled, over points in the order of its leaves.

As ``neighbors.nearest_neighbors``, which is the plain version, but for a million cities in seconds: a leaf's
points lie side by side in memory, and queries go from leaf to leaf.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from georoutenet.jit import njit

LEAF = 8
"""Points of a leaf, at most; more where all are in one place."""
ROWS = 20_000
"""Rows of neighbors made in one go, between two looks at the clock."""

Floats = NDArray[np.float64]


class Tree:
    """Points (n, 2) or (n, 3) in the order of the leaves."""

    def __init__(self, points: Floats) -> None:
        self.points = np.zeros((len(points), 3))
        self.points[:, : points.shape[1]] = points
        self.ids = np.arange(len(points), dtype=np.int32)
        self.axis = np.full(len(points), -1, dtype=np.int8)
        self.value = np.empty(len(points))
        _build(self.points, self.ids, self.axis, self.value)

    def lists(
        self,
        k: int,
        *,
        plane: Floats | None = None,
        nearest: int = 0,
        per_quadrant: int = 0,
        workers: int = 1,
        goes_on: Callable[[], bool] = lambda: True,
    ) -> NDArray[np.int32] | None:
        """The ``k`` nearest others of every point, nearest first, ties by lower index.

        With ``plane`` (n, 2) only the ``nearest`` of them and the first ``per_quadrant`` of each quadrant,
        filled up with the next nearest. None where ``goes_on``, asked now and then, says no.
        """
        n = len(self.ids)
        k = min(k, n - 1)
        width = k if plane is None else min(k, nearest + 4 * per_quadrant - min(nearest, per_quadrant))
        found = np.empty((n, width), dtype=np.int32)
        flat = np.empty((0, 2)) if plane is None else plane
        tree = self.points, self.ids, self.axis, self.value
        if width == k:  # all of them are kept, whatever their quadrant
            nearest = k
        halted = threading.Event()

        def fill(first: int) -> bool:
            if halted.is_set() or not goes_on():
                return False
            last = min(n, first + ROWS)
            _fill(*tree, flat, first, last, k, nearest, per_quadrant, found)
            return True

        blocks = range(0, n, ROWS)
        if workers == 1:
            return found if all(map(fill, blocks)) else None
        with ThreadPoolExecutor(workers) as pool:
            try:
                return found if all(pool.map(fill, blocks)) else None
            except BaseException:  # Ctrl-C: the others need not go on
                halted.set()
                raise


@njit(nogil=True, level=2)
def _select(points, ids, low, high, place, axis):
    """Have the points low..high-1 in such an order that none before ``place`` exceeds one after it."""
    high -= 1
    while low < high:
        middle = points[(low + high) // 2, axis]
        first, last = points[low, axis], points[high, axis]
        pivot = max(min(first, last), min(max(first, last), middle))
        i, j = low, high
        while i <= j:
            while points[i, axis] < pivot:
                i += 1
            while points[j, axis] > pivot:
                j -= 1
            if i <= j:
                for d in range(3):
                    points[i, d], points[j, d] = points[j, d], points[i, d]
                ids[i], ids[j] = ids[j], ids[i]
                i += 1
                j -= 1
        if place <= j:
            high = j
        elif place >= i:
            low = i
        else:
            return


@njit(nogil=True, level=2)
def _build(points, ids, axis, value):
    """Halve the points again and again across their longest side; ``axis`` and ``value`` say where.

    A node is a range of points, known by its middle. Points in one place are not halved, but sorted by id.
    """
    stack = np.empty((128, 2), dtype=np.int64)
    stack[0, 0], stack[0, 1] = 0, len(ids)
    top = 1
    while top > 0:
        top -= 1
        low, high = stack[top]
        if high - low <= LEAF:
            continue
        widest, across = 0.0, -1
        for d in range(3):
            least = most = points[low, d]
            for k in range(low, high):
                least = min(least, points[k, d])
                most = max(most, points[k, d])
            if most - least > widest:
                widest, across = most - least, d
        middle = (low + high) // 2
        axis[middle] = across
        if across < 0:
            ids[low:high] = np.sort(ids[low:high])
            continue
        _select(points, ids, low, high, middle, across)
        value[middle] = points[middle, across]
        stack[top, 0], stack[top, 1] = low, middle
        stack[top + 1, 0], stack[top + 1, 1] = middle, high
        top += 2


@njit(nogil=True, level=2)
def _fill(points, ids, axis, value, plane, first, last, k, nearest, per_quadrant, found):
    """The rows of ``found`` of the points first..last-1 in the order of the leaves."""
    squared = np.empty(k + 1)
    near = np.empty(k + 1, dtype=np.int32)
    kept = np.empty(k + 1, dtype=np.bool_)
    count = np.empty(4, dtype=np.int64)
    ranges = np.empty((128, 2), dtype=np.int64)
    least = np.empty(128)
    width = found.shape[1]
    for place in range(first, last):
        own = ids[place]
        x, y, z = points[place]
        held = 0
        ranges[0, 0], ranges[0, 1], least[0] = 0, len(ids), 0.0
        top = 1
        while top > 0:
            top -= 1
            if held == k and least[top] > squared[k - 1]:
                continue
            low, high = ranges[top]
            bound = least[top]
            while high - low > LEAF:
                middle = (low + high) // 2
                across = axis[middle]
                if across < 0:  # all in one place: the first k others are enough
                    high = min(high, low + k + 1)
                    break
                away = (x if across == 0 else y if across == 1 else z) - value[middle]
                ranges[top, 0], ranges[top, 1] = (middle, high) if away < 0 else (low, middle)
                least[top] = max(bound, away * away)
                top += 1
                if away < 0:
                    high = middle
                else:
                    low = middle
            for other in range(low, high):
                city = ids[other]
                distance = (points[other, 0] - x) ** 2 + (points[other, 1] - y) ** 2
                distance += (points[other, 2] - z) ** 2
                if held == k and (
                    distance > squared[k - 1] or (distance == squared[k - 1] and city > near[k - 1])
                ):
                    continue
                if city == own:
                    continue
                slot = held if held < k else k - 1
                while slot > 0 and (
                    squared[slot - 1] > distance or (squared[slot - 1] == distance and near[slot - 1] > city)
                ):
                    squared[slot], near[slot] = squared[slot - 1], near[slot - 1]
                    slot -= 1
                squared[slot], near[slot] = distance, city
                held = min(held + 1, k)
        chosen = 0
        count[:] = 0
        for slot in range(k):
            keep = slot < nearest
            if per_quadrant > 0 and nearest < k:
                right = plane[near[slot], 0] >= plane[own, 0]
                above = plane[near[slot], 1] >= plane[own, 1]
                quadrant = 2 * right + above
                keep |= count[quadrant] < per_quadrant
                count[quadrant] += 1
            kept[slot] = keep
            chosen += keep
        for slot in range(k):
            if chosen < width and not kept[slot]:
                kept[slot] = True
                chosen += 1
        chosen = 0
        for slot in range(k):
            if kept[slot] and chosen < width:
                found[own, chosen] = near[slot]
                chosen += 1
