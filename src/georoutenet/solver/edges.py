"""What the network says about edges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from georoutenet.model.scores import Scores

LIKELY = 10
"""How many next cities per city a result remembers."""


@dataclass(frozen=True)
class EdgeProbabilities:
    """The network's most probable next cities of each city, without regard to where a tour has been."""

    neighbors: NDArray[np.int32]  # (n, K)
    probabilities: NDArray[np.float32]  # (n, K)
    start: NDArray[np.float32]  # (n,) of the first city


@dataclass(frozen=True)
class EdgeMarginals:
    """How often the network's tours take an edge, whichever way they go along it.

    The sum over the edges of a city is 2, or less by what is not listed: a tour comes by one edge and leaves
    by another. Of the next city alone a network that is sure of a tour says 1 for one of the two.
    """

    edges: NDArray[np.int64]  # (m, 2), the smaller city first; the most probable edges first
    probabilities: NDArray[np.float64]  # (m,)
    start: NDArray[np.float64]  # (n,) of the first city


def count_edges(
    tours: NDArray[np.int64], *, closed: bool = True
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The edges ``(m, 2)`` of tours ``(M, n)`` and the share of the tours that has each, most first."""
    count, n = tours.shape
    ends = np.stack([tours, np.roll(tours, -1, axis=1)], axis=2)
    ends = np.sort(ends if closed and n > 2 else ends[:, :-1], axis=2).reshape(-1, 2)
    keys, times = np.unique(ends[:, 0] * n + ends[:, 1], return_counts=True)
    order = np.argsort(-times, kind="stable")
    return np.column_stack(np.divmod(keys, n))[order], times[order] / count


def likely_edges(scores: Scores, count: int = LIKELY) -> list[EdgeProbabilities]:
    """The ``count`` most probable next cities of each city: a softmax over all others, or the candidates."""
    import torch

    logits, neighbors = scores.logits.float(), scores.neighbors
    if neighbors is None:
        logits = logits.clone()
        logits.diagonal(dim1=1, dim2=2).fill_(-torch.inf)
    kept = min(count, scores.n - 1, logits.shape[2])
    probabilities, index = torch.softmax(logits, dim=2).topk(kept, dim=2)
    cities = index if neighbors is None else neighbors.gather(2, index)
    starts = scores.start.float().exp()
    return [
        EdgeProbabilities(c.cpu().numpy().astype(np.int32), p.cpu().numpy(), s.cpu().numpy())
        for c, p, s in zip(cities, probabilities, starts, strict=True)
    ]
