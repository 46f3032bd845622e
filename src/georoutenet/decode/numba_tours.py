"""Greedy and sampled tours on the CPU: one tour after the other, each row of scores touched once.

Kernels release the GIL and work on a range of tours, so that ordinary threads share a batch. (Numba's own
parallel loops compile several times longer, may not be entered from two threads or after a fork, and their
thread pool gets in the way of torch's.)
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numba import njit

from georoutenet.decode.common import Decoded, Task
from georoutenet.decode.numba_math import (
    LOWEST,
    TINY,
    allow,
    exact_weights,
    exponentials,
    has_nan,
    largest,
    masked_sum,
    tour_key,
    uniform,
)
from georoutenet.decode.threads import in_ranges
from georoutenet.errors import InputError

BLOCK = 16
"""Weights are summed in blocks of this many, so that a draw walks over blocks and then inside one."""


@njit(cache=True, nogil=True)
def _greedy(
    low: int, high: int, start: Any, logits: Any, end: Any, want: bool, tours: Any, chances: Any
) -> bool:
    """Arg-max tours of the instances in [low, high); False when a score was not a number."""
    n = start.shape[1]
    start_bits, all_bits = start.view(np.int32), logits.view(np.int32)
    gate, mask = np.empty(n, np.int64), np.empty((1, n))
    weights, scratch = np.empty((1, n)), np.empty(n)
    for b in range(low, high):
        bits, z = all_bits[b], logits[b]
        for j in range(n):
            allow(gate, j, start[b, j] != -np.inf)
        city = largest(start_bits, b, gate)
        if math.isnan(start[b, city]):
            return False
        total = start[b, city]
        for j in range(n):
            open_now = j != city and (j != end[b] or n == 2)
            allow(gate, j, open_now)
            mask[0, j] = 1.0 if open_now else 0.0
        tours[b, 0] = city
        for step in range(1, n):
            if step == n - 1 and end[b] >= 0:
                allow(gate, end[b], True)
                mask[0, end[b]] = 1.0
            following = largest(bits, city, gate)
            if math.isnan(z[city, following]):
                return False
            if want:
                # The largest allowed logit has weight 1, so the sum cannot underflow.
                exponentials(z, city, np.float64(max(z[city, following], LOWEST)), weights, 0, scratch)
                total -= np.float32(math.log(masked_sum(weights, 0, mask, 0)))
            city = following
            tours[b, step] = city
            allow(gate, city, False)
            mask[0, city] = 0.0
        chances[b] = total
    return True


@njit(cache=True, nogil=True, fastmath={"reassoc", "nsz", "contract"})
def _block_sums(weights: Any, row: int, mask: Any, sums: Any) -> float:
    total = 0.0
    for block in range(sums.shape[0]):
        first = block * BLOCK
        part = 0.0
        for j in range(first, first + BLOCK):
            part += weights[row, j] if mask[0, j] > 0 else 0.0
        sums[block] = part
        total += part
    return total


@njit(cache=True, nogil=True)
def _draw(weights: Any, row: int, mask: Any, sums: Any, target: float) -> int:
    """The allowed city where the running sum of weights passes ``target``; -1 when there is none."""
    running = 0.0
    block = 0
    while block < sums.shape[0] - 1 and running + sums[block] <= target:
        running += sums[block]
        block += 1
    last = -1
    # Rounding may leave the target just beyond a block's end, so the walk may enter the next one.
    for j in range(block * BLOCK, weights.shape[1]):
        if mask[0, j] > 0 and weights[row, j] > 0.0:
            last = j
            running += weights[row, j]
            if running > target:
                return j
    if last < 0:
        for j in range(block * BLOCK):
            if mask[0, j] > 0 and weights[row, j] > 0.0:
                last = j
    return last


@njit(cache=True, nogil=True)
def _fill_weights(b: int, start: Any, logits: Any, weights: Any, mask: Any, scratch: Any) -> bool:
    """Rows of ``exp(z - largest)`` and, after them, the start's; False when a score is not a number."""
    n = start.shape[1]
    z = logits[b]
    for i in range(n):
        top = np.float64(LOWEST)
        for j in range(n):
            top = max(top, np.float64(z[i, j]))
        exponentials(z, i, top, weights, i, scratch)
    for j in range(n):
        mask[0, j] = 0 if start[b, j] == -np.inf else 1
    exact_weights(start, b, mask, 0, weights[n : n + 1])
    return not has_nan(start[b])


@njit(cache=True, nogil=True)
def _sample(
    low: int, high: int, start: Any, logits: Any, end: Any, seed: Any, tours: Any, chances: Any
) -> bool:
    """Sampled tours with flat numbers (instance * samples + sample) in [low, high); False for NaN."""
    n = start.shape[1]
    samples = tours.shape[1]
    blocks = (n + BLOCK - 1) // BLOCK
    weights = np.zeros((n + 2, blocks * BLOCK))  # a row for each city, one for the start, one to spare
    mask = np.zeros((1, blocks * BLOCK), np.uint8)
    sums, scratch, spare = np.empty(blocks), np.empty(n), weights[n + 1 :]
    prepared = -1
    for flat in range(low, high):
        b, m = flat // samples, flat % samples
        if b != prepared:
            prepared = b
            if not _fill_weights(b, start, logits, weights, mask, scratch):
                return False
        mask[0, :n] = 1
        key = tour_key(seed, b, m)
        logarithm, product = 0.0, 1.0
        city = n
        for step in range(n):
            if step == n - 1 and end[b] >= 0:
                mask[0, end[b]] = 1
            row = city
            total = _block_sums(weights, row, mask, sums)
            if not total > TINY and step > 0:
                if has_nan(logits[b, city]):
                    return False
                exact_weights(logits[b], city, mask, 0, spare)
                row = n + 1
                total = _block_sums(weights, row, mask, sums)
            city = _draw(weights, row, mask, sums, uniform(key, step) * total)
            if city < 0:
                return False
            # One logarithm for many steps: the product is taken while it is far from underflow.
            product *= weights[row, city] / total
            if product < 1e-200:
                logarithm += math.log(product)
                product = 1.0
            tours[b, m, step] = city
            mask[0, city] = 0
            if step == 0 and end[b] >= 0:
                mask[0, end[b]] = 0
        chances[b, m] = logarithm + math.log(product)
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
    tours = torch.empty(batch, samples, n, dtype=torch.int64)
    chances = torch.empty(batch, samples)
    arrays = (
        task.start.numpy(),
        task.logits.numpy(),
        task.end.numpy(),
        np.uint64(seed & ((1 << 64) - 1)),
        tours.numpy(),
        chances.numpy(),
    )
    _checked(in_ranges(batch * samples, lambda low, high: _sample(low, high, *arrays)))
    return Decoded(tours, chances)
