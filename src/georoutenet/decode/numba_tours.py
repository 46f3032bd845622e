"""Greedy and sampled tours on the CPU: one tour after the other, each row of scores touched once.

Kernels release the GIL and work on a range of instances, so that ordinary threads share a batch. (Numba's
own parallel loops compile several times longer and may not be entered from two threads or after a fork.)
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numba import njit, uint64

from georoutenet.decode.common import FLOOR, Decoded, Task
from georoutenet.decode.randomness import GOLDEN, MULTIPLIERS
from georoutenet.decode.threads import in_ranges
from georoutenet.errors import InputError

BLOCK = 16
"""Weights are summed in blocks of this many, so that a draw walks over blocks and then inside one."""
TINY = 1e-280
"""Below this a sum of weights may have lost terms to underflow, and the row is done again from logits."""
CHUNK_BYTES = 64 << 20
"""Instances are taken in chunks whose float64 weights fit in this many bytes."""

_GOLDEN, _M1, _M2 = uint64(GOLDEN), uint64(MULTIPLIERS[0]), uint64(MULTIPLIERS[1])
_FLOOR = np.float32(FLOOR)


@njit(cache=True, nogil=True)
def mix(x: Any) -> Any:
    x = (x ^ (x >> uint64(30))) * _M1
    x = (x ^ (x >> uint64(27))) * _M2
    return x ^ (x >> uint64(31))


@njit(cache=True, nogil=True)
def tour_key(seed: Any, instance: int, sample: int) -> Any:
    return mix(mix(uint64(instance + 1) * _GOLDEN + seed) + uint64(sample + 1) * _GOLDEN)


@njit(cache=True, nogil=True)
def uniform(key: Any, step: int) -> float:
    return np.float64(mix(key + uint64(step + 1) * _GOLDEN) >> uint64(12)) * 2.0**-52


@njit(cache=True, nogil=True, fastmath={"nnan", "nsz", "reassoc"})
def _largest(row: Any, barrier: Any) -> Any:
    """The largest allowed score and its lowest index; two passes, because each becomes vector code."""
    n = row.shape[0]
    top = np.float32(-np.inf)
    for j in range(n):
        top = max(top, max(row[j], _FLOOR) + barrier[j])
    index = np.int32(n)
    for j in range(n):
        here = np.int32(j) if max(row[j], _FLOOR) + barrier[j] == top else np.int32(n)
        index = min(index, here)
    return top, index


@njit(cache=True, nogil=True)
def _has_nan(row: Any) -> bool:
    for j in range(row.shape[0]):  # noqa: SIM110 (compiled code)
        if math.isnan(row[j]):
            return True
    return False


@njit(cache=True, nogil=True)
def _log_normalizer(row: Any, barrier: Any, top: Any) -> float:
    total = 0.0
    for j in range(row.shape[0]):
        if barrier[j] == 0.0:
            total += math.exp(np.float64(max(row[j], _FLOOR)) - top)
    return top + math.log(total)


@njit(cache=True, nogil=True)
def _greedy(
    low: int, high: int, start: Any, logits: Any, end: Any, want: bool, tours: Any, log_probability: Any
) -> bool:
    """Arg-max tours of the instances in [low, high); False when a score was not a number."""
    n = start.shape[1]
    barrier = np.empty(n, np.float32)  # 0 where the city may be next, -inf where not
    for b in range(low, high):
        barrier[:] = 0.0
        top, city = _largest(start[b], barrier)
        if city >= n:
            return False
        total = np.float32(top)
        if end[b] >= 0:
            barrier[end[b]] = -np.inf
        tours[b, 0] = city
        barrier[city] = -np.inf
        for step in range(1, n):
            row = logits[b, city]
            if step == n - 1 and end[b] >= 0:
                barrier[end[b]] = 0.0
            top, city = _largest(row, barrier)
            # A row of NaN looks like one of impossible cities, so only such rows are searched for it.
            if city >= n or (top <= _FLOOR and _has_nan(row)):
                return False
            if want:
                total += top - np.float32(_log_normalizer(row, barrier, np.float64(top)))
            tours[b, step] = city
            barrier[city] = -np.inf
        log_probability[b] = total
    return True


@njit(cache=True, nogil=True, fastmath={"reassoc", "nsz"})
def _block_sums(weights: Any, mask: Any, sums: Any) -> float:
    total = 0.0
    for block in range(sums.shape[0]):
        first = block * BLOCK
        part = 0.0
        for j in range(first, first + BLOCK):
            part += weights[j] * mask[j]
        sums[block] = part
        total += part
    return total


@njit(cache=True, nogil=True)
def _draw(weights: Any, mask: Any, sums: Any, target: float) -> int:
    """The allowed city where the running sum of weights passes ``target``."""
    running = 0.0
    block = 0
    while block < sums.shape[0] - 1 and running + sums[block] <= target:
        running += sums[block]
        block += 1
    last = -1
    # Rounding may leave the target just beyond a block's end, so the walk may enter the next one.
    for j in range(block * BLOCK, weights.shape[0]):
        here = weights[j] * mask[j]
        if here > 0.0:
            last = j
            running += here
            if running > target:
                return j
    if last < 0:
        for j in range(block * BLOCK):
            if weights[j] * mask[j] > 0.0:
                last = j
    return last


@njit(cache=True, nogil=True)
def _exact_weights(row: Any, mask: Any, weights: Any) -> None:
    """Weights relative to the largest allowed logit: the slow way, for rows that underflowed."""
    n = row.shape[0]
    top = -np.inf
    for j in range(n):
        if mask[j] > 0.0:
            top = max(top, np.float64(max(row[j], _FLOOR)))
    weights[:] = 0.0
    for j in range(n):
        if mask[j] > 0.0:
            weights[j] = math.exp(np.float64(max(row[j], _FLOOR)) - top)


@njit(cache=True, nogil=True)
def _sample(
    low: int,
    high: int,
    offset: int,
    start: Any,
    logits: Any,
    weights: Any,
    end: Any,
    seed: Any,
    tours: Any,
    log_probability: Any,
) -> bool:
    """Sampled tours with flat numbers (instance * samples + sample) in [low, high)."""
    n = start.shape[1]
    samples = tours.shape[1]
    padded = weights.shape[2]
    mask = np.zeros(padded)
    sums = np.empty(padded // BLOCK)
    spare = np.zeros(padded)
    first = np.zeros(padded)
    prepared = -1
    for flat in range(low, high):
        b, m = flat // samples, flat % samples
        if b != prepared:
            mask[:n] = 1.0
            for j in range(n):
                mask[j] = 0.0 if start[b, j] == -np.inf else 1.0
            _exact_weights(start[b], mask, first)
            prepared = b
        mask[:n] = 1.0
        key = tour_key(seed, b + offset, m)
        logarithm, product = 0.0, 1.0
        city = 0
        for step in range(n):
            if step == 0:
                row = first
            else:
                row = weights[b, city]
                if step == n - 1 and end[b] >= 0:
                    mask[end[b]] = 1.0
            total = _block_sums(row, mask, sums)
            if not total > TINY and step > 0:
                if _has_nan(logits[b, city]):
                    return False
                _exact_weights(logits[b, city], mask, spare)
                row = spare
                total = _block_sums(row, mask, sums)
            following = _draw(row, mask, sums, uniform(key, step) * total)
            if following < 0:
                return False
            product *= row[following] / total
            if product < 1e-200:
                logarithm += math.log(product)
                product = 1.0
            city = following
            tours[b, m, step] = city
            mask[city] = 0.0
            if step == 0 and end[b] >= 0:
                mask[end[b]] = 0.0
        log_probability[b, m] = logarithm + math.log(product)
    return True


def _checked(good: list[bool]) -> None:
    if not all(good):
        raise InputError("the scores hold values that are not numbers (NaN)")


def greedy(task: Task, *, log_probabilities: bool = True) -> Decoded:
    """Arg-max tours, equal to ``reference.greedy``."""
    batch, n = task.shape
    tours = torch.empty(batch, 1, n, dtype=torch.int64)
    chances = torch.empty(batch, 1)
    arrays = task.start.numpy(), task.logits.numpy(), task.end.numpy()
    out = tours[:, 0].numpy(), chances[:, 0].numpy()
    _checked(in_ranges(batch, lambda low, high: _greedy(low, high, *arrays, log_probabilities, *out)))
    return Decoded(tours, chances if log_probabilities else None)


def sample(task: Task, samples: int, seed: int) -> Decoded:
    """Sampled tours, equal to ``reference.sample`` for the same seed."""
    batch, n = task.shape
    padded = -(-n // BLOCK) * BLOCK
    chunk = max(1, min(batch, CHUNK_BYTES // (8 * n * padded)))
    weights = torch.zeros(chunk, n, padded, dtype=torch.float64)
    tours = torch.empty(batch, samples, n, dtype=torch.int64)
    chances = torch.empty(batch, samples)
    bits = np.uint64(seed & ((1 << 64) - 1))
    for offset in range(0, batch, chunk):
        part = slice(offset, min(offset + chunk, batch))
        logits = task.logits[part]
        size = len(logits)
        shifted = logits.clamp(min=FLOOR)
        shifted -= shifted.amax(dim=2, keepdim=True)
        weights[:size, :, :n] = shifted
        weights[:size, :, :n].exp_()
        arrays = (
            task.start[part].numpy(),
            logits.numpy(),
            weights[:size].numpy(),
            task.end[part].numpy(),
            bits,
            tours[part].numpy(),
            chances[part].numpy(),
        )

        def work(low: int, high: int, offset: int = offset, arrays: tuple[Any, ...] = arrays) -> bool:
            return bool(_sample(low, high, offset, *arrays))

        _checked(in_ranges(size * samples, work))
    return Decoded(tours, chances)
