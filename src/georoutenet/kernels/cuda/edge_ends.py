"""Both ends of the edge tower in CUDA C++: bf16 states of 128 features, 16 bases.

The embedding's forward pass and the last sums of both backward passes are in `edge_ends.cu`, the backward
passes in `edge_ends_hopper.cu` or, for other GPUs, in `edge_ends_backward.cu`. The head's forward pass is
part of the last edge update (`cuda.edge_update.logit_forward`); it keeps a bit for each hidden unit, whether
it is on, so the backward pass does not repeat it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from georoutenet.kernels.cuda.compile import MATRIX, TILE, WIDTH, Kernel

BASES = 16
ROWS = 4 * TILE  # bytes of the 64 rows that a group of four warps takes at a time
# Numbers of a block's share of the gradients, and rows into which they are divided to be added up.
EMBEDDING_SHARE, EMBEDDING_TOTALS_ROWS = WIDTH * (WIDTH + BASES + 2) + BASES + 8, WIDTH + BASES + 3
LOGIT_SHARE, LOGIT_TOTALS_ROWS = (WIDTH + 1) * WIDTH + 4, WIDTH + 1

NARROW = MATRIX // 8  # bytes of a matrix of 16 ins
HEAD = MATRIX + NARROW  # bytes of the head's hidden layer
PIECE = (128 + 2) * 16  # bytes: on Hopper 128 rows at a time, 16 pieces each, or more where rows are added up

# By whether the GPU is Hopper.
EMBEDDING_FORWARD = {
    hopper: Kernel("edge_ends.cu", "embedding_forward", warps=16, shared=MATRIX + 3 * NARROW, wgmma=hopper)
    for hopper in (True, False)
}
EMBEDDING_BACKWARD = {
    True: Kernel(
        "edge_ends_hopper.cu", "embedding_backward", warps=16,
        shared=MATRIX + 2 * NARROW + (3 * 16 + 17 + 16 + 7) * PIECE, wgmma=True,
    ),
    False: Kernel("edge_ends_backward.cu", "embedding_backward", warps=8, shared=MATRIX + 2 * 2 * ROWS),
}  # fmt: skip
LOGIT_BACKWARD = {
    True: Kernel(
        "edge_ends_hopper.cu", "logit_backward", warps=16, shared=MATRIX + (3 * 17 + 2 * 16) * PIECE,
        wgmma=True,
    ),
    False: Kernel("edge_ends_backward.cu", "logit_backward", warps=8, shared=MATRIX + 2 * 4 * ROWS),
}  # fmt: skip
EMBEDDING_TOTALS = Kernel("edge_ends.cu", "embedding_totals", warps=16, shared=0)
LOGIT_TOTALS = Kernel("edge_ends.cu", "logit_totals", warps=16, shared=0)


def kernels(*, hopper: bool) -> list[Kernel]:
    """All that a GPU needs."""
    by_gpu = (EMBEDDING_FORWARD, EMBEDDING_BACKWARD, LOGIT_BACKWARD)
    return [*(kernel[hopper] for kernel in by_gpu), EMBEDDING_TOTALS, LOGIT_TOTALS]


def embedding_forward(inputs: tuple[Tensor, ...], *, hopper: bool) -> Tensor:
    """The states. Inputs: distance, centers, bandwidth, weight1, bias1, weight2, bias2."""
    distance, weight1 = inputs[0], inputs[3]
    out = weight1.new_empty((*distance.shape, WIDTH))
    EMBEDDING_FORWARD[hopper](*inputs, out, distance.numel())
    return out


def embedding_backward(saved: tuple[Tensor, ...], grad: Tensor, *, hopper: bool) -> list[Tensor]:
    """Gradients of centers, bandwidth, weight1, bias1, weight2, bias2. Saved: the inputs but bias2."""
    kernel, bandwidth = EMBEDDING_BACKWARD[hopper], saved[2]
    blocks = kernel.count(saved)
    shares = bandwidth.new_empty((blocks, EMBEDDING_SHARE))
    kernel(*saved, grad, shares, saved[0].numel())
    shapes = (BASES,), bandwidth.shape, (WIDTH, BASES), (WIDTH,), (WIDTH, WIDTH), (WIDTH,)
    gradients = [bandwidth.new_empty(shape) for shape in shapes]
    EMBEDDING_TOTALS(shares, *gradients, blocks, blocks=EMBEDDING_TOTALS_ROWS)
    return gradients


def logit_outputs(e: Tensor) -> tuple[Tensor, Tensor]:
    """Where the logits of these states go, and the bits of the hidden units."""
    out = e.new_empty(e.shape[:-1], dtype=torch.float32)
    return out, e.new_empty((out.numel(), WIDTH // 32), dtype=torch.int32)


def logit_backward(
    saved: tuple[Tensor, ...], grad: Tensor, de: Tensor, *, hopper: bool
) -> tuple[Tensor, ...]:
    """Gradients of e, weight, bias, last and offset. Saved: e, weight, bias, last, and the bits.

    The first is written to ``de``, which may be ``e``: a tile's states are in shared memory before.
    """
    e, weight, bias, last, on = saved
    kernel = LOGIT_BACKWARD[hopper]
    blocks = kernel.count(saved)
    shares = last.new_empty((blocks, LOGIT_SHARE))
    kernel(e, weight, last, on, grad, de, shares, grad.numel())
    gradients = [last.new_empty(shape) for shape in ((WIDTH, WIDTH), (WIDTH,), (WIDTH,), (1,))]
    LOGIT_TOTALS(shares, weight, bias, last, *gradients, blocks, blocks=LOGIT_TOTALS_ROWS)
    return de, *gradients
