"""Training instances made on the device: instance ``b`` of step ``t`` is a function of (seed, t, b) alone.

The numbers are hashes computed with integer tensor operations: the same bits on every device, safe inside a
CUDA graph, and split over processes by giving each its own range of ``b``. The shapes are those of
:mod:`georoutenet.problem.shapes`, in float32.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from georoutenet.decode.randomness import GOLDEN, mix
from georoutenet.errors import InputError
from georoutenet.problem.shapes import SHAPES


def step_seed(seed: int, step: Tensor, purpose: int) -> Tensor:
    """The seed of one purpose in one step, a one-element int64 tensor on the device of ``step``."""
    spread = (seed * GOLDEN + (1 << 63)) % (1 << 64) - (1 << 63)  # runs of neighboring seeds stay apart
    return mix(mix(step + spread) + purpose).reshape(1)


def uniforms(seed: Tensor, batch: int, count: int, *, first: int = 0, skip: int = 0) -> Tensor:
    """Float32 numbers in [0, 1), ``(batch, count)``: row ``b`` belongs to instance ``first + b``."""
    instance = torch.arange(first + 1, first + batch + 1, device=seed.device)[:, None]
    number = torch.arange(skip + 1, skip + count + 1, device=seed.device)
    golden = GOLDEN + (seed & 0)  # a tensor: the compiler would fold the number into 32-bit index arithmetic
    bits = mix(mix(seed + instance * golden) + number * golden)
    return ((bits >> 40) & 0xFFFFFF).float() * 2.0**-24


class _Hashes:
    """Uniform numbers of a batch of instances: `georoutenet.problem.shapes.Numbers`."""

    xp = torch

    def __init__(self, seed: Tensor, batch: int, first: int, ahead: int) -> None:
        self.seed, self.batch, self.first, self.used = seed, batch, first, 0
        self.ahead, self.made, self.since = ahead, seed.new_empty((batch, 0)).float(), 0

    def __call__(self, count: int) -> Tensor:
        """A hash takes a dozen small kernels, so ``ahead`` numbers are made at a time, or more."""
        if self.used + count > self.since + self.made.shape[1]:
            self.since, size = self.used, max(count, self.ahead)
            self.made = uniforms(self.seed, self.batch, size, first=self.first, skip=self.used)
        begin = self.used - self.since
        self.used += count
        return self.made[:, begin : begin + count]

    def pick(self, table: Tensor, index: Tensor) -> Tensor:
        index = index.long()
        if table.dim() == 3:
            index = index[..., None].expand(-1, -1, table.shape[2])
        return table.gather(1, index)

    def order(self, keys: Tensor) -> Tensor:
        return keys.argsort(dim=1)

    def arange(self, n: int) -> Any:
        return torch.arange(n, device=self.seed.device, dtype=torch.float32)


def instances(seed: Tensor, batch: int, n: int, distribution: str = "uniform", *, first: int = 0) -> Tensor:
    """A batch of instances in the unit square, ``(batch, n, 2)`` float32."""
    if distribution not in SHAPES:
        raise InputError(f"unknown distribution {distribution!r}; allowed: {', '.join(SHAPES)}")
    cities: Tensor = SHAPES[distribution](_Hashes(seed, batch, first, ahead=4 * n + 256), n)
    return 1 - (1 - cities.remainder(2)).abs()  # what leaves the square is reflected at its sides
