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
    start_bits, bits = start.view(np.int32), logits.view(np.int32)
    gate, mask = np.empty(n, np.int64), np.empty(n)
    weights, scratch = np.empty(n), np.empty(n)
    for b in range(low, high):
        for j in range(n):
            allow(gate, j, start[b, j] != -np.inf)
        mask[:] = 1.0
        city = largest(start_bits[b], gate)
        if math.isnan(start[b, city]):
            return False
        total = start[b, city]
        for j in range(n):
            allow(gate, j, j != city and (j != end[b] or n == 2))
            mask[j] = 1.0 if gate[j] > 0 else 0.0
        tours[b, 0] = city
        for step in range(1, n):
            if step == n - 1 and end[b] >= 0:
                allow(gate, end[b], True)
                mask[end[b]] = 1.0
            row, city = logits[b, city], largest(bits[b, city], gate)
            if math.isnan(row[city]):
                return False
            if want:
                # The best city is the largest allowed one, so its weight is 1 and the sum cannot underflow.
                top = np.float64(row[city])
                exponentials(np.minimum(row, row[city]), top, weights, scratch)
                total -= np.float32(math.log(masked_sum(weights, mask)))
            tours[b, step] = city
            allow(gate, city, False)
            mask[city] = 0.0
        chances[b] = total
    return True


@njit(cache=True, nogil=True, fastmath={"reassoc", "nsz", "contract"})
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
    """The allowed city where the running sum of weights passes ``target``; -1 when there is none."""
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
def _fill_weights(logits: Any, weights: Any, scratch: Any) -> None:
    """Rows of ``exp(z - largest)``, padded with zeros."""
    n = logits.shape[0]
    for i in range(n):
        top = -np.inf
        for j in range(n):
            top = max(top, np.float64(logits[i, j]))
        exponentials(logits[i], top, weights[i, :n], scratch)
        weights[i, n:] = 0.0


@njit(cache=True, nogil=True)
def _sample(
    low: int, high: int, start: Any, logits: Any, end: Any, seed: Any, tours: Any, chances: Any
) -> bool:
    """Sampled tours with flat numbers (instance * samples + sample) in [low, high); False for NaN."""
    n = start.shape[1]
    samples = tours.shape[1]
    blocks = (n + BLOCK - 1) // BLOCK
    weights = np.empty((n, blocks * BLOCK))
    first, spare, mask = np.zeros(blocks * BLOCK), np.zeros(blocks * BLOCK), np.zeros(blocks * BLOCK)
    sums, scratch = np.empty(blocks), np.empty(n)
    prepared = -1
    for flat in range(low, high):
        b, m = flat // samples, flat % samples
        if b != prepared:
            prepared = b
            if has_nan(start[b]):
                return False
            for j in range(n):
                mask[j] = 0.0 if start[b, j] == -np.inf else 1.0
            exact_weights(start[b], mask, first)
            _fill_weights(logits[b], weights, scratch)
        mask[:n] = 1.0
        key = tour_key(seed, b, m)
        logarithm, product = 0.0, 1.0
        city = 0
        for step in range(n):
            row = first
            if step > 0:
                row = weights[city]
                if step == n - 1 and end[b] >= 0:
                    mask[end[b]] = 1.0
            total = _block_sums(row, mask, sums)
            if not total > TINY and step > 0:
                if has_nan(logits[b, city]):
                    return False
                exact_weights(logits[b, city], mask, spare)
                row = spare
                total = _block_sums(row, mask, sums)
            following = _draw(row, mask, sums, uniform(key, step) * total)
            if following < 0:
                return False
            # One logarithm for many steps: the product is taken while it is far from underflow.
            product *= row[following] / total
            if product < 1e-200:
                logarithm += math.log(product)
                product = 1.0
            city = following
            tours[b, m, step] = city
            mask[city] = 0.0
            if step == 0 and end[b] >= 0:
                mask[end[b]] = 0.0
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
