"""Merging tours on a GPU: one block an instance, one warp a base (``kernels/cuda/source/merge.cu``)."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from georoutenet.crossover import TOLERANCE
from georoutenet.decode.costs import RULES, Costs
from georoutenet.kernels.cuda.compile import Kernel, try_all, usable
from georoutenet.problem.instance import DistanceRule

CITIES = 1025
"""At most, the free city of a path included: what lies in shared memory grows with them."""


def bytes_of(cities: int) -> int:
    """Shared memory of a warp, as laid out by `merge.cu`."""
    return 34 * (-(-cities // 8) * 8)


def shared_of(cities: int, warps: int) -> int:
    """Shared memory of a block: the places, and what its warps have."""
    return 16 * cities + warps * bytes_of(cities)


WARPS = {256: 8, 512: 8, CITIES: 4}
"""Warps in a block, by the most cities; the first fits into 99 KiB, what a block may have on most GPUs."""
MERGE = {
    cities: Kernel("merge.cu", "merge", warps=warps, shared=shared_of(cities, warps))
    for cities, warps in WARPS.items()
}


def kernel_for(cities: int) -> Kernel:
    return MERGE[min(most for most in MERGE if cities <= most)]


def merges(device: torch.device, cities: int, rule: DistanceRule | None) -> bool:
    """Whether the GPU merges closed tours of this number of cities under such a rule."""
    if device.type != "cuda" or cities > CITIES or rule not in RULES:
        return False
    return _compiles(device, kernel_for(cities))


@cache
def problem(device: torch.device, kernel: Kernel) -> str:
    """Why the kernel cannot be compiled for the device or launched there, empty if it can."""
    return try_all([kernel], device, lambda: _launch(kernel, device))


@cache
def _compiles(device: torch.device, kernel: Kernel) -> bool:
    return usable(problem(device, kernel), "the GPU's merging does not run", "the CPU merges")


def _launch(kernel: Kernel, device: torch.device) -> None:
    """Two equal tours of as many cities as the kernel takes."""
    size = next(most for most, each in MERGE.items() if each == kernel)
    costs = Costs(torch.zeros((1, size, 2), dtype=torch.float64, device=device), None)
    tours = torch.arange(size, dtype=torch.int16, device=device).expand(1, 2, size).contiguous()
    counts = torch.full((1,), 2, dtype=torch.int32, device=device)
    units = torch.ones(1, dtype=torch.float64, device=device)
    merge(tours, counts, units, costs, bases=1, passes=1, rounds=1, bits=0)


def merge(
    tours: Tensor,
    counts: Tensor,
    units: Tensor,
    costs: Costs,
    bases: int,
    passes: int,
    rounds: int,
    bits: int,
) -> Tensor:
    """Closed ``tours (B, M, size)`` of 16 bits merged into one of each instance, int16 ``(B, size)``.

    The first ``counts (B,)`` of each are offered, the first ``bases`` of them merged with these.
    ``units (B,)`` make a distance of one, and the longest tour has up to two to the power of ``bits``.
    """
    batch, count, size = tours.shape
    kernel = kernel_for(size)
    merged, grown = tours.new_empty((batch, size)), tours.new_empty((batch, rounds, bases, size))
    lengths = torch.empty((batch, bases), dtype=torch.int64, device=tours.device)
    kernel(
        costs.coordinates.contiguous(), units, tours, counts, grown, lengths, merged,
        count, size, bases, passes, rounds, int(TOLERANCE * 2**bits),
        RULES[costs.rule], int(not costs.closed), bytes_of(size),
        blocks=batch, shared=shared_of(size, kernel.warps),
    )  # fmt: skip
    return merged
