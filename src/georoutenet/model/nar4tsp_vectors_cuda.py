"""NAR4TSP's small work between its layers in CUDA C++ (`nar4tsp_vectors.cu`), a kernel a time: the batch norm
of the start states, and the edge maps with the norm before them folded in. 128 features."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from georoutenet.model import native
from georoutenet.model.native import WIDTH, Kernel

FILE = "nar4tsp_vectors.cu"
BLOCKS = WIDTH // 32  # a block has 32 features
NORM = Kernel(FILE, "nar4tsp_start_norm", warps=16, shared=16 * 128)
NORM_BACKWARD = Kernel(FILE, "nar4tsp_start_norm_backward", warps=16, shared=16 * 128)
FOLD = Kernel(FILE, "nar4tsp_fold", warps=4, shared=0)
FOLD_BACKWARD = Kernel(FILE, "nar4tsp_fold_backward", warps=32, shared=32 * 128)


@torch.compiler.assume_constant_result
def fits(hidden: int, device: str, dtype: torch.dtype) -> bool:
    """Whether the kernels take such a model and states; a compiler asks while it traces the encoder."""
    states = torch.empty((0, hidden), device=device, dtype=dtype)
    return native.fits(states, NORM, NORM_BACKWARD, FOLD, FOLD_BACKWARD)


def start_norm_reference(x: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
    """Batch normalization of ``x (B, d)`` in float32; the result is in bfloat16."""
    return functional.batch_norm(x, None, None, gamma, beta, training=True)


@torch.library.custom_op("georoutenet::nar4tsp_start_norm", mutates_args=())
def start_norm(x: Tensor, gamma: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """`start_norm_reference`, and for the backward pass mean and 1 / deviation."""
    out, moments = torch.empty_like(x, dtype=torch.bfloat16), x.new_empty((2, x.shape[1]))
    NORM(x.contiguous(), gamma, beta, out, moments, len(x), blocks=BLOCKS)
    return out, moments


@torch.library.custom_op("georoutenet::nar4tsp_start_norm_backward", mutates_args=())
def start_norm_backward(grad: Tensor, x: Tensor, gamma: Tensor, moments: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of ``x``, and ``(2, d)`` of gamma and beta."""
    of_x, gradients = torch.empty_like(x), torch.empty_like(moments)
    NORM_BACKWARD(grad.contiguous(), x, gamma, moments, of_x, gradients, len(x), blocks=BLOCKS)
    return of_x, gradients


def fold_reference(
    weight: Tensor, scale: Tensor, offset: Tensor, constant: Tensor, bias: Tensor, is_half: bool
) -> tuple[Tensor, Tensor]:
    """Weight ``(d, d)`` and bias ``(d,)`` by which a map of ``x scale + offset + constant`` is computed from
    ``x``: the weight in float32 or, if ``is_half``, half of it in bfloat16."""
    folded = weight * scale
    return folded / 2 if is_half else folded, weight @ (offset + constant) + bias


@torch.library.custom_op("georoutenet::nar4tsp_fold", mutates_args=())
def fold(
    weight: Tensor, scale: Tensor, offset: Tensor, constant: Tensor, bias: Tensor, is_half: bool
) -> tuple[Tensor, Tensor]:
    """As `fold_reference`."""
    folded = torch.empty_like(weight, dtype=torch.bfloat16 if is_half else torch.float32)
    out = torch.empty_like(scale)
    inputs = (weight, scale, offset, constant, bias.contiguous())
    FOLD(*inputs, folded, out, int(is_half), blocks=WIDTH // FOLD.warps)
    return folded, out


@torch.library.custom_op("georoutenet::nar4tsp_fold_backward", mutates_args=())
def fold_backward(
    of_folded: Tensor, of_out: Tensor, weight: Tensor, scale: Tensor, offset: Tensor, constant: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of weight, scale, and of both offset and constant."""
    of_weight, of_scale, of_offset = (torch.empty_like(x) for x in (weight, scale, offset))
    inputs = (of_folded.contiguous(), of_out.contiguous(), weight, scale, offset, constant)
    is_half = int(of_folded.dtype == torch.bfloat16)
    FOLD_BACKWARD(*inputs, of_weight, of_scale, of_offset, is_half, blocks=BLOCKS)
    return of_weight, of_scale, of_offset


@start_norm.register_fake
def _(x: Tensor, gamma: Tensor, beta: Tensor) -> Any:
    return x.new_empty(x.shape, dtype=torch.bfloat16), x.new_empty((2, x.shape[1]))


@start_norm_backward.register_fake
def _(grad: Tensor, x: Tensor, gamma: Tensor, moments: Tensor) -> Any:
    return x.new_empty(x.shape), moments.new_empty(moments.shape)


@fold.register_fake
def _(weight: Tensor, scale: Tensor, offset: Tensor, constant: Tensor, bias: Tensor, is_half: bool) -> Any:
    folded = weight.new_empty(weight.shape, dtype=torch.bfloat16 if is_half else torch.float32)
    return folded, scale.new_empty(scale.shape)


@fold_backward.register_fake
def _(of_folded: Tensor, of_out: Tensor, *saved: Tensor) -> Any:
    return tuple(x.new_empty(x.shape) for x in saved[:3])


def _setup_norm(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
    x, gamma, _ = inputs
    ctx.save_for_backward(x, gamma, output[1])
    ctx.set_materialize_grads(False)


def _norm_gradient(ctx: Any, grad: Tensor | None, _: Any) -> tuple[Tensor | None, ...]:
    if grad is None:
        return None, None, None
    of_x, gradients = torch.ops.georoutenet.nar4tsp_start_norm_backward(grad, *ctx.saved_tensors)
    return of_x, gradients[0], gradients[1]


def _setup_fold(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs[:4])


def _fold_gradient(ctx: Any, of_folded: Tensor, of_out: Tensor) -> tuple[Tensor | None, ...]:
    of_weight, of_scale, of_offset = torch.ops.georoutenet.nar4tsp_fold_backward(
        of_folded, of_out, *ctx.saved_tensors
    )
    return of_weight, of_scale, of_offset, of_offset, of_out, None


start_norm.register_autograd(_norm_gradient, setup_context=_setup_norm)
fold.register_autograd(_fold_gradient, setup_context=_setup_fold)
