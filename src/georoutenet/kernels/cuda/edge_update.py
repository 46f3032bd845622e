"""The edge update's passes over all pairs in CUDA C++ (`edge_update.cu`): bfloat16 states of 128 features.

They compute what the Triton kernels of `edge_update_triton` compute. A warp holds a tile of 16 pairs in the
registers in which the matrix instructions want and deliver it, so nothing is rearranged and no warp waits for
another; or, forward, four warps multiply together (`native.hopper`). On Hopper `edge_backward_cuda` has a
faster backward pass. The last update's forward pass goes on to the head with what it has in registers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from georoutenet.kernels.cuda import compile as native
from georoutenet.kernels.cuda import edge_backward as edge_backward_cuda
from georoutenet.kernels.cuda import edge_ends as edge_ends_cuda
from georoutenet.kernels.cuda.compile import MATRIX, TILE, Kernel
from georoutenet.kernels.cuda.edge_ends import NARROW

# As many warps as the registers of a multiprocessor allow; its shared memory on GPUs before Hopper.
FORWARD = Kernel("edge_update.cu", "update_forward", warps=16, shared=MATRIX + 16 * TILE, groups=True)
FORWARD_ALONE = Kernel("edge_update.cu", "update_forward", warps=12, shared=MATRIX + 12 * TILE)
HEAD = MATRIX + NARROW  # bytes of the head's hidden layer
LAST_FORWARD = Kernel(
    "edge_update.cu", "update_logit_forward", warps=16, shared=FORWARD.shared + HEAD, groups=True
)
LAST_FORWARD_ALONE = Kernel(
    "edge_update.cu", "update_logit_forward", warps=12, shared=FORWARD_ALONE.shared + HEAD
)
BACKWARD = Kernel("edge_update.cu", "update_backward", warps=8, shared=2 * MATRIX + 8 * (5 * TILE // 2))


def _forward_kernel(e: Tensor) -> Kernel:
    return FORWARD if native.hopper(e.device) else FORWARD_ALONE


def fits(e: Tensor) -> bool:
    """Whether the kernels take these states, this backward pass or `edge_backward_cuda`'s."""
    in_one = edge_backward_cuda.fits(e, FORWARD, edge_backward_cuda.GRADIENTS)
    return in_one or native.fits(e, _forward_kernel(e), BACKWARD)


def _last_forward_kernel(e: Tensor) -> Kernel:
    return LAST_FORWARD if native.hopper(e.device) else LAST_FORWARD_ALONE


def last_fits(e: Tensor) -> bool:
    """Whether the kernels of the last update with the head take these states, backward those of each."""
    head = edge_ends_cuda.logit_backward_kernel(e.device), edge_ends_cuda.LOGIT_TOTALS
    return fits(e) and native.fits(e, _last_forward_kernel(e), *head)


def forward_pass(inputs: tuple[Tensor, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """New states, and scale and shift of each pair's norm. Inputs: e, source, target, weight, gamma, beta."""
    e = inputs[0]
    found = _outputs(e)
    _forward_kernel(e)(*inputs, *found, *_sizes(e))
    return found


def last_forward_pass(inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """What `forward_pass` and `edge_ends_cuda.logit_forward` return, of both one after the other.

    Inputs: e, source, target, weight, gamma, beta; the head's weight, bias, last, offset.
    """
    e = inputs[0]
    found = *_outputs(e), *edge_ends_cuda.logit_outputs(e)
    _last_forward_kernel(e)(*inputs, *found, *_sizes(e))
    return found


def _outputs(e: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    scales, shifts = e.new_empty((2, e.shape[:-1].numel()), dtype=torch.float32)
    return torch.empty_like(e), scales, shifts


def _sizes(e: Tensor) -> tuple[int, int, int]:
    """Sources and targets of an instance, and all pairs."""
    batch, m, n, _ = e.shape
    return m, n, batch * m * n


def backward_pass(saved: tuple[Tensor, ...], grad: Tensor, de: Tensor) -> tuple[Tensor, Tensor]:
    """Fill in the gradient of e, which may be where ``grad`` is.

    Returns those of the proposal u, and of gamma and beta ``(parts, 2, d)``, to be added up.
    Saved: e, source, target, weight, gamma, scales, shifts.
    """
    e = saved[0]
    du = torch.empty_like(e)
    norms = e.new_empty((BACKWARD.count(saved), 2, e.shape[-1]), dtype=torch.float32)
    BACKWARD(*saved, grad, de, du, norms, *_sizes(e))
    return du, norms
