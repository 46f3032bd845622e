"""Both ends of the edge tower in CUDA C++ (`edge_ends.cu`): bfloat16 states of 128 features, 16 bases.

They compute what the Triton kernels of `edge_ends_triton` compute. The head's backward pass does not repeat
its forward pass: that one keeps a bit for each hidden unit, whether it is on.
"""

from __future__ import annotations

import torch
from torch import Tensor

from georoutenet.model import native
from georoutenet.model.native import MATRIX, TILE, WIDTH, Kernel

BASES = 16
ROWS = 4 * TILE  # bytes of the 64 rows that a group of four warps takes at a time
EMBEDDING_SHARE = WIDTH * (WIDTH + BASES + 2) + BASES + 8  # numbers of a block's share of the gradients
LOGIT_SHARE = (WIDTH + 1) * WIDTH

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


def embedding_fits(states: Tensor, bases: int) -> bool:
    """Whether the embedding's kernels give such states from so many bases."""
    return bases == BASES and native.fits(states, EMBEDDING_FORWARD, EMBEDDING_BACKWARD)


def logit_fits(states: Tensor) -> bool:
    """Whether the head's kernels take these states."""
    return native.fits(states, LOGIT_FORWARD, LOGIT_BACKWARD)


def embedding_forward(inputs: tuple[Tensor, ...], out: Tensor) -> None:
    """Fill in the states. Inputs: distance, centers, bandwidth, weight1, bias1, weight2, bias2."""
    EMBEDDING_FORWARD(*inputs, out, inputs[0].numel())


def embedding_backward(saved: tuple[Tensor, ...], grad: Tensor) -> tuple[Tensor, ...]:
    """Gradients of centers, bandwidth, weight1, bias1, weight2, bias2. Saved: the inputs but bias2."""
    shares = saved[1].new_empty((EMBEDDING_BACKWARD.count(saved), EMBEDDING_SHARE))
    EMBEDDING_BACKWARD(*saved, grad, shares, saved[0].numel())
    return embedding_gradients(shares, saved[2])


def embedding_gradients(shares: Tensor, bandwidth: Tensor) -> tuple[Tensor, ...]:
    """The gradients of `embedding_backward` from all blocks' shares."""
    sizes = [WIDTH * WIDTH, BASES * WIDTH, WIDTH, WIDTH, BASES, 8]
    weight2, weight1, bias1, bias2, centers, widths = shares.sum(0).split(sizes)
    of_bandwidth = widths.sum().view_as(bandwidth)
    return centers, of_bandwidth, weight1.view(BASES, WIDTH).t(), bias1, weight2.view(WIDTH, WIDTH), bias2


def logit_forward(inputs: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """Logits, and of each pair the bits of its hidden units. Inputs: e, weight, bias, last, offset."""
    e, *_, last, _ = inputs
    out = last.new_empty(e.shape[:-1])
    on = e.new_empty((out.numel(), WIDTH // 32), dtype=torch.int32)
    LOGIT_FORWARD(*inputs, out, on, out.numel())
    return out, on


def logit_backward(saved: tuple[Tensor, ...], grad: Tensor) -> tuple[Tensor, ...]:
    """Gradients of e, weight, bias and last. Saved: e, weight, bias, last, and the bits."""
    e, weight, bias, last, on = saved
    de = torch.empty_like(e)
    shares = last.new_empty((LOGIT_BACKWARD.count(saved), LOGIT_SHARE))
    LOGIT_BACKWARD(e, weight, last, on, grad, de, shares, grad.numel())
    return de, *logit_gradients(shares, weight, bias, last)


def logit_gradients(shares: Tensor, weight: Tensor, bias: Tensor, last: Tensor) -> tuple[Tensor, ...]:
    """Gradients of weight, bias and last from all blocks' shares of c^T e and of c.

    A hidden unit that is on is ``weight e + bias``, so c's sums give the gradient of ``last`` too.
    """
    sums = shares.sum(0).view(WIDTH + 1, WIDTH)
    product, count = sums[:-1], sums[-1]
    of_last = torch.addcmul((weight * product).sum(1), bias, count)
    return last.unsqueeze(1) * product, last * count, of_last
