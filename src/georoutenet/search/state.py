"""The arrays of the compiled search, and how much of it runs between two looks at the clock."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

MANY = 2**62
SLICE = 0.01
"""Seconds of compiled work between two looks at the clock."""


def next_slice(count: int, took: float, left: float = math.inf) -> int:
    """How much work to do before the clock is read again; grows at most fourfold."""
    fits = count * min(SLICE, left) / max(took, 1e-9)
    return max(1, int(min(fits, 4.0 * count)))


def make_search(
    rule: Any,
    x: NDArray[np.float64],
    y: NDArray[np.float64],
    neighbors: NDArray[np.int32],
    tour: NDArray[np.integer],
    seed: int | list[int],
) -> Any:
    """The kernels' state for a tour, with every city queued in tour order. Its one walk has no end."""
    from georoutenet.crossover import ROOM
    from georoutenet.search import distances, kernels

    n = len(x)
    neighbors = np.ascontiguousarray(neighbors, dtype=np.int32)
    near = np.empty(neighbors.shape)
    distances.measure(rule, x, y, neighbors, near)
    order = tour.astype(np.int32)
    position = np.empty(n, dtype=np.int32)
    position[order] = np.arange(n, dtype=np.int32)
    count = np.zeros(kernels.COUNTS, dtype=np.int64)
    count[kernels.HELD], count[kernels.PATIENCE] = n, MANY
    return kernels.Search(
        x=x,
        y=y,
        neighbors=neighbors,
        near=near,
        tour=order,
        position=position,
        queue=order.copy(),
        queued=np.ones(n, dtype=np.bool_),
        waiting=np.empty_like(order),
        waits=np.zeros(n, dtype=np.bool_),
        log=np.zeros((kernels.LOG, 2), dtype=np.int32),
        touched=np.zeros(6 * kernels.DEPTH, dtype=np.int32),
        random=np.random.SeedSequence(seed).generate_state(1, np.uint64) | np.uint64(1),  # never 0
        best=order.copy(),
        spare=np.empty_like(order),
        edges=np.empty((3, n)),
        room=np.empty((ROOM, n), dtype=np.int32),
        count=count,
        excess=np.zeros(3),
    )


def best_tour(state: Any) -> NDArray[np.int32]:
    """The shortest tour that a search has found."""
    from georoutenet.search import kernels

    best: NDArray[np.int32] = state.best if state.excess[kernels.BEHIND] > 0 else state.tour
    return best


def go_to(state: Any, tour: NDArray[np.int32]) -> None:
    """Make ``tour`` the best one and stand there, at the end of a walk that counts for none."""
    from georoutenet.search import kernels

    state.tour[:] = state.best[:] = tour
    state.position[tour] = np.arange(len(tour), dtype=np.int32)
    state.excess[kernels.BEHIND] = 0.0
    state.count[kernels.WALKS] = state.count[kernels.LEADS] = state.count[kernels.AGREED] = 0
    state.count[kernels.IDLE] = state.count[kernels.PATIENCE]
