"""What happens between the matrix products of dense scores on a CPU, each in one pass over a block in cache.

Arrays are float32. Exponentials are polynomials that compilers make vector code of.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import extending, njit
from numba.core import types

# No rounding is forced on sums and products, and there are neither infinities nor what is not a number.
FAST: dict[str, Any] = {"cache": True, "nogil": True, "fastmath": True, "error_model": "numpy"}
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
def update(u: np.ndarray, e: np.ndarray, source: np.ndarray, target: np.ndarray, norm: np.ndarray) -> None:
    """Eq. edge_update in place: products and states ``(m, n, d)``, sources ``(m, d)``, targets ``(n, d)``;
    the norm is gain, offset and epsilon ``(3, d)``."""
    y = np.empty(u.shape[2], np.float32)
    for i in range(u.shape[0]):
        for j in range(u.shape[1]):
            _update(u[i, j], e[i, j], source[i], target[j], norm, y, e[i, j])


@njit(**FAST)
def first_update(
    u: np.ndarray,
    e: np.ndarray,
    place: np.ndarray,
    source: np.ndarray,
    target: np.ndarray,
    norm: np.ndarray,
    out: np.ndarray,
) -> None:
    """`update` from products and states ``(T, d)`` of which pair ``[i, j]`` has number ``place[i, j]``."""
    y = np.empty(u.shape[1], np.float32)
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            _update(u[place[i, j]], e[place[i, j]], source[i], target[j], norm, y, out[i, j])


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
    queries: np.ndarray,
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
    values ``(n, d)`` and of the edge states ``(n, H, d)``.

    ``queries (3, n, d)`` are q, k, v; states ``(T, d)``, their numbers ``(n, n)``; neighborhoods ``(n, W)``.
    """
    n, heads, d = edges.shape
    size = d // heads
    root = ONE / np.sqrt(np.float32(size))
    weights = np.empty((heads, index.shape[1]), np.float32)
    near = np.empty(d, np.float32)
    total = np.empty(d, np.float32)
    for i in range(n):
        count = 0
        while count < index.shape[1] and mask[i, count]:  # neighbors first, then padding
            j = index[i, count]
            state = e[place[i, j]]
            for f in range(d):
                near[f] = queries[0, i, f] * queries[1, j, f] * root
            for h in range(heads):
                score = -strength * distance[i, count]
                for f in range(h * size, (h + 1) * size):
                    score += near[f]
                for f in range(d):
                    score += state[f] * bias[h, f]
                weights[h, count] = score
            count += 1
        for h in range(heads):
            top = weights[h, :count].max()
            whole = np.float32(0)
            for w in range(count):
                weights[h, w] = exponential(weights[h, w] - top)
                whole += weights[h, w]
            total[:] = 0
            for w in range(count):
                weights[h, w] /= whole
                state = e[place[i, index[i, w]]]
                for f in range(d):
                    total[f] += weights[h, w] * state[f]
            edges[i, h] = total
        total[:] = 0
        for w in range(count):
            near[:] = queries[2, index[i, w]]
            for h in range(heads):
                weight = weights[h, w]
                for f in range(h * size, (h + 1) * size):
                    total[f] += weight * near[f]
        values[i] = total
