"""What the network says about edges, kept in results for pictures."""

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

    def undirected(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Edges ``(m, 2)``, the smaller city first, and how probable each is; the most probable first.

        That is the sum of both directions, at most 1: a tour leaves a city one way and comes by another, so a
        network that is sure of a tour gives each of its edges one half in either direction.
        """
        n, k = self.neighbors.shape
        pairs = np.column_stack([np.repeat(np.arange(n), k), self.neighbors.ravel().astype(np.int64)])
        pairs.sort(axis=1)
        other = (
            pairs[:, 0] != pairs[:, 1]
        )  # where all else has no probability, a city may be its own neighbor
        keys, index = np.unique((pairs[:, 0] * n + pairs[:, 1])[other], return_inverse=True)
        sums = np.minimum(np.bincount(index, self.probabilities.ravel()[other].astype(np.float64)), 1.0)
        order = np.argsort(-sums, kind="stable")
        return np.column_stack(np.divmod(keys, n))[order], sums[order]


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
