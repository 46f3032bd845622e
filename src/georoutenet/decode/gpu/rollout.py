"""Sampled and greedy tours on a GPU: several tours per program, nothing read back by the host.

A tour is drawn by the Gumbel arg-max: the next city is the arg-max over unvisited ``j`` of
``z_ij + g_j`` with fresh standard Gumbel noise ``g``, which has exactly the distribution of
Eq. tour_factorization; with ``g = 0`` it is the greedy tour. Ties go to the lowest index.

The noise is a function of (seed, tour, step, city) alone: Philox4x32-10 of the counter
``(city, step // 4, tour, purpose)`` gives the noise of four steps. So the same seed gives the same tours
for any launch shape, and ``rollout_reference`` draws the same ones on the CPU.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

from georoutenet.decode.randomness import PHILOX_FACTORS, PHILOX_ROUNDS, PHILOX_WEYL, philox
from georoutenet.errors import InputError

MAX_CITIES = 8192  # one row of logits is one block
ELEMENTS = 128  # tours per program times the padded number of cities; tunable, a power of two

ROLLOUT_PURPOSE = 0

_VISITED = tl.constexpr(-(2**31))  # below the key of every float
_NEGATIVE_LN2 = tl.constexpr(-math.log(2.0))
_FACTOR0, _FACTOR2 = tl.constexpr(PHILOX_FACTORS[0]), tl.constexpr(PHILOX_FACTORS[1])
_WEYL0, _WEYL1 = tl.constexpr(PHILOX_WEYL[0]), tl.constexpr(PHILOX_WEYL[1])
_ROUNDS = tl.constexpr(PHILOX_ROUNDS)


@triton.jit
def philox_round(
    c0: tl.tensor, c1: tl.tensor, c2: tl.tensor, c3: tl.tensor, k0: tl.tensor, k1: tl.tensor
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    product0 = c0.to(tl.uint64) * _FACTOR0
    product2 = c2.to(tl.uint64) * _FACTOR2
    # Truncation keeps the low halves. The 64-bit product is one wide multiplication, where a high and a
    # low product would be two.
    high2 = (product2 >> 32).to(tl.uint32)
    high0 = (product0 >> 32).to(tl.uint32)
    return high2 ^ c1 ^ k0, product2.to(tl.uint32), high0 ^ c3 ^ k1, product0.to(tl.uint32)


@triton.jit
def philox_words(
    key: tl.tensor, c0: tl.tensor, c1: tl.tensor, c2: tl.tensor, c3: tl.tensor
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """``randomness.philox`` of a 64-bit key and four uint32 counters of one shape: four uint32 words."""
    k0 = key.to(tl.uint32)
    k1 = (key >> 32).to(tl.uint32)
    for _ in tl.static_range(_ROUNDS):
        c0, c1, c2, c3 = philox_round(c0, c1, c2, c3, k0, k1)
        k0 = (k0.to(tl.uint64) + _WEYL0).to(tl.uint32)
        k1 = (k1.to(tl.uint64) + _WEYL1).to(tl.uint32)
    return c0, c1, c2, c3


@triton.jit
def _log2(x: tl.tensor, approximate: tl.constexpr) -> tl.tensor:
    """The GPU's own approximation costs one instruction; the accurate one about twenty."""
    if approximate:
        return libdevice.fast_log2f(x)
    else:
        return tl.log2(x)


@triton.jit
def _advance(
    step: tl.tensor,
    bits: tl.tensor,
    row: tl.tensor,
    visit: tl.tensor,
    city: tl.tensor,
    noise: tl.tensor,
    n: tl.tensor,
    block: tl.constexpr,
    approximate: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """One step of every tour from its row of scores: the city chosen, and the visits with it entered."""
    score = tl.load(row[:, None] + city, mask=city < n, other=0.0).to(tl.float32)
    # 23 random bits as the middle of their cell of (0, 1): 2**-24 away from both ends.
    uniform = ((bits >> 9) | 0x3F800000).to(tl.float32, bitcast=True) - 0.99999994
    # An approximate logarithm may reach zero next to one; the accurate one stays above the bound.
    exponential = tl.maximum(-_log2(uniform, approximate), 5.9604644775390625e-08)
    score += _log2(exponential, approximate) * noise[:, None]
    # Floats as integers of the same order (-0 and 0 alike): one warp instruction finds their maximum.
    key = score.to(tl.int32, bitcast=True)
    key = tl.where(key < 0, _VISITED - key, key)
    key = tl.where(visit < 0, key, _VISITED)
    best = tl.max(key, axis=1)
    chosen = tl.min(tl.where(key == best[:, None], city, block), axis=1)
    # Past the last step all cities are visited: the first one comes out, and no visit changes.
    return chosen, tl.where((city == chosen[:, None]) & (visit < 0), step, visit)


@triton.jit
def _rollout_kernel(
    start: tl.tensor,
    logits: tl.tensor,
    seed: tl.tensor,
    tours: tl.tensor,
    n: tl.tensor,
    candidates: tl.tensor,
    total: tl.tensor,
    purpose: tl.constexpr,
    block: tl.constexpr,
    tours_per_program: tl.constexpr,
    approximate: tl.constexpr,
) -> None:
    seed_value = tl.load(seed).to(tl.uint64)
    tour = tl.program_id(0) * tours_per_program + tl.arange(0, tours_per_program)
    instance = tl.minimum(tour, total - 1) // candidates
    # The last candidate of each instance is the greedy tour: its noise is multiplied by zero.
    noise = tl.where(tour % candidates == candidates - 1, 0.0, _NEGATIVE_LN2)
    matrix = logits + instance.to(tl.int64) * n * n

    zero = tl.zeros([tours_per_program, block], dtype=tl.int32)
    city = tl.arange(0, block)[None, :] + zero
    c0 = city.to(tl.uint32)
    c2 = (tour[:, None] + zero).to(tl.uint32)
    c3 = (zero + purpose).to(tl.uint32)
    visit = tl.where(city < n, -1, n)  # the step of each city's visit, -1 before; padding is never open
    row = start + instance.to(tl.int64) * n
    for quad in range(0, (n + 3) // 4):
        w0, w1, w2, w3 = philox_words(seed_value, c0, (zero + quad).to(tl.uint32), c2, c3)
        for part in range(0, 4):
            bits = tl.where(part == 0, w0, tl.where(part == 1, w1, tl.where(part == 2, w2, w3)))
            chosen, visit = _advance(quad * 4 + part, bits, row, visit, city, noise, n, block, approximate)
            row = matrix + chosen * n
    place = tours + tour[:, None].to(tl.int64) * n + visit
    tl.store(place, city.to(tours.dtype.element_ty), mask=(tour[:, None] < total) & (city < n))


def rollout(
    start: Tensor,
    logits: Tensor,
    *,
    samples: int,
    seed: Tensor | int,
    dtype: torch.dtype = torch.int64,
    elements: int = ELEMENTS,
    num_warps: int | None = None,
) -> Tensor:
    """``samples`` tours per instance drawn from the policy and, last, the greedy one.

    The result is ``(B, samples + 1, n)``; ``start`` is ``(B, n)`` log-probabilities, ``logits`` is
    ``(B, n, n)`` in float32, bfloat16 or float16.
    ``seed`` is a one-element int64 tensor on their device, read by the kernel alone, so the call can be
    captured in a CUDA graph and replayed with a new seed. ``elements`` and ``num_warps`` only tune the
    launch; they do not change the tours.
    """
    batch, n = _check(start, logits, samples)
    block = max(triton.next_power_of_2(n), 16)
    per_program = max(1, elements // block)
    if num_warps is None:
        num_warps = max(1, min(8, block // 256))
    seed = seed_tensor(seed, start.device)
    total = batch * (samples + 1)
    tours = torch.empty(batch, samples + 1, n, dtype=dtype, device=start.device)
    if total:
        _rollout_kernel[(triton.cdiv(total, per_program),)](
            start.float().contiguous(),
            logits.float().contiguous(),
            seed,
            tours,
            n,
            samples + 1,
            total,
            purpose=ROLLOUT_PURPOSE,
            block=block,
            tours_per_program=per_program,
            approximate=start.is_cuda,
            num_warps=num_warps,
            num_stages=1,
        )
    return tours


def greedy(start: Tensor, logits: Tensor, *, dtype: torch.dtype = torch.int64) -> Tensor:
    """The greedy tour of every instance, ``(B, n)``."""
    return rollout(start, logits, samples=0, seed=0, dtype=dtype)[:, 0]


def rollout_reference(
    start: Tensor, logits: Tensor, *, samples: int, seed: Tensor | int, dtype: torch.dtype = torch.int64
) -> Tensor:
    """What ``rollout`` computes, as plain PyTorch on any device, from the same noise.

    Equal to the kernel except where two perturbed scores are so near that the rounding of the
    logarithm decides; the greedy tours have no noise and are identical.
    """
    batch, n = _check(start, logits, samples)
    device, candidates = start.device, samples + 1
    tour = torch.arange(batch * candidates, device=device).view(batch, candidates, 1)
    city = torch.arange(n, device=device)
    key = int(seed_tensor(seed, device).item())
    scale = torch.full((candidates, 1), -math.log(2.0), device=device)
    scale[-1] = 0.0
    score = start.float()[:, None].expand(batch, candidates, n)
    visited = torch.zeros(batch, candidates, n, dtype=torch.bool, device=device)
    tours = torch.empty(batch, candidates, n, dtype=dtype, device=device)
    for step in range(n):
        if step % 4 == 0:
            bits = philox(key, city, torch.full_like(city, step // 4), tour, ROLLOUT_PURPOSE)
        uniform = ((bits[step % 4] >> 9).double() + 0.5).mul(2.0**-23).float()
        perturbed = score + torch.log2(-torch.log2(uniform)) * scale
        chosen = perturbed.masked_fill(visited, -torch.inf).argmax(dim=2, keepdim=True)
        visited.scatter_(2, chosen, True)
        tours[..., step] = chosen[..., 0].to(dtype)
        score = logits.gather(1, chosen.expand(-1, -1, n)).float()
    return tours


def seed_tensor(seed: Tensor | int, device: torch.device) -> Tensor:
    """The seed as the kernels read it: a one-element int64 tensor on ``device``."""
    if isinstance(seed, int):
        return torch.full((1,), seed, dtype=torch.int64, device=device)
    if seed.numel() != 1 or seed.dtype != torch.int64 or seed.device != device:
        raise InputError(
            f"the seed must be an int or one int64 on {device}, "
            f"not {seed.numel()} of {seed.dtype} on {seed.device}"
        )
    return seed


def _check(start: Tensor, logits: Tensor, samples: int) -> tuple[int, int]:
    batch, n = start.shape
    if logits.shape != (batch, n, n):
        raise InputError(
            f"the logits must be ({batch}, {n}, {n}) as the starts say, not {tuple(logits.shape)}"
        )
    if not 1 <= n <= MAX_CITIES:
        raise InputError(f"the number of cities must be 1 to {MAX_CITIES}, not {n}")
    if samples < 0:
        raise InputError(f"the number of samples must be 0 or more, not {samples}")
    return batch, n
