"""The edge update's passes over all pairs in CUDA C++ (`edge_update.cu`): bfloat16 states of 128 features.

They compute what the Triton kernels of `edge_update_triton` compute. A warp holds a tile of 16 pairs in the
registers in which the matrix instructions want and deliver it, so nothing is rearranged and no warp waits for
another; or, forward, four warps multiply together (`native.hopper`). On Hopper `edge_backward_cuda` has a
faster backward pass.
"""

from __future__ import annotations

import torch
from torch import Tensor

from georoutenet.model import edge_backward_cuda, native
from georoutenet.model.native import MATRIX, TILE, Kernel

# As many warps as the registers of a multiprocessor allow; its shared memory on GPUs before Hopper.
FORWARD = Kernel("edge_update.cu", "update_forward", warps=16, shared=MATRIX + 16 * TILE, groups=True)
FORWARD_ALONE = Kernel("edge_update.cu", "update_forward", warps=12, shared=MATRIX + 12 * TILE)
BACKWARD = Kernel("edge_update.cu", "update_backward", warps=8, shared=2 * MATRIX + 8 * (5 * TILE // 2))


def _forward_kernel(e: Tensor) -> Kernel:
    return FORWARD if native.hopper(e.device) else FORWARD_ALONE


def fits(e: Tensor) -> bool:
    """Whether the kernels take these states, this backward pass or `edge_backward_cuda`'s."""
    in_one = edge_backward_cuda.fits(e, FORWARD, edge_backward_cuda.GRADIENTS)
    return in_one or native.fits(e, _forward_kernel(e), BACKWARD)


def forward_pass(inputs: tuple[Tensor, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """New states, and scale and shift of each pair's norm. Inputs: e, source, target, weight, gamma, beta."""
    e = inputs[0]
    batch, m, n, _ = e.shape
    out = torch.empty_like(e)
    scales, shifts = e.new_empty((2, batch * m * n), dtype=torch.float32)
    _forward_kernel(e)(*inputs, out, scales, shifts, m, n, batch * m * n)
    return out, scales, shifts


def backward_pass(saved: tuple[Tensor, ...], grad: Tensor, de: Tensor) -> tuple[Tensor, Tensor]:
    """Fill in the gradient of e, which may be where ``grad`` is.

    Returns those of the proposal u, and of gamma and beta ``(parts, 2, d)``, to be added up.
    Saved: e, source, target, weight, gamma, scales, shifts.
    """
    e = saved[0]
    batch, m, n, d = e.shape
    du = torch.empty_like(e)
    norms = e.new_empty((BACKWARD.count(saved), 2, d), dtype=torch.float32)
    BACKWARD(*saved, grad, de, du, norms, m, n, batch * m * n)
    return du, norms
