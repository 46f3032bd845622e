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
from numba import njit, uint64

from georoutenet.decode.common import Decoded, Task
from georoutenet.decode.cpu.math import LOWEST, short_uniform, tour_key
from georoutenet.decode.cpu.simd import (
    HEAD,
    SHIFT,
    WIDE,
    address,
    close,
    exponentials,
    fetch,
    first_largest,
    keep,
    open_sum,
    passed,
    running_sums,
)
from georoutenet.decode.cpu.threads import in_ranges
from georoutenet.decode.randomness import LANES
from georoutenet.errors import InputError

TOGETHER, AT_ONCE = 8, 16
"""Tours that advance in turns: a step waits for its row, and the others fill the wait. Samples that share
their weights need less memory, so they are more."""
FAR = 1 << 16
"""Larger matrices, in bytes, are asked for as a whole, fewer of them at a time: memory likes to be read in
order, and what is read has to stay in the cache."""
FEW = 2
"""For so few samples rows of weights are made as they are wanted, and not once for all samples."""
TINY, HUGE = np.float32(2.0**-80), np.float32(2.0**SHIFT)
"""Sums of weights between these have lost nothing to the limits of their range."""
MARGIN = np.float32(60.0)
"""How far the largest score of a row may lie above a guess of it."""


@njit(cache=True, nogil=True)
def _all_open(n: int) -> Any:
    """Bits that open ``n`` cities."""
    words = np.zeros((n + 63) // 64, np.uint64)
    for j in range(n):
        words[j >> 6] |= uint64(1) << uint64(j & 63)
    return words


@njit(cache=True, nogil=True)
def _is_open(words: Any, at: int, city: int) -> Any:
    return (words[at + (city >> 6)] >> uint64(city & 63)) & uint64(1)


@njit(cache=True, nogil=True)
def _reopen(words: Any, at: int, city: int) -> None:
    words[at + (city >> 6)] |= uint64(1) << uint64(city & 63)


@njit(cache=True, nogil=True)
def _tail(flat: Any, n: int) -> Any:
    """The last rows of an array, with room behind them: vector code reads beyond the end of a row."""
    room = n + WIDE
    length = min(flat.size, n + room)
    rows = np.zeros(length + room, np.float32)
    rows[:length] = flat[flat.size - length :]
    return rows


@njit(cache=True, nogil=True)
def _where(at: int, size: int, n: int, flat: int, tail: int) -> int:
    """The address of the row that begins at an index, in the array or in its ``_tail``."""
    length = min(size, n + n + WIDE)
    return tail + 4 * (at - size + length) if at + n + WIDE > size else flat + 4 * at


# The functions below look closer where ``first_largest`` and ``passed`` ask for it. They are called only
# then: passing arrays to a function that is not inlined took a third of a step's time.


@njit(cache=True, nogil=True)
def _closer(scores: Any, at: int, n: int, words: Any, words_at: int) -> int:
    """The arg-max of the open scores, where those below the floor are equal to it; -1 for NaN."""
    best = -1
    for j in range(n):
        if _is_open(words, words_at, j):
            if math.isnan(scores[at + j]):
                return -1
            if best < 0 or max(scores[at + j], LOWEST) > max(scores[at + best], LOWEST):
                best = j
    return best


@njit(cache=True, nogil=True)
def _closer_start(starts: Any, at: int, n: int) -> int:
    """The most probable start; -1 for NaN."""
    words = _all_open(n)
    for j in range(n):  # a forbidden start, -inf, is not as good as one at the floor
        if starts[at + j] == -np.inf:
            close(address(words), j)
    return _closer(starts, at, n, words, 0)


@njit(cache=True, nogil=True)
def _walk(weights: Any, at: int, n: int, words: Any, words_at: int, share: float) -> int:
    """The open city where a sum in float64, lane by lane, passes a share of the whole."""
    total, running, found = 0.0, 0.0, -1
    for j in range(n):
        if _is_open(words, words_at, j):
            total += weights[at + j]
    for lane in range(LANES):
        for j in range(lane, n, LANES):
            if (
                _is_open(words, words_at, j)
                and weights[at + j] > 0.0
                and (found < 0 or running <= share * total)
            ):
                running += weights[at + j]
                found = j
    return found


@njit(cache=True, nogil=True, error_model="numpy")
def _greedy(
    low: int, high: int, start: Any, logits: Any, end: Any, tours: Any, chances: Any, with_chances: bool
) -> bool:
    """Arg-max tours of the instances in [low, high); False when a score was not a number."""
    n = logits.shape[1]
    flat, starts, out = logits.reshape(-1), start.reshape(-1), tours.reshape(-1)
    tail, start_tail, size = _tail(flat, n), _tail(starts, n), flat.size
    flat_at, tail_at, starts_at, start_tail_at = (
        address(flat),
        address(tail),
        address(starts),
        address(start_tail),
    )
    every = _all_open(n)
    count = len(every)
    words = np.empty(TOGETHER * count, np.uint64)
    words_at = address(words)
    at, rows, cities = (
        np.empty(TOGETHER, np.int64),
        np.empty(TOGETHER, np.int64),
        np.empty(TOGETHER, np.int64),
    )
    product, chance = np.empty(TOGETHER), np.empty(TOGETHER)
    far = 4 * n * n > FAR
    together = TOGETHER // 2 if far else TOGETHER
    for base in range(low, high, together):
        group = min(together, high - base)
        for g in range(group):
            b, bits = base + g, words_at + 8 * g * count
            if far:
                fetch(flat_at + 4 * b * n * n, n * n)
            for word in range(count):
                words[g * count + word] = every[word]
            city = first_largest(_where(b * n, starts.size, n, starts_at, start_tail_at), bits, n)
            if city < 0:
                city = _closer_start(starts, b * n, n)
                if city < 0:
                    return False
            cities[g], product[g], chance[g] = city, 1.0, starts[b * n + city]
            if end[b] >= 0:
                close(bits, end[b])
        for step in range(n):
            if step == n - 1:
                for g in range(group):
                    if end[base + g] >= 0:
                        _reopen(words, g * count, end[base + g])
            if step > 0:
                for g in range(group):
                    cities[g] = first_largest(rows[g], words_at + 8 * g * count, n)
                    if cities[g] < 0:
                        cities[g] = _closer(flat, at[g], n, words, g * count)
                        if cities[g] < 0:
                            return False
            if step > 0 and with_chances:
                for g in range(group):
                    # The largest open score has weight 1, so the sum cannot underflow.
                    top = max(flat[at[g] + cities[g]], LOWEST)
                    product[g] *= open_sum(rows[g], words_at + 8 * g * count, n, top)
                    if product[g] > 1e250:  # one logarithm for many steps
                        chance[g] -= math.log(product[g])
                        product[g] = 1.0
            for g in range(group):
                close(words_at + 8 * g * count, cities[g])
                out[(base + g) * n + step] = cities[g]
                at[g] = ((base + g) * n + cities[g]) * n
                rows[g] = _where(at[g], size, n, flat_at, tail_at)
                fetch(rows[g], n)
        if with_chances:
            for g in range(group):
                chances[base + g] = chance[g] - math.log(product[g])
    keep(tail)
    keep(start_tail)
    return True


@njit(cache=True, nogil=True)
def _fill_weights(b: int, n: int, flat: Any, tail: Any, words: Any, weights: Any, padded: int) -> bool:
    """Rows of weights relative to the largest of the row; False when a score is not a number."""
    for i in range(n):
        at = (b * n + i) * n
        row = _where(at, flat.size, n, address(flat), address(tail))
        if n > 1:
            close(address(words), i)  # what a city thinks of itself does not matter
        best = first_largest(row, address(words), n)
        if best < 0:
            best = _closer(flat, at, n, words, 0)
            if best < 0:
                return False
        _reopen(words, 0, i)
        exponentials(row, max(flat[at + best], LOWEST), n, address(weights) + 4 * i * padded)
    return True


@njit(cache=True, nogil=True)
def _start_weights(b: int, n: int, starts: Any, tail: Any, words: Any, weights: Any, weights_at: int) -> bool:
    """Weights of the first city; False when a score is not a number."""
    row = _where(b * n, starts.size, n, address(starts), address(tail))
    best = first_largest(row, address(words), n)
    if best < 0:
        best = _closer_start(starts, b * n, n)
        if best < 0:
            return False
    exponentials(row, max(starts[b * n + best], LOWEST), n, address(weights) + 4 * weights_at)
    for j in range(n):
        if starts[b * n + j] == -np.inf:
            weights[weights_at + j] = 0.0
    return True


@njit(cache=True, nogil=True, error_model="numpy")
def _sample(
    low: int, high: int, shared: Any, start: Any, logits: Any, end: Any, seed: Any, tours: Any, chances: Any
) -> bool:
    """Sampled tours of the groups in [low, high), see ``sample``; False when a score was not a number.

    ``shared`` is None where rows of weights are not shared by samples: that type is known to the compiler.
    """
    n, samples = tours.shape[2], tours.shape[1]
    few = shared is None
    together = TOGETHER if few else AT_ONCE
    parts = (samples + AT_ONCE - 1) // AT_ONCE
    padded = (n + WIDE - 1) // WIDE * WIDE
    flat, starts = logits.reshape(-1), start.reshape(-1)
    out, every_chance = tours.reshape(-1), chances.reshape(-1)
    tail, start_tail = _tail(flat, n), _tail(starts, n)
    flat_at, tail_at, size = address(flat), address(tail), flat.size
    every = _all_open(n)
    count = len(every)
    words = np.empty(AT_ONCE * count, np.uint64)
    own = 0 if few else n * padded  # where each tour's own row begins, behind one for each city
    weights = np.zeros(own + AT_ONCE * padded, np.float32)
    sums = np.zeros(AT_ONCE * (HEAD + padded), np.float32)
    words_at, weights_at, sums_at = address(words), address(weights), address(sums)
    uniforms, totals = np.empty(AT_ONCE * n, np.float32), np.empty(AT_ONCE, np.float32)
    product, chance, guess = np.empty(AT_ONCE), np.empty(AT_ONCE), np.empty(AT_ONCE, np.float32)
    home, cities, found, line = np.zeros((4, AT_ONCE), np.int64)
    again = np.zeros(AT_ONCE, np.bool_)
    prepared = -1
    for number in range(low, high):
        skip = number % parts * AT_ONCE
        begin = number * together if few else number // parts * samples + skip
        group = min(together, len(every_chance) - begin if few else samples - skip)
        for g in range(group):
            b = (begin + g) // samples
            home[g], line[g] = b, own + g * padded
            if not few and b != prepared:
                prepared = b
                if not _fill_weights(b, n, flat, tail, every, weights, padded):
                    return False
            if g > 0 and b == home[g - 1]:
                line[g] = line[g - 1]
            elif not _start_weights(b, n, starts, start_tail, every, weights, line[g]):
                return False
            for word in range(count):
                words[g * count + word] = every[word]
            key = tour_key(seed, b, (begin + g) % samples)
            for step in range(n):
                uniforms[g * n + step] = short_uniform(key, step)
            product[g], chance[g] = 1.0, 0.0
        for step in range(n):
            if step == 1 or step == n - 1:
                for g in range(group):
                    last = end[home[g]]
                    if last >= 0 and step == n - 1:
                        _reopen(words, g * count, last)
                    elif last >= 0:
                        close(words_at + 8 * g * count, last)
            if few and step == 1:
                again[:] = True  # there is nothing to guess from
            elif few and step > 1:
                for g in range(group):
                    row = _where((home[g] * n + cities[g]) * n, size, n, flat_at, tail_at)
                    again[g] = exponentials(row, guess[g] + MARGIN, n, weights_at + 4 * line[g])
            for g in range(group):
                bits, sums_of = words_at + 8 * g * count, sums_at + 4 * g * (HEAD + padded)
                total = running_sums(weights_at + 4 * line[g], bits, n, sums_of)
                if step > 0 and (again[g] or not total > TINY or (few and total >= HUGE)):
                    at = (home[g] * n + cities[g]) * n
                    row = _where(at, size, n, flat_at, tail_at)
                    best = first_largest(row, bits, n)
                    if best < 0:
                        best = _closer(flat, at, n, words, g * count)
                        if best < 0:
                            return False
                    line[g] = own + g * padded
                    exponentials(row, max(flat[at + best], LOWEST), n, weights_at + 4 * line[g])
                    total = running_sums(weights_at + 4 * line[g], bits, n, sums_of)
                totals[g] = total
            for g in range(group):
                share = uniforms[g * n + step]
                city = passed(sums_at + 4 * g * (HEAD + padded), n, share * totals[g])
                if city >= n:
                    city = _walk(weights, line[g], n, words, g * count, share)
                found[g] = city
            for g in range(group):
                city = found[g]
                product[g] *= np.float64(weights[line[g] + city] / totals[g])
                if product[g] < 1e-200:  # one logarithm for many steps
                    chance[g] += math.log(product[g])
                    product[g] = 1.0
                out[(begin + g) * n + step] = city
                close(words_at + 8 * g * count, city)
                if few:
                    at = home[g] * n
                    guess[g] = max(flat[(at + cities[g]) * n + city], LOWEST)  # of no use at the start
                    fetch(_where((at + city) * n, size, n, flat_at, tail_at), n)
                    line[g] = own + g * padded
                else:
                    line[g] = city * padded
                cities[g] = city
        for g in range(group):
            every_chance[begin + g] = chance[g] + math.log(product[g])
    keep(sums)
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
    inputs = (task.start.numpy(), task.logits.numpy(), task.end.numpy(), np.uint64(seed & ((1 << 64) - 1)))
    # For few samples a group is any tours in their order; for many it is some of one instance.
    few = samples <= FEW
    groups = -(-batch * samples // TOGETHER) if few else batch * -(-samples // AT_ONCE)
    shared = None if few else True
    _checked(in_ranges(groups, lambda low, high: _sample(low, high, shared, *inputs, tours, chances)))
    return Decoded(torch.from_numpy(tours), torch.from_numpy(chances))
