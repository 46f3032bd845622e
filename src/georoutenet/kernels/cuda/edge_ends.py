"""Both ends of the edge tower in CUDA C++: bfloat16 states of 128 features, 16 bases.

The forward passes and the last sums of the backward ones are in `edge_ends.cu`, the backward passes in
`edge_ends_hopper.cu` or, for other GPUs, in `edge_ends_backward.cu`. They compute what the
Triton kernels of `edge_ends_triton` compute. The head's backward pass does not repeat its forward pass: that
one keeps a bit for each hidden unit, whether it is on.
"""

from __future__ import annotations

import torch
from torch import Tensor

from georoutenet.kernels.cuda import compile as native
from georoutenet.kernels.cuda.compile import MATRIX, TILE, WIDTH, Kernel

BASES = 16
ROWS = 4 * TILE  # bytes of the 64 rows that a group of four warps takes at a time
# Numbers of a block's share of the gradients, and rows into which they are divided to be added up.
EMBEDDING_SHARE, EMBEDDING_TOTALS_ROWS = WIDTH * (WIDTH + BASES + 2) + BASES + 8, WIDTH + BASES + 3
LOGIT_SHARE, LOGIT_TOTALS_ROWS = (WIDTH + 1) * WIDTH + 4, WIDTH + 1

NARROW = MATRIX // 8  # bytes of a matrix of 16 ins
EMBEDDING_FORWARD = Kernel(
    "edge_ends.cu", "embedding_forward", warps=16, shared=MATRIX + 3 * NARROW, groups=True
)
EMBEDDING_BACKWARD = Kernel(
    "edge_ends_backward.cu", "embedding_backward", warps=8, shared=MATRIX + 2 * 2 * ROWS
)
LOGIT_FORWARD = Kernel(
    "edge_ends.cu", "logit_forward", warps=16, shared=MATRIX + NARROW + 16 * TILE, groups=True
)
LOGIT_BACKWARD = Kernel("edge_ends_backward.cu", "logit_backward", warps=8, shared=MATRIX + 2 * 4 * ROWS)
# On Hopper 128 rows at a time: 16 pieces of 16 bytes each, or more of them where rows are added up.
PIECE = (128 + 2) * 16
EMBEDDING_BACKWARD_HOPPER = Kernel(
    "edge_ends_hopper.cu",
    "embedding_backward",
    warps=16,
    shared=MATRIX + 2 * NARROW + (3 * 16 + 17 + 16 + 7) * PIECE,
    groups=True,
)
LOGIT_BACKWARD_HOPPER = Kernel(
    "edge_ends_hopper.cu",
    "logit_backward",
    warps=16,
    shared=MATRIX + (3 * 17 + 2 * 16) * PIECE,
    groups=True,
)
EMBEDDING_TOTALS = Kernel("edge_ends.cu", "embedding_totals", warps=16, shared=0)
LOGIT_TOTALS = Kernel("edge_ends.cu", "logit_totals", warps=16, shared=0)


def embedding_fits(states: Tensor, bases: int) -> bool:
    """Whether the embedding's kernels give such states from so many bases."""
    kernels = EMBEDDING_FORWARD, embedding_backward_kernel(states.device), EMBEDDING_TOTALS
    return bases == BASES and native.fits(states, *kernels)


def embedding_backward_kernel(device: torch.device) -> Kernel:
    """The one for this device."""
    return EMBEDDING_BACKWARD_HOPPER if native.hopper(device) else EMBEDDING_BACKWARD


def logit_fits(states: Tensor) -> bool:
    """Whether the head's kernels take these states."""
    return native.fits(states, LOGIT_FORWARD, logit_backward_kernel(states.device), LOGIT_TOTALS)


def logit_backward_kernel(device: torch.device) -> Kernel:
    """The one for this device."""
    return LOGIT_BACKWARD_HOPPER if native.hopper(device) else LOGIT_BACKWARD


def embedding_forward(inputs: tuple[Tensor, ...], out: Tensor) -> None:
    """Fill in the states. Inputs: distance, centers, bandwidth, weight1, bias1, weight2, bias2."""
    EMBEDDING_FORWARD(*inputs, out, inputs[0].numel())


def embedding_backward(saved: tuple[Tensor, ...], grad: Tensor) -> list[Tensor]:
    """Gradients of centers, bandwidth, weight1, bias1, weight2, bias2. Saved: the inputs but bias2."""
    kernel = embedding_backward_kernel(grad.device)
    blocks = kernel.count(saved)
    shares = saved[1].new_empty((blocks, EMBEDDING_SHARE))
    kernel(*saved, grad, shares, saved[0].numel())
    gradients = embedding_gradients(saved[2])
    EMBEDDING_TOTALS(shares, *gradients, blocks, blocks=EMBEDDING_TOTALS_ROWS)
    return gradients


def embedding_gradients(bandwidth: Tensor) -> list[Tensor]:
    """Where the gradients of `embedding_backward` go."""
    shapes = (BASES,), bandwidth.shape, (WIDTH, BASES), (WIDTH,), (WIDTH, WIDTH), (WIDTH,)
    return [bandwidth.new_empty(shape) for shape in shapes]


def logit_forward(inputs: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """Logits, and of each pair the bits of its hidden units. Inputs: e, weight, bias, last, offset."""
    out, on = logit_outputs(inputs[0])
    LOGIT_FORWARD(*inputs, out, on, out.numel())
    return out, on


def logit_outputs(e: Tensor) -> tuple[Tensor, Tensor]:
    """Where the logits and bits of these states go."""
    out = e.new_empty(e.shape[:-1], dtype=torch.float32)
    return out, e.new_empty((out.numel(), WIDTH // 32), dtype=torch.int32)


def logit_backward(saved: tuple[Tensor, ...], grad: Tensor, de: Tensor) -> tuple[Tensor, ...]:
    """Gradients of e, weight, bias, last and offset. Saved: e, weight, bias, last, and the bits.

    The first is written to ``de``, which may be ``e``: a tile's states are in shared memory before.
    """
    e, weight, bias, last, on = saved
    kernel = logit_backward_kernel(e.device)
    blocks = kernel.count(saved)
    shares = last.new_empty((blocks, LOGIT_SHARE))
    kernel(e, weight, last, on, grad, de, shares, grad.numel())
    gradients = logit_gradients(last)
    LOGIT_TOTALS(shares, weight, bias, last, *gradients, blocks, blocks=LOGIT_TOTALS_ROWS)
    return de, *gradients


def logit_gradients(last: Tensor) -> list[Tensor]:
    """Where the gradients of weight, bias, last and offset go."""
    return [last.new_empty(shape) for shape in ((WIDTH, WIDTH), (WIDTH,), (WIDTH,), (1,))]
