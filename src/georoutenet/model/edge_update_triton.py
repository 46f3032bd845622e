"""Eqs. edge_proposal and edge_update of m sources with n targets, fused: states are read and written once.

    u_ij = W e_ij + s_i + t_j + b,    out_ij = LayerNorm(e_ij + SiLU(u_ij))

The backward pass recomputes ``u`` instead of storing it and sums the gradient of ``t`` on chip.
`edge_update_reference` is the same function in plain PyTorch.

A program walks along the sources ``i`` of one instance with a block of targets ``j`` in hand, so ``t`` and
its gradient stay in registers.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

# Rows of pairs per block and warps per program of each kernel; on an H200 see benchmarks/edge_update.py.
LAUNCH = {"forward": (32, 8), "proposal": (16, 4), "state": (64, 8)}
WEIGHT_PROGRAMS = 264  # programs that share the pairs and sum the weight gradient: two per multiprocessor


def edge_update_reference(
    e: Tensor, source: Tensor, target: Tensor, weight: Tensor, bias: Tensor, gamma: Tensor, beta: Tensor
) -> Tensor:
    """``e (B, m, n, d)``, ``source (B, m, d)``, ``target (B, n, d)``, ``weight (d, d)``, others ``(d,)``."""
    proposal = functional.linear(e, weight, bias) + source.unsqueeze(2) + target.unsqueeze(1)
    return functional.layer_norm(e + functional.silu(proposal), gamma.shape, gamma, beta)


@triton.jit
def _forward(
    e, source, target, weight, bias, gamma, beta, out, m, n, chunk, D: tl.constexpr, J: tl.constexpr
):
    instance, block, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    j = block * J + tl.arange(0, J)
    f = tl.arange(0, D)
    inside = (j < n)[:, None]
    local = j[:, None] * D + f[None, :]
    w = tl.load(weight + f[None, :] * D + f[:, None])  # transposed: (in, out)
    t = tl.load(target + instance * n * D + local, mask=inside, other=0.0).to(tl.float32)
    t += tl.load(bias + f)[None, :]
    g = tl.load(gamma + f)[None, :]
    b = tl.load(beta + f)[None, :]
    first = instance.to(tl.int64) * m * n * D
    for i in range(part * chunk, tl.minimum(part * chunk + chunk, m)):
        row = first + i * n * D
        x = tl.load(e + row + local, mask=inside, other=0.0)
        s = tl.load(source + (instance * m + i) * D + f).to(tl.float32)
        u = tl.dot(x, w, input_precision="ieee") + t + s[None, :]
        y = x.to(tl.float32) + u * tl.sigmoid(u)
        y -= (tl.sum(y, 1) / D)[:, None]
        scale = tl.rsqrt(tl.sum(y * y, 1) / D + 1e-5)[:, None]
        tl.store(out + row + local, (y * scale * g + b).to(out.dtype.element_ty), mask=inside)


@triton.jit
def _backward_proposal(
    e, source, target, weight, bias, gamma, grad, dy, du, dt, dgamma, dbeta, m, n, chunk,
    D: tl.constexpr, J: tl.constexpr,
):  # fmt: skip
    """From the gradient of the output to those of ``y = e + SiLU(u)``, ``u``, ``t``, gamma and beta."""
    instance, block, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    j = block * J + tl.arange(0, J)
    f = tl.arange(0, D)
    inside = (j < n)[:, None]
    local = j[:, None] * D + f[None, :]
    w = tl.load(weight + f[None, :] * D + f[:, None])  # transposed: (in, out)
    t = tl.load(target + instance * n * D + local, mask=inside, other=0.0).to(tl.float32)
    t += tl.load(bias + f)[None, :]
    g = tl.load(gamma + f)[None, :]
    first = instance.to(tl.int64) * m * n * D
    sum_t = tl.zeros((J, D), tl.float32)
    sum_gamma = tl.zeros((J, D), tl.float32)
    sum_beta = tl.zeros((J, D), tl.float32)
    for i in range(part * chunk, tl.minimum(part * chunk + chunk, m)):
        row = first + i * n * D
        x = tl.load(e + row + local, mask=inside, other=0.0)
        s = tl.load(source + (instance * m + i) * D + f).to(tl.float32)
        u = tl.dot(x, w, input_precision="ieee") + t + s[None, :]
        sigma = tl.sigmoid(u)
        y = x.to(tl.float32) + u * sigma
        y -= (tl.sum(y, 1) / D)[:, None]
        scale = tl.rsqrt(tl.sum(y * y, 1) / D + 1e-5)[:, None]
        y *= scale
        change = tl.load(grad + row + local, mask=inside, other=0.0).to(tl.float32)
        sum_gamma += change * y
        sum_beta += change
        change *= g
        mean, along = tl.sum(change, 1) / D, tl.sum(change * y, 1) / D
        change = scale * (change - mean[:, None] - y * along[:, None])
        tl.store(dy + row + local, change.to(dy.dtype.element_ty), mask=inside)
        change *= sigma * (1.0 + u * (1.0 - sigma))  # the derivative of SiLU; zero outside the block
        tl.store(du + row + local, change.to(du.dtype.element_ty), mask=inside)
        sum_t += change
    tl.store(dt + (instance * tl.num_programs(2) + part) * n * D + local, sum_t, mask=inside)
    program = (instance * tl.num_programs(1) + block) * tl.num_programs(2) + part
    tl.store(dgamma + program * D + f, tl.sum(sum_gamma, 0))
    tl.store(dbeta + program * D + f, tl.sum(sum_beta, 0))


@triton.jit
def _backward_state(du, dy, e, weight, de, dw, pairs, chunk, D: tl.constexpr, P: tl.constexpr):
    """``de = dy + du W`` and this program's share of ``dW = sum du^T e``, for a range of pairs."""
    program = tl.program_id(0)
    f = tl.arange(0, D)
    w = tl.load(weight + f[:, None] * D + f[None, :])  # as stored: (out, in)
    total = tl.zeros((D, D), tl.float32)
    start = program.to(tl.int64) * chunk
    for offset in range(0, chunk, P):
        pair = offset + tl.arange(0, P)
        inside = (start + pair < pairs)[:, None]
        local = pair[:, None] * D + f[None, :]
        left = tl.load(du + start * D + local, mask=inside, other=0.0)
        x = tl.load(e + start * D + local, mask=inside, other=0.0)
        total += tl.dot(tl.trans(left), x, input_precision="ieee")  # (out, in)
        change = tl.load(dy + start * D + local, mask=inside, other=0.0).to(tl.float32)
        change += tl.dot(left, w, input_precision="ieee")
        tl.store(de + start * D + local, change.to(de.dtype.element_ty), mask=inside)
    tl.store(dw + program * D * D + f[:, None] * D + f[None, :], total)


def _grid(batch: int, m: int, n: int, rows: int) -> tuple[tuple[int, int, int], int]:
    """Programs by instance, block of targets and part of the sources; enough of them to fill the chip."""
    blocks = triton.cdiv(n, rows)
    parts = max(1, min(m // 8, triton.cdiv(512, batch * blocks)))
    chunk = triton.cdiv(m, parts)
    return (batch, blocks, triton.cdiv(m, chunk)), chunk


@torch.library.custom_op("georoutenet::edge_update", mutates_args=())
def edge_update(
    e: Tensor, source: Tensor, target: Tensor, weight: Tensor, bias: Tensor, gamma: Tensor, beta: Tensor
) -> Tensor:
    """The fused update; arguments as `edge_update_reference`. States and weight share one dtype, ``d`` is a
    power of two, ``bias``, ``gamma`` and ``beta`` are float32."""
    batch, m, n, d = e.shape
    out = torch.empty_like(e)
    rows, warps = LAUNCH["forward"]
    grid, chunk = _grid(batch, m, n, rows)
    _forward[grid](
        e,
        source,
        target,
        weight,
        bias,
        gamma,
        beta,
        out,
        m,
        n,
        chunk,
        D=d,
        J=rows,
        num_warps=warps,
    )
    return out


@torch.library.custom_op("georoutenet::edge_update_backward", mutates_args=())
def edge_update_backward(
    grad: Tensor, e: Tensor, source: Tensor, target: Tensor, weight: Tensor, bias: Tensor, gamma: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of ``e, source, target, weight, bias, gamma, beta``; all but the first in float32."""
    batch, m, n, d = e.shape
    rows, warps = LAUNCH["proposal"]
    grid, chunk = _grid(batch, m, n, rows)
    _, blocks, parts = grid
    de, dy, du = torch.empty_like(e), torch.empty_like(e), torch.empty_like(e)
    dt = e.new_empty((batch, parts, n, d), dtype=torch.float32)
    norms = e.new_empty((2, batch * blocks * parts, d), dtype=torch.float32)
    arrays = (e, source, target, weight, bias, gamma, grad.contiguous(), dy, du, dt, norms[0], norms[1])
    _backward_proposal[grid](*arrays, m, n, chunk, D=d, J=rows, num_warps=warps)
    pairs = batch * m * n
    rows, warps = LAUNCH["state"]
    share = rows * triton.cdiv(pairs, rows * WEIGHT_PROGRAMS)  # whole blocks of pairs
    programs = triton.cdiv(pairs, share)
    dw = e.new_empty((programs, d, d), dtype=torch.float32)
    _backward_state[(programs,)](du, dy, e, weight, de, dw, pairs, share, D=d, P=rows, num_warps=warps)
    ds, dt = du.sum(2, dtype=torch.float32), dt.sum(1)
    return de, ds, dt, dw.sum(0), ds.sum((0, 1)), norms[0].sum(0), norms[1].sum(0)


@edge_update.register_fake
def _(e: Tensor, *_: Tensor) -> Tensor:
    return torch.empty_like(e)


@edge_update_backward.register_fake
def _(
    grad: Tensor, e: Tensor, source: Tensor, target: Tensor, weight: Tensor, *_: Tensor
) -> tuple[Tensor, ...]:
    vector = e.new_empty(e.shape[-1], dtype=torch.float32)
    nodes = [e.new_empty(states.shape, dtype=torch.float32) for states in (source, target)]
    square = e.new_empty(weight.shape, dtype=torch.float32)
    return torch.empty_like(e), *nodes, square, vector, torch.empty_like(vector), torch.empty_like(vector)


def _setup(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:6])


def _gradient(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
    e, source, target, weight, bias, gamma = ctx.saved_tensors
    de, ds, dt, dw, *rest = torch.ops.georoutenet.edge_update_backward(
        grad, e, source, target, weight, bias, gamma
    )
    return de, ds.to(source.dtype), dt.to(target.dtype), dw.to(weight.dtype), *rest


edge_update.register_autograd(_gradient, setup_context=_setup)
