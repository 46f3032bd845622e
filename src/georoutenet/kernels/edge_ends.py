"""Both ends of the edge tower, fused: from distances to the first edge states, from the last ones to logits.

`edge_embedding` is Eqs. rbf and edge_embedding, `edge_logit` the two-layer ReLU head. Nothing between input
and output is stored; the backward passes recompute it. `edge_embedding_reference` and `edge_logit_reference`
are the same functions in plain PyTorch. All four passes exist in CUDA C++ too (`edge_ends_cuda`), which takes
over where it can.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from typing import Any, cast

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from georoutenet.kernels.cuda import edge_ends as edge_ends_cuda
from georoutenet.kernels.tiles_triton import FAST, Launch, tanh

LAUNCH = {
    "embedding": Launch(64, warps=4, stages=2, share=3, registers=168),
    "embedding_backward": Launch(128, warps=8, stages=2, share=1),
    "logit": Launch(64, warps=4, stages=3, share=2),
    "logit_backward": Launch(64, warps=4, stages=2, share=2),
}


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


@triton.jit
def _embedding(
    distance, centers, bandwidth, weight1, bias1, weight2, bias2, out, pairs,
    D: tl.constexpr, K: tl.constexpr, P: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    f = tl.arange(0, D)
    k = tl.arange(0, K)
    r = tl.arange(0, P)
    w1 = tl.load(weight1 + f[None, :] * K + k[:, None])  # (K, d)
    w2 = tl.load(weight2 + f[None, :] * D + f[:, None])  # (in, out)
    center = tl.load(centers + k)[None, :]
    inverse = 1.0 / tl.load(bandwidth)
    for tile in range(tl.program_id(0), tl.cdiv(pairs, P), tl.num_programs(0)):
        first = tile * P
        inside = first + r < pairs
        away = (tl.load(distance + first + r, mask=inside, other=0.0)[:, None] - center) * inverse
        basis = tl.exp(-away * away).to(w1.dtype)
        half = 0.5 * (tl.dot(basis, w1) + tl.load(bias1 + f)[None, :])
        hidden = (half + half * tanh(half, FAST)).to(w2.dtype)
        e = tl.dot(hidden, w2) + tl.load(bias2 + f)[None, :]
        local = r[:, None] * D + f[None, :]
        tl.store(out + first.to(tl.int64) * D + local, e.to(out.dtype.element_ty), mask=inside[:, None])


@triton.jit
def _embedding_backward(
    distance, centers, bandwidth, weight1, bias1, weight2, grad, dw1, dw2, biases, bases, pairs,
    D: tl.constexpr, K: tl.constexpr, P: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """This program's shares: ``dw1 (K, d)``, ``dw2 (out, in)``, ``biases`` (second in row 0 of 16, first in
    row 8), ``bases (2, K)``: gradients of the centers, and of the bandwidth by basis."""
    program = tl.program_id(0)
    f = tl.arange(0, D)
    k = tl.arange(0, K)
    r = tl.arange(0, P)
    w1 = tl.load(weight1 + f[None, :] * K + k[:, None])  # (K, d)
    w2 = tl.load(weight2 + f[:, None] * D + f[None, :])  # as stored: (out, in)
    center = tl.load(centers + k)[None, :]
    inverse = 1.0 / tl.load(bandwidth)
    rows = tl.arange(0, 16)
    upper = tl.broadcast_to(tl.where(rows < 8, 1.0, 0.0).to(w2.dtype)[:, None], (16, P))
    lower = tl.broadcast_to(tl.where(rows < 8, 0.0, 1.0).to(w2.dtype)[:, None], (16, P))
    sum1 = tl.zeros((K, D), tl.float32)
    sum2 = tl.zeros((D, D), tl.float32)
    sums = tl.zeros((16, D), tl.float32)
    of_center = tl.zeros((P, K), tl.float32)
    of_bandwidth = tl.zeros((P, K), tl.float32)
    for tile in range(program, tl.cdiv(pairs, P), tl.num_programs(0)):
        first = tile * P
        inside = first + r < pairs
        local = first.to(tl.int64) * D + r[:, None] * D + f[None, :]
        change = tl.load(grad + local, mask=inside[:, None], other=0.0)
        away = (tl.load(distance + first + r, mask=inside, other=0.0)[:, None] - center) * inverse
        basis = tl.exp(-away * away)
        u = tl.dot(basis.to(w1.dtype), w1) + tl.load(bias1 + f)[None, :]
        sigma = 0.5 + 0.5 * tanh(0.5 * u, FAST)
        silu = u * sigma
        sum2 = tl.dot(tl.trans(change), silu.to(w2.dtype), acc=sum2)
        left = tl.dot(change, w2) * (sigma + silu * (1.0 - sigma))
        left = left.to(w1.dtype)
        sums = tl.dot(upper, change, acc=sums)
        sums = tl.dot(lower, left, acc=sums)
        sum1 = tl.dot(tl.trans(basis.to(w1.dtype)), left, acc=sum1)
        slope = tl.dot(left, tl.trans(w1)) * basis * away * (2.0 * inverse)
        of_center += slope
        of_bandwidth += slope * away
    tl.store(dw1 + program * K * D + k[:, None] * D + f[None, :], sum1)
    tl.store(dw2 + program * D * D + f[:, None] * D + f[None, :], sum2)
    tl.store(biases + (program * 16 + rows[:, None]) * D + f[None, :], sums)
    tl.store(bases + program * 2 * K + k, tl.sum(of_center, 0))
    tl.store(bases + program * 2 * K + K + k, tl.sum(of_bandwidth, 0))


@triton.jit
def _logit(e, weight, bias, last, offset, out, pairs, D: tl.constexpr, P: tl.constexpr):
    f = tl.arange(0, D)
    r = tl.arange(0, P)
    w = tl.load(weight + f[None, :] * D + f[:, None])  # (in, out)
    for tile in range(tl.program_id(0), tl.cdiv(pairs, P), tl.num_programs(0)):
        first = tile * P
        inside = first + r < pairs
        local = first.to(tl.int64) * D + r[:, None] * D + f[None, :]
        x = tl.load(e + local, mask=inside[:, None], other=0.0)
        hidden = tl.maximum(tl.dot(x, w) + tl.load(bias + f)[None, :], 0.0)
        z = tl.sum(hidden * tl.load(last + f)[None, :], 1) + tl.load(offset)
        tl.store(out + first + r, z, mask=inside)


@triton.jit
def _logit_backward(e, weight, bias, last, grad, de, dw, vectors, pairs, D: tl.constexpr, P: tl.constexpr):
    """The gradient of ``e``; this program's shares of the weight's ``(out, in)``, and in ``vectors`` (16
    rows) of the bias's (row 0) and of the last map's (row 8)."""
    program = tl.program_id(0)
    f = tl.arange(0, D)
    r = tl.arange(0, P)
    w = tl.load(weight + f[:, None] * D + f[None, :])  # as stored: (out, in)
    rows = tl.arange(0, 16)
    upper = tl.broadcast_to(tl.where(rows < 8, 1.0, 0.0).to(w.dtype)[:, None], (16, P))
    lower = tl.broadcast_to(tl.where(rows < 8, 0.0, 1.0).to(w.dtype)[:, None], (16, P))
    total = tl.zeros((D, D), tl.float32)
    sums = tl.zeros((16, D), tl.float32)
    for tile in range(program, tl.cdiv(pairs, P), tl.num_programs(0)):
        first = tile * P
        inside = first + r < pairs
        local = first.to(tl.int64) * D + r[:, None] * D + f[None, :]
        x = tl.load(e + local, mask=inside[:, None], other=0.0)
        change = tl.load(grad + first + r, mask=inside, other=0.0)[:, None]
        hidden = tl.dot(x, tl.trans(w)) + tl.load(bias + f)[None, :]
        left = tl.where(hidden > 0.0, change * tl.load(last + f)[None, :], 0.0).to(w.dtype)
        hidden = (tl.maximum(hidden, 0.0) * change).to(w.dtype)
        sums = tl.dot(upper, left, acc=sums)
        sums = tl.dot(lower, hidden, acc=sums)
        total = tl.dot(tl.trans(left), x, acc=total)
        tl.store(de + local, tl.dot(left, w).to(de.dtype.element_ty), mask=inside[:, None])
    tl.store(dw + program * D * D + f[:, None] * D + f[None, :], total)
    tl.store(vectors + (program * 16 + rows[:, None]) * D + f[None, :], sums)


class _EdgeEmbedding(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        distance, centers, bandwidth, weight1, bias1, weight2, bias2, dtype = inputs
        weight1, weight2 = weight1.to(dtype), weight2.to(dtype)
        saved = distance, centers, bandwidth, weight1, bias1, weight2
        ctx.save_for_backward(*saved)
        pairs, d = distance.numel(), len(weight1)
        out = weight1.new_empty((*distance.shape, d))
        if edge_ends_cuda.embedding_fits(out, len(centers)):
            edge_ends_cuda.embedding_forward((*saved, bias2), out)
            return out
        launch = LAUNCH["embedding"].on(distance.device)
        _embedding[(launch.programs(triton.cdiv(pairs, launch.rows), distance.device),)](
            *saved, bias2, out, pairs,
            D=d, K=len(centers), P=launch.rows, FAST=FAST, **launch.options(),
        )  # fmt: skip
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        distance, centers, bandwidth, weight1, *_ = ctx.saved_tensors
        pairs, d, k = distance.numel(), len(weight1), len(centers)
        if edge_ends_cuda.embedding_fits(grad, k):
            return None, *edge_ends_cuda.embedding_backward(ctx.saved_tensors, grad.contiguous()), None
        launch = LAUNCH["embedding_backward"].on(distance.device)
        count = launch.programs(triton.cdiv(pairs, launch.rows), distance.device)
        dw1, dw2, biases, bases = (
            centers.new_empty((count, *shape)) for shape in ((k, d), (d, d), (16, d), (2, k))
        )
        _embedding_backward[(count,)](
            *ctx.saved_tensors, grad.contiguous(), dw1, dw2, biases, bases, pairs,
            D=d, K=k, P=launch.rows, FAST=FAST, **launch.options(),
        )  # fmt: skip
        both, bases = biases.sum(0), bases.sum(0)
        widths = bases[1].sum().view_as(bandwidth)
        return None, bases[0], widths, dw1.sum(0).t(), both[8], dw2.sum(0), both[0], None


class _EdgeLogit(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        e, weight, bias, last, offset, ctx.in_place = inputs
        weight = weight.to(e.dtype)
        if edge_ends_cuda.logit_fits(e):
            out, on = edge_ends_cuda.logit_forward((e, weight, bias, last, offset))
            ctx.save_for_backward(e, weight, bias, last, on)
            return out
        ctx.save_for_backward(e, weight, bias, last)
        *shape, d = e.shape
        out = last.new_empty(shape)
        launch = LAUNCH["logit"].on(e.device)
        _logit[(launch.programs(triton.cdiv(out.numel(), launch.rows), e.device),)](
            e, weight, bias, last, offset, out, out.numel(), D=d, P=launch.rows, **launch.options()
        )
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        e, _, _, last, *on = ctx.saved_tensors
        if on:
            de = e if ctx.in_place else torch.empty_like(e)
            return *edge_ends_cuda.logit_backward(ctx.saved_tensors, grad.contiguous(), de), None
        d, pairs = e.shape[-1], grad.numel()
        launch = LAUNCH["logit_backward"].on(e.device)
        count = launch.programs(triton.cdiv(pairs, launch.rows), e.device)
        de = torch.empty_like(e)
        dw = last.new_empty((count, d, d))
        vectors = last.new_empty((count, 16, d))
        _logit_backward[(count,)](
            *ctx.saved_tensors, grad.contiguous(), de, dw, vectors, pairs,
            D=d, P=launch.rows, **launch.options(),
        )  # fmt: skip
        both = vectors.sum(0)
        return de, dw.sum(0), both[0], both[8], grad.sum().view(1), None


def edge_embedding(
    distance: Tensor,
    centers: Tensor,
    bandwidth: Tensor,
    weight1: Tensor,
    bias1: Tensor,
    weight2: Tensor,
    bias2: Tensor,
    dtype: torch.dtype,
) -> Tensor:
    """The fused embedding; arguments as its reference, all float32. The states are in ``dtype``; ``d`` and
    ``K`` are powers of two from 16. The distance gets no gradient."""
    return cast(
        "Tensor",
        _EdgeEmbedding.apply(distance, centers, bandwidth, weight1, bias1, weight2, bias2, dtype),
    )


def edge_logit(
    e: Tensor, weight: Tensor, bias: Tensor, last: Tensor, offset: Tensor, *, in_place: bool = False
) -> Tensor:
    """The fused head; arguments as its reference, the parameters float32.

    With ``in_place`` backward may write the gradient of ``e`` over ``e``: for states that nothing else reads,
    and one backward pass.
    """
    return cast("Tensor", _EdgeLogit.apply(e, weight, bias, last, offset, in_place))
