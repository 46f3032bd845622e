"""Instances as the GPU's search sees them: places in float32, closed tours, first tours along a curve.

All of it for many instances at once, as tensors on their device. What paths become is said in
``search/path.py``; the cities concerned are the same in every instance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from georoutenet.decode.common import rolled
from georoutenet.problem.instance import DistanceRule, fill_square
from georoutenet.search.path import Ends
from georoutenet.search.space_filling import BITS


@dataclass(frozen=True)
class Cycle:
    """How tours of ``n`` cities become closed tours of ``count`` cities in the kernels' numbers, and back."""

    ends: Ends

    @property
    def is_free(self) -> bool:
        """Whether there is one more city, at distance zero from all others."""
        return self.ends.is_path and (self.ends.start is None or self.ends.end is None)

    @property
    def count(self) -> int:
        return self.ends.n + self.is_free

    @property
    def fixed(self) -> int:
        """The edge between the two cities from here on stays."""
        has_edge = self.ends.is_path and (self.ends.start is not None or self.ends.end is not None)
        return self.count - 2 if has_edge else self.count

    def _order(self, device: torch.device) -> Tensor:
        order = self.ends.order(self.count) if self.ends.is_path else range(self.count)
        return torch.as_tensor(order, dtype=torch.int64, device=device)

    def places(self, points: Tensor, rule: DistanceRule) -> Tensor:
        """Places ``(B, count, 2)`` in float32: from zero on and, where no distance is rounded, to about 1."""
        shifted = points - points.amin(dim=1, keepdim=True)
        if rule is DistanceRule.EUCLIDEAN:  # by a power of two: that rounds nothing
            _, exponent = torch.frexp(shifted.amax(dim=(1, 2), keepdim=True))
            shifted = torch.ldexp(shifted, -exponent)
        if self.is_free:
            shifted = torch.cat([shifted, shifted[:, :1]], dim=1)
        return shifted[:, self._order(points.device)].float().contiguous()

    def lists(self, near: Tensor, tours: Tensor) -> Tensor:
        """Neighbor lists of the cities, with the free one in front; its own are spread over the tour."""
        if not self.is_free:
            return near
        free, width = self.count - 1, near.shape[2]
        spread = torch.linspace(0, free - 1, width, device=near.device).long()
        own = tours[:, :free][:, spread].to(near.dtype)
        front = near.new_full((*near.shape[:2], 1), free)
        return torch.cat([torch.cat([front, near[..., :-1]], dim=2), own[:, None]], dim=1).contiguous()

    def enter(self, tours: Tensor) -> Tensor:
        """Tours that begin and end as they should, closed and in the kernels' numbers."""
        order = self._order(tours.device)
        number = torch.empty_like(order)
        number[order] = torch.arange(self.count, device=tours.device)
        if self.is_free:
            tours = torch.cat([tours, tours.new_full((len(tours), 1), self.ends.n)], dim=1)
        return number[tours]

    def leave(self, found: Tensor) -> Tensor:
        """The tours that closed tours in the kernels' numbers stand for."""
        tours = self._order(found.device)[found]
        if self.is_free:
            tours = rolled(tours, self.ends.n)[:, 1:]
        elif self.ends.is_path:
            assert self.ends.start is not None
            assert self.ends.end is not None
            tours = rolled(tours, self.ends.start)
            backward = torch.cat([tours[:, :1], tours[:, 1:].flip(1)], dim=1)
            return torch.where(tours[:, -1:] == self.ends.end, tours, backward)
        else:
            return self.arrange(tours)
        fits = torch.ones_like(tours[:, 0], dtype=torch.bool)
        if self.ends.start is not None:
            fits &= tours[:, 0] == self.ends.start
        if self.ends.end is not None:
            fits &= tours[:, -1] == self.ends.end
        return torch.where(fits[:, None], tours, tours.flip(1))

    def arrange(self, tours: Tensor) -> Tensor:
        """Tours near these that begin and end as they should."""
        start, end = self.ends.start, self.ends.end
        if start is not None:
            tours = rolled(tours, start)
            if end is not None:
                tours = tours.gather(1, torch.argsort((tours == end).byte(), dim=1, stable=True))
        elif end is not None:
            tours = rolled(tours, end).roll(-1, dims=1)
        return tours


def padded(instances: Sequence[NDArray[np.float64]]) -> tuple[Tensor, Tensor]:
    """Instances of several sizes as one array ``(B, n, 2)``, and their sizes ``(B,)``.

    What is behind an instance's cities are copies of its first city. A closed tour that begins there and
    visits them last, in their order, is as long as without them.
    """
    sizes = np.array([len(cities) for cities in instances])
    begin = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    index = np.arange(sizes.max())
    own = np.where(index < sizes[:, None], index, 0) + begin[:, None]
    return torch.from_numpy(np.concatenate(instances)[own]), torch.from_numpy(sizes)


def begun_at_zero(tours: Tensor, sizes: Tensor) -> Tensor:
    """Closed tours, each of its number of cities, begun at city 0; what is behind them stays."""
    begin = (tours == 0).int().argmax(dim=1, keepdim=True)
    index = torch.arange(tours.shape[1], device=tours.device)
    inside = (begin + index) % sizes[:, None]
    return tours.gather(1, torch.where(index < sizes[:, None], inside, index))


def curves(points: Tensor, sizes: Tensor | None = None) -> Tensor:
    """``search/space_filling.py: space_filling_curve`` of tensors, on their device.

    With ``sizes`` points are as ``padded`` makes them, and tours begin at city 0.
    """
    x, y = (fill_square(points) * (2**BITS - 1)).long().unbind(-1)
    place = torch.zeros_like(x)
    for bit in range(BITS - 1, -1, -1):
        right, above = x >> bit & 1, y >> bit & 1
        place = 4 * place + (3 * right ^ above)
        mirror, swap = (above == 0) & (right == 1), above == 0
        x, y = torch.where(mirror, ~x, x), torch.where(mirror, ~y, y)
        x, y = torch.where(swap, y, x), torch.where(swap, x, y)
    if sizes is None:
        return torch.argsort(place, dim=1, stable=True)
    behind = torch.arange(points.shape[1], device=points.device) >= sizes[:, None]
    tours = torch.argsort(place.masked_fill(behind, 1 << 2 * BITS), dim=1, stable=True)
    return begun_at_zero(tours, sizes)


def tour_lengths(points: Tensor, tours: Tensor, rule: DistanceRule, *, closed: bool) -> Tensor:
    """Lengths ``(B,)`` in float64, under the rule."""
    places = points.gather(1, tours[..., None].expand(-1, -1, 2))
    edge = places - places.roll(-1, dims=1)
    if rule is DistanceRule.EUCLIDEAN:
        distances = torch.hypot(edge[..., 0], edge[..., 1])
    else:
        exact = edge.square().sum(-1).sqrt()
        distances = torch.floor(exact + 0.5) if rule is DistanceRule.EUC_2D else torch.ceil(exact)
    return (distances if closed else distances[:, :-1]).sum(dim=1)
