"""Distances and neighborhoods for training in one CUDA kernel (`nearest.cu`).

It gives `geometry.pair_distances` and `geometry.neighborhood` bit for bit, and with them the table of
`neighborhood_attention_triton.neighborhood_slots`.
"""

from __future__ import annotations

import math
import struct

import torch
from torch import Tensor

from georoutenet.kernels.cuda import compile as native
from georoutenet.kernels.cuda.compile import WIDTH, Kernel
from georoutenet.model.geometry import Neighborhood

WARPS = 8
WIDEST = 32  # a lane for each place of a neighborhood
# A warp's distances and slots in shared memory: less of it for few cities, so that more warps run at a time.
NEAREST = {
    cities: Kernel("nearest.cu", "nearest", warps=WARPS, shared=WARPS * 6 * cities) for cities in (128, 1024)
}


def _kernel(n: int) -> Kernel:
    return NEAREST[min(cities for cities in NEAREST if n <= cities)]


def fits(places: Tensor, k: int, width: int | None) -> bool:
    """Whether the kernel finds the neighborhoods of these cities; it needs a fixed width."""
    n = places.shape[1]
    if places.dtype != torch.float32 or width is None or not 2 <= n <= max(NEAREST):
        return False
    states = places.new_empty((0, WIDTH), dtype=torch.bfloat16)
    return min(k, n - 1) < min(n, width) <= WIDEST and native.fits(states, _kernel(n))


def nearest(
    places: Tensor, k: int, width: int, reach: float, pitch: int
) -> tuple[Tensor, Neighborhood, Tensor]:
    """Distances ``(B, n, n)``; ``N_k(i)``, padded to ``width`` or all n cities, its index in int32; and slots
    ``(B, n, pitch)`` with ``pitch`` even, at least n and at most the next power of two or multiple of 64.

    Distances are cut at ``reach`` if there is one, after the neighborhoods are found.
    """
    batch, n, _ = places.shape
    k, width = min(k, n - 1), min(n, width)
    distance = places.new_empty((batch, n, n))
    index = places.new_empty((batch, n, width), dtype=torch.int32)
    mask = places.new_empty((batch, n, width), dtype=torch.bool)
    near = places.new_empty((batch, n, width))
    slots = places.new_empty((batch, n, pitch), dtype=torch.int16)
    (bits,) = struct.unpack("i", struct.pack("f", reach or math.inf))
    _kernel(n)(
        places.contiguous(), distance, index, mask, near, slots, batch * n, n, k, width, pitch, bits,
        blocks=-(-batch * n // WARPS),
    )  # fmt: skip
    return distance, Neighborhood(index, mask, near), slots
