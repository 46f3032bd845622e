"""What the CPU kernels share: the random hash, and exponentials as vector code."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit, uint64

from georoutenet.decode.common import FLOOR
from georoutenet.decode.randomness import GOLDEN, MULTIPLIERS

TINY = 1e-280
"""Below this a sum of weights may have lost terms to underflow, and the row is done again from logits."""
LOWEST = np.float32(FLOOR)
LANES = 32
"""Rows padded to a multiple of this have no remainder that would be summed one by one."""

_GOLDEN, _M1, _M2 = uint64(GOLDEN), uint64(MULTIPLIERS[0]), uint64(MULTIPLIERS[1])
_LOWEST_BITS = -int(np.float32(-FLOOR).view(np.int32))
_LOG2_E, _LN2_HIGH, _LN2_LOW = math.log2(math.e), 6.93147180369123816490e-01, 1.90821492927058770002e-10
_ROUND = 1.5 * 2.0**52  # adding this rounds to whole numbers and leaves them in the lowest bits
_C2, _C3, _C4, _C5, _C6, _C7, _C8, _C9, _C10, _C11, _C12, _C13 = (1 / math.factorial(k) for k in range(2, 14))


@njit(cache=True, nogil=True)
def mix(x: Any) -> Any:
    """As ``randomness.mix``, for one uint64."""
    x = (x ^ (x >> uint64(30))) * _M1
    x = (x ^ (x >> uint64(27))) * _M2
    return x ^ (x >> uint64(31))


@njit(cache=True, nogil=True)
def tour_key(seed: Any, instance: int, sample: int) -> Any:
    return mix(mix(uint64(instance + 1) * _GOLDEN + seed) + uint64(sample + 1) * _GOLDEN)


@njit(cache=True, nogil=True)
def uniform(key: Any, step: int) -> float:
    return np.float64(mix(key + uint64(step + 1) * _GOLDEN) >> uint64(12)) * 2.0**-52


@njit(cache=True, nogil=True)
def short_uniform(key: Any, step: int) -> Any:
    """The first 24 bits of ``uniform``, as float32."""
    bits = mix(key + uint64(step + 1) * _GOLDEN) >> uint64(40)
    return np.float32(np.int32(bits)) * np.float32(2.0**-24)


@njit(cache=True, nogil=True)
def has_nan(row: Any) -> bool:
    for j in range(row.shape[0]):  # noqa: SIM110 (compiled code)
        if math.isnan(row[j]):
            return True
    return False


@njit(cache=True, nogil=True, fastmath={"contract"})
def exponentials(scores: Any, b: int, i: int, top: float, out: Any, k: int, scale: Any) -> None:
    """``out[k, j] = exp(min(scores[b, i, j] - top, 0))`` to the last bit or two, float64 in vector code.

    ``scale`` is scratch for one row. Arguments below -700 give ``exp(-700)``, which no sum of weights above
    ``TINY`` can see.
    """
    bits = scale.view(np.int64)
    n = scores.shape[2]
    for j in range(n):
        argument = np.float64(scores[b, i, j]) - top
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


@njit(cache=True, nogil=True, fastmath={"reassoc", "nsz", "contract"})
def masked_sum(weights: Any, i: int, mask: Any, w: int) -> float:
    """Sum of the weights in row ``i`` where row ``w`` of the mask is not zero."""
    total = 0.0
    for j in range(weights.shape[1]):
        total += weights[i, j] if mask[w, j] > 0 else 0.0
    return total


@njit(cache=True, nogil=True)
def exact_weights(scores: Any, i: int, mask: Any, w: int, weights: Any) -> float:
    """Weights relative to the largest allowed score of row ``i``, and that score: for rows that underflow."""
    n = scores.shape[1]
    top = -np.inf
    for j in range(n):
        if mask[w, j] > 0:
            top = max(top, np.float64(max(scores[i, j], LOWEST)))
    for j in range(n):
        weights[0, j] = math.exp(np.float64(max(scores[i, j], LOWEST)) - top) if mask[w, j] > 0 else 0.0
    return top


@njit(cache=True, nogil=True)
def row_top(bits: Any, b: int, i: int) -> float:
    """The largest score of a row, but at least ``LOWEST``.

    Floats are compared as integers of the same order: LLVM makes vector code of an integer maximum.
    """
    best = np.int32(_LOWEST_BITS)
    for j in range(bits.shape[2]):
        sign = np.int32(bits[b, i, j] >> np.int32(31))
        best = max(best, np.int32(((bits[b, i, j] & np.int32(0x7FFFFFFF)) ^ sign) - sign))
    return np.float64(np.int32(best if best >= 0 else -best | np.int32(-0x80000000)).view(np.float32))
