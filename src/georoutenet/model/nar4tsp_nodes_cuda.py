"""A layer of NAR4TSP at the nodes in CUDA C++ (`nar4tsp_attention.cu`, `nar4tsp_nodes.cu`):

    y = h + message,    h' = BatchNorm(y),

and of the new states half of the edge update's shares of source and target, ``W_s h' / 2`` and
``(W_t h' + b) / 2``, and what the next layer attends to, ``W h'``.

Attention leaves the statistics of each instance; a small kernel makes them the norm's, and another one
normalizes and multiplies. In the backward pass the norm's gradient is an affine map of that of ``h'`` and of
``y``, which attention's backward pass applies as it reads them. `node_layer_reference` is the same function
in plain PyTorch. The encoder is compiled as a whole; these are operators that the compiler calls as they are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from georoutenet.model import nar4tsp_attention_cuda, native
from georoutenet.model.native import MATRIX, WIDTH, Kernel
from georoutenet.model.part_sums_cuda import part_sums

FILE = "nar4tsp_nodes.cu"
BLOCKS = WIDTH // 32  # a block has 32 features of a norm
NORM = Kernel(FILE, "nar4tsp_node_norm", warps=16, shared=16 * 128)
MAPS = Kernel(FILE, "nar4tsp_node_maps", warps=8, shared=MATRIX + 3 * 4 * WIDTH)
MAPS_BACKWARD = Kernel(
    FILE, "nar4tsp_node_maps_backward", warps=8, shared=3 * MATRIX + 8 * 16 * (2 * WIDTH + 16)
)
NORM_BACKWARD = Kernel(FILE, "nar4tsp_node_norm_backward", warps=16, shared=16 * 128)
PRODUCTS = Kernel(FILE, "nar4tsp_node_products", warps=8, shared=3 * 128 * 2 * WIDTH)
LEAST = 192  # rows of a chunk of the products, if there are as many


@torch.compiler.assume_constant_result
def fits(n: int, hidden: int, heads: int, device: str, dtype: torch.dtype) -> bool:
    """Whether the kernels take such a model and states; a compiler asks while it traces the encoder."""
    states = torch.empty((0, n, hidden), device=device, dtype=dtype)
    kernels = (NORM, MAPS, MAPS_BACKWARD, NORM_BACKWARD, PRODUCTS)
    return nar4tsp_attention_cuda.fits(states, heads) and native.fits(states, *kernels)


def node_layer_reference(
    g: Tensor, of_ends: Tensor, of_edge: Tensor, slope: Tensor, constant: Tensor, distance: Tensor,
    reach: Tensor, h: Tensor, gamma: Tensor, beta: Tensor, bias: Tensor, maps: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """``h'`` and its three maps, of which the last is empty if there are but two weights.

    First the arguments of `nar4tsp_attention_triton.attention_reference`, the ends' by head; then the states,
    the norm's parameters, the target's bias, and the weights ``(3, d, d)`` or ``(2, d, d)``.
    """
    from georoutenet.model.nar4tsp_attention_triton import attention_reference

    y = h + attention_reference(g, of_ends, of_edge, slope, constant, distance, reach)
    state = functional.batch_norm(y.flatten(0, 1), None, None, gamma, beta, training=True).view_as(y)
    ends = functional.linear(state, maps[0]) / 2, functional.linear(state, maps[1], bias) / 2
    return state, *ends, functional.linear(state, maps[2]) if len(maps) > 2 else state.new_empty(0)


@torch.library.custom_op("georoutenet::nar4tsp_node_layer", mutates_args=())
def node_layer(
    g: Tensor, of_ends: Tensor, of_edge: Tensor, slope: Tensor, constant: Tensor, distance: Tensor,
    reach: Tensor, h: Tensor, gamma: Tensor, beta: Tensor, bias: Tensor, maps: Tensor, turned: Tensor,
    source_weight: Tensor, target_weight: Tensor, node_weight: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Arguments and results as `node_layer_reference`; the weights are in bfloat16, also turned (``maps.mT``,
    contiguous), and their gradients go to those stored in float32, which follow. The last three results are
    for the backward pass: attention's weights, ``y``, and the norm's mean, 1 / deviation, scale, offset."""
    inputs = [x.contiguous() for x in (g, of_ends, of_edge, slope, constant, distance, reach, h)]
    batch, n, d = h.shape
    y, weights, parts = nar4tsp_attention_cuda.forward_pass(*inputs)
    norm = gamma.new_empty((4, d))
    NORM(parts, gamma, beta, norm, batch, n, blocks=BLOCKS)
    state, of_source, of_target = (torch.empty_like(y) for _ in range(3))
    of_node = torch.empty_like(y) if len(maps) > 2 else y.new_empty(0)
    MAPS(
        y, norm, maps.contiguous(), bias.contiguous(), state, of_source, of_target, of_node, batch * n,
        len(maps), blocks=max(1, MAPS.count((y,)) // len(maps)) * len(maps),
    )  # fmt: skip
    return state, of_source, of_target, of_node, weights, y, norm


@torch.library.custom_op("georoutenet::nar4tsp_node_layer_backward", mutates_args=())
def node_layer_backward(
    grad: Tensor, of_source: Tensor, of_target: Tensor, of_node: Tensor, g: Tensor, of_ends: Tensor,
    distance: Tensor, turned: Tensor, state: Tensor, weights: Tensor, y: Tensor, norm: Tensor, is_first: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of ``g``, ``h`` and the edge's share (empty if ``is_first``); by head ``(H, 2 + 2 d / H)``
    those of constant, slope and ends; ``(3, d)`` of gamma, beta and bias; and of the weights."""
    grad, of_source, of_target, of_node, g, of_ends, distance = (
        x.contiguous() for x in (grad, of_source, of_target, of_node, g, of_ends, distance)
    )
    batch, n, d = y.shape
    rows, maps, ends = batch * n, len(turned), (of_source, of_target, of_node)
    of_state, blocks = torch.empty_like(y), min(MAPS_BACKWARD.count((y,)), -(-rows // 16))
    parts = norm.new_empty((blocks, 3, d))
    MAPS_BACKWARD(
        grad, *ends, y, norm, turned.contiguous(), of_state, parts, rows, maps, blocks=blocks
    )  # fmt: skip
    gradients, factors = norm.new_empty((3, d)), norm.new_empty((3, d))
    NORM_BACKWARD(parts, norm, gradients, factors, blocks, rows, blocks=BLOCKS)
    of_g, of_edge, sums, of_h = nar4tsp_attention_cuda.backward_pass(
        of_state, g, of_ends, weights, distance, is_first=is_first, norm=(y, factors)
    )
    chunks = max(1, min(PRODUCTS.count((y,)) // maps, rows // LEAST))
    chunk = -(-rows // chunks)
    products = norm.new_empty((maps, chunks, d, d))
    PRODUCTS(*ends, state, products, rows, chunks, chunk, blocks=maps * chunks)
    of_maps, by_head = part_sums(products, sums.unsqueeze(0), dtypes=[torch.float32] * 2)
    return of_g, of_h, of_edge, by_head[0], gradients, of_maps


@node_layer.register_fake
def _(g: Tensor, of_ends: Tensor, of_edge: Tensor, slope: Tensor, constant: Tensor, *rest: Tensor) -> Any:
    gamma, maps = rest[3], rest[6]
    batch, n, d = g.shape
    states = [g.new_empty(g.shape) for _ in range(3)]
    of_node = g.new_empty(g.shape if len(maps) > 2 else 0)
    weights, norm = g.new_empty((batch, len(constant), n, n)), gamma.new_empty((4, d))
    return *states, of_node, weights, g.new_empty(g.shape), norm


@node_layer_backward.register_fake
def _(
    grad: Tensor, of_source: Tensor, of_target: Tensor, of_node: Tensor, g: Tensor, of_ends: Tensor,
    distance: Tensor, turned: Tensor, state: Tensor, weights: Tensor, y: Tensor, norm: Tensor, is_first: bool,
) -> Any:  # fmt: skip
    heads, d = weights.shape[1], g.shape[2]
    of_edge = weights.new_empty(0 if is_first else weights.shape)
    by_head, gradients = norm.new_empty((heads, 2 + of_ends[0].numel())), norm.new_empty((3, d))
    of_maps = norm.new_empty((len(turned), d, d))
    return g.new_empty(g.shape), g.new_empty(g.shape), of_edge, by_head, gradients, of_maps


def _setup(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
    g, of_ends, of_edge, _, _, distance, _, _, _, _, _, _, turned, *_ = inputs
    state, _, _, _, weights, y, norm = output
    ctx.save_for_backward(g, of_ends, distance, turned, state, weights, y, norm)
    ctx.is_first = of_edge.numel() == 0
    ctx.set_materialize_grads(False)  # what only the backward pass reads has no gradient


def _gradient(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    of_ends, turned, state = (ctx.saved_tensors[k] for k in (1, 3, 4))
    shapes = (state, state, state, state if len(turned) > 2 else state.new_empty(0))
    grad, of_source, of_target, of_node = (
        torch.zeros_like(shape) if given is None else given
        for given, shape in zip(grads[:4], shapes, strict=True)
    )
    of_g, of_h, of_edge, by_head, gradients, of_maps = torch.ops.georoutenet.nar4tsp_node_layer_backward(
        grad, of_source, of_target, of_node, *ctx.saved_tensors, ctx.is_first
    )
    ends = by_head[:, 2:].view_as(of_ends)
    pairs = (None, by_head[:, 1]) if ctx.is_first else (of_edge, None)
    stored = (*of_maps, *[None] * (3 - len(of_maps)))
    return of_g, ends, *pairs, by_head[:, 0], None, None, of_h, *gradients, None, None, *stored


node_layer.register_autograd(_gradient, setup_context=_setup)
