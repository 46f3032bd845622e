"""Greedy and sampled tours on the CPU.

Kernels release the GIL and work on a range of tours, so that ordinary threads share a batch. (Numba's own
parallel loops compile several times longer, may not be entered from two threads or after a fork, and their
thread pool gets in the way of torch's.) They take arrays and indices, not rows: see ``math``.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from georoutenet.decode.common import Decoded, Task
from georoutenet.decode.cpu.math import (
    LOWEST,
    TINY,
    exact_weights,
    exponentials,
    first_largest,
    has_nan,
    masked_sum,
    row_top,
    tour_key,
    uniform,
)
from georoutenet.decode.cpu.threads import in_ranges
from georoutenet.errors import InputError
from georoutenet.jit import njit

BLOCK = 16
"""Cities whose weights are summed together before a draw looks at single ones."""


@njit(nogil=True)
def _greedy(
    low: int, high: int, start: Any, logits: Any, end: Any, tours: Any, chances: Any, with_chances: bool
) -> bool:
    """Arg-max tours of the instances in [low, high); False when a score is not a number."""
    n = logits.shape[1]
    first_bits, bits = start.view(np.int32).reshape(-1, 1, n), logits.view(np.int32)
    mask = np.empty((1, n), np.uint8)  # 1 where a city may come next
    weights, scratch = np.empty((1, n)), np.empty(n)
    for b in range(low, high):
        if has_nan(start[b]) or has_nan(logits[b].reshape(-1)):
            return False
        last = end[b]
        for j in range(n):
            mask[0, j] = start[b, j] > -np.inf
        city = first_largest(first_bits, b, 0, mask)
        mask[:] = 1
        if last >= 0:
            mask[0, last] = 0
        mask[0, city] = 0
        tours[b, 0] = city
        chance, product = np.float64(start[b, city]), 1.0
        for step in range(1, n):
            if step == n - 1 and last >= 0:
                mask[0, last] = 1
            i = city
            city = first_largest(bits, b, i, mask)
            if with_chances:
                # The largest open score has weight 1, so the sum cannot underflow.
                exponentials(logits, b, i, max(logits[b, i, city], LOWEST), weights, 0, scratch)
                product *= masked_sum(weights, 0, mask, 0)
                if product > 1e250:  # one logarithm for many steps
                    chance -= math.log(product)
                    product = 1.0
            mask[0, city] = 0
            tours[b, step] = city
        chances[b] = chance - math.log(product)
    return True


@njit(nogil=True)
def _fill_weights(start: Any, logits: Any, b: int, weights: Any) -> bool:
    """``exp(score - largest)`` for all rows of an instance, then for the start; False when one is NaN."""
    n = start.shape[1]
    if has_nan(start[b]) or has_nan(logits[b].reshape(-1)):
        return False
    bits, scratch = logits.view(np.int32), np.empty(n)
    for i in range(n):
        exponentials(logits, b, i, row_top(bits, b, i), weights, i, scratch)
    starts = start.reshape(-1, 1, n)
    exponentials(starts, b, 0, row_top(starts.view(np.int32), b, 0), weights, n, scratch)
    for j in range(n):
        if start[b, j] == -np.inf:
            weights[n, j] = 0.0
    return True


@njit(nogil=True, fastmath={"reassoc", "nsz", "contract"})
def _running_sums(weights: Any, i: int, mask: Any, sums: Any) -> float:
    """Sums of the open weights of a row up to the end of each block; the last one is the sum of all."""
    total = 0.0
    size = mask.shape[1] // sums.shape[0]  # not BLOCK: loops of known length do not become vector code
    for block in range(sums.shape[0]):
        part = 0.0
        for j in range(block * size, (block + 1) * size):
            part += weights[i, j] * mask[0, j]
        total += part
        sums[block] = total
    return total


@njit(nogil=True)
def _passed(weights: Any, i: int, mask: Any, sums: Any, target: float) -> int:
    """The open city where the sum of the weights passes ``target``, which is below the sum of all.

    What lies below the target is counted: a branch for each city would be guessed wrong too often.
    """
    block = 0
    for k in range(sums.shape[0]):
        block += sums[k] <= target
    running = sums[block - 1] if block > 0 else 0.0
    city = block * BLOCK
    for j in range(block * BLOCK, (block + 1) * BLOCK):
        running += weights[i, j] * mask[0, j]
        city += running <= target
    if city == (block + 1) * BLOCK:  # rounding left the target above the block's last open city
        city -= 1
        while weights[i, city] * mask[0, city] == 0.0:
            city -= 1
    return city


@njit(nogil=True)
def _sample(
    low: int, high: int, start: Any, logits: Any, end: Any, seed: int, tours: Any, chances: Any
) -> bool:
    """Sampled tours [low, high), counted instance by instance; False when a score is not a number."""
    samples, n = tours.shape[1], tours.shape[2]
    padded = (n + BLOCK - 1) // BLOCK * BLOCK
    # A row for each city, one for the start, and one that is used where the others underflow.
    weights, sums = np.zeros((n + 2, padded)), np.empty(padded // BLOCK)
    mask = np.zeros((1, padded))  # 1 where a city may come next
    prepared = -1
    for number in range(low, high):
        b, sample = number // samples, number % samples
        if b != prepared:
            if not _fill_weights(start, logits, b, weights):
                return False
            prepared = b
        last, key = end[b], tour_key(seed, b, sample)
        mask[0, :n] = 1
        chance, product = 0.0, 1.0
        i = n
        for step in range(n):
            if last >= 0 and step == n - 1:
                mask[0, last] = 1
            total = _running_sums(weights, i, mask, sums)
            if not total > TINY:
                exact_weights(logits[b], i, mask, 0, weights, n + 1)
                i = n + 1
                total = _running_sums(weights, i, mask, sums)
            city = _passed(weights, i, mask, sums, uniform(key, step) * total)
            product *= weights[i, city] / total
            if product < 1e-200:  # one logarithm for many steps
                chance += math.log(product)
                product = 1.0
            mask[0, city] = 0
            if last >= 0 and step == 0:
                mask[0, last] = 0
            tours[b, sample, step] = city
            i = city
        chances[b, sample] = chance + math.log(product)
    return True


def _checked(good: list[bool]) -> None:
    if not all(good):
        raise InputError("the scores hold values that are not numbers (NaN)")


def greedy(task: Task, *, log_probabilities: bool = True) -> Decoded:
    """Arg-max tours, equal to ``reference.greedy``."""
    batch, n = task.shape
    tours, chances = np.empty((batch, n), np.int64), np.empty(batch, np.float32)
    arrays = (task.start.numpy(), task.logits.numpy(), task.end.numpy(), tours, chances, log_probabilities)
    _checked(in_ranges(batch, lambda low, high: _greedy(low, high, *arrays)))
    found = torch.from_numpy(tours)[:, None]
    return Decoded(found, torch.from_numpy(chances)[:, None] if log_probabilities else None)


def sample(task: Task, samples: int, seed: int) -> Decoded:
    """Sampled tours, those of ``reference.sample`` for the same seed but for rounding."""
    batch, n = task.shape
    tours, chances = np.empty((batch, samples, n), np.int64), np.empty((batch, samples), np.float32)
    arrays = (task.start.numpy(), task.logits.numpy(), task.end.numpy(), seed, tours, chances)
    _checked(in_ranges(batch * samples, lambda low, high: _sample(low, high, *arrays)))
    return Decoded(torch.from_numpy(tours), torch.from_numpy(chances))
