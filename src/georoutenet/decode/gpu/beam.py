"""Beam search on a GPU: tables in, the kernel of ``beam_kernel_triton``, tours out; nothing on the CPU."""

from __future__ import annotations

import math

import torch
import triton
from torch import Tensor

from georoutenet.decode.beam_task import BeamTask, stacked
from georoutenet.decode.common import FLOOR, Decoded
from georoutenet.decode.gpu.beam_kernel import backtrack_kernel, beam_kernel
from georoutenet.decode.gpu.beam_states import CHILDREN, DESK, city_hashes
from georoutenet.errors import InputError

MAX_CITIES = 1024
MAX_WIDTH = 4096
SCRATCH = 2**31  # bytes for the instances searched at once


def supports(task: BeamTask) -> bool:
    """Whether the kernel can run a search: all settings over dense scores, of a size that fits."""
    return task.neighbors is None and task.shape[1] <= MAX_CITIES and task.width <= MAX_WIDTH


def beam(task: BeamTask) -> Decoded:
    """Beam search over all unvisited cities: ``reference.beam`` for the tasks that the kernel supports."""
    batch, n = task.shape
    # What one instance needs while it is searched: parents and cities of every step, and the tables.
    size = n * (4 * _block(task.width) + 48 * (n + 1)) + 8 * (DESK + 16) * _block(task.width)
    chunk = max(1, SCRATCH // size)
    parts = [_beam(task, slice(first, first + chunk)) for first in range(0, batch, chunk)]
    return stacked(parts, filled=task.filled)


def _beam(task: BeamTask, part: slice) -> Decoded:
    costs = task.costs
    tours, chances = beam_tours(
        task.start[part],
        task.logits[part],
        width=task.width,
        values=task.values(part) if task.length_weight > 0 else None,
        distances=None if costs is None else costs.matrices(part),
        closed=task.closed,
        end=task.end[part],
        dominance=task.dominance,
        keep=task.keep,
    )
    missing = chances == -torch.inf
    if task.filled:  # the host reads nothing back
        tours = torch.where(missing[..., None], tours[:, :1], tours).clamp(min=0)  # if there is none at all
        assert costs is not None
        lengths = costs.lengths(tours, part.start).masked_fill(missing, torch.inf)
        return Decoded(tours, chances, lengths)
    held = int((~missing).sum(dim=1).min())
    tours, chances = tours[:, :held], chances[:, :held]
    return Decoded(tours, chances, None if costs is None else costs.lengths(tours, part.start))


def beam_tours(
    start: Tensor,
    logits: Tensor,
    *,
    width: int,
    values: Tensor | None = None,
    distances: Tensor | None = None,
    closed: bool = True,
    end: Tensor | None = None,
    dominance: bool = False,
    keep: int | None = None,
    dtype: torch.dtype = torch.int64,
    num_warps: int | None = None,
    registers: int | None = 64,
) -> tuple[Tensor, Tensor]:
    """The best tours that a beam of ``width`` finds, ``(B, keep, n)``, and their log-probabilities.

    ``start (B, n)`` holds log-probabilities (-inf forbids a start), ``logits`` is ``(B, n, n)``, and
    ``values (B, n, n)`` rank the children in place of the logits where they are given. Tours come by falling
    rank or, where ``distances (B, n, n)`` are given, by rising length; equal ones by rank, then
    lexicographically. ``end (B,)`` is kept for last (-1: none). ``dominance`` needs distances. ``keep`` is
    all that a beam can hold unless given. A beam that holds fewer ends in tours of -1 with log-probability
    -inf. The host reads nothing back. ``num_warps`` and ``registers`` (at most, for each thread) only tune
    the launch.
    """
    batch, n = start.shape
    held = _check(start, logits, width)
    if dominance and distances is None:
        raise InputError("dominance compares lengths: give distances too")
    keep = held if keep is None else min(keep, held)
    block = _block(width)
    if num_warps is None:
        num_warps = max(1, min(32, block // 128))
    device = start.device
    scores, weights, peaks = _tables(start, logits)
    ranked_by = scores if values is None else _by_target(start, values)

    def scratch(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.empty(batch, *shape, dtype=dtype, device=device)

    rank = scratch(block, dtype=torch.float32)
    chance = rank if values is None else torch.empty_like(rank)
    choices = scratch(n, block)
    lengths = scratch(2, block, dtype=torch.float64)
    desk_size = DESK * block if dominance else 0
    tours = scratch(keep, n, dtype=dtype)
    if batch == 0:
        return tours, rank[:, :keep]
    beam_kernel[(batch,)](
        scores,
        ranked_by,
        weights,
        peaks,
        torch.full((batch,), -1, device=device) if end is None else end,
        scratch(2, triton.cdiv(n, 32), block),  # unvisited cities
        rank,
        chance,
        scratch(block, dtype=torch.float32),  # normalizers
        scratch(block),  # last cities
        choices,
        choices if distances is None else distances.to(torch.float64).contiguous(),
        lengths,
        scratch(2, block),  # first cities
        city_hashes(n, device),
        scratch(2, block if dominance else 0, dtype=torch.int64),  # hashes of the visited cities
        scratch(CHILDREN.value * block if dominance else 0),
        scratch(desk_size, dtype=torch.int64),
        n,
        width,
        desk_size,
        has_cost=distances is not None,
        closed=closed,
        weighted=values is not None,
        dominance=dominance,
        block=block,
        num_warps=num_warps,
        num_stages=1,
        maxnreg=registers,
    )
    ranks, order = torch.sort(rank, dim=1, descending=True, stable=True)
    if distances is not None:
        by_length = torch.sort(lengths[:, 0].gather(1, order), dim=1, stable=True).indices
        ranks, order = ranks.gather(1, by_length), order.gather(1, by_length)
    ranks, order = ranks[:, :keep], order[:, :keep]
    chances = chance.gather(1, order)
    order = order.masked_fill(ranks == -torch.inf, -1).contiguous()
    backtrack_kernel[(batch, triton.cdiv(keep, 32))](choices, order, tours, n, block, keep, block=32)
    return tours, chances


def _block(width: int) -> int:
    """Lanes for the beams of one instance."""
    return max(32, triton.next_power_of_2(width))


def _by_target(start: Tensor, logits: Tensor) -> Tensor:
    """Scores by target city, then source, the start being the last source: ``(B, n, n + 1)``."""
    rows = torch.cat([logits.float(), start.float()[:, None]], dim=1)
    return rows.transpose(1, 2).contiguous()


def _tables(start: Tensor, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What the kernel reads: scores by target city, then source; their exponentials; each source's peak."""
    n = start.shape[1]
    scores = _by_target(start, logits.clamp(min=FLOOR))
    itself = torch.eye(n, n + 1, dtype=torch.bool, device=start.device)
    peaks = scores.masked_fill(itself, FLOOR).amax(dim=1).clamp(min=FLOOR)
    weights = (scores.double() - peaks[:, None].double()).clamp(max=0.0).exp()
    return scores, weights, peaks


def _check(start: Tensor, logits: Tensor, width: int) -> int:
    """Refuse what cannot be searched; the number of tours a beam of this width can hold."""
    batch, n = start.shape
    if logits.shape != (batch, n, n):
        raise InputError(
            f"the logits must be ({batch}, {n}, {n}) as the starts say, not {tuple(logits.shape)}"
        )
    if not 1 <= n <= MAX_CITIES:
        raise InputError(f"the number of cities must be 1 to {MAX_CITIES}, not {n}")
    if not 1 <= width <= MAX_WIDTH:
        raise InputError(f"the beam width must be 1 to {MAX_WIDTH}, not {width}")
    return min(width, math.factorial(n)) if n <= 10 else width
