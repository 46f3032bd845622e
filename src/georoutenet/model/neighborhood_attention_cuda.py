"""The neighborhood attention's passes in CUDA C++ (`neighborhood_attention.cu`): bfloat16 states of 128 features,
8 heads, neighborhoods of at most 16.

They compute what the Triton kernels of `neighborhood_attention_triton` compute, one city a warp. The weights are
kept as ``(B, n, 8, 16)``, zero in slots that the neighborhoods do not have.
"""

from __future__ import annotations

import torch
from torch import Tensor

from georoutenet.model import native
from georoutenet.model.native import TILE, Kernel

HEADS, SLOTS = 8, 16
FILE = "neighborhood_attention.cu"
FORWARD = Kernel(FILE, "attention_forward", warps=16, shared=16 * 2 * TILE)


def fits(q: Tensor, index: Tensor, heads: int) -> bool:
    """Whether the kernels take these queries (keys and values lie like them) and neighborhoods."""
    if heads != HEADS or index.shape[2] > SLOTS or index.dtype not in (torch.int32, torch.int64):
        return False
    return q.stride(1) % 8 == 0 and native.fits(q, FORWARD)


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


def _sizes(q: Tensor, index: Tensor) -> tuple[int, ...]:
    """Nodes, cities, 16-byte pieces from a node's row to the next, width, and whether indices take two words."""
    batch, n, _ = q.shape
    return batch * n, n, q.stride(1) // 8, index.shape[2], int(index.dtype == torch.int64)
