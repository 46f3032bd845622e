"""Nearest neighbors of every city, by a k-d tree where there are many."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from georoutenet.errors import InputError
from georoutenet.problem.globe import on_sphere
from georoutenet.problem.instance import DistanceRule, Instance, normalize
from georoutenet.unbroken import import_whole

ALL_PAIRS = 128
"""Up to this many points all pairs are compared: as fast as a tree, and SciPy need not be imported."""

MANY = 10_000
"""Above this number of points the compiled tree of ``tree.py`` answers, four times as fast."""

ROWS = 256
"""Rows of a matrix that are sorted at a time."""


def nearest_neighbors(coordinates: ArrayLike, k: int) -> NDArray[np.int32]:
    """The ``k`` nearest other points of every point, nearest first, ties by lower index.

    ``coordinates`` is ``(n, d)``; the result is ``(n, min(k, n - 1))`` and does not depend on the platform's
    sorting or on how the tree was built. Coincident points are neighbors at distance zero.
    """
    points = np.ascontiguousarray(coordinates, dtype=np.float64)
    if points.ndim != 2 or len(points) < 1:
        raise InputError(f"coordinates must have shape (n, d) with n >= 1, got {points.shape}")
    if k < 1:
        raise InputError(f"k must be at least 1, got {k}")
    points = points * power_of_two_scale(points)
    n = len(points)
    k = min(k, n - 1)
    if n <= max(1, ALL_PAIRS):
        squared = np.square(points[:, None] - points).sum(axis=-1)
        np.fill_diagonal(squared, -1.0)  # sorts first and is cut off
        return np.argsort(squared, axis=1, kind="stable")[:, 1 : k + 1].astype(np.int32)
    if n > MANY and points.shape[1] in (2, 3):
        return _tree(points).lists(k)

    import_whole("scipy.spatial")
    from scipy.spatial import cKDTree

    result = np.empty((n, k), dtype=np.int32)
    # Nobody needs more than the k + 1 first of a pile of coincident points; leaving out the rest keeps
    # queries short when a file repeats one city thousands of times.
    kept = np.flatnonzero(_rank_among_coincident(points) <= k)
    tree = cKDTree(points[kept])
    rows, width = np.arange(n), k + 2  # itself, k others, and one more to see whether the k-th is tied
    while len(rows):
        width = min(width, len(kept))
        _, found = tree.query(points[rows], width)
        near = kept[found]
        squared = np.square(points[near] - points[rows][:, None]).sum(axis=-1)
        squared[near == rows[:, None]] = -1.0  # sorts first and is cut off
        order = np.lexsort((near, squared))
        near, squared = np.take_along_axis(near, order, 1), np.take_along_axis(squared, order, 1)
        # A row of a left-out coincident point does not find itself; its pile alone fills the list.
        skip = (near[:, 0] == rows).astype(np.intp)
        columns = skip[:, None] + np.arange(k)
        settled = np.ones(len(rows), dtype=bool)
        if width < len(kept):
            settled = np.take_along_axis(squared, columns[:, -1:], 1)[:, 0] < squared[:, -1]
        result[rows[settled]] = np.take_along_axis(near, columns, 1)[settled]
        rows, width = rows[~settled], 2 * width
    return result


def _tree(points: NDArray[np.float64]) -> Any:
    import_whole("georoutenet.search.tree")
    from georoutenet.search.tree import Tree

    return Tree(points)


def nearest_in_matrix(matrix: NDArray[np.float64], k: int) -> NDArray[np.int32]:
    """The ``k`` nearest other cities of every city by a matrix of distances, nearest first.

    Of cities at the same distance those that follow by index come first, from the last on to the first: where
    many are equally near, every city has others.
    """
    n = len(matrix)
    k = min(k, n - 1)
    result = np.empty((n, k), dtype=np.int32)
    for first in range(0, n if k else 0, ROWS):
        block = matrix[first : first + ROWS].copy()
        cities = first + np.arange(len(block))
        block[np.arange(len(block)), cities] = np.inf
        rows, columns = np.nonzero(block <= np.partition(block, k - 1, axis=1)[:, k - 1 : k])
        order = np.lexsort(((columns - cities[rows]) % n, block[rows, columns], rows))
        rows, columns = rows[order], columns[order]
        rank = np.arange(len(rows)) - np.searchsorted(rows, np.arange(len(block)))[rows]
        result[cities] = columns[rank < k].reshape(len(block), k)
    return result


def instance_neighbors(instance: Instance, k: int) -> NDArray[np.int32]:
    """The ``k`` nearest other cities of every city of an instance, nearest first."""
    if instance.matrix is not None:
        return nearest_in_matrix(instance.matrix, k)
    return nearest_neighbors(spatial_points(instance), k)


def candidate_neighbors(
    instance: Instance, *, nearest: int = 5, per_quadrant: int = 2, among: int | None = None
) -> NDArray[np.int32]:
    """Neighbor lists for the local search, nearest first, with some from every side.

    Of the ``among`` nearest cities of a city: the first ``nearest``, and the first ``per_quadrant`` in each
    of the four quadrants around it. Where cities lie in clusters or rows, the nearest alone are all on one
    side, and no move leads out. Shorter lists are filled up with the next nearest cities. Under a matrix
    there are no sides: the lists are the nearest cities, as many.

    ``among`` is 40 if not given, and 20 above ``MANY`` cities, where uniform ones lose nothing by it.
    """
    if instance.matrix is not None:
        return nearest_in_matrix(instance.matrix, nearest + 4 * per_quadrant)
    if instance.n > MANY:
        found = candidates_of_many(instance, nearest=nearest, per_quadrant=per_quadrant, among=among or 20)
        assert found is not None
        return found
    lists = nearest_neighbors(spatial_points(instance), among or 40)
    right = np.empty(lists.shape, dtype=np.bool_)
    above = np.empty(lists.shape, dtype=np.bool_)
    for side, values in zip((right, above), instance.plane.T, strict=True):
        np.greater_equal(values[lists], values[:, None], out=side)
    kept = np.zeros(lists.shape, dtype=np.bool_)
    kept[:, :nearest] = True
    for quadrant in (right & above, right & ~above, ~right & above, ~right & ~above):
        kept |= quadrant & (np.cumsum(quadrant, axis=1, dtype=np.int32) <= per_quadrant)
    width = int(kept.sum(axis=1).max())
    columns = np.sort(np.argsort(~kept, axis=1, kind="stable")[:, :width], axis=1)
    return np.ascontiguousarray(np.take_along_axis(lists, columns, axis=1))


def candidates_of_many(
    instance: Instance,
    *,
    nearest: int = 5,
    per_quadrant: int = 2,
    among: int = 20,
    workers: int = 1,
    goes_on: Callable[[], bool] = lambda: True,
) -> NDArray[np.int32] | None:
    """``candidate_neighbors`` by several threads, of one width; None where ``goes_on`` says no."""
    points = spatial_points(instance)
    tree = _tree(points * power_of_two_scale(points))
    found: NDArray[np.int32] | None = tree.lists(
        among,
        plane=np.ascontiguousarray(instance.plane),
        nearest=nearest,
        per_quadrant=per_quadrant,
        workers=workers,
        goes_on=goes_on,
    )
    return found


def delaunay_edges(instance: Instance) -> NDArray[np.int64]:
    """The edges (m, 2) of a Delaunay triangulation on the flat map, those inside it twice.

    Where dense groups of cities lie far apart, all near cities are in the own group; these edges lead from
    each group to those around it. None up to ``ALL_PAIRS`` cities, under a matrix, and where all cities lie
    on one line.
    """
    none = np.empty((0, 2), dtype=np.int64)
    if instance.matrix is not None or instance.n <= ALL_PAIRS:
        return none

    import_whole("scipy.spatial")
    from scipy.spatial import Delaunay, QhullError

    try:
        corners = Delaunay(normalize(instance.plane)).simplices.astype(np.int64)
    except QhullError:
        return none
    return np.concatenate([corners[:, :2], corners[:, 1:], corners[:, ::2]])


def _rank_among_coincident(points: NDArray[np.float64]) -> NDArray[np.intp]:
    """0 for the first of a pile of coincident points, 1 for the second, and so on, by index."""
    n = len(points)
    order = np.lexsort((np.arange(n), *points.T))
    same = np.concatenate([[False], (points[order][1:] == points[order][:-1]).all(axis=1)])
    pile_start = np.maximum.accumulate(np.where(same, 0, np.arange(n)))
    ranks = np.empty(n, dtype=np.intp)
    ranks[order] = np.arange(n) - pile_start
    return ranks


def spatial_points(instance: Instance) -> NDArray[np.float64]:
    """Points whose straight-line distances order as the instance's distances do, up to their rounding.

    The coordinates as they are; for places on Earth points on the unit sphere.
    """
    if instance.rule is DistanceRule.GREAT_CIRCLE:
        return on_sphere(instance.coordinates)
    if instance.rule is DistanceRule.GEO:
        degrees = np.trunc(instance.coordinates)
        return on_sphere(degrees + 5.0 * (instance.coordinates - degrees) / 3.0)
    return instance.coordinates


def power_of_two_scale(coordinates: NDArray[np.float64]) -> float:
    """A power of two that brings the larger range near 1: multiplying rounds nothing, squares stay finite."""
    span = float(np.ptp(coordinates, axis=0).max())
    if span == 0.0:
        return 1.0
    return float(np.ldexp(1.0, -max(-1000, min(1000, int(np.frexp(span)[1])))))
