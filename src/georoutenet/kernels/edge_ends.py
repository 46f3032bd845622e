"""Both ends of the edge tower, fused: from distances to the first edge states, from the last ones to logits.

    e_ij = W_2 SiLU(W_1 phi(d_ij) + b_1) + b_2,    phi_k(d) = exp(-((d - c_k) / w)^2)
    z_ij = w ReLU(V e'_ij + b) + o                 with e' the last update of `edge_update`

`edge_embedding` is Eqs. rbf and edge_embedding; `edge_update_logit` the last edge update and the two-layer
ReLU head, in one forward kernel, so that the last states are not read again. Nothing between input and output
is stored but the last states and a bit for each hidden unit; the backward passes recompute the rest. The
kernels are in `cuda.edge_ends` and `cuda.edge_update`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional

from georoutenet.kernels.cuda import edge_ends as cuda
from georoutenet.kernels.cuda import edge_update as cuda_update
from georoutenet.kernels.edge_update import edge_update_reference, gradients

UPDATE = 6  # the first arguments of `edge_update_logit` are those of the update, the others the head's


def edge_embedding_reference(
    distance: Tensor,
    centers: Tensor,
    bandwidth: Tensor,
    weight1: Tensor,
    bias1: Tensor,
    weight2: Tensor,
    bias2: Tensor,
    dtype: torch.dtype,
) -> Tensor:
    """``distance (...)``, ``centers (K,)``, ``weight1 (d, K)``, ``weight2 (d, d)`` to states ``(..., d)``."""
    basis = (-(((distance.unsqueeze(-1) - centers) / bandwidth) ** 2)).exp().to(dtype)
    hidden = functional.silu(functional.linear(basis, weight1.to(dtype), bias1.to(dtype)))
    return functional.linear(hidden, weight2.to(dtype), bias2.to(dtype))


def edge_logit_reference(e: Tensor, weight: Tensor, bias: Tensor, last: Tensor, offset: Tensor) -> Tensor:
    """States ``(..., d)`` to logits ``(...)``; the last map is ``last (d,)`` and ``offset (1,)``."""
    hidden = functional.linear(e, weight.to(e.dtype), bias.to(e.dtype)).relu()
    return (hidden.to(last.dtype) * last).sum(-1) + offset


def edge_update_logit_reference(*inputs: Tensor) -> Tensor:
    """Arguments as `edge_update_reference`, then as `edge_logit_reference` without the states."""
    return edge_logit_reference(edge_update_reference(*inputs[:UPDATE]), *inputs[UPDATE:])


class _EdgeEmbedding(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        distance, centers, bandwidth, weight1, bias1, weight2, bias2, ctx.hopper = inputs
        saved = distance, centers, bandwidth, weight1.bfloat16(), bias1, weight2.bfloat16()
        ctx.save_for_backward(*saved)
        return cuda.embedding_forward((*saved, bias2), hopper=ctx.hopper)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        found = cuda.embedding_backward(ctx.saved_tensors, grad.contiguous(), hopper=ctx.hopper)
        return None, *found, None


class _EdgeUpdateLogit(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        *tensors, ctx.in_place, ctx.hopper = inputs
        given = _with_bf16_matrices(tensors)
        e, source, target, weight, gamma, _, hidden, bias, last, _ = given
        out, scales, shifts, logits, on = cuda_update.logit_forward(given, hopper=ctx.hopper)
        ctx.save_for_backward(e, source, target, weight, gamma, scales, shifts, out, hidden, bias, last, on)
        return logits

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        update, head = saved[:7], saved[7:]
        of_states = head[0] if ctx.in_place else torch.empty_like(head[0])
        _, *of_head = cuda.logit_backward(head, grad.contiguous(), of_states, hopper=ctx.hopper)
        return *gradients(update, of_states, of_states, hopper=ctx.hopper), *of_head, None, None


def edge_embedding(
    distance: Tensor,
    centers: Tensor,
    bandwidth: Tensor,
    weight1: Tensor,
    bias1: Tensor,
    weight2: Tensor,
    bias2: Tensor,
    *,
    hopper: bool,
) -> Tensor:
    """The fused embedding; arguments as its reference, all fp32, 16 bases and ``d = 128``. The states are
    bf16. The distance gets no gradient. ``hopper`` says which build of the kernels runs."""
    given = (distance, centers, bandwidth, weight1, bias1, weight2, bias2, hopper)
    return cast("Tensor", _EdgeEmbedding.apply(*given))


def edge_update_logit(*inputs: Tensor, in_place: bool = False, hopper: bool) -> Tensor:
    """The last update and the head, fused; arguments as its reference: states and projections bf16, the
    parameters fp32.

    With ``in_place`` backward may write the gradient of the new states over them: for one backward pass.
    """
    if not torch.is_grad_enabled():
        return cuda_update.logits_alone(_with_bf16_matrices(inputs), hopper=hopper)
    return cast("Tensor", _EdgeUpdateLogit.apply(*inputs, in_place, hopper))


def _with_bf16_matrices(inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The arguments of `edge_update_logit`, both matrices as kernels take them."""
    return tuple(x.to(inputs[0].dtype) if x.dim() == 2 else x for x in inputs)
