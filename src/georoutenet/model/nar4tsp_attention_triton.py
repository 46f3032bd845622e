"""NAR4TSP's graph attention on a GPU, for all cities of a batch.

    z_ij = <a_s, g_i> + <a_t, g_j> + f_ij,    message_i = sum_j softmax_j(LeakyReLU(z_ij)) g_j

per head, over the ``j`` within reach of ``i``. A backward program takes one head of one instance, so that all
sums over sources and over targets that the gradients need stay on chip. `attention_reference` is the same
function in plain PyTorch.

Where they fit, the passes are those in CUDA C++ (`nar4tsp_attention_cuda`).
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from georoutenet.model import nar4tsp_attention_cuda
from georoutenet.model.layers import split_heads, wide

MAX_CITIES = 256  # a row of scores is one block
MIN_WIDTH = 16  # features of a head: the least side of a matrix product
ELEMENTS = 4096  # of a tile: sources times padded targets
WARPS = 4


def attention_reference(
    g: Tensor,
    of_ends: Tensor,
    of_edge: Tensor,
    slope: Tensor,
    constant: Tensor,
    distance: Tensor,
    reach: Tensor,
) -> Tensor:
    """``g (B, n, d)``, ``of_ends (2, d / H)`` for all heads or ``(H, 2, d / H)``, ``distance (B, n, n)`` and
    ``reach (B, n)`` to ``(B, n, d)``.

    The edge's share is ``of_edge (B, H, n, n)`` or, where that is empty, ``slope (H,)`` times the distance;
    ``constant (H,)`` is added to it.
    """
    values = split_heads(g, len(constant)).transpose(1, 2)  # (B, H, n, q)
    of_source, of_target = (values @ of_ends.to(g.dtype).mT).unbind(-1)  # (B, H, n) each
    scores = wide(of_source.unsqueeze(3) + of_target.unsqueeze(2)) + constant.view(-1, 1, 1)
    scores = scores + (wide(of_edge) if of_edge.numel() else slope.view(-1, 1, 1) * distance.unsqueeze(1))
    far = (distance > reach.unsqueeze(2)).unsqueeze(1)
    weights = functional.leaky_relu(scores, 0.2).masked_fill(far, -torch.inf).softmax(3)
    return (weights.to(g.dtype) @ values).transpose(1, 2).flatten(2)


@triton.jit(do_not_specialize=["n", "heads"])
def _forward(
    g, of_ends, of_edge, slope, constant, distance, reach, message, weights, n, heads,
    Q: tl.constexpr, N: tl.constexpr, R: tl.constexpr, FIRST: tl.constexpr,
):  # fmt: skip
    """Messages and weights; a weight is stored as negative where its score is."""
    instance, head = tl.program_id(0), tl.program_id(1)
    i, j, q = tl.program_id(2) * R + tl.arange(0, R), tl.arange(0, N), tl.arange(0, Q)
    first = instance * n * heads * Q + head * Q + q[None, :]
    sources = tl.load(g + first + i[:, None] * (heads * Q), mask=(i < n)[:, None], other=0.0)  # (R, Q)
    targets = tl.load(g + first + j[:, None] * (heads * Q), mask=(j < n)[:, None], other=0.0)  # (N, Q)
    of_source = tl.sum(sources.to(tl.float32) * tl.load(of_ends + q)[None, :], 1) + tl.load(constant + head)
    of_target = tl.sum(targets.to(tl.float32) * tl.load(of_ends + Q + q)[None, :], 1)
    inside = (i < n)[:, None] & (j < n)[None, :]
    pair = i[:, None] * n + j[None, :]
    matrix = (instance * heads + head).to(tl.int64) * n * n
    far = tl.load(distance + instance.to(tl.int64) * n * n + pair, mask=inside, other=0.0)
    z = of_source[:, None] + of_target[None, :]
    if FIRST:
        z += far * tl.load(slope + head)
    else:
        z += tl.load(of_edge + matrix + pair, mask=inside, other=0.0).to(tl.float32)
    near = inside & (far <= tl.load(reach + instance * n + i, mask=i < n, other=0.0)[:, None])
    # Rows of padding have nothing near: a finite fill keeps them finite.
    s = tl.where(near, tl.maximum(z, 0.2 * z), -1e30)
    s = tl.exp(s - tl.max(s, 1)[:, None])
    weight = s * (1.0 / tl.sum(s, 1))[:, None]
    mixed = tl.dot(weight.to(targets.dtype), targets, input_precision="ieee")
    tl.store(message + first + i[:, None] * (heads * Q), mixed.to(targets.dtype), mask=(i < n)[:, None])
    signed = tl.where(z > 0.0, weight, -weight).to(targets.dtype)
    tl.store(weights + matrix + pair, signed, mask=inside)


@triton.jit(do_not_specialize=["n", "heads"])
def _backward(
    grad, g, of_ends, weights, distance, dg, dedge, sums, n, heads,
    Q: tl.constexpr, N: tl.constexpr, R: tl.constexpr, FIRST: tl.constexpr,
):  # fmt: skip
    """Gradients of ``g`` and ``of_edge``; in ``sums``, by instance and head, of constant, slope and ends."""
    instance, head = tl.program_id(0), tl.program_id(1)
    program = instance * heads + head
    matrix = program.to(tl.int64) * n * n
    j, q = tl.arange(0, N), tl.arange(0, Q)
    first = instance * n * heads * Q + head * Q + q[None, :]
    targets = tl.load(g + first + j[:, None] * (heads * Q), mask=(j < n)[:, None], other=0.0)  # (N, Q)
    source_share, target_share = tl.load(of_ends + q)[None, :], tl.load(of_ends + Q + q)[None, :]
    of_values = tl.zeros((N, Q), tl.float32)
    by_target = tl.zeros((N,), tl.float32)
    of_slope = tl.zeros((N,), tl.float32)
    of_source = tl.zeros((R, Q), tl.float32)
    for start in range(0, n, R):
        i = start + tl.arange(0, R)
        local = first + i[:, None] * (heads * Q)
        inside = (i < n)[:, None] & (j < n)[None, :]
        pair = i[:, None] * n + j[None, :]
        signed = tl.load(weights + matrix + pair, mask=inside, other=0.0).to(tl.float32)
        weight = tl.abs(signed)
        change = tl.load(grad + local, mask=(i < n)[:, None], other=0.0)  # (R, Q)
        of_values += tl.dot(tl.trans(weight.to(targets.dtype)), change, input_precision="ieee")
        dz = tl.dot(change, tl.trans(targets), input_precision="ieee")
        dz = weight * (dz - tl.sum(weight * dz, 1)[:, None])
        dz = tl.where(signed > 0.0, dz, 0.2 * dz)
        by_target += tl.sum(dz, 0)
        by_source = tl.sum(dz, 1)[:, None]
        sources = tl.load(g + local, mask=(i < n)[:, None], other=0.0).to(tl.float32)
        of_source += sources * by_source
        tl.store(dg + local, by_source * source_share, mask=(i < n)[:, None])  # read again below
        if FIRST:
            far = tl.load(distance + instance.to(tl.int64) * n * n + pair, mask=inside, other=0.0)
            of_slope += tl.sum(dz * far, 0)
        else:
            tl.store(dedge + matrix + pair, dz.to(dedge.dtype.element_ty), mask=inside)
    tl.debug_barrier()
    local = first + j[:, None] * (heads * Q)
    of_values += by_target[:, None] * target_share + tl.load(dg + local, mask=(j < n)[:, None], other=0.0)
    tl.debug_barrier()
    tl.store(dg + local, of_values, mask=(j < n)[:, None])
    place = sums + program * (2 + 2 * Q)
    tl.store(place, tl.sum(by_target, 0))
    tl.store(place + 1, tl.sum(of_slope, 0))
    tl.store(place + 2 + q, tl.sum(of_source, 0))
    tl.store(place + 2 + Q + q, tl.sum(targets.to(tl.float32) * by_target[:, None], 0))


def _shape(g: Tensor, heads: int, is_first: bool) -> tuple[tuple[int, int], dict[str, Any]]:
    """Instances and heads; sizes and options of both kernels."""
    batch, n, d = g.shape
    cities = max(16, triton.next_power_of_2(n))
    sizes = {"Q": d // heads, "N": cities, "R": min(cities, ELEMENTS // cities)}
    return (batch, heads), {**sizes, "FIRST": is_first, "num_warps": WARPS}


@torch.library.custom_op("georoutenet::nar4tsp_attention", mutates_args=())
def attention(
    g: Tensor,
    of_ends: Tensor,
    of_edge: Tensor,
    slope: Tensor,
    constant: Tensor,
    distance: Tensor,
    reach: Tensor,
) -> tuple[Tensor, Tensor]:
    """The fused attention; arguments as `attention_reference`, at most `MAX_CITIES` cities, ``d / H`` a power
    of two from `MIN_WIDTH`; ``g`` and ``of_edge`` share a dtype, the rest is float32.

    The second result is for the backward pass: the weights, negative where the score is.
    """
    inputs = [x.contiguous() for x in (g, of_ends, of_edge, slope, constant, distance, reach)]
    if nar4tsp_attention_cuda.fits(g, len(constant)):
        inputs[1] = of_ends.expand(len(constant), -1, -1).contiguous()
        return nar4tsp_attention_cuda.forward_pass(*inputs)[:2]
    (batch, heads), options = _shape(g, len(constant), of_edge.numel() == 0)
    n = g.shape[1]
    message, weights = torch.empty_like(inputs[0]), g.new_empty(batch, heads, n, n)
    _forward[(batch, heads, triton.cdiv(n, options["R"]))](*inputs, message, weights, n, heads, **options)
    return message, weights


@torch.library.custom_op("georoutenet::nar4tsp_attention_backward", mutates_args=())
def attention_backward(
    grad: Tensor, g: Tensor, of_ends: Tensor, weights: Tensor, distance: Tensor, is_first: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of ``g`` and of the edge's share (empty if ``is_first``), and by head
    ``(B, H, 2 + 2 d / H)`` those of constant, slope and ends."""
    inputs = [x.contiguous() for x in (grad, g, of_ends, weights, distance)]
    if nar4tsp_attention_cuda.fits(g, weights.shape[1]):
        inputs[2] = of_ends.expand(weights.shape[1], -1, -1).contiguous()
        return nar4tsp_attention_cuda.backward_pass(*inputs, is_first=is_first)[:3]
    grid, options = _shape(g, weights.shape[1], is_first)
    dg = torch.empty_like(inputs[1], dtype=torch.float32)
    dedge = weights.new_empty(0) if is_first else torch.empty_like(inputs[3])
    sums = of_ends.new_empty(*grid, 2 + of_ends.numel())
    _backward[grid](*inputs, dg, dedge, sums, g.shape[1], grid[1], **options)
    return dg.to(g.dtype), dedge, sums


@attention.register_fake
def _(
    g: Tensor, of_ends: Tensor, of_edge: Tensor, slope: Tensor, constant: Tensor, *_: Tensor
) -> tuple[Tensor, Tensor]:
    batch, n = g.shape[:2]
    return g.new_empty(g.shape), g.new_empty(batch, len(constant), n, n)


@attention_backward.register_fake
def _(
    grad: Tensor, g: Tensor, of_ends: Tensor, weights: Tensor, distance: Tensor, is_first: bool
) -> tuple[Tensor, Tensor, Tensor]:
    sums = of_ends.new_empty(*weights.shape[:2], 2 + of_ends.numel())
    dedge = weights.new_empty(0 if is_first else weights.shape)
    return g.new_empty(g.shape), dedge, sums


def _setup(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
    g, of_ends, of_edge, _, _, distance, _ = inputs
    ctx.save_for_backward(g, of_ends, output[1], distance)
    ctx.is_first = of_edge.numel() == 0


def _gradient(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor | None, ...]:
    g, of_ends, weights, distance = ctx.saved_tensors
    dg, dedge, sums = torch.ops.georoutenet.nar4tsp_attention_backward(
        grad, g, of_ends, weights, distance, ctx.is_first
    )
    by_head = sums.sum(0)
    ends = by_head[:, 2:].sum(0).view_as(of_ends)
    of_edge, of_slope = (None, by_head[:, 1]) if ctx.is_first else (dedge, None)
    return dg, ends, of_edge, of_slope, by_head[:, 0], None, None


attention.register_autograd(_gradient, setup_context=_setup)
