"""NAR4TSP's start attention in CUDA C++: GeoRouteNet's kernels (`start_attention_cuda`) without the norm.

The norm takes its statistics over the batch, so it stays outside. The encoder is compiled as a whole; these
are operators that the compiler calls as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from georoutenet.model import start_attention_cuda
from georoutenet.model.config import PolicyConfig
from georoutenet.model.layers import Linear, StartAttention
from georoutenet.model.native import WIDTH, product_over_rows
from georoutenet.model.start_attention_cuda import HEADS


@torch.compiler.assume_constant_result
def fits(hidden: int, heads: int, device: str, dtype: torch.dtype) -> bool:
    """Whether the kernels take such a model and states; a compiler asks while it traces the encoder."""
    states = torch.empty((0, hidden), device=device, dtype=dtype)
    return start_attention_cuda.fits(PolicyConfig(hidden=hidden, heads=heads), states)


def maps(attention: StartAttention) -> tuple[Linear, Linear, Linear, Linear]:
    return attention.query, attention.key, attention.value, attention.output


def start_sum(s: Tensor, x: Tensor, attention: StartAttention, weights: Sequence[Tensor]) -> Tensor:
    """``s + attention(s, x)`` in float32, of states ``(B, d)`` and nodes ``(B, n, d)``; ``weights`` are those
    of `maps` in the precision of ``x``, whose gradients go to the stored ones."""
    return state(s, x, *weights, *_stored(*maps(attention)))[0]


def start_distribution(s: Tensor, x: Tensor, attention: StartAttention, weights: Sequence[Tensor]) -> Tensor:
    """`StartAttention.distribution`; arguments as `start_sum`."""
    return distribution(s, x, *weights[:2], *_stored(*maps(attention)[:2]))[0]


def _stored(*maps: Linear) -> list[Tensor]:
    return [tensor for part in maps for tensor in (part.weight, part.bias)]


def _kept(s: Tensor, x: Tensor) -> dict[str, Tensor]:
    """What a forward pass leaves for the backward pass."""
    batch, d = s.shape
    return {
        "folded": x.new_empty((batch, HEADS, d)),
        "coefficients": x.new_empty((batch, 2 * HEADS, d // HEADS)),
        "levels": x.new_empty((batch, HEADS), dtype=torch.float32),
    }


def _blocks(x: Tensor) -> int:
    return -(-len(x) // 2)


def _over_instances(left: Tensor, right: Tensor) -> Tensor:
    """``left[:, k]^T right[:, k]`` for each k, one below the other."""
    return product_over_rows(left.transpose(0, 1), right.transpose(0, 1)).flatten(0, 1)


@torch.library.custom_op("georoutenet::nar4tsp_start_state", mutates_args=())
def state(
    s: Tensor, x: Tensor, query: Tensor, key: Tensor, value: Tensor, output: Tensor,
    query_weight: Tensor, query_bias: Tensor, key_weight: Tensor, key_bias: Tensor,
    value_weight: Tensor, value_bias: Tensor, output_weight: Tensor, output_bias: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The sum before the norm, and for the backward pass what `_kept` names, what the heads pooled, and the
    values and ``s``."""
    s, x = s.contiguous(), x.contiguous()
    batch, n, d = x.shape
    folded, coefficients, levels = _kept(s, x).values()
    features, inner = x.new_empty((batch, 2 * HEADS, d)), x.new_empty((batch, 2, d))
    result, none = x.new_empty((batch, d), dtype=torch.float32), x.new_empty(0)
    start_attention_cuda.STATE(
        s, x, query, key, value, output, query_bias, value_bias, output_bias, none, none,
        folded, coefficients, features, inner, levels, result, none, n, batch, blocks=_blocks(x),
    )  # fmt: skip
    return result, folded, coefficients, levels, features, inner


@torch.library.custom_op("georoutenet::nar4tsp_start_state_backward", mutates_args=())
def state_backward(
    grad: Tensor, x: Tensor, query: Tensor, key: Tensor, value: Tensor, output: Tensor,
    folded: Tensor, coefficients: Tensor, levels: Tensor, features: Tensor, inner: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of ``s`` and ``x``; of the weights of output and query, of value, and of key; of the biases
    of output, value and query."""
    x, grad = x.contiguous(), grad.contiguous()
    batch, n, d = x.shape
    outer, of_x, of_s = torch.empty_like(inner), torch.empty_like(x), torch.empty_like(grad)
    of_values, of_folded = torch.empty_like(coefficients), torch.empty_like(features)  # half of each
    sums, none = x.new_empty((batch, 5, d), dtype=torch.float32), x.new_empty(0)
    start_attention_cuda.STATE_BACKWARD(
        x, query, key, value, output, none, folded, levels, none, grad, of_values, of_folded, outer, sums,
        of_x, of_s, n, batch, blocks=_blocks(x),
    )  # fmt: skip
    of_both = _over_instances(outer, inner)
    of_value = _over_instances(of_values[:, :HEADS], features[:, :HEADS])
    of_key = _over_instances(coefficients[:, HEADS:], of_folded[:, HEADS:])
    return of_s, of_x, of_both, of_value, of_key, sums[:, 2:].sum(0)


@torch.library.custom_op("georoutenet::nar4tsp_start_distribution", mutates_args=())
def distribution(
    s: Tensor, x: Tensor, query: Tensor, key: Tensor,
    query_weight: Tensor, query_bias: Tensor, key_weight: Tensor, key_bias: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Logarithms of the head-averaged weights ``(B, n)``, and what `_kept` names."""
    s, x = s.contiguous(), x.contiguous()
    batch, n, _ = x.shape
    folded, coefficients, levels = _kept(s, x).values()
    result = x.new_empty((batch, n), dtype=torch.float32)
    start_attention_cuda.DISTRIBUTION(
        s, x, query, key, query_bias, folded, coefficients, levels, result, n, batch, blocks=_blocks(x)
    )
    return result, folded, coefficients, levels


@torch.library.custom_op("georoutenet::nar4tsp_start_distribution_backward", mutates_args=())
def distribution_backward(
    grad: Tensor, s: Tensor, x: Tensor, query: Tensor, key: Tensor,
    result: Tensor, folded: Tensor, coefficients: Tensor, levels: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of ``s`` and ``x``, of the two weights, and of the query's bias."""
    s, x, grad = s.contiguous(), x.contiguous(), grad.contiguous()
    batch, n, d = x.shape
    of_folded, outer = x.new_empty((batch, 2 * HEADS, d)), x.new_empty((batch, 2, d))  # half of each
    sums = x.new_empty((batch, 5, d), dtype=torch.float32)
    of_x, of_s = torch.empty_like(x), torch.empty_like(s)
    start_attention_cuda.DISTRIBUTION_BACKWARD(
        x, query, key, folded, levels, result, grad, of_folded, outer, sums, of_x, of_s, n, batch,
        blocks=_blocks(x),
    )  # fmt: skip
    of_query = _over_instances(outer[:, 1:], s.unsqueeze(1))
    of_key = _over_instances(coefficients[:, HEADS:], of_folded[:, HEADS:])
    return of_s, of_x, of_query, of_key, sums[:, 4].sum(0)


@state.register_fake
def _(s: Tensor, x: Tensor, *_: Tensor) -> Any:
    batch, d = s.shape
    result = x.new_empty((batch, d), dtype=torch.float32)
    return result, *_kept(s, x).values(), x.new_empty((batch, 2 * HEADS, d)), x.new_empty((batch, 2, d))


@state_backward.register_fake
def _(grad: Tensor, x: Tensor, *_: Tensor) -> Any:
    sizes = (2 * WIDTH, WIDTH), (WIDTH, WIDTH), (WIDTH, WIDTH), (3, WIDTH)
    maps = [x.new_empty(size, dtype=torch.float32) for size in sizes]
    return grad.new_empty(grad.shape), x.new_empty(x.shape), *maps


@distribution.register_fake
def _(s: Tensor, x: Tensor, *_: Tensor) -> Any:
    return x.new_empty(x.shape[:2], dtype=torch.float32), *_kept(s, x).values()


@distribution_backward.register_fake
def _(grad: Tensor, s: Tensor, x: Tensor, *_: Tensor) -> Any:
    weights = [x.new_empty((WIDTH, WIDTH), dtype=torch.float32) for _ in range(2)]
    return s.new_empty(s.shape), x.new_empty(x.shape), *weights, x.new_empty(WIDTH, dtype=torch.float32)


def _setup_state(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs[1:6], *output[1:])
    ctx.set_materialize_grads(False)  # what only the backward pass reads has no gradient


def _state_gradient(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    if grad is None:
        return (None,) * 14
    x = ctx.saved_tensors[0]
    of_s, of_x, both, value, key, biases = torch.ops.georoutenet.nar4tsp_start_state_backward(
        grad.to(x.dtype), *ctx.saved_tensors
    )
    (output, query), (output_bias, value_bias, query_bias) = both.split(WIDTH), biases
    key_bias = torch.zeros_like(query_bias)  # it cancels in the softmax
    maps = (query, query_bias, key, key_bias, value, value_bias, output, output_bias)
    return of_s, of_x, None, None, None, None, *maps


def _setup_distribution(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs[:4], *output)
    ctx.set_materialize_grads(False)


def _distribution_gradient(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    if grad is None:
        return (None,) * 8
    of_s, of_x, query, key, query_bias = torch.ops.georoutenet.nar4tsp_start_distribution_backward(
        grad, *ctx.saved_tensors
    )
    return of_s, of_x, None, None, query, query_bias, key, torch.zeros_like(query_bias)


state.register_autograd(_state_gradient, setup_context=_setup_state)
distribution.register_autograd(_distribution_gradient, setup_context=_setup_distribution)
