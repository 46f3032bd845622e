"""What the network says about an instance: where to start, and how much it likes each directed edge."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

PairLogits = Callable[[Tensor, Tensor, Tensor], Tensor]
"""``(instance, source, target)`` index tensors of one shape -> logits ``z`` of those pairs, float32."""


@dataclass(frozen=True)
class Scores:
    """Static scores of ``B`` instances of ``n`` cities.

    Dense scores have ``neighbors = None`` and ``logits[b, i, j] = z_ij``. Sparse scores hold only the
    ``K`` nearest candidates of each city, nearest first and without the city itself:
    ``logits[b, i, c]`` is ``z_ij`` for ``j = neighbors[b, i, c]``, and ``pair_logits`` gives any other pair.
    """

    start: Tensor  # (B, n) log-probabilities of the first city
    logits: Tensor  # (B, n, n) or (B, n, K) directed edge logits
    neighbors: Tensor | None = None  # (B, n, K) int64
    pair_logits: PairLogits | None = None

    @property
    def batch_size(self) -> int:
        return self.start.shape[0]

    @property
    def n(self) -> int:
        return self.start.shape[1]

    @property
    def is_dense(self) -> bool:
        return self.neighbors is None

    def __getitem__(self, instance: int) -> Scores:
        """The scores of one instance of the batch, as a batch of one."""
        neighbors = None if self.neighbors is None else self.neighbors[instance : instance + 1]
        pairs = self.pair_logits
        if pairs is None:
            one = None
        else:

            def one(b: Tensor, i: Tensor, j: Tensor) -> Tensor:
                assert pairs is not None
                return pairs(b + instance, i, j)

        return Scores(
            self.start[instance : instance + 1], self.logits[instance : instance + 1], neighbors, one
        )

    def to(self, device: torch.device | str) -> Scores:
        """The same scores on another device; pairs on demand are still computed where the network is."""
        pairs = self.pair_logits
        if pairs is None:
            moved = None
        else:

            def moved(b: Tensor, i: Tensor, j: Tensor) -> Tensor:
                assert pairs is not None
                home = self.start.device
                return pairs(b.to(home), i.to(home), j.to(home)).to(device)

        neighbors = None if self.neighbors is None else self.neighbors.to(device)
        return Scores(self.start.to(device), self.logits.to(device), neighbors, moved)
