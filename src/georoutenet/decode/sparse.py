"""Sparse scores: what a decoder does when a city has no unvisited candidate left.

The policy over candidates is a softmax over the unvisited candidates only, so its probabilities differ from
the dense ones by the normalizer; its arg-max is the dense one unless a city outside the list has a larger
logit. A tour that runs out of candidates looks further, at the ``NEAREST`` unvisited cities, whose logits the
network gives on demand; without coordinates it looks at all unvisited cities, and without a network on demand
it goes to the nearest one. With all other cities as candidates none of this happens, and the result is the
dense one.
"""

from __future__ import annotations

import torch
from torch import Tensor

from georoutenet.decode.common import FLOOR, Task
from georoutenet.errors import InputError

NEAREST = 32
"""How many of the nearest unvisited cities are scored on demand."""


def check_fallback(task: Task) -> None:
    """Sparse scores need coordinates, pairs on demand, or both."""
    if task.neighbors is not None and task.pair_logits is None and task.coordinates is None:
        if task.neighbors.shape[2] >= task.shape[1] - 1:
            return
        raise InputError(
            "sparse scores without pair_logits need coordinates, to find the nearest unvisited city"
        )


def fallback_size(task: Task) -> int:
    """How many cities a tour without candidates looks at, at most."""
    n = task.shape[1]
    if task.pair_logits is None:
        return 1
    return n if task.coordinates is None else min(NEAREST, n)


def fallback_cities(task: Task, instance: int, city: int, allowed: Tensor) -> Tensor:
    """The unvisited cities to look at from ``city``, in ascending order."""
    (cities,) = torch.nonzero(allowed, as_tuple=True)
    if task.coordinates is not None:
        points = task.coordinates[instance]
        x, y = (points[cities] - points[city]).unbind(dim=1)
        nearest = torch.sort(x * x + y * y, stable=True).indices[: fallback_size(task)]
        cities = cities[nearest].sort().values
    return cities


def pair_scores(task: Task, instance: Tensor, source: Tensor, target: Tensor) -> Tensor:
    """Logits of pairs outside the candidate lists; zero where there is but one city to go to."""
    if task.pair_logits is None:
        return torch.zeros(source.shape, device=source.device)
    return task.pair_logits(instance, source, target).detach().float().clamp(min=FLOOR)
