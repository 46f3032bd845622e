"""The start attention of GeoRouteNet in CUDA C++ (`start_attention.cu`): one kernel a layer and pass.

The weights' gradients are matrix products over the instances of what both kernels leave behind. A key's bias
moves all scores of a head alike and cancels in the softmax: its gradient is zero.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from georoutenet.kernels.cuda import compile as native
from georoutenet.kernels.cuda.compile import WIDTH, Kernel, product_over_rows

if TYPE_CHECKING:
    from georoutenet.model.config import PolicyConfig
    from georoutenet.model.georoutenet import Layer
    from georoutenet.model.layers import Linear

HEADS = 8
# Of two instances: heads' rows in bfloat16, sums over the nodes and softmaxes by four warps, vectors by all.
SHARED = 2 * HEADS * (2 * WIDTH + 16 + 4 * (4 * (WIDTH + 2) + 2 * 4 + WIDTH))


def _kernel(name: str) -> Kernel:
    return Kernel("start_attention.cu", name, warps=HEADS, shared=SHARED)


STATE, STATE_BACKWARD = _kernel("start_state"), _kernel("start_state_backward")
DISTRIBUTION = _kernel("start_distribution")
DISTRIBUTION_BACKWARD = _kernel("start_distribution_backward")


def fits(config: PolicyConfig, states: Tensor) -> bool:
    """Whether the kernels take this model and such states."""
    sizes = (config.hidden, config.heads) == (WIDTH, HEADS)
    return sizes and native.fits(states, STATE, STATE_BACKWARD, DISTRIBUTION, DISTRIBUTION_BACKWARD)


def start_state(s: Tensor, x: Tensor, layer: Layer) -> Tensor:
    """`Layer.start`: the start state ``(B, d)`` after attending to the nodes ``(B, n, d)``."""
    attention, norm = layer.start_attention, layer.start_norm
    maps = (attention.query, attention.key, attention.value, attention.output)
    given = (s.contiguous(), x.contiguous(), *_narrow(x, *maps))
    return cast("Tensor", _State.apply(*given, *_stored(*maps), norm.weight, norm.bias))


def start_distribution(s: Tensor, x: Tensor, layer: Layer) -> Tensor:
    """`StartAttention.distribution`: logarithms of the head-averaged weights, ``(B, n)`` in float32."""
    maps = (layer.start_attention.query, layer.start_attention.key)
    given = (s.contiguous(), x.contiguous(), *_narrow(x, *maps))
    return cast("Tensor", _Distribution.apply(*given, *_stored(*maps)))


def _narrow(x: Tensor, *maps: Linear) -> list[Tensor]:
    """The weights that the kernels read; their gradients go to the stored ones."""
    return [part.map(x.dtype)[0].detach() for part in maps]


def _stored(*maps: Linear) -> list[Tensor]:
    return [tensor for part in maps for tensor in (part.weight, part.bias)]


def _for_heads(x: Tensor, features: int) -> Tensor:
    """Room for two vectors of every head and instance: one pass leaves the first, the other the second."""
    return x.new_empty((len(x), 2 * HEADS, features))


def _blocks(x: Tensor) -> int:
    return -(-len(x) // 2)


class _State(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, s: Tensor, x: Tensor, query: Tensor, key: Tensor, value: Tensor, output: Tensor,
        query_weight: Tensor, query_bias: Tensor, key_weight: Tensor, key_bias: Tensor,
        value_weight: Tensor, value_bias: Tensor, output_weight: Tensor, output_bias: Tensor,
        norm_weight: Tensor, norm_bias: Tensor,
    ) -> Tensor:  # fmt: skip
        weights = (query, key, value, output)
        batch, n, _ = x.shape
        vectors = [v.float() for v in (query_bias, value_bias, output_bias, norm_weight, norm_bias)]
        folded = x.new_empty((batch, HEADS, WIDTH))
        coefficients, features = _for_heads(x, WIDTH // HEADS), _for_heads(x, WIDTH)
        inner = x.new_empty((batch, 2, WIDTH))
        levels = x.new_empty((batch, HEADS), dtype=torch.float32)
        before_norm = x.new_empty((batch, WIDTH), dtype=torch.float32)
        result = torch.empty_like(s)
        STATE(
            s, x, *weights, *vectors, folded, coefficients, features, inner, levels, before_norm, result,
            n, batch, blocks=_blocks(x),
        )  # fmt: skip
        ctx.save_for_backward(
            x, *weights, vectors[3], folded, levels, before_norm, coefficients, features, inner
        )
        return result

    @staticmethod
    def backward(ctx: Any, of_result: Tensor) -> tuple[Tensor | None, ...]:
        x, *given, coefficients, features, inner = ctx.saved_tensors
        batch, n, _ = x.shape
        outer, of_x = torch.empty_like(inner), torch.empty_like(x)
        sums = x.new_empty((batch, 5, WIDTH), dtype=torch.float32)
        of_s = torch.empty_like(of_result, memory_format=torch.contiguous_format)
        STATE_BACKWARD(
            x, *given, of_result.contiguous(), coefficients, features, outer, sums, of_x, of_s, n, batch,
            blocks=_blocks(x),
        )  # fmt: skip
        of_output, of_query = _over_instances(outer, inner)
        of_value, of_key = _over_instances(coefficients, features).view(2, WIDTH, WIDTH)
        scale, shift, output_bias, value_bias, query_bias = sums.sum(0)
        key_bias = torch.zeros_like(query_bias)
        maps = (of_query, query_bias, of_key, key_bias, of_value, value_bias, of_output, output_bias)
        return of_s, of_x, None, None, None, None, *maps, scale, shift


class _Distribution(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, s: Tensor, x: Tensor, query: Tensor, key: Tensor,
        query_weight: Tensor, query_bias: Tensor, key_weight: Tensor, key_bias: Tensor,
    ) -> Tensor:  # fmt: skip
        batch, n, _ = x.shape
        folded, coefficients = x.new_empty((batch, HEADS, WIDTH)), _for_heads(x, WIDTH // HEADS)
        levels = x.new_empty((batch, HEADS), dtype=torch.float32)
        result = x.new_empty((batch, n), dtype=torch.float32)
        DISTRIBUTION(
            s, x, query, key, query_bias.float(), folded, coefficients, levels, result, n, batch,
            blocks=_blocks(x),
        )  # fmt: skip
        ctx.save_for_backward(x, query, key, folded, levels, result, s, coefficients)
        return result

    @staticmethod
    def backward(ctx: Any, of_result: Tensor) -> tuple[Tensor | None, ...]:
        x, *given, s, coefficients = ctx.saved_tensors
        batch, n, _ = x.shape
        features, outer = _for_heads(x, WIDTH), x.new_empty((batch, 2, WIDTH))
        sums = x.new_empty((batch, 5, WIDTH), dtype=torch.float32)
        of_x, of_s = torch.empty_like(x), torch.empty_like(s)
        DISTRIBUTION_BACKWARD(
            x, *given, of_result.contiguous(), features, outer, sums, of_x, of_s, n, batch, blocks=_blocks(x)
        )
        (of_query,) = _over_instances(outer[:, 1:], s.unsqueeze(1))
        of_key = _over_instances(coefficients[:, HEADS:], features[:, HEADS:]).view(WIDTH, WIDTH)
        query_bias = sums[:, 4].sum(0)
        return of_s, of_x, None, None, of_query, query_bias, of_key, torch.zeros_like(query_bias)


def _over_instances(left: Tensor, right: Tensor) -> Tensor:
    """``left[:, k]^T right[:, k]`` for each k."""
    return product_over_rows(left.transpose(0, 1), right.transpose(0, 1))
