"""The last edge update with the head, whose forward pass is one kernel: the last states are not read again.

What it computes, also backward, is `edge_update` followed by `edge_logit`, with the same bits; these two do
it where the kernel does not fit.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from georoutenet.kernels.cuda import edge_ends as edge_ends_cuda
from georoutenet.kernels.cuda import edge_update as edge_update_cuda
from georoutenet.kernels.edge_ends import edge_logit, edge_logit_reference
from georoutenet.kernels.edge_update import backward_pass, edge_update, edge_update_reference

UPDATE = 6  # the first arguments are those of the update, the others the head's but for the states


def edge_last_reference(*inputs: Tensor) -> Tensor:
    """Arguments as `edge_update_reference`, then as `edge_logit_reference` without the states."""
    return edge_logit_reference(edge_update_reference(*inputs[:UPDATE]), *inputs[UPDATE:])


class _EdgeLast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        e, source, target, weight, gamma, beta, hidden, bias, last, offset, ctx.in_place = inputs
        weight, hidden = weight.to(e.dtype), hidden.to(e.dtype)
        out, scales, shifts, logits, on = edge_update_cuda.last_forward_pass(
            (e, source, target, weight, gamma, beta, hidden, bias, last, offset)
        )
        ctx.save_for_backward(e, source, target, weight, gamma, scales, shifts, out, hidden, bias, last, on)
        return logits

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        update, head = saved[:7], saved[7:]
        of_states = head[0] if ctx.in_place else torch.empty_like(head[0])
        of_states, *of_head = edge_ends_cuda.logit_backward(head, grad.contiguous(), of_states)
        return *backward_pass(update, of_states, in_place=True), *of_head, None


def edge_last(*inputs: Tensor, in_place: bool = False) -> Tensor:
    """The last update and the head, fused; arguments as its reference, and as those of `edge_update` and
    `edge_logit`.

    With ``in_place`` backward may write the gradient of the new states over them: for one backward pass.
    """
    if edge_update_cuda.last_fits(inputs[0]):
        return cast("Tensor", _EdgeLast.apply(*inputs, in_place))
    e = edge_update(*inputs[:UPDATE], in_place=in_place)
    return edge_logit(e, *inputs[UPDATE:], in_place=in_place)
