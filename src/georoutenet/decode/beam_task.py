"""What every beam search shares: its settings folded into arrays, and the choice among its full tours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from georoutenet.decode.common import FLOOR, Decoded, Task
from georoutenet.decode.costs import Costs
from georoutenet.errors import InputError


@dataclass(frozen=True)
class BeamTask(Task):
    """Scores and settings of one beam search over a batch."""

    width: int = 1
    keep: int = 1
    costs: Costs | None = None
    dominance: bool = False
    length_weight: float = 0.0
    filled: bool = False
    """Whether a beam that holds fewer tours than ``keep`` is filled up with its best, infinitely long."""

    def on_cpu(self) -> Self:
        task = super().on_cpu()
        return task if task.costs is None else replace(task, costs=task.costs.on_cpu())

    @property
    def closed(self) -> bool:
        return self.costs is None or self.costs.closed

    def values(self, part: slice) -> Tensor:
        """What ranks the children of each city, float32 ``(b, n, n)``, from dense scores of instances."""
        logits = self.logits[part].clamp(min=FLOOR)
        if self.length_weight == 0 or self.costs is None:
            return logits
        return self._weighted(logits, self.costs.normalized_matrices(part))

    def weighted(self, logits: Tensor, b: int, source: Tensor, target: Tensor) -> Tensor:
        """Logits of edges of one instance less their weighted length."""
        if self.length_weight == 0 or self.costs is None:
            return logits
        return self._weighted(logits, self.costs.normalized(b, source, target))

    def _weighted(self, logits: Tensor, distances: Tensor) -> Tensor:
        """Distances are in units of the instance's larger side: a weight means the same at any scale."""
        return (logits.double() - self.length_weight * distances).float()


def prepare_beam(
    task: Task,
    costs: Costs | None,
    *,
    width: int,
    keep: int,
    dominance: bool,
    length_weight: float,
    filled: bool = False,
) -> BeamTask:
    """Check the settings that only a beam search has."""
    if not length_weight >= 0:
        raise InputError(f"length_weight must be at least 0, got {length_weight}")
    if costs is None and (dominance or length_weight > 0):
        raise InputError("dominance and length_weight compare lengths: give coordinates or instances too")
    return BeamTask(
        **vars(task),
        width=width,
        keep=keep,
        costs=costs,
        dominance=dominance,
        length_weight=length_weight,
        filled=filled and costs is not None,
    )


def cheapest(
    tours: Tensor, log_probabilities: Tensor | None, costs: Costs | None, keep: int, first: int = 0
) -> Decoded:
    """The ``keep`` best of full tours ``(b, M, n)`` given in order of rank, for the instances from ``first``.

    The cheapest come first, equal lengths in order of rank; without a cost the order of rank stays.
    """
    if costs is None:
        chances = None if log_probabilities is None else log_probabilities[:, :keep]
        return Decoded(tours[:, :keep], chances)
    lengths, order = torch.sort(costs.lengths(tours, first), dim=1, stable=True)
    order = order[:, :keep]
    return Decoded(
        tours.gather(1, order[:, :, None].expand(-1, -1, tours.shape[2])),
        None if log_probabilities is None else log_probabilities.gather(1, order),
        lengths[:, :keep],
    )


def stacked(parts: Sequence[Decoded], *, filled: bool = False) -> Decoded:
    """Results of single instances as one batch; each gives as many tours as the smallest has.

    If they may be `filled` as many as the largest has: see ``BeamTask``.
    """
    counts = [part.tours.shape[1] for part in parts]
    count = max(counts) if filled else min(counts)
    if filled:
        parts = [_filled(part, count) for part in parts]
    joined = {
        name: torch.cat([getattr(part, name)[:, :count] for part in parts])
        for name in ("tours", "log_probabilities", "lengths")
        if getattr(parts[0], name) is not None
    }
    return replace(parts[0], **joined)


def _filled(part: Decoded, count: int) -> Decoded:
    """The first tour again, at an infinite length, until there are ``count``."""
    batch, held, n = part.tours.shape
    if held == count:
        return part
    assert part.lengths is not None
    more = part.lengths.new_full((batch, count - held), torch.inf)
    chances = part.log_probabilities
    return Decoded(
        torch.cat([part.tours, part.tours[:, :1].expand(-1, count - held, n)], dim=1),
        None if chances is None else torch.cat([chances, -more.to(chances.dtype)], dim=1),
        torch.cat([part.lengths, more], dim=1),
    )
