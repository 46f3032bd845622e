"""What follows the attention at the nodes in CUDA C++, one kernel a layer and pass (`node_layer.cu`).

A warp takes 16 rows through all of a layer in registers while the weights pass through shared memory, in the
order of `cuda.node_weights`. The parameters' gradients are sums over rows of what both kernels leave
(`cuda.node_gradients`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from georoutenet.kernels.cuda.compile import MATRIX, WIDTH, Kernel
from georoutenet.kernels.cuda.neighborhood_attention import HEADS

VECTORS = 14 * WIDTH
KEPT = 6  # vectors of a node that the backward pass wants
PAST = 6  # states of a node that a layer may look back on
HOPPER_WARPS = 4  # two blocks fit on a multiprocessor


def _kernel(name: str, warps: int, matrices: int, floats: int) -> Kernel:
    """A kernel with matrices and other numbers in shared memory."""
    shared = MATRIX * matrices + 4 * floats
    return Kernel("node_layer.cu", name, warps=warps, shared=shared, wgmma=warps == HOPPER_WARPS)


# By warps. Before Hopper few rows a block for small batches, so that all multiprocessors have work.
FORWARD = {warps: _kernel("node_forward", warps, 3, VECTORS) for warps in (2, HOPPER_WARPS, 8)}
# Each warp has its sums for the norms, and half of its gates and values.
BACKWARD = {
    warps: _kernel("node_backward", warps, 2, 4 * WIDTH + 20 * WIDTH * warps)
    for warps in (2, HOPPER_WARPS, 8)
}


def kernels(*, hopper: bool) -> list[Kernel]:
    """All that a GPU needs."""
    return [by_warps[w] for by_warps in (FORWARD, BACKWARD) for w in ((HOPPER_WARPS,) if hopper else (2, 8))]


def _warps(rows: int, device: torch.device, *, hopper: bool) -> int:
    if hopper:
        return HOPPER_WARPS
    count = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
    return 8 if rows > 64 * count else 2


class Kept(NamedTuple):
    """What the forward pass leaves for the backward pass."""

    vectors: Tensor  # (6, rows, d): message, node, query, ..., and fifth what the first norm gave
    gates: Tensor  # (rows, 4 d); the backward pass writes over them
    shares: Tensor  # (rows, 8), of the residual attention
    scales: Tensor  # (rows, 2), of both norms


def forward(
    values: Tensor, edges: Tensor, history: Sequence[Tensor], weights: Tensor, vectors: Tensor,
    *, is_last: bool, hopper: bool,
) -> tuple[Tensor, Tensor, Kept]:  # fmt: skip
    """The new states ``(B, n, d)``, their two or five maps ``(maps, B, n, d)``, and what is kept.

    ``history`` are the states that the layer looks back on, ``weights`` and ``vectors`` those of the layer.
    """
    rows, outputs = values.shape[0] * values.shape[1], 2 if is_last else 5
    kept = Kept(
        values.new_empty((KEPT, rows, WIDTH)),
        values.new_empty((rows, 4 * WIDTH)),
        values.new_empty((rows, 8), dtype=torch.float32),
        values.new_empty((rows, 2), dtype=torch.float32),
    )
    state, maps = torch.empty_like(values), values.new_empty((outputs, *values.shape))
    warps = _warps(rows, values.device, hopper=hopper)
    FORWARD[warps](
        values, edges, *_padded(history), weights, vectors, *kept, state, maps, len(history), outputs, rows,
        blocks=-(-rows // (16 * warps)),
    )  # fmt: skip
    return state, maps, kept


class Left(NamedTuple):
    """What the backward pass leaves: gradients of the attention's averages, and rows to be added up."""

    gradients: Tensor  # (rows, 8 d): gate 2 d, value 2 d, output d, and of attention 3 d
    products: Tensor  # (rows, 2 d), the gated values
    of_values: Tensor  # (B, n, d)
    of_edges: Tensor  # (B, n, H, d)
    of_norms: Tensor  # (blocks, 4, d) in fp32


def backward(
    kept: Kept, history: Sequence[Tensor], weights: Tensor, vectors: Tensor, of_outputs: Sequence[Tensor],
    of_history: Tensor, *, is_last: bool, hopper: bool,
) -> Left:  # fmt: skip
    """From the gradients of the new states and their maps, contiguous. Those of the states that the layer
    looked back on are added up in ``of_history (layers, B, n, d)``; the last layer, whose pass is the first,
    begins with zeros."""
    state, outputs = of_outputs[0], len(of_outputs) - 1
    rows = state.shape[0] * state.shape[1]
    warps = _warps(rows, state.device, hopper=hopper)
    blocks = -(-rows // (16 * warps))
    left = Left(
        state.new_empty((rows, 8 * WIDTH)),
        state.new_empty((rows, 2 * WIDTH)),
        torch.empty_like(state),
        state.new_empty((*state.shape[:2], HEADS, WIDTH)),
        state.new_empty((blocks, 4, WIDTH), dtype=torch.float32),
    )
    BACKWARD[warps](
        *_padded(history), weights, vectors, *kept, *of_outputs, *[state] * (5 - outputs), of_history, *left,
        len(history), outputs, int(is_last), rows, blocks=blocks,
    )  # fmt: skip
    return left


def _padded(history: Sequence[Tensor]) -> list[Tensor]:
    return [*history, *[history[0]] * (PAST - len(history))]
