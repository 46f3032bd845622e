"""Many tours of an instance in one: what each does best, by partition crossover.

The views of an instance err in different places. Where two tours differ in parts that have no city in common,
each part is taken from the tour in which it is shorter. No edge is new: all come from decoded tours. On a GPU
``gpu/merge.py`` gives the same tours as the CPU.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from georoutenet.decode.common import City, rolled
from georoutenet.decode.costs import Costs
from georoutenet.decode.cpu.threads import in_ranges

PASSES = 3
"""Times that all tours are offered to the merged one, at most: a part that was taken may let others in."""

ROUNDS = 3
"""The first bases take from all tours, then twice from one another."""

BITS = 52
"""The longest tour has a length of less than two to the power of this, in units."""


def merge_tours(
    tours: Tensor,
    lengths: Tensor,
    costs: Costs,
    *,
    bases: int = 1,
    start: City = None,
    end: City = None,
) -> Tensor:
    """``tours (B, M, n)`` of these ``lengths (B, M)`` merged into one of each instance: ``(B, 1, n)``.

    It is no longer than any of the first ``bases`` tours, into each of which all others are merged, and has
    the same fixed ends. Of the rest, a tour of infinite length is none. An open path is closed by one more
    city, which is at no distance from any other.
    """
    batch, count, n = tours.shape
    if count == 1 or n < 4 or batch == 0:
        return tours[:, :1]
    bases = min(bases, count)
    offered = _offered(tours, lengths, costs)
    merged = _on_gpu(offered, costs, bases)
    if merged is None:
        merged = _on_cpu(offered, costs, bases)
    return _opened(merged, n, start, end)[:, None]


class Offered(NamedTuple):
    """What is merged: closed tours, those of open paths by the city ``n``."""

    tours: Tensor  # (B, M, size), 16 bits where that is enough; those that are there come first
    counts: Tensor  # (B,) int32, of those
    units: Tensor  # (B,) in a distance of one, powers of two: in whole units sums of a tour's edges are exact


def _offered(tours: Tensor, lengths: Tensor, costs: Costs) -> Offered:
    n, missing = tours.shape[2], lengths.isinf()
    order = torch.sort(missing.byte(), dim=1, stable=True).indices
    tours = tours.to(torch.int16 if n < 2**15 else torch.int32)
    tours = tours.gather(1, order[:, :, None].expand(-1, -1, n))
    if not costs.closed:
        tours = torch.cat([tours, tours.new_full((*tours.shape[:2], 1), n)], dim=2)
    longest = lengths.masked_fill(missing, 0.0).amax(dim=1).clamp(min=1e-250)
    mantissa, _ = torch.frexp(longest)
    return Offered(tours, (~missing).sum(dim=1, dtype=torch.int32), mantissa / longest * 2.0**BITS)


def _on_cpu(offered: Offered, costs: Costs, bases: int) -> Tensor:
    """Merged closed tours ``(B, size)``, on the CPU's threads."""
    from georoutenet.crossover import ROOM, merge_from

    device, costs, (tours, counts, units) = offered.tours.device, costs.on_cpu(), (x.cpu() for x in offered)
    batch, _, size = tours.shape
    scales, n = units.numpy(), size - (not costs.closed)
    merged = np.empty((batch, size), np.int32)

    def work(low: int, high: int) -> None:
        own, room = np.empty((5, size)), np.empty((ROOM, size), np.int32)
        shape = (ROUNDS, bases, size)
        grown, lengths = np.empty(shape, np.int32), np.empty(shape)
        for b in range(low, high):
            own_tours = tours[b : b + 1, : counts[b]]
            edges = np.zeros(own_tours.shape[1:])
            edges[:, :n] = costs.edges(own_tours[:, :, :n].long(), b)[0].numpy()
            if not costs.closed:
                edges[:, n - 1 :] = 0.0
            edges = np.rint(edges * scales[b]) * 2.0**-BITS
            merge_from(own_tours[0].int().numpy(), edges, grown, lengths, merged[b], own, room, PASSES)

    in_ranges(batch, work)
    return torch.from_numpy(merged).to(device)


def _on_gpu(offered: Offered, costs: Costs, bases: int) -> Tensor | None:
    """The same by the kernel, where it runs."""
    tours, counts, units = offered
    if tours.device.type != "cuda":
        return None
    from georoutenet.decode.gpu import merge

    rule = costs.rule if costs.instances is None else None
    if not merge.merges(tours.device, tours.shape[2], rule):
        return None
    return merge.merge(tours, counts, units, costs, bases, PASSES, ROUNDS, BITS)


def _opened(cycles: Tensor, n: int, start: City, end: City) -> Tensor:
    """Cycles ``(B, size)`` as tours ``(B, n)`` that begin and end as they should; without the city ``n``.

    Where that leaves a choice, a tour begins at city 0 and the lower of two cities says in which direction.
    """
    cycles = cycles.long()
    is_path = cycles.shape[1] > n
    first, last = (_fixed(city, cycles) for city in (start, end))
    begins, ends = first >= 0, last >= 0
    anchor = torch.full_like(first, n) if is_path else torch.where(begins, first, last.clamp(min=0))
    tours = rolled(cycles, anchor)
    ahead, behind = tours[:, 1], tours[:, -1]
    is_backward = torch.where(ends & (begins | is_path), behind != last, ahead > behind)
    if is_path:
        is_backward = torch.where(begins, ahead != first, is_backward)
    backward = torch.cat([tours[:, :1], tours[:, 1:].flip(1)], dim=1)
    tours = torch.where(is_backward[:, None], backward, tours)
    if is_path:
        return tours[:, 1:]
    return torch.where((ends & ~begins)[:, None], tours.roll(-1, dims=1), tours)


def _fixed(city: City, like: Tensor) -> Tensor:
    """A fixed city for each instance, -1 where there is none."""
    return torch.as_tensor(-1 if city is None else city, device=like.device).reshape(-1).expand(len(like))
