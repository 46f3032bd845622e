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
    LANES,
    LOWEST,
    TINY,
    allow,
    exact_weights,
    exponentials,
    has_nan,
    largest,
    masked_sum,
    row_top,
    tour_key,
    uniform,
)
from georoutenet.decode.threads import in_ranges
from georoutenet.errors import InputError

TOGETHER = 8
"""Tours that advance in turns: a step waits for its row of scores, and the others fill the wait."""


@njit(cache=True, nogil=True)
def _greedy(
    low: int, high: int, start: Any, logits: Any, end: Any, want: bool, tours: Any, chances: Any
) -> bool:
    """Arg-max tours of the instances in [low, high); False when a score was not a number."""
    n = start.shape[1]
    start_bits, bits = start.view(np.int32).reshape(-1, 1, n), logits.view(np.int32)
    gate, mask = np.empty((TOGETHER, n), np.int64), np.empty((TOGETHER, n), np.uint8)
    weights, scratch = np.empty((1, n)), np.empty(n)
    for base in range(low, high, TOGETHER):
        group = min(TOGETHER, high - base)
        for g in range(group):
            b = base + g
            for j in range(n):
                allow(gate, g, j, start[b, j] != -np.inf)
            city = largest(start_bits, b, 0, gate, g)
            if math.isnan(start[b, city]):
                return False
            chances[b] = start[b, city]
            for j in range(n):
                mask[g, j] = j != city and (j != end[b] or n == 2)
                allow(gate, g, j, mask[g, j] > 0)
            tours[b, 0] = city
        for step in range(1, n):
            for g in range(group):
                b = base + g
                city = tours[b, step - 1]
                if step == n - 1 and end[b] >= 0:
                    allow(gate, g, end[b], True)
                    mask[g, end[b]] = 1
                following = largest(bits, b, city, gate, g)
                top = logits[b, city, following]
                if math.isnan(top):
                    return False
                if want:
                    # The largest allowed logit has weight 1, so the sum cannot underflow.
                    exponentials(logits, b, city, np.float64(max(top, LOWEST)), weights, 0, scratch)
                    chances[b] -= np.float32(math.log(masked_sum(weights, 0, mask, g)))
                tours[b, step] = following
                allow(gate, g, following, False)
                mask[g, following] = 0
    return True


@njit(cache=True, nogil=True)
def _segment_sums(segments: Any, row: int, mask: Any, g: int, sums: Any) -> float:
    """Sums of the allowed weights in each segment of a row, and their total."""
    count, total = sums.shape[0], 0.0
    for k in range(count):
        sums[k] = masked_sum(segments, row * count + k, mask, g * count + k)
        total += sums[k]
    return total


@njit(cache=True, nogil=True)
def _allowed(weights: Any, row: int, mask: Any, g: int, j: int) -> float:
    return weights[row, j] * np.float64(mask[g, j])  # a product, because a choice would become a branch


@njit(cache=True, nogil=True)
def _draw(weights: Any, row: int, mask: Any, g: int, sums: Any, target: float) -> int:
    """The allowed city where the running sum of weights passes ``target``; -1 when there is none."""
    running, segment = 0.0, 0
    while segment < sums.shape[0] - 1 and running + sums[segment] <= target:
        running += sums[segment]
        segment += 1
    # The sum rises only at allowed cities, so it is enough to watch it: a branch that is nearly always
    # predicted, where asking for each city whether it is allowed is not. Four at a time, because additions
    # that wait for each other are what this loop would spend its time on.
    place = segment * LANES
    while place < weights.shape[1] - 4:
        near = _allowed(weights, row, mask, g, place) + _allowed(weights, row, mask, g, place + 1)
        far = _allowed(weights, row, mask, g, place + 2) + _allowed(weights, row, mask, g, place + 3)
        if running + (near + far) > target:
            break
        running += near + far
        place += 4
    for j in range(place, weights.shape[1]):
        running += _allowed(weights, row, mask, g, j)
        if running > target:
            return j
    # Rounding may leave the target just above the sum: then it is the last city of positive weight.
    for j in range(weights.shape[1] - 1, -1, -1):
        if mask[g, j] > 0 and weights[row, j] > 0.0:
            return j
    return -1


@njit(cache=True, nogil=True)
def _fill_weights(b: int, start: Any, logits: Any, weights: Any, mask: Any, scratch: Any) -> bool:
    """Rows of ``exp(z - largest)`` and, after them, the start's; False when a score is not a number."""
    n = start.shape[1]
    bits = logits.view(np.int32)
    for i in range(n):
        exponentials(logits, b, i, row_top(bits, b, i), weights, i, scratch)
    for j in range(n):
        mask[0, j] = 0 if start[b, j] == -np.inf else 1
    exact_weights(start, b, mask, 0, weights[n : n + 1])
    return not has_nan(start[b])


@njit(cache=True, nogil=True)
def _sample(
    low: int, high: int, start: Any, logits: Any, end: Any, seed: Any, tours: Any, chances: Any
) -> bool:
    """Sampled tours of the instances and groups of samples in [low, high); False for NaN."""
    n = start.shape[1]
    samples = tours.shape[1]
    groups = (samples + TOGETHER - 1) // TOGETHER
    padded = (n + LANES - 1) // LANES * LANES
    weights = np.zeros((n + 2, padded))  # a row for each city, one for the start, one to spare
    mask = np.zeros((TOGETHER, padded), np.uint8)
    segments, mask_segments = weights.reshape(-1, LANES), mask.reshape(-1, LANES)
    sums, scratch, spare = np.empty(padded // LANES), np.empty(n), weights[n + 1 :]
    key, product = np.empty(TOGETHER, np.uint64), np.empty(TOGETHER)
    prepared = -1
    for flat in range(low, high):
        b, first = flat // groups, flat % groups * TOGETHER
        group = min(TOGETHER, samples - first)
        if b != prepared:
            prepared = b
            if not _fill_weights(b, start, logits, weights, mask, scratch):
                return False
        for g in range(group):
            mask[g, :n] = 1
            key[g] = tour_key(seed, b, first + g)
            product[g] = 1.0
            chances[b, first + g] = 0.0
        for step in range(n):
            for g in range(group):
                m = first + g
                if step == n - 1 and end[b] >= 0:
                    mask[g, end[b]] = 1
                city = n if step == 0 else tours[b, m, step - 1]
                row, total = city, _segment_sums(segments, city, mask_segments, g, sums)
                if not total > TINY and step > 0:
                    if has_nan(logits[b, city]):
                        return False
                    exact_weights(logits[b], city, mask, g, spare)
                    row, total = n + 1, _segment_sums(segments, n + 1, mask_segments, g, sums)
                city = _draw(weights, row, mask, g, sums, uniform(key[g], step) * total)
                if city < 0:
                    return False
                # One logarithm for many steps: the product is taken while it is far from underflow.
                product[g] *= weights[row, city] / total
                if product[g] < 1e-200 or step == n - 1:
                    chances[b, m] += math.log(product[g])
                    product[g] = 1.0
                tours[b, m, step] = city
                mask[g, city] = 0
                if step == 0 and end[b] >= 0:
                    mask[g, end[b]] = 0
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
    groups = -(-samples // TOGETHER)
    _checked(in_ranges(batch * groups, lambda low, high: _sample(low, high, *arrays)))
    return Decoded(tours, chances)
