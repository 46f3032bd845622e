"""Training instances made on the device: instance ``b`` of step ``t`` is a function of (seed, t, b) alone.

The numbers are hashes computed with integer tensor operations: the same bits on every device, safe inside a
CUDA graph, and split over processes by giving each its own range of ``b``. The shapes other than uniform
follow the formulas of :mod:`georoutenet.problem.generate`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from georoutenet.decode.randomness import GOLDEN, mix
from georoutenet.errors import InputError
from georoutenet.problem.instance import fill_square

Draw = Callable[[int], Tensor]
"""``draw(count)``: the next ``count`` uniform numbers of every instance, ``(batch, count)``."""


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


def instances(seed: Tensor, batch: int, n: int, distribution: str = "uniform", *, first: int = 0) -> Tensor:
    """A batch of instances in the unit square, ``(batch, n, 2)`` float32."""
    if distribution not in DISTRIBUTIONS:
        raise InputError(f"unknown distribution {distribution!r}; allowed: {', '.join(DISTRIBUTIONS)}")
    used = 0

    def draw(count: int) -> Tensor:
        nonlocal used
        used += count
        return uniforms(seed, batch, count, first=first, skip=used - count)

    cities = DISTRIBUTIONS[distribution](draw, n)
    return 1 - (1 - cities.remainder(2)).abs()  # what leaves the square is reflected at its sides


def _points(draw: Draw, n: int) -> Tensor:
    return draw(2 * n).view(-1, n, 2)


def _gaussian(draw: Draw, n: int) -> Tensor:
    """Pairs of independent standard normals ``(batch, n, 2)``, by the Box-Muller transform."""
    radius = (-2 * torch.log1p(-draw(n))).sqrt()
    angle = 2 * math.pi * draw(n)
    return torch.stack((radius * angle.cos(), radius * angle.sin()), -1)


def _clustered(draw: Draw, n: int) -> Tensor:
    clusters = 3 + (6 * draw(1)).floor()
    centers = 0.1 + 0.8 * draw(16).view(-1, 8, 2)
    of_city = (clusters * draw(n)).long()
    centers = centers.gather(1, of_city[..., None].expand(-1, -1, 2))
    return centers + 0.06 * _gaussian(draw, n)


def _explosion(draw: Draw, n: int) -> Tensor:
    radius = 0.2 + 0.2 * draw(1)
    center = 0.3 + 0.4 * draw(2)[:, None]
    cities = _points(draw, n)
    shift = -0.05 * torch.log1p(-draw(n))
    away = cities - center
    distance = away.norm(dim=-1)
    blown = torch.where(distance < radius, (radius + shift) / distance.clamp_min(1e-9), 1.0)
    return center + away * blown[..., None]


def _grid(draw: Draw, n: int) -> Tensor:
    side = math.ceil(math.sqrt(2 * n))
    crossings = draw(side * side).argsort(dim=1)[:, :n]
    return (torch.stack((crossings // side, crossings % side), -1) + 0.5) / side


def _ring(draw: Draw, n: int) -> Tensor:
    radius = 0.2 + 0.2 * draw(1)
    center = 0.45 + 0.1 * draw(2)[:, None]
    angle = 2 * math.pi * draw(n)
    distance = radius + 0.05 * _gaussian(draw, n)[..., 0]
    return center + distance[..., None] * torch.stack((angle.cos(), angle.sin()), -1)


def _rectangle(draw: Draw, n: int) -> Tensor:
    shorter = 0.2 + 0.8 * draw(1)
    is_wide = draw(1) < 0.5
    sides = torch.cat((torch.where(is_wide, 1.0, shorter), torch.where(is_wide, shorter, 1.0)), 1)
    return _points(draw, n) * sides[:, None]


def _turned(draw: Draw, n: int) -> Tensor:
    angle = math.pi / 2 * draw(1)
    across, up = (_points(draw, n) - 0.5).unbind(-1)
    cos, sin = angle.cos(), angle.sin()
    return fill_square(torch.stack((cos * across - sin * up, sin * across + cos * up), -1))


DISTRIBUTIONS: dict[str, Callable[[Draw, int], Tensor]] = {
    "uniform": _points,
    "clustered": _clustered,
    "explosion": _explosion,
    "grid": _grid,
    "ring": _ring,
    "rectangle": _rectangle,
    "turned": _turned,
}
