"""Greedy and sampled tours on the CPU: several tours in turns, each row of scores touched once.

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

from georoutenet.decode.common import FLOOR, Decoded, Task
from georoutenet.decode.numba_math import LOWEST, TINY, tour_key, uniform
from georoutenet.decode.numba_simd import (
    ALLOWED,
    CLOSED,
    FORBIDDEN,
    OPEN,
    draw,
    exponentials,
    fetch,
    first_largest,
    masked_sum,
)
from georoutenet.decode.randomness import LANES
from georoutenet.decode.threads import in_ranges
from georoutenet.errors import InputError

TOGETHER = 8
"""Tours that advance in turns: a step waits for its row of scores, and the others fill the wait."""
WEIGHTS = 1 << 21
"""Bytes for the weights of instances whose tours advance together, where one alone does not take more."""
NEAR = 64
"""Longer rows are asked for one round ahead: the processor itself does not look that far."""


@njit(cache=True, nogil=True)
def _whole(rows: int, n: int, columns: int, yes: Any, no: Any) -> Any:
    """Gates or masks of tours before the first step, with a block to spare behind the last."""
    every = np.full(rows * columns + LANES, no)
    for row in range(rows):
        every[row * columns : row * columns + n] = yes
    return every


# The functions below look closer where ``first_largest`` asks for it. They are called only then: passing
# arrays to a function that is not inlined took a third of a step's time.


@njit(cache=True, nogil=True)
def _closer(scores: Any, at: int, n: int, gate: Any, gate_at: int) -> int:
    """The arg-max of the open scores, where those below the floor are equal to it; -1 for NaN."""
    best = -1
    for j in range(n):
        if gate[gate_at + j] == OPEN:
            if math.isnan(scores[at + j]):
                return -1
            if best < 0 or max(scores[at + j], LOWEST) > max(scores[at + best], LOWEST):
                best = j
    return best


@njit(cache=True, nogil=True)
def _closer_start(start: Any, at: int, n: int, gate: Any) -> int:
    """The most probable start; -1 for NaN. ``gate`` is open before and after."""
    for j in range(n):  # a forbidden start, -inf, is not as good as one at the floor
        gate[j] = CLOSED if start[at + j] == -np.inf else OPEN
    best = _closer(start, at, n, gate, 0)
    gate[:n] = OPEN
    return best


@njit(cache=True, nogil=True)
def _greedy(low: int, high: int, start: Any, logits: Any, end: Any, tours: Any) -> bool:
    """Arg-max tours of the instances in [low, high); False when a score was not a number."""
    n, columns = logits.shape[1], logits.shape[2]
    flat, starts, out = logits.reshape(-1), start.reshape(-1), tours.reshape(-1)
    gates, one = _whole(TOGETHER, n, columns, OPEN, CLOSED), _whole(1, n, columns, OPEN, CLOSED)
    gate = gates.copy()
    for base in range(low, high, TOGETHER):
        group = min(TOGETHER, high - base)
        gate[:] = gates
        for g in range(group):
            b = base + g
            city = first_largest(starts, b * columns, one, 0, columns)
            if city >= n:
                city = _closer_start(starts, b * columns, n, one)
                if city < 0:
                    return False
            out[b * n] = city
            gate[g * columns + city] = CLOSED
            if end[b] >= 0:
                gate[g * columns + end[b]] = CLOSED
        for step in range(1, n):
            if step == n - 1:
                for g in range(group):
                    if end[base + g] >= 0:
                        gate[g * columns + end[base + g]] = OPEN
            for g in range(group):
                place = (base + g) * n + step
                at = ((base + g) * n + out[place - 1]) * columns
                city = first_largest(flat, at, gate, g * columns, columns)
                if city >= n:
                    city = _closer(flat, at, n, gate, g * columns)
                    if city < 0:
                        return False
                out[place] = city
                gate[g * columns + city] = CLOSED
                if columns > NEAR:
                    fetch(flat, ((base + g) * n + city) * columns, columns)
    return True


@njit(cache=True, nogil=True)
def _greedy_chances(low: int, high: int, start: Any, logits: Any, end: Any, tours: Any, chances: Any) -> None:
    """Log-probabilities of the arg-max tours of the instances in [low, high)."""
    n, columns = logits.shape[1], logits.shape[2]
    padded = (columns + LANES - 1) // LANES * LANES
    flat = logits.reshape(-1)
    every = _whole(1, n, columns, np.int32(ALLOWED), np.int32(FORBIDDEN))
    mask, weights = every.copy(), np.zeros(padded, np.float32)
    for b in range(low, high):
        mask[:] = every
        chance, product = np.float64(start[b, tours[b, 0]]), 1.0
        mask[tours[b, 0]] = FORBIDDEN
        if end[b] >= 0:
            mask[end[b]] = FORBIDDEN
        for step in range(1, n - 1):  # in the last step one city is left
            at = (b * n + tours[b, step - 1]) * columns
            city = tours[b, step]
            fetch(flat, (b * n + city) * columns, columns)
            # The largest allowed logit has weight 1, so the sum cannot underflow.
            exponentials(flat, at, max(flat[at + city], LOWEST), columns, weights, 0)
            product *= masked_sum(weights, 0, mask, 0, padded)
            if product > 1e250:  # one logarithm for many steps
                chance -= math.log(product)
                product = 1.0
            mask[city] = FORBIDDEN
        chances[b] = chance - math.log(product)


@njit(cache=True, nogil=True)
def _fill_weights(
    b: int, start: Any, logits: Any, gate: Any, flat: Any, weights: Any, slot: int, padded: int
) -> bool:
    """Rows of ``exp(z - largest)`` and, after them, the start's; False when a score is not a number."""
    n, columns = logits.shape[1], logits.shape[2]
    starts, at = start.reshape(-1), (slot * (n + 2) + n) * padded
    first = first_largest(starts, b * columns, gate, 0, columns)
    if first >= n:
        first = _closer_start(starts, b * columns, n, gate)
        if first < 0:
            return False
    exponentials(starts, b * columns, max(start[b, first], LOWEST), columns, weights, at)
    for j in range(n):
        if start[b, j] == -np.inf:
            weights[at + j] = 0.0
    for i in range(n):
        at = (b * n + i) * columns
        gate[i] = OPEN if n == 1 else CLOSED  # what a city thinks of itself does not matter
        best = first_largest(flat, at, gate, 0, columns)
        if best >= n:
            best = _closer(flat, at, n, gate, 0)
            if best < 0:
                return False
        gate[i] = OPEN
        exponentials(flat, at, max(flat[at + best], LOWEST), columns, weights, (slot * (n + 2) + i) * padded)
    return True


@njit(cache=True, nogil=True)
def _last_of_lane(weights: Any, at: int, mask: Any, mask_at: int, city: int, size: int) -> int:
    """The last city of positive weight in the lane of a draw that rounding left above all of them."""
    while city >= size or mask[mask_at + city] == FORBIDDEN or weights[at + city] == 0.0:
        city -= LANES
    return city


@njit(cache=True, nogil=True)
def _sample(
    low: int,
    high: int,
    together: int,
    start: Any,
    logits: Any,
    end: Any,
    seed: Any,
    tours: Any,
    chances: Any,
) -> bool:
    """Sampled tours of the groups in [low, high), each of some samples of ``together`` instances.

    False when a score was not a number.
    """
    batch, n, columns = logits.shape
    samples = tours.shape[1]
    some = min(samples, TOGETHER)
    parts = (samples + some - 1) // some
    padded = (columns + LANES - 1) // LANES * LANES
    flat = logits.reshape(-1)
    # For each instance a row for each city, one for the start, and one to spare. What pads a row is zero.
    weights = np.zeros(together * (n + 2) * padded)
    masks = _whole(together * some, n, columns, np.int64(ALLOWED), np.int64(FORBIDDEN))
    gates, one = _whole(together * some, n, columns, OPEN, CLOSED), _whole(1, n, columns, OPEN, CLOSED)
    mask, gate = masks.copy(), gates.copy()
    sums = np.zeros(LANES + 1)
    most = together * some
    key, product, chance = np.empty(most, np.uint64), np.empty(most), np.empty(most)
    city, home, place = np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most, np.int64)
    out = tours.reshape(-1)
    prepared = -1
    for number in range(low, high):
        base, first = number // parts * together, number % parts * some
        count = min(first + some, samples) - first
        if base != prepared:
            prepared = base
            for slot in range(min(together, batch - base)):
                if not _fill_weights(base + slot, start, logits, one, flat, weights, slot, padded):
                    return False
        group = min(together, batch - base) * count
        for g in range(group):
            slot, m = g // count, first + g % count
            key[g], product[g], chance[g] = tour_key(seed, base + slot, m), 1.0, 0.0
            home[g] = slot * (n + 2) * padded  # where the weights of its instance begin
            place[g] = ((base + slot) * samples + m) * n
            city[g] = n  # the row of the start
        mask[:], gate[:] = masks, gates
        for step in range(n):
            if step == 1 or step == n - 1:
                for g in range(group):
                    last = end[base + g // count]
                    if last >= 0:
                        mask[g * columns + last] = ALLOWED if step == n - 1 else FORBIDDEN
                        gate[g * columns + last] = OPEN if step == n - 1 else CLOSED
            for g in range(group):
                at = home[g] + city[g] * padded
                draws = uniform(key[g], step)
                total, following = draw(weights, at, mask, g * columns, padded, draws, sums)
                if not total > TINY and step > 0:
                    source = ((base + g // count) * n + city[g]) * columns
                    at = home[g] + (n + 1) * padded
                    best = first_largest(flat, source, gate, g * columns, columns)
                    if best >= n:
                        best = _closer(flat, source, n, gate, g * columns)
                        if best < 0:
                            return False
                    exponentials(flat, source, max(flat[source + best], LOWEST), columns, weights, at)
                    total, following = draw(weights, at, mask, g * columns, padded, draws, sums)
                if following >= padded:
                    following = _last_of_lane(weights, at, mask, g * columns, following, padded)
                product[g] *= weights[at + following] / total
                if product[g] < 1e-200:  # one logarithm for many steps
                    chance[g] += math.log(product[g])
                    product[g] = 1.0
                out[place[g] + step] = following
                city[g] = following
                mask[g * columns + following], gate[g * columns + following] = FORBIDDEN, CLOSED
        for g in range(group):
            chances[base + g // count, first + g % count] = chance[g] + math.log(product[g])
    return True


def _checked(good: list[bool]) -> None:
    if not all(good):
        raise InputError("the scores hold values that are not numbers (NaN)")


def _arrays(task: Task) -> tuple[Any, Any, Any]:
    """Start, logits and end; rows have at least ``LANES`` columns, as vector code needs them."""
    start, logits = task.start, task.logits
    missing = LANES - task.shape[1]
    if missing > 0:
        start, logits = (torch.nn.functional.pad(part, (0, missing), value=FLOOR) for part in (start, logits))
    return start.numpy(), logits.numpy(), task.end.numpy()


def greedy(task: Task, *, log_probabilities: bool = True) -> Decoded:
    """Arg-max tours, equal to ``reference.greedy``."""
    batch, n = task.shape
    tours, arrays = np.empty((batch, n), np.int64), _arrays(task)
    _checked(in_ranges(batch, lambda low, high: _greedy(low, high, *arrays, tours)))
    found = torch.from_numpy(tours)[:, None]
    if not log_probabilities:
        return Decoded(found, None)
    chances = np.empty(batch, np.float32)
    in_ranges(batch, lambda low, high: _greedy_chances(low, high, *arrays, tours, chances))
    return Decoded(found, torch.from_numpy(chances)[:, None])


def sample(task: Task, samples: int, seed: int) -> Decoded:
    """Sampled tours, equal to ``reference.sample`` for the same seed."""
    batch, n = task.shape
    tours, chances = np.empty((batch, samples, n), np.int64), np.empty((batch, samples), np.float32)
    arrays = (*_arrays(task), np.uint64(seed & ((1 << 64) - 1)), tours, chances)
    room = WEIGHTS // (8 * (n + 2) * max(n, LANES))
    together = max(1, min(room, TOGETHER // samples, batch))
    groups = -(-batch // together) * -(-samples // TOGETHER)
    _checked(in_ranges(groups, lambda low, high: _sample(low, high, together, *arrays)))
    return Decoded(torch.from_numpy(tours), torch.from_numpy(chances))
