"""Tour costs, Eq. tour_cost: in torch for training, exact under each instance's own rule for results."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from georoutenet.errors import InputError
from georoutenet.instance import Instance


def tour_costs(coordinates: Tensor, tours: Tensor, *, closed: bool = True) -> Tensor:
    """Euclidean lengths ``(B, M)`` of ``tours (B, M, n)`` in ``coordinates (B, n, 2)``, Eq. tour_cost.

    In the dtype of the coordinates and on their device; no data-dependent shapes. ``closed=False`` leaves
    out the edge from the last city back to the first.
    """
    batch, tours_per_instance, n = tours.shape
    index = tours.reshape(batch, tours_per_instance * n)[:, :, None].expand(-1, -1, 2)
    path = coordinates.gather(1, index).reshape(batch, tours_per_instance, n, 2)
    steps = path - path.roll(-1, dims=2) if closed else path[:, :, 1:] - path[:, :, :-1]
    return torch.hypot(steps[..., 0], steps[..., 1]).sum(dim=-1)


def as_instances(
    batch: int,
    n: int,
    *,
    coordinates: Tensor | ArrayLike | None = None,
    instances: Sequence[Instance] | None = None,
) -> list[Instance] | None:
    """The cost of each of ``batch`` instances: their own rules, or plain Euclidean for ``coordinates``."""
    if instances is not None and coordinates is not None:
        raise InputError("give either coordinates or instances as the cost, not both")
    if instances is None:
        if coordinates is None:
            return None
        if isinstance(coordinates, Tensor):
            coordinates = coordinates.detach().cpu().numpy()
        points = np.asarray(coordinates, dtype=np.float64)
        if points.shape != (batch, n, 2):
            raise InputError(f"coordinates must have shape {(batch, n, 2)}, got {points.shape}")
        instances = [Instance(one) for one in points]
    instances = list(instances)
    if len(instances) != batch or any(instance.n != n for instance in instances):
        sizes = sorted({instance.n for instance in instances})
        raise InputError(
            f"scores of {batch} instances of {n} cities need as many instances; "
            f"got {len(instances)} with {sizes} cities"
        )
    return instances


def exact_costs(instances: Sequence[Instance], tours: Tensor, *, closed: bool = True) -> Tensor:
    """Costs ``(B, M)`` of ``tours (B, M, n)`` under each instance's rule, float64, on the tours' device."""
    order = tours.cpu().numpy()
    costs = np.zeros(order.shape[:2])
    for b, instance in enumerate(instances):
        if instance.n == 1:
            continue
        following = np.roll(order[b], -1, axis=1)
        edges = instance.distance(order[b], following)
        costs[b] = edges.sum(axis=1) if closed else edges[:, :-1].sum(axis=1)
    return torch.from_numpy(costs).to(tours.device)
