"""Sharing a batch among threads, for kernels that release the GIL."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numba
import torch

from georoutenet.jit import interrupts

Result = TypeVar("Result")


def in_ranges(count: int, work: Callable[[int, int], Result]) -> list[Result]:
    """``work(low, high)`` over ranges that cover ``0..count``, on the threads that torch and Numba allow."""
    # Numba is not asked for its current number: that starts its thread pool, which slows torch's down.
    allowed = int(vars(numba.config)["NUMBA_NUM_THREADS"])
    threads = max(1, min(torch.get_num_threads(), allowed, count))
    if threads == 1:
        with interrupts():
            return [work(0, count)]
    # More ranges than threads, because instances differ in cost.
    pieces = min(count, 4 * threads)
    bounds = [count * piece // pieces for piece in range(pieces + 1)]
    with interrupts(), ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, bounds[:-1], bounds[1:]))
