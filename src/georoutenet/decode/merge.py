"""Many tours of an instance in one: what each does best, by partition crossover.

The views of an instance err in different places. Where two tours differ in parts that have no city in common,
each part is taken from the tour in which it is shorter. No edge is new: all come from decoded tours.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from georoutenet.decode.common import City
from georoutenet.decode.costs import Costs
from georoutenet.decode.cpu.threads import in_ranges

PASSES = 3
"""Times that all tours are offered to the merged one, at most: a part that was taken may let others in."""


def merge_tours(
    tours: Tensor, costs: Costs, *, bases: int = 1, start: City = None, end: City = None
) -> Tensor:
    """``tours (B, M, n)`` merged into one of each instance: ``(B, 1, n)``.

    It is no longer than any of the first ``bases`` tours, into each of which all others are merged, and has
    the same fixed ends. An open path is closed by one more city, which is at no distance from any other.
    """
    from georoutenet.crossover import ROOM, merge_from

    batch, count, n = tours.shape
    if count == 1 or n < 4:
        return tours[:, :1]
    order = tours.cpu().numpy().astype(np.int32)
    firsts, lasts = (_fixed(city, batch) for city in (start, end))
    size = n if costs.closed else n + 1
    if not costs.closed:
        order = np.concatenate([order, np.full((batch, count, 1), n, np.int32)], axis=2)
    merged = np.empty((batch, 1, n), np.int64)

    def work(low: int, high: int) -> None:
        own, room = np.empty((5, size)), np.empty((ROOM, size), np.int32)
        for b in range(low, high):
            edges = costs.edges(tours[b : b + 1], b)[0].cpu().numpy()
            if not costs.closed:
                edges[:, -1] = 0.0
                edges = np.concatenate([edges, np.zeros((count, 1))], axis=1)
            best = np.empty(size, np.int32)
            merge_from(order[b], edges, min(bases, count), best, own, room, PASSES)
            merged[b, 0] = _opened(best, n, int(firsts[b]), int(lasts[b]))

    in_ranges(batch, work)
    return torch.from_numpy(merged).to(tours.device)


def _fixed(city: City, batch: int) -> NDArray[np.int64]:
    """A fixed city for each instance, -1 where there is none."""
    given = torch.as_tensor(-1 if city is None else city).reshape(-1)
    return given.expand(batch).cpu().numpy()


def _opened(cycle: NDArray[np.int32], n: int, start: int, end: int) -> NDArray[np.int32]:
    """The cycle as a tour that begins and ends as it should; the city ``n``, if it is there, is left out."""
    if len(cycle) > n:
        path = np.roll(cycle, -1 - int(np.flatnonzero(cycle == n)[0]))[:n]
        fits = start in (-1, path[0]) and end in (-1, path[-1])
        return path if fits else path[::-1]
    if start >= 0:
        tour = np.roll(cycle, -int(np.flatnonzero(cycle == start)[0]))
        return tour if end in (-1, tour[-1]) else np.append(tour[:1], tour[:0:-1])
    return cycle if end < 0 else np.roll(cycle, -1 - int(np.flatnonzero(cycle == end)[0]))
