"""NAR4TSP's edge update with its batch norm on a GPU, for all pairs of cities of a batch.

    p_ij = tanh(W x_ij + s_i + t_j) / 2 + x_ij scale + offset,
    BatchNorm(p) = p scale' + offset' + beta

With half the weights and biases the tangent is the layer's sigmoid, less the constant 1/2.

Once its statistics are known, the norm is an affine map of every feature. So the normalized states are never
written: what is handed on is ``p`` with ``scale'`` and ``offset'``, which whoever reads ``p`` applies, mostly
to a weight instead of the states. The norm takes out any constant, so ``p`` is kept near zero mean: then its
bfloat16 digits are spent well, and the variance comes out of plain float32 sums of ``p`` and ``p^2`` without
cancellation. The first states are such maps of the distance: there ``x`` has one feature.

One pass writes ``p`` and sums its statistics; a second one reads ``p`` for the edge's share of the next
layer's attention scores. The backward pass recomputes the tangent. The two sums over pairs that the norm's
gradient needs before all else are the gradients of ``scale'`` and ``offset'``, left by the layers behind.
`edge_layer_reference` is the same function in plain PyTorch.

The passes exist as Triton kernels (`nar4tsp_kernels_triton`) and, where they fit, in CUDA C++
(`nar4tsp_layer_cuda`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import triton
from torch import Tensor
from torch.nn import functional

from georoutenet.model import nar4tsp_kernels_triton as kernels
from georoutenet.model import nar4tsp_layer_cuda
from georoutenet.model.edge_ends_triton import edge_logit
from georoutenet.model.tiles_triton import FAST, Launch

EPSILON = 1e-5
# "proposal" must not be pipelined: it reads what it has just written.
LAUNCH = {
    "forward": Launch(64, warps=8, stages=1, share=2, registers=128),
    "scores": Launch(64, warps=4, stages=3, share=4),
    "score_sums": Launch(64, warps=4, stages=3, share=4),
    "proposal": Launch(64, warps=8, stages=1, share=2, registers=128),
    "weight": Launch(64, warps=8, stages=3, share=2),
}


def edge_layer_reference(
    x: Tensor,
    scale: Tensor,
    offset: Tensor,
    weight: Tensor,
    source: Tensor,
    target: Tensor,
    gamma: Tensor,
    score: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """``x (B, n, n, k)`` with ``k = d`` or 1; ``scale, offset (d,)``; ``weight (d, k)``; ``source`` and
    ``target (B, n, d)``, biases included; the norm's ``gamma (d,)``; ``score (d, H)``.

    Gives ``p (B, n, n, d)``, its ``scale'`` and ``offset'``, and ``(p scale' + offset') score (B, H, n, n)``.
    """
    u = functional.linear(x, weight) + source.unsqueeze(2) + target.unsqueeze(1)
    p = u.tanh() / 2 + x * scale + offset
    variance, mean = torch.var_mean(p.flatten(0, 2), 0, correction=0)
    scale = gamma * (variance + EPSILON).rsqrt()
    offset = -mean * scale
    return p, scale, offset, ((p * scale + offset) @ score).permute(0, 3, 1, 2)


def _share(pairs: int, launch: Launch, device: torch.device) -> tuple[int, int]:
    """The pairs of each program, in whole tiles, and the number of programs that then have any."""
    tiles = triton.cdiv(pairs, launch.rows)
    chunk = launch.rows * triton.cdiv(tiles, launch.programs(tiles, device))
    return chunk, triton.cdiv(pairs, chunk)


def _weight_grid(x: Tensor) -> tuple[tuple[int, int, int], int]:
    """Instances, blocks of targets and parts of the sources, for enough programs; the sources of a part."""
    batch, n = x.shape[:2]
    launch = LAUNCH["weight"]
    blocks = triton.cdiv(n, launch.rows)
    programs = launch.programs(batch * blocks * n, x.device)
    chunk = triton.cdiv(n, max(1, min(n, programs // (batch * blocks))))
    return (batch, blocks, triton.cdiv(n, chunk)), chunk


def _padded(heads: int) -> int:
    """The heads as the side of a product: at least 16, or none."""
    return max(16, triton.next_power_of_2(heads)) if heads else 0


@torch.library.custom_op("georoutenet::nar4tsp_edge_layer", mutates_args=())
def edge_layer(
    x: Tensor,
    scale: Tensor,
    offset: Tensor,
    weight: Tensor,
    source: Tensor,
    target: Tensor,
    gamma: Tensor,
    score: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The fused layer; arguments and results as `edge_layer_reference`, and mean and 1 / deviation of ``p``.

    ``weight``, ``source``, ``target``, ``score``, ``p`` and ``x``, unless it is a distance, share one dtype,
    and ``d`` is a power of two; the vectors are float32.
    """
    x, scale, offset, weight, source, target, score = (
        value.contiguous() for value in (x, scale, offset, weight, source, target, score)
    )
    batch, n, _, features = x.shape
    d, heads = score.shape
    if nar4tsp_layer_cuda.fits(source, heads):
        return nar4tsp_layer_cuda.forward_pass(x, scale, offset, weight, source, target, gamma, score)
    pairs = batch * n * n
    p = source.new_empty(batch, n, n, d)
    scores = source.new_empty(batch, heads, n, n)
    out_scale, out_offset, moments = gamma.new_empty(d), gamma.new_empty(d), gamma.new_empty(2, d)
    launch = LAUNCH["forward"]
    chunk, programs = _share(pairs, launch, x.device)
    sums = gamma.new_empty(programs, 2, d)
    kernels.forward[(programs,)](
        x, scale, offset, weight, source, target, p, sums, pairs, n, chunk,
        D=d, P=launch.rows, FIRST=features == 1, FAST=FAST, **launch.options(),
    )  # fmt: skip
    scaled, constant = torch.empty_like(score), gamma.new_empty(heads)
    kernels.finish[(1,)](
        sums, gamma, score, out_scale, out_offset, moments, scaled, constant, programs, pairs, heads,
        D=d, H=_padded(heads), num_warps=8,
    )  # fmt: skip
    if heads:
        launch = LAUNCH["scores"]
        chunk, programs = _share(pairs, launch, x.device)
        kernels.scores[(programs,)](
            p, scaled, constant, scores, pairs, n, heads, chunk,
            D=d, P=launch.rows, H=_padded(heads), **launch.options(),
        )  # fmt: skip
    return p, out_scale, out_offset, scores, moments


@torch.library.custom_op("georoutenet::nar4tsp_edge_norm_backward", mutates_args=())
def edge_norm_backward(
    p: Tensor,
    grad_scores: Tensor,
    grad_scale: Tensor,
    grad_offset: Tensor,
    score: Tensor,
    scale: Tensor,
    offset: Tensor,
    moments: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """What statistics and scores add to ``dp``: slope, level ``(d,)`` and scaled ``(d, H)``; gradients of
    gamma and score.

    ``scale'`` and ``offset'`` and their gradients, but for the share of the scores.
    """
    score, grad_scores, grad_scale, grad_offset = (
        value.contiguous() for value in (score, grad_scores, grad_scale, grad_offset)
    )
    heads = score.shape[1]
    if nar4tsp_layer_cuda.fits(p, heads):
        return nar4tsp_layer_cuda.norm_backward(
            p, grad_scores, grad_scale, grad_offset, score, scale, offset, moments
        )
    mean, inverse = moments
    wide_score, dscore = score.float(), torch.empty_like(score)
    if heads:
        products, sums = _score_sums(p, grad_scores)
        grad_scale = grad_scale + (wide_score * products).sum(1)
        grad_offset = grad_offset + (wide_score * sums).sum(1)
        dscore = (scale[:, None] * products + offset[:, None] * sums).to(score.dtype)
    # scale' = gamma / deviation and offset' = -mean scale': through mean and deviation to every pair.
    dgamma = (grad_scale - mean * grad_offset) * inverse
    pairs = p.numel() // p.shape[-1]
    slope = -scale * inverse * dgamma / pairs
    level = -scale * grad_offset / pairs - slope * mean
    scaled = (wide_score * scale[:, None]).to(score.dtype)
    return slope, level, scaled, dgamma, dscore


def _score_sums(p: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """``sum p^T grad (d, H)`` and ``sum grad (H,)`` over all pairs."""
    d, heads = p.shape[-1], grad.shape[1]
    pairs = p.numel() // d
    launch = LAUNCH["score_sums"]
    chunk, programs = _share(pairs, launch, p.device)
    products = p.new_empty(programs, d, heads, dtype=torch.float32)
    sums = p.new_empty(programs, heads, dtype=torch.float32)
    kernels.score_sums[(programs,)](
        p, grad, products, sums, pairs, p.shape[1], heads, chunk,
        D=d, P=launch.rows, H=_padded(heads), **launch.options(),
    )  # fmt: skip
    return products.sum(0), sums.sum(0)


@torch.library.custom_op("georoutenet::nar4tsp_edge_layer_backward", mutates_args=())
def edge_layer_backward(
    grad: Tensor,
    grad_scores: Tensor,
    scaled: Tensor,
    slope: Tensor,
    level: Tensor,
    p: Tensor,
    x: Tensor,
    scale: Tensor,
    weight: Tensor,
    source: Tensor,
    target: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of ``x`` (empty for distances), ``scale``, ``weight``, ``source``, ``target``."""
    x, scale, weight, source, target, grad, grad_scores = (
        value.contiguous() for value in (x, scale, weight, source, target, grad, grad_scores)
    )
    batch, n, _, features = x.shape
    d, heads = scaled.shape
    if nar4tsp_layer_cuda.fits(p, heads):
        return nar4tsp_layer_cuda.backward_pass(
            grad, grad_scores, scaled, slope, level, p, x, scale, weight, source, target
        )
    pairs, is_first = batch * n * n, features == 1
    du = torch.empty_like(p)
    dx = p.new_empty(0) if is_first else torch.empty_like(p)
    launch = LAUNCH["proposal"]
    chunk, programs = _share(pairs, launch, x.device)
    sums = scale.new_empty(programs, d)
    kernels.backward_proposal[(programs,)](
        grad, grad_scores, scaled, slope, level, p, x, scale, weight,
        source, target, dx, du, sums, pairs, n, heads, chunk,
        D=d, P=launch.rows, H=_padded(heads), FIRST=is_first, FAST=FAST, **launch.options(),
    )  # fmt: skip
    grid, chunk = _weight_grid(x)
    products = scale.new_empty(math.prod(grid), d, features)
    ds, dt = scale.new_empty(grid[1], batch, n, d), scale.new_empty(grid[2], batch, n, d)
    launch = LAUNCH["weight"]
    kernels.backward_weight[grid](
        du, x, products, ds, dt, n, chunk, D=d, J=launch.rows, FIRST=is_first, **launch.options()
    )
    dscale, dweight, ds, dt = (
        share.sum(0).to(value.dtype)
        for share, value in ((sums, scale), (products, weight), (ds, source), (dt, target))
    )
    return dx, dscale, dweight, ds, dt


@edge_layer.register_fake
def _(x: Tensor, scale: Tensor, offset: Tensor, weight: Tensor, source: Tensor, *rest: Tensor) -> Any:
    batch, n = x.shape[:2]
    _, gamma, score = rest
    d, heads = score.shape
    p, scores = source.new_empty(batch, n, n, d), source.new_empty(batch, heads, n, n)
    return p, gamma.new_empty(d), gamma.new_empty(d), scores, gamma.new_empty(2, d)


@edge_norm_backward.register_fake
def _(p: Tensor, grad_scores: Tensor, grad_scale: Tensor, grad_offset: Tensor, *rest: Tensor) -> Any:
    score, scale, _, _ = rest
    return tuple(value.new_empty(value.shape) for value in (scale, scale, score, scale, score))


@edge_layer_backward.register_fake
def _(grad: Tensor, grad_scores: Tensor, scaled: Tensor, slope: Tensor, *rest: Tensor) -> Any:
    _, p, x, scale, weight, source, target = rest
    dx = p.new_empty(0) if x.shape[-1] == 1 else torch.empty_like(p)
    return dx, *(value.new_empty(value.shape) for value in (scale, weight, source, target))


def _setup(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
    x, scale, _, weight, source, target, _, score = inputs
    p, out_scale, out_offset, _, moments = output
    ctx.save_for_backward(x, scale, weight, source, target, score, p, out_scale, out_offset, moments)
    ctx.set_materialize_grads(False)  # what only the backward pass reads has no gradient


def _gradient(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    x, scale, weight, source, target, score, p, out_scale, out_offset, moments = ctx.saved_tensors
    scores = p.new_empty((len(p), score.shape[1], *p.shape[1:3])) if grads[3] is None else grads[3]
    grad, grad_scale, grad_offset, grad_scores = (
        torch.zeros_like(output) if given is None else given
        for given, output in zip(grads[:4], (p, out_scale, out_offset, scores), strict=True)
    )
    slope, level, scaled, dgamma, dscore = torch.ops.georoutenet.nar4tsp_edge_norm_backward(
        p, grad_scores, grad_scale, grad_offset, score, out_scale, out_offset, moments
    )
    dx, dscale, dweight, ds, dt = torch.ops.georoutenet.nar4tsp_edge_layer_backward(
        grad, grad_scores, scaled, slope, level, p, x, scale, weight, source, target
    )
    # The gradient of `offset` is zero, as the norm takes it out: `slope` and `level` make `dp` sum to zero.
    return (
        dx if x.shape[-1] > 1 else None,
        dscale,
        None,
        dweight,
        ds,
        dt,
        dgamma,
        dscore,
    )


edge_layer.register_autograd(_gradient, setup_context=_setup)


@torch.library.custom_op("georoutenet::narrow", mutates_args=())
def narrow(tensors: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Copies in another precision, in one launch: a compiler makes one for each."""
    copies = [torch.empty_like(tensor, dtype=dtype) for tensor in tensors]
    torch._foreach_copy_(copies, list(tensors))
    return copies


@narrow.register_fake
def _(tensors: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    return [torch.empty_like(tensor, dtype=dtype) for tensor in tensors]


def _setup_narrow(ctx: Any, inputs: tuple[Sequence[Tensor], torch.dtype], output: Any) -> None:
    ctx.dtype = inputs[0][0].dtype


def _narrow_gradient(ctx: Any, grads: list[Tensor]) -> tuple[list[Tensor], None]:
    return torch.ops.georoutenet.narrow(grads, ctx.dtype), None


narrow.register_autograd(_narrow_gradient, setup_context=_setup_narrow)


@torch.compiler.disable
def edge_head(x: Tensor, weight: Tensor, bias: Tensor, last: Tensor, offset: Tensor) -> Tensor:
    """`edge_logit`, kept as it is in a compiled encoder: there it is the last thing anyway."""
    return edge_logit(x, weight, bias, last, offset)
