"""The neighborhood attention's passes in CUDA C++ (`neighborhood_attention.cu`): bfloat16 states of 128
features, 8 heads, neighborhoods of at most 16.

They compute what the Triton kernels of `neighborhood_attention_triton` compute, one city a warp. The weights
are kept as ``(B, n, 8, 16)``, zero in slots that the neighborhoods do not have.
"""

from __future__ import annotations

import torch
from torch import Tensor

from georoutenet.kernels.cuda import compile as native
from georoutenet.kernels.cuda.compile import TILE, WIDTH, Kernel

HEADS, SLOTS = 8, 16
FILE = "neighborhood_attention.cu"
TURNED = 16 * 160  # bytes in which the averages of a city are turned
# Tiles of edge states, in backward also of their gradients: one in use, one on its way.
FORWARD = Kernel(FILE, "attention_forward", warps=16, shared=16 * 2 * TILE)
CITIES = Kernel(FILE, "attention_cities", warps=13, shared=0)


def _pairs(warps: int) -> Kernel:
    return Kernel(
        FILE, "attention_pairs", warps=warps, shared=warps * (4 * TILE + TURNED) + 2 * HEADS * WIDTH
    )


PAIRS, PAIRS_BEFORE_HOPPER = _pairs(12), _pairs(8)  # as many warps as there is shared memory for


def kernels(device: torch.device) -> tuple[Kernel, Kernel, Kernel]:
    """Those of a device: forward, and backward two."""
    return FORWARD, PAIRS if native.hopper(device) else PAIRS_BEFORE_HOPPER, CITIES


def fits(q: Tensor, k: Tensor, v: Tensor, index: Tensor, heads: int) -> bool:
    """Whether the kernels take these nodes, whose rows they read 16 bytes at a time, and neighborhoods."""
    if heads != HEADS or index.shape[2] > SLOTS or index.dtype not in (torch.int32, torch.int64):
        return False
    if any(x.stride(1) % 8 or x.storage_offset() % 8 for x in (q, k, v)):
        return False
    return native.fits(q, *kernels(q.device))


def forward_pass(inputs: tuple[Tensor, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """Averages of values and edge states, and weights.

    Inputs: q, k, v, e, weight, strength, index, mask, distance.
    """
    q, index = inputs[0], inputs[6]
    batch, n, d = q.shape
    values = q.new_empty((batch, n, d))
    edges = q.new_empty((batch, n, HEADS, d))
    alpha = q.new_empty((batch, n, HEADS, SLOTS))
    FORWARD(*inputs, values, edges, alpha, *_sizes(q, index))
    return values, edges, alpha


def backward_pass(
    saved: tuple[Tensor, ...],
    slots: Tensor,
    dvalues: Tensor,
    dedges: Tensor,
    de: Tensor,
    edges: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k and v, and ``(H + 1, d)``: those of weight and, first in the last row, strength.

    That of e is added to ``de``. The averages of edge states are made again in ``edges``, which may be
    ``dedges``. Saved: q, k, v, e, weight, index, mask, distance, alpha.
    """
    q, index = saved[0], saved[5]
    dq, pairs, partial = pairs_pass(saved, dvalues, dedges, de, edges)
    dk, dv, sums = cities_pass(q, index, slots, dvalues, pairs, partial)
    return dq, dk, dv, sums


def pairs_pass(
    saved: tuple[Tensor, ...], dvalues: Tensor, dedges: Tensor, de: Tensor, edges: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradient of q; weights and gradients of scores ``(B, n, H, 16, 2)``; each block's part of the sums.
    The averages of edge states go to ``edges``, if anybody wants them."""
    q, k, v, e, weight, index, *rest = saved
    batch, n, d = q.shape
    nodes, _, pitch, width, wide = _sizes(q, index)
    if dedges.stride(1) % 8 or dedges.stride(2) % 8:
        dedges = dedges.contiguous()
    if edges is None:
        edges = q.new_empty(dedges.shape)
    assert edges.is_contiguous()
    dq = q.new_empty(q.shape)
    pairs = q.new_empty((batch, n, HEADS, SLOTS, 2))
    kernel = kernels(q.device)[1]
    partial = q.new_empty((kernel.count(saved), HEADS + 1, d), dtype=torch.float32)
    strides = (dedges.stride(1) // 8, dedges.stride(2) // 8)
    outputs = (de, edges, pairs, dq, partial)
    kernel(k, v, e, weight, index, *rest, dvalues, dedges, *outputs, nodes, n, pitch, *strides, width, wide)
    return dq, pairs, partial


def cities_pass(
    q: Tensor, index: Tensor, slots: Tensor, dvalues: Tensor, pairs: Tensor, partial: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of k and v, and the sums."""
    dk, dv = q.new_empty(q.shape), q.new_empty(q.shape)
    sums = torch.empty_like(partial[0])
    nodes, n, pitch, width, _ = _sizes(q, index)
    sizes = (nodes, n, pitch, width, slots.shape[2], partial.shape[0])
    jobs = HEADS + 1 + nodes // n * -(-n // 64)  # rows of sums, and 64 cities at a time
    CITIES(q, dvalues, slots, pairs, partial, dk, dv, sums, *sizes, blocks=jobs)
    return dk, dv, sums


def _sizes(q: Tensor, index: Tensor) -> tuple[int, ...]:
    """Nodes, cities, 16-byte pieces from one node's row to the next, width, whether an index is two words."""
    batch, n, _ = q.shape
    return batch * n, n, q.stride(1) // 8, index.shape[2], int(index.dtype == torch.int64)
