"""Tour costs, Eq. tour_cost: in torch for training, exact under each instance's own rule for results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from georoutenet.errors import InputError
from georoutenet.problem.instance import DistanceRule, Instance

RULES = {DistanceRule.EUCLIDEAN: 0, DistanceRule.EUC_2D: 1, DistanceRule.CEIL_2D: 2}
"""What is measured by tensors, on any device, and by kernels: their code for it."""


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


@dataclass(frozen=True)
class Costs:
    """What tours of a batch cost, under one rule of ``RULES`` or as each instance says."""

    coordinates: Tensor  # (B, n, 2) float64, in the plane
    instances: list[Instance] | None  # None when the rule measures all
    closed: bool = True
    rule: DistanceRule = DistanceRule.EUCLIDEAN

    @property
    def is_euclidean(self) -> bool:
        """Whether all costs are plain Euclidean lengths."""
        return self.instances is None and self.rule is DistanceRule.EUCLIDEAN

    def edges(self, tours: Tensor, first: int = 0) -> Tensor:
        """Float64 ``(b, M, n)``: from each city of ``tours (b, M, n)`` to the next, at last to the first.

        The tours belong to the instances from ``first`` on.
        """
        if self.instances is None:
            points = self.coordinates[first : first + len(tours)]
            index = tours.reshape(len(tours), -1)
            x, y = (points[..., axis].gather(1, index).reshape(tours.shape) for axis in (0, 1))
            return self._measured(_euclidean(x - x.roll(-1, dims=2), y - y.roll(-1, dims=2)))
        order = tours.cpu().numpy()
        following = np.roll(order, -1, axis=2)
        rows = [self.instances[first + b].distance(order[b], following[b]) for b in range(len(order))]
        return torch.from_numpy(np.stack(rows).astype(np.float64)).to(tours.device)

    def lengths(self, tours: Tensor, first: int = 0) -> Tensor:
        """Float64 ``(b, M)`` of ``tours (b, M, n)`` that belong to the instances from ``first`` on.

        Edges are added one by one in tour order, so that equal tours have equal lengths on any backend.
        """
        if tours.shape[2] == 1:
            return torch.zeros(tours.shape[:2], dtype=torch.float64, device=tours.device)
        if tours.device.type == "cuda" and self.instances is None:
            from georoutenet.decode.gpu import lengths as kernel

            if not kernel.problem(tours.device):
                points = self.coordinates[first : first + len(tours)]
                return kernel.lengths(points, tours, closed=self.closed, rule=RULES[self.rule])
        edges = self.edges(tours, first)
        total = edges[:, :, 0].clone()
        for step in range(1, edges.shape[2] if self.closed else edges.shape[2] - 1):
            total += edges[:, :, step]
        return total

    def distances(self, b: int, source: Tensor, target: Tensor) -> Tensor:
        """Float64 distances between cities of one instance (broadcast)."""
        if self.instances is not None:
            distances = self.instances[b].distance(source.cpu().numpy(), target.cpu().numpy())
            return torch.from_numpy(distances.astype(np.float64)).to(source.device)
        points = self.coordinates[b]
        x, y = (points[source] - points[target]).unbind(dim=-1)
        return self._measured(_euclidean(x, y))

    def matrices(self, part: slice) -> Tensor:
        """All distances of some instances, float64 ``(b, n, n)``; the diagonals mean nothing."""
        if self.instances is None:
            return self._measured(_pairwise(self.coordinates[part]))
        cities = torch.arange(self.coordinates.shape[1], device=self.coordinates.device)
        which = range(*part.indices(len(self.instances)))
        return torch.stack([self.distances(b, cities[:, None], cities[None, :]) for b in which])

    def normalized(self, b: int, source: Tensor, target: Tensor) -> Tensor:
        """Euclidean distances in units of the instance's larger side (broadcast)."""
        points = self.coordinates[b]
        x, y = ((points[source] - points[target]) / _span(points)).unbind(dim=-1)
        return _euclidean(x, y)

    def normalized_matrices(self, part: slice) -> Tensor:
        """``normalized`` for all pairs of some instances, ``(b, n, n)``."""
        points = self.coordinates[part]
        return _pairwise(points, _span(points))

    def _measured(self, exact: Tensor) -> Tensor:
        """Euclidean distances as the rule has them."""
        if self.rule is DistanceRule.EUC_2D:
            return torch.floor(exact + 0.5)
        return torch.ceil(exact) if self.rule is DistanceRule.CEIL_2D else exact

    def on_cpu(self) -> Costs:
        return replace(self, coordinates=self.coordinates.cpu())

    def selected(self, chosen: Tensor) -> Costs:
        """The costs of a batch that holds the chosen instances, each as often as it is named; ``chosen`` is
        where the coordinates are."""
        instances = None if self.instances is None else [self.instances[b] for b in chosen.tolist()]
        return replace(self, coordinates=self.coordinates[chosen], instances=instances)


def _span(points: Tensor) -> Tensor:
    """The larger side of each instance of ``points (..., n, 2)``, ``(..., 1, 1)``; 1 where it is zero."""
    span = (points.amax(dim=-2) - points.amin(dim=-2)).amax(dim=-1)[..., None, None]
    return torch.where(span > 0, span, 1.0)


def _pairwise(points: Tensor, unit: Tensor | None = None) -> Tensor:
    """Distances between all points ``(b, n, 2)``, in units ``(b, 1, 1)`` where they are given."""
    x, y = (points[:, :, None, axis] - points[:, None, :, axis] for axis in (0, 1))
    return _euclidean(x, y) if unit is None else _euclidean(x / unit, y / unit)


def _euclidean(x: Tensor, y: Tensor) -> Tensor:
    """Length of ``(x, y)``; on the CPU rounded as compiled loops round it.

    Neither ``hypot`` nor torch's vectorized ``sqrt`` gives the nearest float64 always, NumPy's root does.
    """
    square = x * x + y * y
    return torch.from_numpy(np.sqrt(square.numpy())) if square.device.type == "cpu" else square.sqrt()


def as_costs(
    batch: int,
    n: int,
    device: torch.device,
    *,
    coordinates: Tensor | ArrayLike | None = None,
    instances: Sequence[Instance] | None = None,
    closed: bool = True,
) -> Costs | None:
    """The costs of ``batch`` instances of ``n`` cities from whichever of the two was given, or None."""
    if instances is not None and coordinates is not None:
        raise InputError("give either coordinates or instances as the cost, not both")
    if coordinates is not None:
        points = torch.as_tensor(coordinates, dtype=torch.float64, device=device).detach()
        if points.shape != (batch, n, 2):
            raise InputError(f"coordinates must have shape {(batch, n, 2)}, got {tuple(points.shape)}")
        return Costs(points, None, closed)
    if instances is None:
        return None
    if len(instances) != batch or any(instance.n != n for instance in instances):
        sizes = sorted({instance.n for instance in instances})
        raise InputError(
            f"scores of {batch} instances of {n} cities need as many instances; "
            f"got {len(instances)} with {sizes} cities"
        )
    points = torch.from_numpy(np.stack([instance.plane for instance in instances])).to(device)
    rules = {instance.rule for instance in instances}
    if len(rules) == 1 and (rule := rules.pop()) in RULES:
        return Costs(points, None, closed, rule)
    return Costs(points, list(instances), closed)
