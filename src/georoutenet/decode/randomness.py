"""Stateless randomness: a uniform number is a hash of (seed, instance, sample, step).

So a tour depends on nothing but its own place: not on the batch, the number of threads or the order of
work. The hash is the finalizer of SplitMix64. The Numba kernels hold the same four lines for scalars.
"""

from __future__ import annotations

import torch
from torch import Tensor

from georoutenet.errors import InputError

LANES = 16
"""A draw passes the cities lane by lane, 0, 16, 32, ..., 1, 17, ...: that order suits vector code."""
GOLDEN = 0x9E3779B97F4A7C15
MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


def signed(value: int) -> int:
    """A 64-bit pattern as the int64 with the same bits; torch has no arithmetic on unsigned integers."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


def _shift(x: Tensor, bits: int) -> Tensor:
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def mix(x: Tensor) -> Tensor:
    """SplitMix64's finalizer on int64 bit patterns."""
    x = (x ^ _shift(x, 30)) * signed(MULTIPLIERS[0])
    x = (x ^ _shift(x, 27)) * signed(MULTIPLIERS[1])
    return x ^ _shift(x, 31)


def tour_keys(seed: int, batch: int, samples: int, device: torch.device) -> Tensor:
    """One 64-bit key for each tour, ``(B, M)``."""
    golden = signed(GOLDEN)
    instance = torch.arange(1, batch + 1, device=device)[:, None]
    sample = torch.arange(1, samples + 1, device=device)[None, :]
    return mix(mix(instance * golden + signed(seed)) + sample * golden)


def uniforms(keys: Tensor, step: int) -> Tensor:
    """A float64 in [0, 1) for each tour at one step; 52 bits, so that `u * total < total` always holds."""
    return _shift(mix(keys + signed((step + 1) * GOLDEN)), 12).double() * 2.0**-52


def check_seed(seed: int | Tensor) -> int:
    """The seed as a Python int of 64 bits."""
    if isinstance(seed, Tensor):
        if seed.numel() != 1 or seed.is_floating_point():
            raise InputError(f"seed must be one whole number, got a tensor {tuple(seed.shape)} {seed.dtype}")
        seed = int(seed.item())
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise InputError(f"seed must be a whole number, got {seed!r}")
    return signed(seed)
