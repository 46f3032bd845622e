"""What an answer is: a permutation of the cities, its length, its gap, its canonical form."""

from __future__ import annotations

import math
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from georoutenet.errors import InputError
from georoutenet.problem.instance import Instance, needs_instance

Tour = NDArray[np.int64]


def is_permutation(tour: ArrayLike, n: int) -> bool:
    """Whether ``tour`` visits each of the cities 0..n-1 exactly once."""
    cities = np.asarray(tour)
    if cities.shape != (n,) or not np.issubdtype(cities.dtype, np.integer):
        return False
    if n == 0:
        return True
    if cities.min() < 0 or cities.max() >= n:
        return False
    return bool((np.bincount(cities.astype(np.int64), minlength=n) == 1).all())


def check_tour(tour: ArrayLike, n: int) -> Tour:
    """The tour as an int64 array, or an error that says what is wrong with it."""
    try:
        cities = np.asarray(tour)
    except ValueError as error:
        raise InputError(f"a tour is a flat list of whole city numbers: {error}") from None
    if cities.ndim != 1 or (cities.size and not np.issubdtype(cities.dtype, np.integer)):
        raise InputError(f"a tour is a flat list of whole city numbers, got {cities.dtype} {cities.shape}")
    if len(cities) != n:
        raise InputError(f"the tour has {len(cities)} entries for {n} cities")
    if not is_permutation(cities, n):
        outside = cities[(cities < 0) | (cities >= n)]
        if len(outside):
            raise InputError(f"the tour visits city {outside[0]}; cities are 0..{n - 1}")
        counts = np.bincount(cities.astype(np.int64), minlength=n)
        raise InputError(
            f"the tour visits city {int(np.argmax(counts))} {int(counts.max())} times "
            f"and leaves out city {int(np.argmin(counts))}"
        )
    return cities.astype(np.int64)


def tour_length(instance: Instance, tour: ArrayLike, *, closed: bool = True) -> float:
    """Length of a tour under the instance's rule, Eq. tour_cost: int where distances are whole, else float.

    ``closed=False`` leaves out the edge from the last city back to the first.
    """
    needs_instance(instance)
    cities = check_tour(tour, instance.n)
    if instance.n == 1:
        return 0 if instance.is_integer else 0.0
    following = np.roll(cities, -1)
    edges = instance.distance(cities, following) if closed else instance.distance(cities[:-1], cities[1:])
    length: float = edges.sum().item()
    return length


def tour_lengths(coordinates: ArrayLike, tours: ArrayLike) -> NDArray[np.float64]:
    """Euclidean lengths of many closed tours, Eq. tour_cost, in float64.

    ``coordinates (B, n, 2)`` with ``tours (B, n)`` gives ``(B,)``; ``tours (B, M, n)`` gives ``(B, M)``.
    The tours are trusted to be permutations.
    """
    points = np.ascontiguousarray(coordinates, dtype=np.float64)
    order = np.asarray(tours)
    fits = points.ndim == 3 and points.shape[2] == 2 and order.ndim in (2, 3) and len(order) == len(points)
    if not fits or not np.issubdtype(order.dtype, np.integer):
        raise InputError(
            f"coordinates {points.shape} and tours {order.shape} {order.dtype} do not fit together; "
            "expected (B, n, 2) with whole numbers (B, n) or (B, M, n)"
        )
    # As complex numbers: one gather instead of two, and NumPy's absolute value is faster than its hypot.
    plane = points.view(np.complex128)[..., 0]
    flat = order.reshape(len(order), math.prod(order.shape[1:]))
    lengths = np.empty(order.shape[:-1])
    # In blocks whose temporaries stay in the processor's cache.
    block = max(1, 2**17 // max(1, flat.shape[1]))
    for first in range(0, len(order), block):
        part = slice(first, first + block)
        visited = np.take_along_axis(plane[part], flat[part].astype(np.int64, copy=False), axis=1)
        visited = visited.reshape(order[part].shape)
        edges = np.empty_like(visited)
        np.subtract(visited[..., 1:], visited[..., :-1], out=edges[..., 1:])
        np.subtract(visited[..., :1], visited[..., -1:], out=edges[..., :1])
        lengths[part] = np.abs(edges).sum(axis=-1)
    return lengths


@overload
def gap(length: float, reference: float) -> float: ...
@overload
def gap(length: ArrayLike, reference: ArrayLike) -> Any: ...


def gap(length: ArrayLike, reference: ArrayLike) -> Any:
    """Relative excess over the reference in percent, Eq. eval_gap without the mean.

    A reference of zero (all cities in one place) gives 0 for length zero and infinity otherwise.
    """
    try:
        length, reference = np.asarray(length, dtype=np.float64), np.asarray(reference, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"gap takes lengths: {error}") from None
    with np.errstate(divide="ignore", invalid="ignore"):
        percent = 100.0 * (length - reference) / reference
    percent = np.where((length == reference), 0.0, percent)
    return percent.item() if percent.ndim == 0 else percent


OPTIMAL = "proven optimal"


def proven(length: float, lower_bound: float) -> str:
    """What a lower bound says of a tour's length, in words; rounded up, so that it is true as written."""
    percent = gap(length, lower_bound)
    if percent < 1e-7:
        return OPTIMAL
    if math.isinf(percent):
        return "no bound above zero"
    return f"at most {math.ceil(1000 * percent) / 1000:.3f} % above optimal"


def canonical(tour: ArrayLike) -> Tour:
    """The same closed tour, starting at city 0 and in the direction whose second city is smaller."""
    cities = check_tour(tour, np.size(tour))
    if len(cities) == 0:
        return cities
    cities = np.roll(cities, -int(np.argmin(cities)))
    if len(cities) > 2 and cities[1] > cities[-1]:
        cities = np.concatenate([cities[:1], cities[:0:-1]])
    return cities
