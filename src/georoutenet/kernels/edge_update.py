"""Eqs. edge_proposal and edge_update of m sources with n targets, fused: states are read and written once.

    u_ij = W e_ij + s_i + t_j,    out_ij = LayerNorm(e_ij + SiLU(u_ij))

The bias of the proposal is part of ``t``. The backward pass recomputes ``u`` instead of storing it: one
kernel goes from the gradient of the output to those of ``e`` and ``u`` (and of the norm's gain and offset), a
second one sums the gradient of ``u`` over sources, over targets, and against ``e`` for the weight's.
`edge_update_reference` is the same function in plain PyTorch. All passes over the states exist in CUDA C++
too (`edge_update_cuda`, `edge_sums_cuda`; the two backward ones as one for Hopper, `edge_backward_cuda`),
which takes over where it can. `edge_last_cuda` has the last update, with the head behind it.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from typing import Any, cast

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from georoutenet.kernels.cuda import edge_backward as edge_backward_cuda
from georoutenet.kernels.cuda import edge_sums as edge_sums_cuda
from georoutenet.kernels.cuda import edge_update as edge_update_cuda
from georoutenet.kernels.tiles_triton import FAST, Launch, ends, tanh

LAUNCH = {
    "forward": Launch(64, warps=4, stages=2, share=3, registers=168),
    "backward": Launch(64, warps=4, stages=2, share=2),
    "sums": Launch(64, warps=4, stages=3, share=2),
}


def edge_update_reference(
    e: Tensor, source: Tensor, target: Tensor, weight: Tensor, gamma: Tensor, beta: Tensor
) -> Tensor:
    """``e (B, m, n, d)``, ``source (B, m, d)``, ``target (B, n, d)``, ``weight (d, d)``, others ``(d,)``."""
    proposal = functional.linear(e, weight.to(e.dtype)) + source.unsqueeze(2) + target.unsqueeze(1)
    return functional.layer_norm(e + functional.silu(proposal), gamma.shape, gamma, beta)


@triton.jit
def _forward(
    e, source, target, weight, gamma, beta, out, scales, shifts, m, n, per_source, per_target, pairs,
    D: tl.constexpr, P: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    f = tl.arange(0, D)
    r = tl.arange(0, P)
    w = tl.load(weight + f[None, :] * D + f[:, None])  # transposed: (in, out)
    local = r[:, None] * D + f[None, :]
    for tile in range(tl.program_id(0), tl.cdiv(pairs, P), tl.num_programs(0)):
        first = tile * P
        base = first.to(tl.int64) * D
        inside = (first + r < pairs)[:, None]
        i, j = ends(first, m, n, per_source, per_target, P)
        x = tl.load(e + base + local, mask=inside, other=0.0)
        s = tl.load(source + i[:, None] * D + f[None, :], mask=inside, other=0.0)
        t = tl.load(target + j[:, None] * D + f[None, :], mask=inside, other=0.0)
        half = 0.5 * (tl.dot(x, w) + (s + t).to(tl.float32))
        y = x.to(tl.float32) + (half + half * tanh(half, FAST))
        mean = tl.sum(y, 1) / D
        scale = tl.rsqrt(tl.maximum(tl.sum(y * y, 1) / D - mean * mean, 0.0) + 1e-5)
        shift = -mean * scale
        tl.store(scales + first + r, scale, mask=first + r < pairs)
        tl.store(shifts + first + r, shift, mask=first + r < pairs)
        # Loaded here and not before the loop: they would hold 64 registers of every thread.
        g = tl.load(gamma + f)[None, :]
        b = tl.load(beta + f)[None, :]
        y = (y * scale[:, None] + shift[:, None]) * g + b
        tl.store(out + base + local, y.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _backward(
    e, source, target, weight, gamma, scales, shifts, grad, de, du, norms, m, n, per_source, per_target,
    pairs, D: tl.constexpr, P: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Gradients of ``e`` and ``u``; this program's share of those of beta (row 0 of 16) and gamma (row 8)."""
    f = tl.arange(0, D)
    r = tl.arange(0, P)
    w = tl.load(weight + f[:, None] * D + f[None, :])  # as stored: (out, in)
    local = r[:, None] * D + f[None, :]
    # Column sums by matrix products with rows of ones: sixteen registers instead of two more tiles.
    rows = tl.arange(0, 16)
    upper = tl.broadcast_to(tl.where(rows < 8, 1.0, 0.0).to(e.dtype.element_ty)[:, None], (16, P))
    lower = tl.broadcast_to(tl.where(rows < 8, 0.0, 1.0).to(e.dtype.element_ty)[:, None], (16, P))
    total = tl.zeros((16, D), tl.float32)
    for tile in range(tl.program_id(0), tl.cdiv(pairs, P), tl.num_programs(0)):
        first = tile * P
        base = first.to(tl.int64) * D
        inside = (first + r < pairs)[:, None]
        i, j = ends(first, m, n, per_source, per_target, P)
        s = tl.load(source + i[:, None] * D + f[None, :], mask=inside, other=0.0)
        t = tl.load(target + j[:, None] * D + f[None, :], mask=inside, other=0.0)
        x = tl.load(e + base + local, mask=inside, other=0.0)
        change = tl.load(grad + base + local, mask=inside, other=0.0)
        scale = tl.load(scales + first + r, mask=first + r < pairs, other=0.0)[:, None]
        shift = tl.load(shifts + first + r, mask=first + r < pairs, other=0.0)[:, None]
        u = tl.dot(x, tl.trans(w)) + (s + t).to(tl.float32)
        sigma = 0.5 + 0.5 * tanh(0.5 * u, FAST)
        silu = u * sigma
        slope = sigma + silu * (1.0 - sigma)  # the derivative of SiLU
        y = (x.to(tl.float32) + silu) * scale + shift
        total = tl.dot(upper, change, acc=total)
        total = tl.dot(lower, change * y.to(change.dtype), acc=total)
        c = change.to(tl.float32) * tl.load(gamma + f)[None, :]
        mean, along = tl.sum(c, 1) / D, tl.sum(c * y, 1) / D
        c = c * scale - mean[:, None] * scale - y * (along[:, None] * scale)
        left = (c * slope).to(du.dtype.element_ty)
        tl.store(du + base + local, left, mask=inside)
        c = tl.dot(left, w, acc=c)
        tl.store(de + base + local, c.to(de.dtype.element_ty), mask=inside)
    tl.store(norms + (tl.program_id(0) * 16 + rows[:, None]) * D + f[None, :], total)


@triton.jit
def _sums(du, e, dw, ds, dt, m, n, items, blocks, parts, chunk, D: tl.constexpr, J: tl.constexpr):
    """``dW = sum du^T e`` (this program's share), ``ds_i = sum_j du_ij`` and ``dt_j = sum_i du_ij``.

    An item is a block of targets and a part of the sources of one instance; the program walks along the
    sources with the sum over them in registers.
    """
    f = tl.arange(0, D)
    weight = tl.zeros((D, D), tl.float32)
    for item in range(tl.program_id(0), items, tl.num_programs(0)):
        part = item % parts
        block = (item // parts) % blocks
        instance = item // (parts * blocks)
        j = block * J + tl.arange(0, J)
        inside = (j < n)[:, None]
        local = j[:, None] * D + f[None, :]
        over_sources = tl.zeros((J, D), tl.float32)
        first = instance.to(tl.int64) * m * n * D
        for i in range(part * chunk, tl.minimum(part * chunk + chunk, m)):
            row = first + i * n * D
            left = tl.load(du + row + local, mask=inside, other=0.0)
            x = tl.load(e + row + local, mask=inside, other=0.0)
            weight = tl.dot(tl.trans(left), x, acc=weight)  # (out, in)
            over_sources += left.to(tl.float32)
            over_targets = tl.sum(left.to(tl.float32), 0)
            tl.store(ds + ((instance * blocks + block) * m + i) * D + f, over_targets)
        tl.store(dt + (instance * parts + part) * n * D + local, over_sources, mask=inside)
    tl.store(dw + tl.program_id(0) * D * D + f[:, None] * D + f[None, :], weight)


def _forward_pass(inputs: tuple[Tensor, ...]) -> tuple[Tensor, Tensor, Tensor]:
    e = inputs[0]
    if edge_update_cuda.fits(e):
        return edge_update_cuda.forward_pass(inputs)
    batch, m, n, d = e.shape
    pairs = batch * m * n
    out = torch.empty_like(e)
    scales, shifts = e.new_empty((2, pairs), dtype=torch.float32)
    launch = LAUNCH["forward"].on(e.device)
    _forward[(launch.programs(triton.cdiv(pairs, launch.rows), e.device),)](
        *inputs, out, scales, shifts, m, n, 1 / m, 1 / n, pairs,
        D=d, P=launch.rows, FAST=FAST, **launch.options(),
    )  # fmt: skip
    return out, scales, shifts


def backward_pass(saved: tuple[Tensor, ...], grad: Tensor, *, in_place: bool) -> tuple[Tensor, ...]:
    """Gradients of e, source, target, weight, gamma, beta; with ``in_place`` the first is where ``grad`` is.

    Saved: e, source, target, weight, gamma, scales, shifts.
    """
    grad = grad.contiguous()
    de = grad if in_place else torch.empty_like(grad)  # each tile is read before it is written
    if edge_update_cuda.fits(grad) and edge_backward_cuda.fits(grad):
        ds, dt, dw, (dgamma, dbeta) = edge_backward_cuda.backward_pass(saved, grad, de)
    else:
        states = edge_update_cuda.backward_pass if edge_update_cuda.fits(grad) else _states_backward
        du, norms = states(saved, grad, de)
        ds, dt, dw, (dgamma, dbeta) = _sums_backward(saved[0], du, norms)
    return de, ds.to(de.dtype), dt.to(de.dtype), dw, dgamma, dbeta


def _states_backward(saved: tuple[Tensor, ...], grad: Tensor, de: Tensor) -> tuple[Tensor, Tensor]:
    """Fill in the gradient of e; those of u, and of gamma and beta in parts ``(parts, 2, d)``."""
    e = saved[0]
    batch, m, n, d = e.shape
    pairs = batch * m * n
    du = torch.empty_like(e)
    launch = LAUNCH["backward"].on(e.device)
    count = launch.programs(triton.cdiv(pairs, launch.rows), e.device)
    norms = e.new_empty((count, 16, d), dtype=torch.float32)
    _backward[(count,)](
        *saved, grad, de, du, norms, m, n, 1 / m, 1 / n, pairs,
        D=d, P=launch.rows, FAST=FAST, **launch.options(),
    )  # fmt: skip
    return du, torch.stack((norms[:, 8], norms[:, 0]), 1)


def _sums_backward(e: Tensor, du: Tensor, norms: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of sources, targets and weight; and norms added up."""
    if edge_sums_cuda.fits(du):
        return edge_sums_cuda.sums(e, du, norms)
    batch, m, n, d = e.shape
    launch = LAUNCH["sums"].on(e.device)
    blocks = triton.cdiv(n, launch.rows)
    count = launch.programs(batch * m * blocks, e.device)
    chunk = triton.cdiv(m, max(1, min(m // 8, triton.cdiv(2 * count, batch * blocks))))
    parts = triton.cdiv(m, chunk)
    items = batch * blocks * parts
    count = min(count, items)
    dw = e.new_empty((count, d, d), dtype=torch.float32)
    ds = e.new_empty((batch, blocks, m, d), dtype=torch.float32)
    dt = e.new_empty((batch, parts, n, d), dtype=torch.float32)
    _sums[(count,)](
        du, e, dw, ds, dt, m, n, items, blocks, parts, chunk,
        D=d, J=launch.rows, **launch.options(),
    )  # fmt: skip
    return _total(ds), _total(dt), dw.sum(0), norms.sum(0)


def _total(partial: Tensor) -> Tensor:
    return partial.squeeze(1) if partial.shape[1] == 1 else partial.sum(1)


class _EdgeUpdate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        e, source, target, weight, gamma, beta, ctx.in_place = inputs
        narrow = weight.to(e.dtype)
        out, scales, shifts = _forward_pass((e, source, target, narrow, gamma, beta))
        ctx.save_for_backward(e, source, target, narrow, gamma, scales, shifts)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return *backward_pass(ctx.saved_tensors, grad, in_place=ctx.in_place), None


def edge_update(
    e: Tensor,
    source: Tensor,
    target: Tensor,
    weight: Tensor,
    gamma: Tensor,
    beta: Tensor,
    *,
    in_place: bool = False,
) -> Tensor:
    """The fused update; arguments as `edge_update_reference`, contiguous. States and projections share
    one dtype, ``d`` is a power of two from 16, the parameters are float32.

    With ``in_place`` backward may write the gradient of ``e`` over the one of the result, where nothing else
    reads that.
    """
    return cast("Tensor", _EdgeUpdate.apply(e, source, target, weight, gamma, beta, in_place))
