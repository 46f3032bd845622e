"""Many tours of an instance in one: what each does best, by partition crossover.

The views of an instance err in different places. Where two tours differ in parts that have no city in common,
each part is taken from the tour in which it is shorter. No edge is new: all come from decoded tours. On a GPU
``gpu/merge.py`` gives the same tours as the CPU.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from georoutenet.decode.common import City
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
    the same fixed ends. An open path is closed by one more city, which is at no distance from any other.
    """
    batch, count, n = tours.shape
    if count == 1 or n < 4 or batch == 0:
        return tours[:, :1]
    bases = min(bases, count)
    units = _units(lengths)
    merged = _on_gpu(tours, units, costs, bases)
    if merged is None:
        merged = _on_cpu(tours, units, costs, bases)
    return _opened(merged, n, start, end)[:, None]


def _units(lengths: Tensor) -> Tensor:
    """Units in a distance of one ``(B,)``, powers of two: in whole units sums of a tour's edges are exact."""
    longest = lengths.amax(dim=1).clamp(min=1e-250)
    mantissa, _ = torch.frexp(longest)
    return mantissa / longest * 2.0**BITS


def _on_cpu(tours: Tensor, units: Tensor, costs: Costs, bases: int) -> Tensor:
    """Closed tours ``(B, size)`` on the CPU's threads; the city ``n`` of an open path is one of theirs."""
    from georoutenet.crossover import ROOM, merge_from

    batch, count, _ = tours.shape
    device, tours, costs, scales = tours.device, tours.cpu(), costs.on_cpu(), units.cpu().numpy()
    order = _closed(tours, costs).to(torch.int32).numpy()
    size = order.shape[2]
    merged = np.empty((batch, size), np.int32)

    def work(low: int, high: int) -> None:
        own, room = np.empty((5, size)), np.empty((ROOM, size), np.int32)
        shape = (ROUNDS, bases, size)
        grown, lengths = np.empty(shape, np.int32), np.empty(shape)
        for b in range(low, high):
            edges = costs.edges(tours[b : b + 1], b)[0].numpy()
            if not costs.closed:
                edges[:, -1] = 0.0
                edges = np.concatenate([edges, np.zeros((count, 1))], axis=1)
            edges = np.rint(edges * scales[b]) * 2.0**-BITS
            merge_from(order[b], edges, grown, lengths, merged[b], own, room, PASSES)

    in_ranges(batch, work)
    return torch.from_numpy(merged).to(device)


def _on_gpu(tours: Tensor, units: Tensor, costs: Costs, bases: int) -> Tensor | None:
    """The same by the kernel, where it runs."""
    if tours.device.type != "cuda":
        return None
    from georoutenet.decode.gpu import merge

    rule = costs.rule if costs.instances is None else None
    if not merge.merges(tours.device, tours.shape[2] + (not costs.closed), rule):
        return None
    return merge.merge(_closed(tours, costs), units, costs, bases, PASSES, ROUNDS, BITS)


def _closed(tours: Tensor, costs: Costs) -> Tensor:
    """The tours in 16 bits where that is enough, those of open paths closed by the city ``n``."""
    n = tours.shape[2]
    tours = tours.to(torch.int16 if n < 2**15 else torch.int32)
    if costs.closed:
        return tours
    return torch.cat([tours, tours.new_full((*tours.shape[:2], 1), n)], dim=2)


def _opened(cycles: Tensor, n: int, start: City, end: City) -> Tensor:
    """Cycles ``(B, size)`` as tours ``(B, n)`` that begin and end as they should; without the city ``n``.

    Where that leaves a choice, a tour begins at city 0 and the lower of two cities says in which direction.
    """
    cycles = cycles.long()
    is_path = cycles.shape[1] > n
    first, last = (_fixed(city, cycles) for city in (start, end))
    begins, ends = first >= 0, last >= 0
    anchor = torch.full_like(first, n) if is_path else torch.where(begins, first, last.clamp(min=0))
    tours = _rolled(cycles, anchor)
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


def _rolled(cycles: Tensor, city: Tensor) -> Tensor:
    """Cycles begun at this city of each."""
    begin = (cycles == city[:, None]).int().argmax(dim=1, keepdim=True)
    size = cycles.shape[1]
    return cycles.gather(1, (begin + torch.arange(size, device=cycles.device)) % size)
