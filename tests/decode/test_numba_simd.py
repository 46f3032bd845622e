"""Vector code of the CPU kernels against NumPy, over sizes around its sixteen lanes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import njit

from georoutenet.decode import numba_simd
from georoutenet.decode.randomness import LANES

ALLOWED, FORBIDDEN = numba_simd.ALLOWED, numba_simd.FORBIDDEN
OPEN, CLOSED = numba_simd.OPEN, numba_simd.CLOSED

first_largest, exponentials = numba_simd.first_largest, numba_simd.exponentials
masked_sum, draw = numba_simd.masked_sum, numba_simd.draw


@njit
def _first_largest(scores, at, gate, gate_at, n):  # type: ignore[no-untyped-def]
    return first_largest(scores, at, gate, gate_at, n)


@njit
def _exponentials(scores, at, top, n, out, out_at):  # type: ignore[no-untyped-def]
    exponentials(scores, at, top, n, out, out_at)


@njit
def _masked_sum(weights, at, mask, mask_at, size):  # type: ignore[no-untyped-def]
    return masked_sum(weights, at, mask, mask_at, size)


@njit
def _draw(weights, at, mask, mask_at, size, uniform, sums):  # type: ignore[no-untyped-def]
    return draw(weights, at, mask, mask_at, size, uniform, sums)


@pytest.mark.parametrize("n", [16, 17, 31, 32, 50, 101])
def test_first_largest_is_the_arg_max_of_what_is_allowed(n: int) -> None:
    generator = np.random.default_rng(n)
    for trial in range(40):
        scores = generator.integers(-3, 4, 3 + n).astype(np.float32)
        if trial % 2:
            scores = generator.normal(size=3 + n).astype(np.float32)
        allowed = generator.random(5 + n) < generator.choice([0.1, 0.5, 1.0])
        allowed[5 + int(generator.integers(n))] = True
        gate = np.where(allowed, OPEN, CLOSED)
        wanted = np.where(allowed[5:], scores[3:], -np.inf).argmax()
        assert _first_largest(scores, 3, gate, 5, n) == wanted


def test_first_largest_takes_the_lowest_of_equals_and_tells_when_to_look_closer() -> None:
    values = np.full(16, -5.0, np.float32)
    values[:9] = [-np.inf, -1.0, -0.0, 0.0, 2.5, 2.5, np.nan, np.inf, -1e30]
    closer = 2**31 - 1
    for allowed, wanted in [
        ({0, 1}, 1),
        ({2, 3}, 2),
        ({3, 2, 1}, 2),
        ({4, 5}, 4),
        ({0, 9}, 9),
        ({7, 1}, closer),
        ({4, 6}, closer),
        ({0, 8}, closer),
        (set(), closer),
    ]:
        gate = np.array([OPEN if j in allowed else CLOSED for j in range(16)])
        assert _first_largest(values, 0, gate, 0, 16) == wanted


@pytest.mark.parametrize(
    ("dtype", "lowest", "precision"), [(np.float32, -86, 1.5e-7), (np.float64, -700, 5e-16)]
)
@pytest.mark.parametrize("n", [16, 17, 50, 64, 101])
def test_exponentials_are_exact_to_the_last_bits(n: int, dtype: Any, lowest: float, precision: float) -> None:
    scores = 7 - np.random.default_rng(n).exponential(15, n + 2).astype(np.float32)
    scores[2:8] = [np.inf, 7.0, -np.inf, -1e30, -85.0, -650.0]
    out = np.full(n + 5, 9, dtype)
    _exponentials(scores, 2, np.float32(7.0), n, out, 4)
    exact = np.exp(np.clip(scores[2:].astype(np.float64) - 7, lowest, 0))
    np.testing.assert_allclose(out[4:-1], exact, rtol=precision)
    assert out[-1] == 9
    assert (out[:4] == 9).all()
    _exponentials(np.full(n, -np.inf, np.float32), 0, np.float32(-1e30), n, out, 0)
    assert (out[:n] == 1).all()  # all at the floor are equal


@pytest.mark.parametrize(("dtype", "whole"), [(np.float32, np.int32), (np.float64, np.int64)])
@pytest.mark.parametrize("size", [16, 32, 48, 112])
def test_draws_pass_the_allowed_cities_lane_by_lane(size: int, dtype: Any, whole: Any) -> None:
    generator = np.random.default_rng(size)
    weights = generator.random(size + 1).astype(dtype)
    mask = np.where(generator.random(size + 2) < 0.5, ALLOWED, FORBIDDEN).astype(whole)
    allowed = np.where(mask[2:] == ALLOWED, weights[1:], 0).astype(np.float64)
    assert _masked_sum(weights, 1, mask, 2, size) == pytest.approx(allowed.sum(), rel=1e-14)
    order = np.argsort(np.arange(size) % LANES, kind="stable")
    running, sums = allowed[order].cumsum(), np.zeros(LANES + 1)
    for uniform in [0.0, *generator.random(50), 1 - 2.0**-52]:
        total, city = _draw(weights, 1, mask, 2, size, uniform, sums)
        assert total == pytest.approx(allowed.sum(), rel=1e-14)
        if city >= size:  # rounding left the target above its lane
            assert uniform * total == pytest.approx(sums[city % LANES + 1], rel=1e-14)
        else:
            assert city == order[np.argmax(running > uniform * running[-1])]
