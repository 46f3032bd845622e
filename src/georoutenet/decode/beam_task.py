"""What every beam search shares: its settings folded into arrays, and the choice among its full tours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from georoutenet.decode.common import FLOOR, Decoded, Task
from georoutenet.errors import InputError
from georoutenet.instance import Instance

Beam = tuple[Tensor, Tensor]
"""Full tours ``(W', n)`` of one instance, best rank first, and their log-probabilities ``(W',)``."""


@dataclass(frozen=True)
class BeamTask(Task):
    """Scores and settings of one beam search over a batch."""

    values: Tensor  # (B, n, n) float32: what ranks a child; the logits, less the weighted edge length
    distances: list[Tensor] | None  # (n, n) float64 for each instance, in its own cost
    dominance: bool
    closed: bool


def prepare_beam(
    task: Task,
    instances: Sequence[Instance] | None,
    *,
    dominance: bool,
    length_weight: float,
    closed: bool,
) -> BeamTask:
    """Fold the settings of a beam search into arrays.

    ``length_weight`` counts lengths in the normalized instance (larger side = 1), so that a setting means
    the same for coordinates of any scale.
    """
    if not length_weight >= 0:
        raise InputError(f"length_weight must be at least 0, got {length_weight}")
    if instances is None and (dominance or length_weight > 0):
        raise InputError("dominance and length_weight compare lengths: give coordinates or instances too")
    values, distances = task.logits.clamp(min=FLOOR), None
    device = task.start.device
    if length_weight > 0 and instances is not None:
        points = torch.from_numpy(np.stack([instance.normalized() for instance in instances])).to(device)
        values = (values.double() - length_weight * torch.cdist(points, points)).float()
    if instances is not None:
        distances = [
            torch.from_numpy(instance.distance_matrix().astype(np.float64)).to(device)
            for instance in instances
        ]
    return BeamTask(
        task.start,
        task.logits,
        task.end,
        task.neighbors,
        task.pair_logits,
        values,
        distances,
        dominance,
        closed,
    )


def path_lengths(distances: Tensor, tours: Tensor, *, closed: bool) -> Tensor:
    """Lengths ``(M,)`` of ``tours (M, n)``, added edge by edge so that every backend gets the same bits."""
    if tours.shape[1] == 1:
        return torch.zeros(len(tours), dtype=torch.float64, device=tours.device)
    edges = distances[tours, tours.roll(-1, dims=1)]
    return (edges if closed else edges[:, :-1]).cumsum(dim=1)[:, -1]


def choose(task: BeamTask, beams: Sequence[Beam], keep: int) -> Decoded:
    """The ``keep`` best full tours of each beam: the cheapest, or the best ranked when there is no cost.

    Equal lengths stay in the order of rank. Every instance gives as many tours as the smallest beam holds.
    """
    count = min(keep, *(len(tours) for tours, _ in beams))
    chosen: list[Tensor] = []
    chances: list[Tensor] = []
    lengths: list[Tensor] = []
    for b, (tours, log_probability) in enumerate(beams):
        order = torch.arange(len(tours), device=tours.device)
        if task.distances is not None:
            length, order = torch.sort(
                path_lengths(task.distances[b], tours, closed=task.closed), stable=True
            )
            lengths.append(length[:count])
        chosen.append(tours[order[:count]])
        chances.append(log_probability[order[:count]])
    return Decoded(torch.stack(chosen), torch.stack(chances), torch.stack(lengths) if lengths else None)
