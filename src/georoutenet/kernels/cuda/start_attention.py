"""The start attention of GeoRouteNet in CUDA C++ (`start_attention.cu`): one kernel a layer and pass.

The weights' gradients are matrix products over the instances of what both kernels leave behind. A key's bias
moves all scores of a head alike and cancels in the softmax: its gradient is zero.
"""

from __future__ import annotations

import torch
from torch import Tensor

from georoutenet.kernels.cuda.compile import WIDTH, Kernel, product_over_rows

HEADS = 8
# Of two instances: heads' rows in bf16, sums over the nodes and softmaxes by four warps, vectors by all.
SHARED = 2 * HEADS * (2 * WIDTH + 16 + 4 * (4 * (WIDTH + 2) + 2 * 4 + WIDTH))


def _kernel(name: str) -> Kernel:
    return Kernel("start_attention.cu", name, warps=HEADS, shared=SHARED)


STATE, STATE_BACKWARD = _kernel("start_state"), _kernel("start_state_backward")
DISTRIBUTION = _kernel("start_distribution")
DISTRIBUTION_BACKWARD = _kernel("start_distribution_backward")
KERNELS = [STATE, STATE_BACKWARD, DISTRIBUTION, DISTRIBUTION_BACKWARD]


def _for_heads(x: Tensor, features: int) -> Tensor:
    """Room for two vectors of every head and instance: one pass leaves the first, the other the second."""
    return x.new_empty((len(x), 2 * HEADS, features))


def _blocks(x: Tensor) -> int:
    return -(-len(x) // 2)


def state_forward(
    s: Tensor, x: Tensor, weights: tuple[Tensor, ...], vectors: list[Tensor]
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The new start state, and what the backward pass reads. Weights in bf16: of query, key, value, output;
    vectors in fp32: biases of query, value and output, the norm's gain and offset."""
    batch, n, _ = x.shape
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
    return result, (x, *weights, vectors[3], folded, levels, before_norm, coefficients, features, inner)


def state_backward(saved: tuple[Tensor, ...], of_result: Tensor) -> tuple[Tensor, ...]:
    """Gradients of s and x; of weight and bias of query, key, value and output; of the norm's."""
    x, *given, coefficients, features, inner = saved
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
    return of_s, of_x, *maps, scale, shift


def distribution_forward(
    s: Tensor, x: Tensor, query: Tensor, key: Tensor, query_bias: Tensor
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The start distribution, and what the backward pass reads. Weights in bf16, the bias in fp32."""
    batch, n, _ = x.shape
    folded, coefficients = x.new_empty((batch, HEADS, WIDTH)), _for_heads(x, WIDTH // HEADS)
    levels = x.new_empty((batch, HEADS), dtype=torch.float32)
    result = x.new_empty((batch, n), dtype=torch.float32)
    DISTRIBUTION(
        s, x, query, key, query_bias, folded, coefficients, levels, result, n, batch, blocks=_blocks(x)
    )
    return result, (x, query, key, folded, levels, result, s, coefficients)


def distribution_backward(saved: tuple[Tensor, ...], of_result: Tensor) -> tuple[Tensor, ...]:
    """Gradients of s and x; of weight and bias of query and key."""
    x, *given, s, coefficients = saved
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
    return of_s, of_x, of_query, query_bias, of_key, torch.zeros_like(query_bias)


def _over_instances(left: Tensor, right: Tensor) -> Tensor:
    """``left[:, k]^T right[:, k]`` for each k."""
    return product_over_rows(left.transpose(0, 1), right.transpose(0, 1))
