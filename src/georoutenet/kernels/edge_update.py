"""Eqs. edge_proposal and edge_update of m sources with n targets, fused: states are read and written once.

    u_ij = W e_ij + s_i + t_j,    out_ij = LayerNorm(e_ij + SiLU(u_ij))

The bias of the proposal is part of ``t``. The backward pass recomputes ``u`` instead of storing it. The last
update, with the head behind it, is `georoutenet.kernels.edge_ends.edge_update_logit`. The kernels are in
`cuda.edge_update`.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional

from georoutenet.kernels.cuda import edge_update as cuda


def edge_update_reference(
    e: Tensor, source: Tensor, target: Tensor, weight: Tensor, gamma: Tensor, beta: Tensor
) -> Tensor:
    """``e (B, m, n, d)``, ``source (B, m, d)``, ``target (B, n, d)``, ``weight (d, d)``, others ``(d,)``."""
    proposal = functional.linear(e, weight.to(e.dtype)) + source.unsqueeze(2) + target.unsqueeze(1)
    return functional.layer_norm(e + functional.silu(proposal), gamma.shape, gamma, beta)


class _EdgeUpdate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        e, source, target, weight, gamma, beta, ctx.in_place, ctx.hopper = inputs
        weight = weight.to(e.dtype)
        out, scales, shifts = cuda.forward((e, source, target, weight, gamma, beta), hopper=ctx.hopper)
        ctx.save_for_backward(e, source, target, weight, gamma, scales, shifts)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        grad = grad.contiguous()
        de = grad if ctx.in_place else torch.empty_like(grad)
        return *gradients(ctx.saved_tensors, grad, de, hopper=ctx.hopper), None, None


def gradients(saved: tuple[Tensor, ...], grad: Tensor, de: Tensor, *, hopper: bool) -> tuple[Tensor, ...]:
    """Gradients of e, source, target, weight, gamma, beta; the first is written to ``de``, which may be
    ``grad``. Saved: e, source, target, weight, gamma, scales, shifts."""
    ds, dt, dw, (dgamma, dbeta) = cuda.backward(saved, grad, de, hopper=hopper)
    return de, ds, dt, dw, dgamma, dbeta


def edge_update(
    e: Tensor,
    source: Tensor,
    target: Tensor,
    weight: Tensor,
    gamma: Tensor,
    beta: Tensor,
    *,
    in_place: bool = False,
    hopper: bool,
) -> Tensor:
    """The fused update; arguments as `edge_update_reference`, contiguous. States and projections are bf16
    with ``d = 128``, the parameters fp32.

    With ``in_place`` backward may write the gradient of ``e`` over the one of the result, where nothing else
    reads that. ``hopper`` says which build of the kernels runs.
    """
    return cast("Tensor", _EdgeUpdate.apply(e, source, target, weight, gamma, beta, in_place, hopper))
