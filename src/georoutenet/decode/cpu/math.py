"""What the CPU kernels share: the random hash, exponentials and maxima in loops that become vector code."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from georoutenet.decode.common import FLOOR
from georoutenet.decode.randomness import split_mix
from georoutenet.jit import njit

TINY = 1e-280
"""Below this a sum of weights may have lost terms to underflow, and the row is done again from logits."""
LOWEST = np.float32(FLOOR)
LANES = 32
"""Rows padded to a multiple of this have no remainder that would be summed one by one."""

_LOWEST_BITS = -int(np.float32(-FLOOR).view(np.int32))
_LOG2_E, _LN2_HIGH, _LN2_LOW = math.log2(math.e), 6.93147180369123816490e-01, 1.90821492927058770002e-10
_ROUND = 1.5 * 2.0**52  # adding this rounds to whole numbers and leaves them in the lowest bits
_C2, _C3, _C4, _C5, _C6, _C7, _C8, _C9, _C10, _C11, _C12, _C13 = (1 / math.factorial(k) for k in range(2, 14))


mix, tour_key, _bits = split_mix(njit(nogil=True))


@njit(nogil=True)
def uniform(key: int, step: int) -> float:
    """As ``randomness.uniforms``, for one tour."""
    return np.float64(_bits(key, step)) * 2.0**-52


@njit(nogil=True)
def has_nan(values: Any) -> bool:
    """Whether one of the numbers ``(n,)`` is none; all are looked at, which is faster than to stop early."""
    count = 0
    for j in range(values.shape[0]):
        count += values[j] != values[j]
    return count > 0


@njit(nogil=True, fastmath={"contract"})
def exponentials(scores: Any, b: int, i: int, top: float, out: Any, k: int, scale: Any) -> None:
    """``out[k, j] = exp(min(scores[b, i, j] - top, 0))`` to the last bit or two, float64 in vector code.

    ``scale`` is scratch for one row. Scores below ``LOWEST`` count as that. Arguments below -700 give
    ``exp(-700)``, which no sum of weights above ``TINY`` can see.
    """
    bits = scale.view(np.int64)
    n = scores.shape[2]
    for j in range(n):
        score = scores[b, i, j]
        argument = np.float64(score if score > LOWEST else LOWEST) - top
        limited = argument if argument > -700.0 else -700.0
        x = limited if limited < 0.0 else 0.0
        rounded = x * _LOG2_E + _ROUND
        scale[j] = rounded
        whole = rounded - _ROUND
        r = (x - whole * _LN2_HIGH) - whole * _LN2_LOW
        p = _C13
        p = p * r + _C12
        p = p * r + _C11
        p = p * r + _C10
        p = p * r + _C9
        p = p * r + _C8
        p = p * r + _C7
        p = p * r + _C6
        p = p * r + _C5
        p = p * r + _C4
        p = p * r + _C3
        p = p * r + _C2
        p = p * r + 1.0
        out[k, j] = p * r + 1.0
    for j in range(n):
        bits[j] = (bits[j] + 1023) << 52  # the power of two, as the exponent of a float64
    for j in range(n):
        out[k, j] *= scale[j]


# The hot functions below take arrays and an index, not rows: making views in a loop (and counting references
# to them) cost more than the arithmetic, 120 against 40 cycles for a normalizer.


@njit(nogil=True, fastmath={"reassoc", "nsz", "contract"})
def masked_sum(weights: Any, i: int, mask: Any, w: int) -> float:
    """Sum of the weights in row ``i`` where row ``w`` of the mask is not zero."""
    total = 0.0
    for j in range(weights.shape[1]):
        total += weights[i, j] if mask[w, j] > 0 else 0.0
    return total


@njit(nogil=True)
def exact_weights(scores: Any, i: int, mask: Any, w: int, weights: Any, k: int) -> float:
    """Write to row ``k`` weights relative to the largest allowed score of row ``i``, and return that score.

    For rows that underflow.
    """
    n = scores.shape[1]
    top = -np.inf
    for j in range(n):
        if mask[w, j] > 0:
            top = max(top, np.float64(max(scores[i, j], LOWEST)))
    for j in range(n):
        weights[k, j] = math.exp(np.float64(max(scores[i, j], LOWEST)) - top) if mask[w, j] > 0 else 0.0
    return top


@njit(nogil=True)
def _ordered(bits: Any) -> Any:
    """The bits of a float32 as an int32 of the same order, -0 and 0 alike.

    LLVM makes vector code of a maximum of integers, not of one of floats.
    """
    sign = np.int32(bits >> np.int32(31))
    return np.int32(((bits & np.int32(0x7FFFFFFF)) ^ sign) - sign)


@njit(nogil=True)
def row_top(bits: Any, b: int, i: int) -> float:
    """The largest score of a row, given by its bits, but at least ``LOWEST``."""
    best = np.int32(_LOWEST_BITS)
    for j in range(bits.shape[2]):
        best = max(best, _ordered(bits[b, i, j]))
    return np.float64(np.int32(best if best >= 0 else -best | np.int32(-0x80000000)).view(np.float32))


@njit(nogil=True)
def first_largest(bits: Any, b: int, i: int, mask: Any) -> int:
    """The lowest city with the largest score where the mask is not zero, of a row given by its bits.

    Scores below ``LOWEST`` count as that. Score and city are one integer, so that one maximum finds both.
    """
    n = bits.shape[2]
    best = np.int64(-(1 << 63))
    for j in range(n):
        score = np.int64(max(_ordered(bits[b, i, j]), np.int32(_LOWEST_BITS)))
        best = max(best, (score << 32) | (n - 1 - j) if mask[0, j] > 0 else np.int64(-(1 << 63)))
    return n - 1 - (best & 0xFFFFFFFF)
