"""Stateless randomness: a uniform number is a hash of (seed, instance, sample, step).

So a tour depends on nothing but its own place: not on the batch, the number of threads or the order of
work. Here is the one definition of SplitMix64, for int64 tensors and for int64 scalars in compiled code
alike, and of Philox as the GPU's rollout uses it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from georoutenet.errors import InputError


def signed(value: int) -> int:
    """A 64-bit pattern as the int64 with the same bits; torch has no arithmetic on unsigned integers."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


GOLDEN = signed(0x9E3779B97F4A7C15)
_FIRST, _SECOND = signed(0xBF58476D1CE4E5B9), signed(0x94D049BB133111EB)


class SplitMix(NamedTuple):
    """The functions of the generator; all take and give int64 bit patterns, tensors or scalars."""

    mix: Any
    """``mix(x)``: SplitMix64's finalizer."""
    tour_key: Any
    """``tour_key(seed, instance, sample)``: the key of one tour; tensors broadcast."""
    bits: Any
    """``bits(key, step)``: the 52 random bits of one step."""


def split_mix(compiled: Callable[[Any], Any] = lambda function: function) -> SplitMix:
    """The generator, each function wrapped by ``compiled``: as it is for torch, by ``njit`` for Numba."""

    @compiled
    def mix(x: Any) -> Any:
        # Shifts repeat the sign, which the masks remove.
        x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * _FIRST
        x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * _SECOND
        return x ^ ((x >> 31) & 0x1FFFFFFFF)

    @compiled
    def tour_key(seed: Any, instance: Any, sample: Any) -> Any:
        return mix(mix((instance + 1) * GOLDEN + seed) + (sample + 1) * GOLDEN)

    @compiled
    def bits(key: Any, step: Any) -> Any:
        return (mix(key + GOLDEN * (step + 1)) >> 12) & 0xFFFFFFFFFFFFF

    return SplitMix(mix, tour_key, bits)


mix, _tour_key, _bits = split_mix()


def tour_keys(seed: int, batch: int, samples: int, device: torch.device) -> Tensor:
    """One 64-bit key for each tour, ``(B, M)``."""
    instance = torch.arange(batch, device=device)[:, None]
    keys: Tensor = _tour_key(signed(seed), instance, torch.arange(samples, device=device))
    return keys


def uniforms(keys: Tensor, step: int) -> Tensor:
    """A float64 in [0, 1) for each tour at one step; 52 bits, so that `u * total < total` always holds."""
    drawn: Tensor = _bits(keys, torch.tensor(step, device=keys.device)).double() * 2.0**-52
    return drawn


PHILOX_FACTORS, PHILOX_WEYL, PHILOX_ROUNDS = (0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85), 10


def philox(
    key: int, c0: Tensor, c1: Tensor, c2: Tensor, c3: Tensor | int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Philox4x32-10 of a 64-bit key and a counter of four 32-bit words: four words, held in int64 tensors."""
    low = 0xFFFFFFFF
    k0, k1 = key & low, (key >> 32) & low

    def product(factor: int, word: Tensor) -> tuple[Tensor, Tensor]:
        """High and low half of a 64-bit product, by halves of ``word`` to stay within int64."""
        lower = factor * (word & 0xFFFF)
        upper = factor * (word >> 16) + (lower >> 16)
        return upper >> 16, ((upper & 0xFFFF) << 16) | (lower & 0xFFFF)

    c3 = torch.as_tensor(c3, device=c0.device)
    for _ in range(PHILOX_ROUNDS):
        high0, low0 = product(PHILOX_FACTORS[0], c0)
        high2, low2 = product(PHILOX_FACTORS[1], c2)
        c0, c1, c2, c3 = high2 ^ c1 ^ k0, low2, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + PHILOX_WEYL[0]) & low, (k1 + PHILOX_WEYL[1]) & low
    return c0, c1, c2, c3


def check_seed(seed: int | Tensor) -> int:
    """The seed as a Python int of 64 bits."""
    if isinstance(seed, Tensor):
        if seed.numel() != 1 or seed.is_floating_point():
            raise InputError(f"seed must be one whole number, got a tensor {tuple(seed.shape)} {seed.dtype}")
        seed = int(seed.item())
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise InputError(f"seed must be a whole number, got {seed!r}")
    return signed(seed)
