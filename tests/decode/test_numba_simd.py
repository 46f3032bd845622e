"""Vector code of the CPU kernels against NumPy, over sizes around its blocks and lanes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import njit
from numpy.typing import NDArray

from georoutenet.decode.cpu import simd as numba_simd
from georoutenet.decode.cpu.simd import HEAD, LEAST, SHIFT, WIDE
from georoutenet.decode.randomness import LANES

address, close, keep = numba_simd.address, numba_simd.close, numba_simd.keep
first_largest, exponentials, open_sum = (
    numba_simd.first_largest,
    numba_simd.exponentials,
    numba_simd.open_sum,
)
running_sums, passed = numba_simd.running_sums, numba_simd.passed


@njit
def _first_largest(row, words, n):  # type: ignore[no-untyped-def]
    city = first_largest(address(row), address(words), n)
    keep(row)
    keep(words)
    return city


@njit
def _exponentials(row, top, n, out):  # type: ignore[no-untyped-def]
    odd = exponentials(address(row), top, n, address(out))
    keep(row)
    return odd


@njit
def _open_sum(row, words, n, top):  # type: ignore[no-untyped-def]
    total = open_sum(address(row), address(words), n, top)
    keep(row)
    keep(words)
    return total


@njit
def _draw(weights, words, n, share, sums):  # type: ignore[no-untyped-def]
    total = running_sums(address(weights), address(words), n, address(sums))
    city = passed(address(sums), n, share * total)
    keep(weights)
    keep(words)
    keep(sums)
    return total, city


@njit
def _close(words, city):  # type: ignore[no-untyped-def]
    close(address(words), city)


def as_words(allowed: NDArray[np.bool_]) -> NDArray[np.uint64]:
    bits = np.zeros(-(-len(allowed) // 64) * 64, bool)
    bits[: len(allowed)] = allowed
    return np.packbits(bits, bitorder="little").view(np.uint64)


def padded(row: NDArray[Any], fill: float = 1e9) -> NDArray[np.float32]:
    """A row with readable numbers behind it, which must not matter."""
    return np.concatenate([row, np.full(WIDE, fill)]).astype(np.float32)


SIZES = [1, 5, 16, 17, 31, 32, 33, 50, 64, 101]


@pytest.mark.parametrize("n", SIZES)
def test_first_largest_is_the_arg_max_of_what_is_open(n: int) -> None:
    generator = np.random.default_rng(n)
    for trial in range(40):
        scores = generator.normal(size=n) if trial % 2 else generator.integers(-3, 4, n)
        allowed = generator.random(n) < generator.choice([0.1, 0.5, 1.0])
        allowed[int(generator.integers(n))] = True
        wanted = np.where(allowed, scores, -np.inf).argmax()
        assert _first_largest(padded(scores), as_words(allowed), n) == wanted


def test_first_largest_takes_the_lowest_of_equals_and_tells_when_to_look_closer() -> None:
    values = np.full(16, -5.0, np.float32)
    values[:9] = [-np.inf, -1.0, -0.0, 0.0, 2.5, 2.5, np.nan, np.inf, -1e30]
    for allowed, wanted in [
        ({0, 1}, 1),
        ({2, 3}, 2),
        ({3, 2, 1}, 2),
        ({4, 5}, 4),
        ({0, 9}, 9),
        ({7, 1}, 7),
        ({4, 6}, -1),
        ({6, 7}, -1),
        ({0, 8}, -1),
        (set(), -1),
    ]:
        words = as_words(np.array([j in allowed for j in range(16)]))
        assert _first_largest(padded(values), words, 16) == wanted


def test_close_closes_one_city() -> None:
    for city in (0, 5, 63, 64, 130):
        words = as_words(np.ones(140, bool))
        _close(words, city)
        left = np.unpackbits(words.view(np.uint8), bitorder="little")[:140]
        assert np.flatnonzero(left == 0).tolist() == [city]


@pytest.mark.parametrize("n", SIZES)
def test_exponentials_are_exact_to_the_last_bits(n: int) -> None:
    scores = 7 - np.random.default_rng(n).exponential(40, n)
    scores[: min(n, 6)] = [7.0, np.inf, -np.inf, -1e30, -85.0, -650.0][:n]
    out = np.full(-(-n // WIDE) * WIDE + 1, 9.0, np.float32)
    assert not _exponentials(padded(scores), np.float32(7.0), n, out)
    exact = np.exp(np.clip(scores.astype(np.float32).astype(np.float64) - 7, LEAST, 0)) * 2.0**SHIFT
    # A difference is rounded to float32, as scores of that size are.
    np.testing.assert_allclose(out[:n], exact, rtol=1e-5)
    near = scores > 6
    np.testing.assert_allclose(out[:n][near], exact[near], rtol=3e-7)
    assert out[-1] == 9
    assert out[0] == 2.0**SHIFT
    scores[n // 2] = np.nan
    assert _exponentials(padded(scores), np.float32(7.0), n, out)
    _exponentials(padded(np.full(n, -np.inf)), np.float32(-1e30), n, out)
    assert (out[:n] == 2.0**SHIFT).all()  # all at the floor are equal


@pytest.mark.parametrize("n", SIZES)
def test_open_sum_is_the_normalizer(n: int) -> None:
    generator = np.random.default_rng(n)
    scores = generator.normal(size=n).astype(np.float32)
    allowed = generator.random(n) < 0.5
    allowed[0] = True
    top = scores[allowed].max()
    exact = np.exp(scores[allowed].astype(np.float64) - top).sum()
    assert _open_sum(padded(scores), as_words(allowed), n, top) == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize("n", SIZES)
def test_draws_pass_the_open_cities_lane_by_lane(n: int) -> None:
    generator = np.random.default_rng(n)
    weights = generator.random(n).astype(np.float32)
    allowed = generator.random(n) < 0.5
    allowed[int(generator.integers(n))] = True
    order = np.argsort(np.arange(n) % LANES, kind="stable")
    running = np.where(allowed, weights, 0).astype(np.float64)[order].cumsum()
    sums = np.zeros(HEAD + -(-n // WIDE) * WIDE, np.float32)
    for share in [0.0, *generator.random(200), 1 - 2.0**-24]:
        total, city = _draw(padded(weights), as_words(allowed), n, np.float32(share), sums)
        assert total == pytest.approx(running[-1], rel=1e-6)
        target = np.float32(share) * running[-1]
        if city >= n or city != order[np.argmax(running > target)]:  # rounding: at the border of two cities
            assert np.abs(running - target).min() < 1e-6 * running[-1]
        assert city >= n or allowed[city]
