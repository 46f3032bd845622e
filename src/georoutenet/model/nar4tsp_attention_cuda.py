"""NAR4TSP's attention in CUDA C++ (`nar4tsp_attention.cu`): bfloat16, 128 features, 8 heads, up to 64 cities.

The passes compute what the Triton kernels of `nar4tsp_attention_triton` compute.
"""

from __future__ import annotations

import torch
from torch import Tensor

from georoutenet.model import native
from georoutenet.model.native import WIDTH, Kernel

HEADS = 8
HALVES = 2  # a block has half of an instance's heads
TABLE = 64 * (WIDTH + 16)  # bytes of the states in shared memory
FILE = "nar4tsp_attention.cu"
# Shared memory for so many cities at most: less of it for few, so that more blocks run at a time.
FORWARD, BACKWARD = (
    {n: Kernel(FILE, name, warps=8, shared=besides + HEADS * n * n) for n in (50, 64)}
    for name, besides in (
        ("nar4tsp_attend", 2 * TABLE + 4 * 1312),
        ("nar4tsp_attend_backward", 2 * TABLE + 4 * 6792),
    )
)


def _of_size(kernels: dict[int, Kernel], n: int) -> Kernel:
    return kernels[min(most for most in kernels if n <= most)]


def fits(g: Tensor, heads: int) -> bool:
    """Whether the kernels take such states ``(B, n, d)``."""
    n = g.shape[1]
    if heads != HEADS or n > max(FORWARD):
        return False
    return native.fits(g, _of_size(FORWARD, n), _of_size(BACKWARD, n))


def forward_pass(
    g: Tensor,
    of_ends: Tensor,
    of_edge: Tensor,
    slope: Tensor,
    constant: Tensor,
    distance: Tensor,
    reach: Tensor,
    h: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Messages, or their sums with ``h``; the weights, negative where the score is; and with ``h``, of each
    instance ``(B, 2, d)`` the sums' means and squared distances from them.

    The ends' shares are by head, ``of_ends (H, 2, d / H)``.
    """
    batch, n, d = g.shape
    message, weights = torch.empty_like(g), g.new_empty((batch, HEADS, n, n))
    parts = of_ends.new_empty((0 if h is None else batch, 2, d))
    kernel = _of_size(FORWARD, n)
    inputs = (g, of_ends, of_edge, slope, constant, distance, reach, g if h is None else h)
    flags = (int(of_edge.numel() == 0), int(h is not None))
    kernel(*inputs, message, weights, parts, n, *flags, blocks=HALVES * batch)
    return message, weights, parts


def backward_pass(
    grad: Tensor,
    g: Tensor,
    of_ends: Tensor,
    weights: Tensor,
    distance: Tensor,
    *,
    is_first: bool,
    norm: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of ``g`` and of the edge's share (empty if ``is_first``), by head ``(B, H, 2 + 2 d / H)``
    those of constant, slope and ends, and that of ``h``.

    With ``norm``, the messages ``y`` and factors ``(3, d)``, the messages' gradient is the sum of factors
    times ``grad``, ``y`` and 1.
    """
    batch, n, _ = g.shape
    y, factors = (grad, of_ends) if norm is None else norm
    of_g, of_h = torch.empty_like(g), grad if norm is None else torch.empty_like(g)
    of_edge = g.new_empty(0) if is_first else torch.empty_like(weights)
    sums = of_ends.new_empty((batch, HEADS, 2 + of_ends[0].numel()))
    kernel = _of_size(BACKWARD, n)
    inputs, outputs = (grad, g, of_ends, weights, distance, y, factors), (of_g, of_h, of_edge, sums)
    kernel(*inputs, *outputs, n, int(is_first), int(norm is not None), blocks=HALVES * batch)
    return of_g, of_edge, sums, of_h
