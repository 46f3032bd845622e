"""The start attention of a layer: one query over all nodes, fused.

    a_h = softmax_j <W_k^T q, x_j>_h,    s' = LayerNorm(s + W_o W_v sum_j a_j x_j),    q = W_q s
    start distribution = mean_h a_h

in the form of `georoutenet.model.layers.StartAttention`, biases left out here. The kernels are in
`cuda.start_attention`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from georoutenet.kernels.cuda import start_attention as cuda

if TYPE_CHECKING:
    from georoutenet.model.georoutenet import Layer
    from georoutenet.model.layers import Linear


def start_state_reference(s: Tensor, x: Tensor, layer: Layer) -> Tensor:
    """The start state ``(B, d)`` after attending to the nodes ``(B, n, d)``."""
    return layer.start(s, x)


def start_distribution_reference(s: Tensor, x: Tensor, layer: Layer) -> Tensor:
    """Logarithms of the head-averaged weights, ``(B, n)``."""
    return layer.start_attention.distribution(s, x)


def _maps(layer: Layer) -> list[Linear]:
    attention = layer.start_attention
    return [attention.query, attention.key, attention.value, attention.output]


@torch.no_grad()
def bf16_weights(layers: Sequence[Layer]) -> list[list[Tensor]]:
    """For each layer bf16 copies of the weights of query, key, value and output, all made in one go. The
    kernels read them; gradients go to the stored weights."""
    stored = [part.weight for layer in layers for part in _maps(layer)]
    copies = [torch.empty_like(weight, dtype=torch.bfloat16) for weight in stored]
    torch._foreach_copy_(copies, stored)
    return [copies[first : first + 4] for first in range(0, len(copies), 4)]


def start_state(s: Tensor, x: Tensor, layer: Layer, weights: Sequence[Tensor]) -> Tensor:
    """`start_state_reference` in kernels: ``s`` and ``x`` in bf16, ``weights`` of `bf16_weights`."""
    stored = [tensor for part in _maps(layer) for tensor in (part.weight, part.bias)]
    norm = layer.start_norm
    given = (s.contiguous(), x.contiguous(), *weights, *stored, norm.weight, norm.bias)
    return cast("Tensor", _State.apply(*given))


def start_distribution(s: Tensor, x: Tensor, layer: Layer, weights: Sequence[Tensor]) -> Tensor:
    """`start_distribution_reference` in kernels; the result is fp32."""
    stored = [tensor for part in _maps(layer)[:2] for tensor in (part.weight, part.bias)]
    return cast("Tensor", _Distribution.apply(s.contiguous(), x.contiguous(), *weights[:2], *stored))


class _State(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, s: Tensor, x: Tensor, *given: Tensor) -> Tensor:
        weights = given[:4]
        _, query_bias, _, _, _, value_bias, _, output_bias, gain, offset = given[4:]
        vectors = [v.float() for v in (query_bias, value_bias, output_bias, gain, offset)]
        result, saved = cuda.state_forward(s, x, weights, vectors)
        ctx.save_for_backward(*saved)
        return result

    @staticmethod
    def backward(ctx: Any, of_result: Tensor) -> tuple[Tensor | None, ...]:
        of_s, of_x, *found = cuda.state_backward(ctx.saved_tensors, of_result)
        return of_s, of_x, None, None, None, None, *found


class _Distribution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, s: Tensor, x: Tensor, *given: Tensor) -> Tensor:
        query, key, _, query_bias, _, _ = given
        result, saved = cuda.distribution_forward(s, x, query, key, query_bias.float())
        ctx.save_for_backward(*saved)
        return result

    @staticmethod
    def backward(ctx: Any, of_result: Tensor) -> tuple[Tensor | None, ...]:
        of_s, of_x, *found = cuda.distribution_backward(ctx.saved_tensors, of_result)
        return of_s, of_x, None, None, *found
