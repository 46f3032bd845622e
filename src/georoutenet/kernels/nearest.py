"""Distances, neighborhoods and slots in one CUDA kernel (`nearest.cu`), for neighborhoods of a fixed width.

It gives `pair_distances` and `neighborhood` of `model.geometry`, and `slots_reference`, bit for bit.
"""

from __future__ import annotations

import math
import struct

import torch
from torch import Tensor

from georoutenet.kernels.cuda.compile import Kernel
from georoutenet.model.geometry import BOUNDARY, Neighborhood

WARPS = 8
WIDEST = 32  # a lane for each neighbor
# A warp's distances and slots in shared memory: less of it for few cities, so that more warps run at a time.
NEAREST = {
    cities: Kernel("nearest.cu", "nearest", warps=WARPS, shared=WARPS * 6 * cities) for cities in (128, 1024)
}
CITIES = max(NEAREST)  # at most


def slots_reference(index: Tensor, mask: Tensor) -> Tensor:
    """At ``[b, i, j]`` the slot ``w`` of city ``j`` in the neighborhood of ``i``, or W if it is in none:
    ``(B, n, pitch)`` in int16, which the attention's backward pass reads in every layer."""
    batch, n, width = index.shape
    pitch = slots_pitch(n)
    slots = torch.full((batch, n, pitch + 1), width, dtype=torch.int16, device=index.device)
    numbers = torch.arange(width, dtype=torch.int16, device=index.device).expand(index.shape)
    return slots.scatter_(2, index.long().where(mask, pitch), numbers)[..., :pitch].contiguous()


def slots_pitch(n: int) -> int:
    """Slots of a city: the next power of two from 16 on, or multiple of 64."""
    size = min(64, max(16, 1 << (n - 1).bit_length()))
    return -(-n // size) * size


def nearest(coords: Tensor, k: int, width: int, reach: float) -> tuple[Tensor, Neighborhood, Tensor]:
    """Distances ``(B, n, n)`` of 2 to `CITIES` cities; ``N_k(i)``, padded to ``width`` (more than k, at most
    32) or all n cities, its index in int32; and slots.

    Distances are cut at ``reach`` if there is one, after the neighborhoods are found.
    """
    batch, n, _ = coords.shape
    k, width, pitch = min(k, n - 1), min(n, width), slots_pitch(n)
    distance = coords.new_empty((batch, n, n))
    index = coords.new_empty((batch, n, width), dtype=torch.int32)
    mask = coords.new_empty((batch, n, width), dtype=torch.bool)
    near = coords.new_empty((batch, n, width))
    slots = coords.new_empty((batch, n, pitch), dtype=torch.int16)
    bits = struct.unpack("ii", struct.pack("ff", reach or math.inf, 1 + BOUNDARY))
    kernel = NEAREST[min(cities for cities in NEAREST if n <= cities)]
    kernel(
        coords.contiguous(), distance, index, mask, near, slots, batch * n, n, k, width, pitch, *bits,
        blocks=-(-batch * n // WARPS),
    )  # fmt: skip
    return distance, Neighborhood(index, mask, near), slots
