"""First tours without a network: nearest neighbor and greedy edge, both O(n log n) in practice."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from georoutenet.errors import InputError
from georoutenet.jit import njit
from georoutenet.search.neighbors import nearest_in_matrix, nearest_neighbors, power_of_two_scale

Points = NDArray[np.float64]
Tour = NDArray[np.int64]


def nearest_neighbor(coordinates: ArrayLike, start: int = 0) -> Tour:
    """From ``start`` always on to the nearest city not yet visited, ties by lower index."""
    points = _points(coordinates)[:, :2]
    n = len(points)
    if not 0 <= start < n:
        raise InputError(f"start must be a city in 0..{n - 1}, got {start}")
    # Coincident cities follow one another in any such tour: walk over distinct places, then unfold them.
    _, first, place = np.unique(points, axis=0, return_index=True, return_inverse=True)
    by_first = np.argsort(first)  # number places by their lowest city, so that ties stay ties by index
    place = np.argsort(by_first)[place.reshape(n)]
    walk = _walk(points[first[by_first]], int(place[start]))
    turn = np.empty(len(walk), dtype=np.int64)
    turn[walk] = np.arange(len(walk))
    return np.lexsort((np.arange(n), np.arange(n) != start, turn[place]))


def _walk(points: Points, start: int) -> Tour:
    """Nearest-neighbor tour of distinct points.

    Neighbor lists answer nearly every step, and a grid answers when a list is used up. Both are made anew
    over the points that remain each time their number has halved.
    """
    n = len(points)
    walk = np.empty(n, dtype=np.int64)
    walk[0] = start
    visited = np.zeros(n, dtype=np.bool_)
    visited[start] = True
    done = 1
    while done < n:
        # The city we stand on comes along: its own list is needed too.
        remaining = np.flatnonzero(~visited | (np.arange(n) == walk[done - 1]))
        half = done + (n - done + 1) // 2
        if len(remaining) <= 64:
            half = n
        local = points[remaining]
        lists = nearest_neighbors(local, 8)
        here = int(np.searchsorted(remaining, walk[done - 1]))
        left = np.ones(len(remaining), dtype=np.bool_)
        left[here] = False
        order = np.empty(half - done, dtype=np.int64)
        _follow_lists(local, lists, left, here, order)
        walk[done:half] = remaining[order]
        visited[walk[done:half]] = True
        done = half
    return walk


@njit(nogil=True, level=1)
def _follow_lists(points, lists, left, here, order):  # type: ignore[no-untyped-def]
    """Fill ``order`` with the next cities; where a list is used up, a grid of the points left is searched."""
    n = len(points)
    low_x, low_y = points[:, 0].min(), points[:, 1].min()
    span = max(points[:, 0].max() - low_x, points[:, 1].max() - low_y)
    side = max(1, int(np.sqrt(n / 2.0)))
    cell = span / side if span > 0 else 1.0
    column = np.empty(n, dtype=np.int32)
    row = np.empty(n, dtype=np.int32)
    begin = np.zeros(side * side + 1, dtype=np.int64)
    for i in range(n):
        column[i] = min(side - 1, int((points[i, 0] - low_x) / cell))
        row[i] = min(side - 1, int((points[i, 1] - low_y) / cell))
        begin[row[i] * side + column[i] + 1] += 1
    begin = np.cumsum(begin)
    end = begin[:-1].copy()
    members = np.empty(n, dtype=np.int32)
    for i in range(n):
        bucket = row[i] * side + column[i]
        members[end[bucket]] = i
        end[bucket] += 1
    for step in range(len(order)):
        following = -1
        for near in lists[here]:
            if left[near]:
                following = near
                break
        if following < 0:
            best = np.inf
            ring = 0
            while ring <= side and (ring < 2 or ((ring - 1) * cell) ** 2 <= best):
                for r in range(max(0, row[here] - ring), min(side - 1, row[here] + ring) + 1):
                    edge_row = abs(r - row[here]) == ring
                    c = column[here] - ring
                    while c <= column[here] + ring:
                        if 0 <= c < side:
                            bucket = r * side + c
                            m = begin[bucket]
                            while m < end[bucket]:
                                i = members[m]
                                if not left[i]:  # drop it for good: it moves behind the end
                                    end[bucket] -= 1
                                    members[m] = members[end[bucket]]
                                    continue
                                dx = points[i, 0] - points[here, 0]
                                dy = points[i, 1] - points[here, 1]
                                squared = dx * dx + dy * dy
                                if squared < best or (squared == best and i < following):
                                    best, following = squared, i
                                m += 1
                        c += 1 if edge_row or ring == 0 else 2 * ring
                ring += 1
        left[following] = False
        order[step] = following
        here = following


def greedy_edge(coordinates: ArrayLike, near: NDArray[np.int32] | None = None) -> Tour:
    """Join cities by the shortest edges that still fit into one tour (no third edge, no early cycle).

    Edges between near neighbors first (those in the lists ``near``, if given); then the ends of the fragments
    that remain are joined the same way, round by round, until one path is left.
    """
    points = _points(coordinates)
    n = len(points)
    links = np.full((n, 2), -1, dtype=np.int64)
    parent = np.arange(n)
    fragments = n
    if near is None or (points[near[:, 0]] == points).all(axis=1).any():
        # Coincident cities first, as a chain: neighbor lists of a large pile would all name the same few.
        order = np.lexsort((np.arange(n), *points.T))
        same = (points[order][1:] == points[order][:-1]).all(axis=1)
        fragments -= _join(order[:-1][same], order[1:][same], links, parent)
    while fragments > 1:
        ends = np.flatnonzero(links[:, 1] < 0)
        if near is None:
            lists: NDArray[np.integer] = ends[
                nearest_neighbors(points[ends], 8 if len(ends) > 9 else len(ends) - 1)
            ]
        else:
            lists, near = near[ends], None
        a, b = _edges(ends, lists)
        length = np.square(points[a] - points[b]).sum(axis=1)
        order = np.argsort(length, kind="stable")
        fragments -= _join(a[order], b[order], links, parent)
    return _unroll(links)


def greedy_edge_in_matrix(matrix: NDArray[np.float64]) -> Tour:
    """``greedy_edge`` by a matrix of distances.

    From round to round the lists grow: where a few cities are near to all others, they are in every list.
    """
    n = len(matrix)
    links = np.full((n, 2), -1, dtype=np.int64)
    parent = np.arange(n)
    fragments, width = n, 8
    while fragments > 1:
        ends = np.flatnonzero(links[:, 1] < 0)
        among = matrix if len(ends) == n else matrix[np.ix_(ends, ends)]
        a, b = _edges(ends, ends[nearest_in_matrix(among, width)])
        order = np.argsort(matrix[a, b], kind="stable")
        fragments -= _join(a[order], b[order], links, parent)
        width *= 4
    return _unroll(links)


def _edges(ends: Tour, near: NDArray[np.integer]) -> tuple[Tour, Tour]:
    """Both ends, the lower first, of the edges from each of ``ends`` to the cities near it, in order."""
    left = np.repeat(ends, near.shape[1])
    right = near.ravel()
    count = max(int(left.max()), int(right.max())) + 1
    edges = np.sort(np.minimum(left, right) * count + np.maximum(left, right))
    edges = edges[np.append(True, edges[1:] != edges[:-1])]
    first = edges // count
    return first, edges - first * count


@njit(nogil=True, level=1)
def _join(a, b, links, parent):  # type: ignore[no-untyped-def]
    """Take the edges in the order given where they fit; returns how many were taken."""
    taken = 0
    for edge in range(len(a)):
        i, j = a[edge], b[edge]
        if links[i, 1] >= 0 or links[j, 1] >= 0:
            continue
        root_i, root_j = i, j
        while parent[root_i] != root_i:
            parent[root_i] = parent[parent[root_i]]
            root_i = parent[root_i]
        while parent[root_j] != root_j:
            parent[root_j] = parent[parent[root_j]]
            root_j = parent[root_j]
        if root_i == root_j:
            continue
        parent[root_j] = root_i
        links[i, 0 if links[i, 0] < 0 else 1] = j
        links[j, 0 if links[j, 0] < 0 else 1] = i
        taken += 1
    return taken


@njit(nogil=True, level=1)
def _unroll(links):  # type: ignore[no-untyped-def]
    """The path given by links, from the lower of its two ends."""
    n = len(links)
    tour = np.empty(n, dtype=np.int64)
    city, before = 0, -1
    while n > 1 and links[city, 1] >= 0:
        city += 1
    for step in range(n):
        tour[step] = city
        after = links[city, 0] if links[city, 0] != before else links[city, 1]
        before, city = city, after
    return tour


def _points(coordinates: ArrayLike) -> Points:
    points = np.ascontiguousarray(coordinates, dtype=np.float64)
    if points.ndim != 2 or points.shape[1] < 2 or len(points) < 1:
        raise InputError(f"coordinates must have shape (n, 2) with n >= 1, got {points.shape}")
    return points * power_of_two_scale(points) + 0.0  # -0.0 and 0.0 are one place
