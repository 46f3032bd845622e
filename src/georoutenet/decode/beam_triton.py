"""Beam search on a GPU: one program per instance holds all its beams, one lane for each.

Every step ranks the children of all beams by log-probability and keeps the ``width`` best. Nothing is sorted:
a search over the float32 values finds the threshold that ``width`` children reach, counting them in each
pass, and prefix sums of the counts say where each survivor goes. The survivors stay in the order
(parent, city), which is the lexicographic order of the partial tours, and ties at the threshold go to the
first in that order. Parents and cities are written down in every step, and tours are read back from the end.

Log-probabilities add up in float32 from normalizers summed in float64, as in the PyTorch reference.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from georoutenet.decode.beam_task import BeamTask, stacked
from georoutenet.decode.common import FLOOR, Decoded
from georoutenet.errors import InputError

MAX_CITIES = 1024
MAX_WIDTH = 4096
SCRATCH = 2**31  # bytes for the instances searched at once

_LOWEST = tl.constexpr(-3.4028234663852886e38)  # the lowest float32
_INT_MIN = tl.constexpr(-(2**31))
_TINY = tl.constexpr(1e-280)


@triton.jit
def _key(value: tl.tensor) -> tl.tensor:
    """A float32 as an integer of the same order."""
    bits = value.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, _INT_MIN - bits, bits).to(tl.int64)


@triton.jit
def _value(key: tl.tensor) -> tl.tensor:
    """The float32 of a key."""
    bits = key.to(tl.int32)
    return tl.where(bits < 0, _INT_MIN - bits, bits).to(tl.float32, bitcast=True)


@triton.jit
def _masses(
    row: tl.tensor, weight: tl.tensor, open_words: tl.tensor, n: tl.tensor, block: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """For each beam the best logit and the sum of the weights of its unvisited cities."""
    best = tl.full([block], float("-inf"), dtype=tl.float32)
    mass = tl.zeros([block], dtype=tl.float64)
    for word in range(0, (n + 31) // 32):
        bits = tl.load(open_words + word * block)
        for city in range(word * 32, tl.minimum(word * 32 + 32, n)):
            is_open = ((bits >> (city % 32)) & 1) != 0
            offset = city * (n + 1)
            best = tl.maximum(best, tl.load(row + offset, mask=is_open, other=float("-inf")))
            mass += tl.load(weight + offset, mask=is_open, other=0.0)
    return best, mass


@triton.jit
def _masses_relative_to(
    best: tl.tensor, row: tl.tensor, open_words: tl.tensor, n: tl.tensor, block: tl.constexpr
) -> tl.tensor:
    """Sum of exp(z - best) over the unvisited cities: right even where all the stored weights vanish."""
    mass = tl.zeros([block], dtype=tl.float64)
    for word in range(0, (n + 31) // 32):
        bits = tl.load(open_words + word * block)
        for city in range(word * 32, tl.minimum(word * 32 + 32, n)):
            is_open = ((bits >> (city % 32)) & 1) != 0
            z = tl.load(row + city * (n + 1), mask=is_open, other=float("-inf"))
            mass += tl.exp(z - best).to(tl.float64)
    return mass


@triton.jit
def _counts(
    low: tl.tensor,
    middle: tl.tensor,
    high: tl.tensor,
    score: tl.tensor,
    normalizer: tl.tensor,
    row: tl.tensor,
    open_words: tl.tensor,
    n: tl.tensor,
    block: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """For each beam the number of children that reach each of three rising thresholds."""
    count_low = tl.zeros([block], dtype=tl.int32)
    count_middle = tl.zeros([block], dtype=tl.int32)
    count_high = tl.zeros([block], dtype=tl.int32)
    for word in range(0, (n + 31) // 32):
        bits = tl.load(open_words + word * block)
        packed = tl.zeros([block], dtype=tl.int32)  # three counts up to 32 in one integer: half the work
        for city in range(word * 32, tl.minimum(word * 32 + 32, n)):
            is_open = ((bits >> (city % 32)) & 1) != 0
            z = tl.load(row + city * (n + 1), mask=is_open, other=float("-inf"))
            child = score + (z - normalizer)
            reached = tl.where(child >= middle, 0x000101, (child >= low).to(tl.int32))
            packed += tl.where(child >= high, 0x010101, reached)
        count_low += packed & 0xFF
        count_middle += (packed >> 8) & 0xFF
        count_high += packed >> 16
    return count_low, count_middle, count_high


@triton.jit
def _by_count(
    count1: tl.tensor,
    count2: tl.tensor,
    count3: tl.tensor,
    width: tl.tensor,
    none: tl.tensor,
    one: tl.tensor,
    two: tl.tensor,
    three: tl.tensor,
) -> tl.tensor:
    """One of four values by how many of the falling counts reach the width."""
    return tl.where(
        count3 >= width, three, tl.where(count2 >= width, two, tl.where(count1 >= width, one, none))
    )


@triton.jit
def _beam_kernel(
    scores: tl.tensor,  # (B, n, n + 1) float32: z_ij at [j, i], and the start's at [j, n]
    weights: tl.tensor,  # (B, n, n + 1) float64: exp(z - peak)
    peaks: tl.tensor,  # (B, n + 1) float32
    open_cities: tl.tensor,  # (B, 2, words, block) int32: unvisited cities as bits, now and next
    # The beams as their children see them, (B, block) each:
    beam_score: tl.tensor,
    beam_normalizer: tl.tensor,
    beam_city: tl.tensor,
    choices: tl.tensor,  # (B, n, block) int32: parent * n + city
    # With a cost, float64 (B, n, n), the lengths so far and the first cities, (B, 2, block): now and next.
    distances: tl.tensor,
    lengths: tl.tensor,
    starts: tl.tensor,
    n: tl.tensor,
    width: tl.tensor,
    has_cost: tl.constexpr,
    closed: tl.constexpr,
    block: tl.constexpr,
) -> None:
    instance = tl.program_id(0).to(tl.int64)
    words = (n + 31) // 32
    scores += instance * n * (n + 1)
    weights += instance * n * (n + 1)
    peaks += instance * (n + 1)
    open_cities += instance * 2 * words * block
    beam_score += instance * block
    beam_normalizer += instance * block
    beam_city += instance * block
    choices += instance * n * block
    if has_cost:
        distances += instance * n * n
        lengths += instance * 2 * block
        starts += instance * 2 * block

    # The root is one beam at the imaginary city n, whose children are the starts.
    beam = tl.arange(0, block)
    score = tl.zeros([block], dtype=tl.float32)
    last = tl.zeros([block], dtype=tl.int32) + n
    held = tl.minimum(width, 1)
    for word in range(0, words):
        rest = tl.minimum(n - word * 32, 32)
        bits = tl.where(beam == 0, tl.where(rest == 32, -1, (1 << (rest % 32)) - 1), 0)
        tl.store(open_cities + word * block + beam, bits)
    tl.debug_barrier()

    for step in range(0, n):
        alive = beam < held
        now = open_cities + (step % 2) * words * block
        following = open_cities + ((step + 1) % 2) * words * block
        row = scores + last
        best, mass = _masses(row, weights + last, now + beam, n, block)
        peak = tl.load(peaks + last)
        if tl.min(tl.where(alive, mass, 1.0), axis=0) < _TINY:
            peak = best
            mass = _masses_relative_to(best, row, now + beam, n, block)
        normalizer = (peak.to(tl.float64) + tl.log(mass)).to(tl.float32)
        normalizer = tl.where(last == n, 0.0, normalizer)  # starts are log-probabilities already

        # The threshold lies between the best children of the worst and of the best beam.
        best_child = score + (best - normalizer)
        high = _key(tl.max(tl.where(alive, best_child, float("-inf")), axis=0)) + 1
        low = _key(tl.min(tl.where(alive, best_child, float("inf")), axis=0))
        count = width + 1
        if held < width:
            low = _key(tl.max(tl.zeros([block], dtype=tl.float32) + _LOWEST, axis=0))
            lowest = _value(low)
            total, _, _ = _counts(lowest, lowest, lowest, score, normalizer, row, now + beam, n, block)
            count = tl.sum(total, axis=0)
        # More than width children reach low, fewer reach high.
        while (count > width) & (high - low > 1):
            first = low + (high - low) // 4
            second = low + (high - low) // 2
            third = low + (high - low) * 3 // 4
            reach1, reach2, reach3 = _counts(
                _value(first), _value(second), _value(third), score, normalizer, row, now + beam, n, block
            )
            count1 = tl.sum(reach1, axis=0)
            count2 = tl.sum(reach2, axis=0)
            count3 = tl.sum(reach3, axis=0)
            high = _by_count(count1, count2, count3, width, first, second, third, high)
            low = _by_count(count1, count2, count3, width, low, first, second, third)
            count = _by_count(count1, count2, count3, width, count, count1, count2, count3)
        high = tl.where(count <= width, low, high)

        # All children that reach high stay, and the first of those between low and high fill the width.
        low_value = _value(low)
        high_value = _value(high)
        reach, above, _ = _counts(
            low_value, high_value, high_value, score, normalizer, row, now + beam, n, block
        )
        tied = reach - above
        room = width - tl.sum(above, axis=0) - (tl.cumsum(tied, axis=0) - tied)
        tied = tl.minimum(tied, tl.maximum(room, 0))
        kept = above + tied
        place = tl.cumsum(kept, axis=0) - kept
        held = tl.sum(kept, axis=0)
        for word in range(0, words):
            bits = tl.load(now + word * block + beam)
            for city in range(word * 32, tl.minimum(word * 32 + 32, n)):
                is_open = ((bits >> (city % 32)) & 1) != 0
                z = tl.load(row + city * (n + 1), mask=is_open, other=float("-inf"))
                child = score + (z - normalizer)
                is_above = child >= high_value
                is_tied = (child >= low_value) & (child < high_value) & (tied > 0)
                take = is_above | is_tied
                tl.store(choices + step * block + place, beam * n + city, mask=take)
                place += take.to(tl.int32)
                tied -= is_tied.to(tl.int32)
        tl.store(beam_score + beam, score)
        tl.store(beam_normalizer + beam, normalizer)
        tl.store(beam_city + beam, last)
        tl.debug_barrier()

        # Each lane now takes up the survivor of its place.
        alive = beam < held
        choice = tl.load(choices + step * block + beam, mask=alive, other=0)
        parent = choice // n
        city = choice - parent * n
        from_city = tl.load(beam_city + parent)
        z = tl.load(scores + city * (n + 1) + from_city)
        score = tl.load(beam_score + parent) + (z - tl.load(beam_normalizer + parent))
        last = city
        if has_cost:
            old = (step % 2) * block + parent
            new = ((step + 1) % 2) * block + beam
            edge = tl.load(distances + from_city * n + city, mask=from_city < n, other=0.0)
            tl.store(lengths + new, tl.load(lengths + old, mask=from_city < n, other=0.0) + edge)
            tl.store(
                starts + new,
                tl.load(starts + old, mask=from_city < n, other=0) + tl.where(from_city < n, 0, city),
            )
        for word in range(0, words):
            bits = tl.load(now + word * block + parent, mask=alive, other=0)
            visited = tl.where(city // 32 == word, 1 << (city % 32), 0)
            tl.store(following + word * block + beam, bits & ~visited)
        tl.debug_barrier()
    tl.store(beam_score + beam, tl.where(beam < held, score, float("-inf")))
    if has_cost:
        length = tl.load(lengths + (n % 2) * block + beam)
        if closed:
            length += tl.load(distances + last * n + tl.load(starts + (n % 2) * block + beam))
        tl.store(lengths + beam, tl.where(beam < held, length, float("inf")))


@triton.jit
def _backtrack_kernel(
    choices: tl.tensor,
    order: tl.tensor,
    tours: tl.tensor,
    n: tl.tensor,
    size: tl.tensor,
    keep: tl.tensor,
    block: tl.constexpr,
) -> None:
    """Tours of the beams named in ``order (B, keep)``, from the last city to the first; -1 for no beam."""
    instance = tl.program_id(0).to(tl.int64)
    rank = tl.program_id(1) * block + tl.arange(0, block)
    choices += instance * n * size
    tours += (instance * keep + rank) * n
    parent = tl.load(order + instance * keep + rank, mask=rank < keep, other=-1).to(tl.int32)
    alive = parent >= 0
    for back in range(1, n + 1):
        choice = tl.load(choices + (n - back) * size + parent, mask=alive, other=-1)
        parent = choice // n
        city = tl.where(alive, choice - parent * n, -1)
        tl.store(tours + (n - back), city.to(tours.dtype.element_ty), mask=rank < keep)


def supports(task: BeamTask) -> bool:
    """Whether the kernel can run a search: the plain one, of a size that fits."""
    return (
        task.shape[1] <= MAX_CITIES
        and task.width <= MAX_WIDTH
        and not task.dominance
        and task.length_weight == 0
        and bool((task.end < 0).all())
    )


def beam(task: BeamTask) -> Decoded:
    """Beam search over all unvisited cities: ``reference.beam`` for the tasks that the kernel supports."""
    batch, n = task.shape
    # What one instance needs while it is searched: parents and cities of every step, and the tables.
    size = n * (4 * _block(task.width) + 24 * (n + 1))
    chunk = max(1, SCRATCH // size)
    return stacked([_beam(task, slice(first, first + chunk)) for first in range(0, batch, chunk)])


def _beam(task: BeamTask, part: slice) -> Decoded:
    costs = task.costs
    start, logits = task.start[part], task.logits[part]
    if costs is None:
        distances = None
    elif costs.instances is None:
        points = costs.coordinates[part]
        difference = points[:, :, None] - points[:, None]
        distances = (difference * difference).sum(dim=3).sqrt()
    else:
        distances = torch.stack([costs.matrix(b) for b in range(*part.indices(task.shape[0]))])
    tours, chances = beam_tours(
        start, logits, width=task.width, distances=distances, closed=task.closed, keep=task.keep
    )
    held = int((chances > -torch.inf).sum(dim=1).min())
    tours, chances = tours[:, :held], chances[:, :held]
    return Decoded(tours, chances, None if costs is None else costs.lengths(tours, part.start))


def beam_tours(
    start: Tensor,
    logits: Tensor,
    *,
    width: int,
    distances: Tensor | None = None,
    closed: bool = True,
    keep: int | None = None,
    dtype: torch.dtype = torch.int64,
    num_warps: int | None = None,
    registers: int | None = 64,
) -> tuple[Tensor, Tensor]:
    """The most probable tours that a beam of ``width`` finds, ``(B, keep, n)``, and their log-probabilities.

    ``start (B, n)`` holds log-probabilities (-inf forbids a start), ``logits`` is ``(B, n, n)``. Tours
    come by falling log-probability or, where ``distances (B, n, n)`` are given, by rising length; equal
    ones by log-probability, then lexicographically. ``keep`` is all that a beam can hold unless given. A
    beam that holds fewer, for want of starts, ends in tours of -1 with log-probability -inf. The host reads
    nothing back. ``num_warps`` and ``registers`` (at most, for each thread) only tune the launch.
    """
    batch, n = start.shape
    held = _check(start, logits, width)
    keep = held if keep is None else min(keep, held)
    block = _block(width)
    if num_warps is None:
        num_warps = max(1, min(32, block // 128))
    device = start.device
    scores, weights, peaks = _tables(start, logits)
    open_cities = torch.empty(batch, 2, triton.cdiv(n, 32), block, dtype=torch.int32, device=device)
    log_probability = torch.empty(batch, block, device=device)
    normalizer = torch.empty(batch, block, device=device)
    city = torch.empty(batch, block, dtype=torch.int32, device=device)
    choices = torch.empty(batch, n, block, dtype=torch.int32, device=device)
    lengths = torch.empty(batch, 2, block, dtype=torch.float64, device=device)
    starts = torch.empty(batch, 2, block, dtype=torch.int32, device=device)
    tours = torch.empty(batch, keep, n, dtype=dtype, device=device)
    if batch == 0:
        return tours, log_probability[:, :keep]
    _beam_kernel[(batch,)](
        scores,
        weights,
        peaks,
        open_cities,
        log_probability,
        normalizer,
        city,
        choices,
        choices if distances is None else distances.to(torch.float64).contiguous(),
        lengths,
        starts,
        n,
        width,
        has_cost=distances is not None,
        closed=closed,
        block=block,
        num_warps=num_warps,
        num_stages=1,
        maxnreg=registers,
    )
    ranked, order = torch.sort(log_probability, dim=1, descending=True, stable=True)
    if distances is not None:
        by_length = torch.sort(lengths[:, 0].gather(1, order), dim=1, stable=True).indices
        ranked, order = ranked.gather(1, by_length), order.gather(1, by_length)
    ranked, order = ranked[:, :keep], order[:, :keep]
    order = order.masked_fill(ranked == -torch.inf, -1).contiguous()
    _backtrack_kernel[(batch, triton.cdiv(keep, 32))](choices, order, tours, n, block, keep, block=32)
    return tours, ranked.contiguous()


def _block(width: int) -> int:
    """Lanes for the beams of one instance."""
    return max(32, triton.next_power_of_2(width))


def _tables(start: Tensor, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What the kernel reads: scores by target city, then source; their exponentials; each source's peak."""
    n = start.shape[1]
    rows = torch.cat([logits.float().clamp(min=FLOOR), start.float()[:, None]], dim=1)  # (B, n + 1, n)
    itself = torch.eye(n + 1, n, dtype=torch.bool, device=start.device)
    peaks = rows.masked_fill(itself, FLOOR).amax(dim=2).clamp(min=FLOOR)
    weights = (rows.double() - peaks[..., None].double()).clamp(max=0.0).exp()
    return rows.transpose(1, 2).contiguous(), weights.transpose(1, 2).contiguous(), peaks


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
