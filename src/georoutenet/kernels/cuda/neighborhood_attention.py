"""The neighborhood attention's passes in CUDA C++ (`neighborhood_attention.cu`), one city a warp: bf16 states
of 128 features, 8 heads, neighborhoods of at most 16.

Everything between the rows of a neighborhood and its heads is a small matrix product on the tensor cores,
because a tile of 16 neighbors, 16 features and 8 heads is exactly one of their steps. The weights are kept as
``(B, n, 8, 16)``, zero in slots that the neighborhoods do not have. Backward is two kernels without atomics,
so it repeats bit for bit: one walks along the cities like forward, the other takes the neighborhoods that a
city is in through the slots.
"""

from __future__ import annotations

import torch
from torch import Tensor

from georoutenet.kernels.cuda.compile import TILE, WIDTH, Kernel

HEADS, SLOTS = 8, 16
FILE = "neighborhood_attention.cu"
TRANSPOSED = 16 * 160  # bytes in which the averages of a city are transposed
# Tiles of edge states, in backward also of their gradients: one in use, one on its way.
FORWARD = Kernel(FILE, "attention_forward", warps=16, shared=16 * 2 * TILE)
# By whether the GPU is Hopper: as many warps as there is shared memory for.
PAIRS = {
    hopper: Kernel(
        FILE,
        "attention_pairs",
        warps=warps,
        shared=warps * (4 * TILE + TRANSPOSED) + 2 * HEADS * WIDTH,
    )
    for hopper, warps in ((True, 12), (False, 8))
}
CITIES = Kernel(FILE, "attention_cities", warps=13, shared=0)


def kernels(*, hopper: bool) -> list[Kernel]:
    """All that a GPU needs."""
    return [FORWARD, PAIRS[hopper], CITIES]


def forward(inputs: tuple[Tensor, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """Averages of values and edge states, and weights.

    Inputs: q, k, v, e, weight, strength, index, mask, distance. Rows of q, k and v begin at multiples of 16
    bytes, equally far from each other.
    """
    q, index = inputs[0], inputs[6]
    batch, n, d = q.shape
    values = q.new_empty((batch, n, d))
    edges = q.new_empty((batch, n, HEADS, d))
    alpha = q.new_empty((batch, n, HEADS, SLOTS))
    FORWARD(*inputs, values, edges, alpha, *_sizes(q, index))
    return values, edges, alpha


def backward(
    saved: tuple[Tensor, ...], slots: Tensor, dvalues: Tensor, edges: Tensor, de: Tensor, *, hopper: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k and v, and ``(H + 1, d)``: those of weight and, first in the last row, strength.

    That of e is added to ``de``. ``edges`` are the gradients of the averages of edge states, contiguous; the
    averages themselves are recomputed in their memory. Saved: q, k, v, e, weight, index, mask, distance,
    alpha.
    """
    q, k, v, e, weight, index, *rest = saved
    batch, n, d = q.shape
    nodes, _, pitch, width, is_long = _sizes(q, index)
    assert edges.is_contiguous()
    dq, dk, dv = (q.new_empty(q.shape) for _ in range(3))
    pairs = q.new_empty((batch, n, HEADS, SLOTS, 2))  # weights and gradients of scores
    kernel = PAIRS[hopper]
    partial = q.new_empty((kernel.count(saved), HEADS + 1, d), dtype=torch.float32)  # each block's sums
    strides = (edges.stride(1) // 8, edges.stride(2) // 8)
    kernel(
        k, v, e, weight, index, *rest, dvalues, edges, de, edges, pairs, dq, partial,
        nodes, n, pitch, *strides, width, is_long,
    )  # fmt: skip
    sums = torch.empty_like(partial[0])
    jobs = HEADS + 1 + nodes // n * -(-n // 64)  # rows of sums, and 64 cities at a time
    sizes = (nodes, n, pitch, width, slots.shape[2], len(partial))
    CITIES(q, dvalues, slots, pairs, partial, dk, dv, sums, *sizes, blocks=jobs)
    return dq, dk, dv, sums


def _sizes(q: Tensor, index: Tensor) -> tuple[int, ...]:
    """Nodes, cities, 16-byte pieces from one node's row to the next, width, whether an index is two words."""
    batch, n, _ = q.shape
    return batch * n, n, q.stride(1) // 8, index.shape[2], int(index.dtype == torch.int64)
