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
    return [
        EdgeProbabilities(c.cpu().numpy().astype(np.int32), p.cpu().numpy())
        for c, p in zip(cities, probabilities, strict=True)
    ]
