"""What happens between the matrix products of dense scores on a CPU, each in one pass over a block in cache.

Arrays are float32. Exponentials are polynomials that compilers make vector code of.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import extending
from numba.core import types

from georoutenet.jit import njit

# No rounding is forced on sums and products, and there are neither infinities nor what is not a number.
FAST: dict[str, Any] = {"nogil": True, "fastmath": True, "error_model": "numpy"}
INLINE: dict[str, Any] = {**FAST, "forceinline": True}

ONE, HALF, LIMIT = np.float32(1), np.float32(0.5), np.float32(87)
LOG2_E = np.float32(math.log2(math.e))
LN2_HIGH = np.float32(0.693359375)  # its products with whole numbers are exact
LN2_LOW = np.float32(math.log(2) - 0.693359375)
C3, C4, C5, C6, C7 = (np.float32(1 / math.factorial(k)) for k in range(3, 8))
BIAS, DIGITS = np.int32(127), np.int32(23)

intrinsic: Any = extending.intrinsic


@intrinsic
def _float_of(typing: Any, bits: Any) -> Any:
    """The float32 with these bits."""

    def generate(context: Any, b: Any, signature: Any, given: Any) -> Any:
        return b.bitcast(given[0], ir.FloatType())

    return types.float32(types.int32), generate


@njit(**INLINE)
def exponential(x: Any) -> Any:
    """exp to a unit or two in the last place; beyond 87 on either side that of 87."""
    x = min(max(x, -LIMIT), LIMIT)
    whole = np.rint(x * LOG2_E)
    rest = (x - whole * LN2_HIGH) - whole * LN2_LOW
    power = (((C7 * rest + C6) * rest + C5) * rest + C4) * rest + C3
    power = (power * rest + HALF) * rest + ONE
    return (power * rest + ONE) * _float_of((np.int32(whole) + BIAS) << DIGITS)


@njit(**FAST)
def bases(distance: np.ndarray, centers: np.ndarray, bandwidth: float, out: np.ndarray) -> None:
    """Eq. rbf: ``(m,)`` to ``(m, K_rbf)``."""
    for row in range(len(distance)):
        for k in range(len(centers)):
            x = (distance[row] - centers[k]) / bandwidth
            out[row, k] = exponential(-x * x)


@njit(**FAST)
def silu(x: np.ndarray, bias: np.ndarray) -> None:
    """SiLU of ``x + bias``, in place."""
    for row in range(x.shape[0]):
        for f in range(x.shape[1]):
            y = x[row, f] + bias[f]
            x[row, f] = y / (ONE + exponential(-y))


@njit(**INLINE)
def _update(
    u: np.ndarray,
    e: np.ndarray,
    source: np.ndarray,
    target: np.ndarray,
    norm: np.ndarray,
    y: np.ndarray,
    out: np.ndarray,
) -> None:
    """Eq. edge_update of one pair from its product ``u`` and state ``e``, each ``(d,)``; ``y`` is scratch, so
    that nothing is written where the same loop reads: else there would be no vector code."""
    d = len(u)
    total = np.float32(0)
    for f in range(d):
        x = u[f] + (source[f] + target[f])
        y[f] = e[f] + x / (ONE + exponential(-x))
        total += y[f]
    mean = total / np.float32(d)
    total = np.float32(0)
    for f in range(d):
        total += (y[f] - mean) * (y[f] - mean)
    scale = ONE / np.sqrt(total / np.float32(d) + norm[2, 0])
    for f in range(d):
        out[f] = (y[f] - mean) * scale * norm[0, f] + norm[1, f]


@njit(**FAST)
def update(
    u: np.ndarray,
    e: np.ndarray,
    first: int,
    n: int,
    source: np.ndarray,
    target: np.ndarray,
    norm: np.ndarray,
) -> None:
    """Eq. edge_update in place: products and states ``(m n, d)`` of the pairs that leave the cities from
    ``first`` on, of some instances with ``n`` cities; sources and targets ``(G n, d)``; the norm is gain,
    offset and epsilon ``(3, d)``."""
    y = np.empty(u.shape[1], np.float32)
    for row in range(u.shape[0] // n):
        i = first + row
        for j in range(n):
            pair = row * n + j
            _update(u[pair], e[pair], source[i], target[i // n * n + j], norm, y, e[pair])


@njit(**FAST)
def first_update(
    u: np.ndarray,
    e: np.ndarray,
    place: np.ndarray,
    first: int,
    source: np.ndarray,
    target: np.ndarray,
    norm: np.ndarray,
    out: np.ndarray,
) -> None:
    """`update` from products and states ``(T, d)``, of which the pair ``[row, j]`` has number
    ``place[row, j]``, to ``(m n, d)``."""
    y, n = np.empty(u.shape[1], np.float32), place.shape[1]
    for row in range(place.shape[0]):
        i = first + row
        for j in range(n):
            one = place[row, j]
            _update(u[one], e[one], source[i], target[i // n * n + j], norm, y, out[row * n + j])


@njit(**FAST)
def logits(x: np.ndarray, bias: np.ndarray, last: np.ndarray, offset: float, out: np.ndarray) -> None:
    """The head from its first product ``(m, d)`` on, to ``(m,)``."""
    for row in range(x.shape[0]):
        total = np.float32(0)
        for f in range(x.shape[1]):
            total += max(x[row, f] + bias[f], np.float32(0)) * last[f]
        out[row] = total + offset


@njit(**FAST)
def attention(
    scores: np.ndarray,
    nodes: np.ndarray,
    e: np.ndarray,
    place: np.ndarray,
    bias: np.ndarray,
    strength: float,
    index: np.ndarray,
    mask: np.ndarray,
    distance: np.ndarray,
    values: np.ndarray,
    edges: np.ndarray,
) -> None:
    """Eqs. attention_logit and attention_weights: averages over each neighborhood, per head, of the nodes'
    values ``(G n, d)`` and of the edge states ``(G n, H, d)``.

    ``scores (G, H, n, n)`` are products of queries and keys, ``nodes (G n, d)`` the values; states ``(T, d)``
    and their numbers ``(G n, n)``; neighborhoods ``(G n, W)``.
    """
    n, size, width = place.shape[1], edges.shape[2] // edges.shape[1], index.shape[1]
    heads, d = edges.shape[1:]
    root = ONE / np.sqrt(np.float32(size))
    weights = np.empty((width, heads), np.float32)
    top, whole = np.empty(heads, np.float32), np.empty(heads, np.float32)
    for i in range(len(place)):
        instance, own = i // n, i % n
        top[:] = -np.inf
        count = 0
        while count < width and mask[i, count]:  # neighbors first, then padding
            j = index[i, count]
            state, far = e[place[i, j]], strength * distance[i, count]
            for h in range(heads):
                score = np.float32(0)
                for f in range(d):
                    score += state[f] * bias[h, f]
                score += scores[instance, h, own, j] * root - far
                weights[count, h] = score
                top[h] = max(top[h], score)
            count += 1
        whole[:] = 0
        for w in range(count):
            for h in range(heads):
                weights[w, h] = exponential(weights[w, h] - top[h])
                whole[h] += weights[w, h]
        value, average = values[i], edges[i]
        value[:] = 0
        average[:] = 0
        for w in range(count):
            j = index[i, w]
            state, node = e[place[i, j]], nodes[instance * n + j]
            for h in range(heads):
                weight = weights[w, h] / whole[h]
                for f in range(d):
                    average[h, f] += weight * state[f]
                for f in range(h * size, (h + 1) * size):
                    value[f] += weight * node[f]
