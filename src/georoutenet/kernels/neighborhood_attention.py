"""Eqs. attention_logit, attention_weights and node_message of the neighborhoods, fused, for training.

All edge states ``e (B, n, n, d)`` are in memory then, so the near pairs are read where they lie: row
``e[b, i, index[b, i, w]]``. `neighborhood_attention_reference` is the same function in plain PyTorch.

A program takes a few cities at a time, one per warp. Everything between the rows of a neighborhood and its
heads is a small matrix product on the tensor cores, because a warp's tile of 16 neighbors, 16 features and 8
heads is exactly one of their steps. What belongs to one head only (query with key, weight with value) is
written as a product with a matrix that is zero outside the head's features.

Backward is two kernels and has no atomics, so it repeats bit for bit. The first walks along the cities like
forward: it forms the gradient of the scores, adds to the gradient of the near edge states where it lies, and
sums the gradient of the edge bias per program. The second takes one head of one instance: the weights and
score gradients, laid out as an ``n x n`` matrix through `neighborhood_slots`, times queries, keys and the
gradient of the values.

For bfloat16, 128 features, 8 heads and neighborhoods of at most 16 the same is written in CUDA C++, too
(`neighborhood_attention_cuda`), which takes over where it can.

Shapes: B instances, n cities, W width of the neighborhoods, H heads, d features.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from georoutenet.kernels.cuda import neighborhood_attention as neighborhood_attention_cuda
from georoutenet.model.layers import split_heads, take, wide


class Launch(NamedTuple):
    """How a kernel is launched; on an H200 see benchmarks/neighborhood_attention.py."""

    rows: int  # neighbors, or cities, per tile
    warps: int
    registers: int  # at most, per thread
    programs: int = 0  # that share the cities, at most: as many as the 132 multiprocessors hold at once


LAUNCH = {
    "forward": Launch(64, 4, 128, 528),
    "pairs": Launch(64, 4, 168, 396),
    "cities": Launch(64, 4, 128),
}


def neighborhood_attention_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    e: Tensor,
    bias_weight: Tensor,
    strength: Tensor,
    index: Tensor,
    mask: Tensor,
    distance: Tensor,
    *,
    heads: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """``q, k, v (B, n, d)``, ``e (B, n, n, d)``, ``bias_weight (H, d)``, ``strength ()``, others (B, n, W).

    ``strength`` is the positive factor of the distance, ``softplus(gamma)``. Returns, per city and head,
    the weighted sums of the values ``(B, n, d)`` and of the edge states ``(B, n, H, d)``, and ``e`` itself.
    """
    index = index.long().where(mask, 0)  # padding may hold anything
    near = e.gather(2, index.unsqueeze(-1).expand(-1, -1, -1, e.shape[-1]))  # (B, n, W, d)
    query = split_heads(q, heads)  # (B, n, H, d / H)
    keys, values = (split_heads(take(x, index), heads) for x in (k, v))  # (B, n, W, H, d / H)
    scores = wide((query.unsqueeze(2) * keys).sum(-1)) / math.sqrt(query.shape[-1])  # (B, n, W, H)
    scores = scores + wide(functional.linear(near, bias_weight.to(e.dtype)))
    scores = scores - strength * distance.unsqueeze(-1)
    weights = scores.masked_fill(~mask.unsqueeze(-1), -torch.inf).softmax(2).to(q.dtype)
    mixed = torch.einsum("bnwh,bnwhq->bnhq", weights, values).flatten(2)
    return mixed, weights.transpose(2, 3) @ near, e


@triton.jit
def _near(index, mask, first, nodes, n, W: tl.constexpr, WP: tl.constexpr, G: tl.constexpr):
    """The neighborhoods of ``G`` cities from ``first`` on, counted through the batch.

    Padding points at the city itself, whose row is read anyway, so that no load needs a mask.
    """
    node = first + tl.arange(0, G)
    w = tl.arange(0, WP)
    inside = (node < nodes)[:, None] & (w < W)[None, :]
    node = tl.minimum(node, nodes - 1)
    slot = node[:, None] * W + w[None, :]
    # The maximum over one element hides the byte-wide load from the compiler, which would otherwise choose
    # an operand layout for 8-bit matrix products.
    real = tl.max(tl.load(mask + slot[:, :, None], mask=inside[:, :, None], other=0).to(tl.int32), 2) != 0
    start = node // n * n
    j = tl.where(real, tl.load(index + slot, mask=inside, other=0).to(tl.int32), (node - start)[:, None])
    return node, inside, slot, real, (node * n)[:, None] + j, start[:, None] + j


@triton.jit
def _forward(
    q, k, v, e, weight, strength, index, mask, distance, values, edges, alpha, nodes, n, pitch, share, scale,
    H: tl.constexpr, HP: tl.constexpr, D: tl.constexpr, W: tl.constexpr, WP: tl.constexpr, G: tl.constexpr,
):  # fmt: skip
    f, h, w = tl.arange(0, D), tl.arange(0, HP), tl.arange(0, WP)
    dtype = e.dtype.element_ty
    head = (h < H)[None, None, :]
    own = ((f // (D // H))[:, None] == h[None, :])[None]  # (1, D, HP): the features of each head
    bias = tl.load(weight + h[None, :] * D + f[:, None], mask=(h < H)[None, :], other=0.0).to(dtype)
    bias = tl.broadcast_to(bias[None], (G, D, HP))
    gamma = tl.load(strength)
    for turn in range(share):
        first = (tl.program_id(0) * share + turn) * G
        node, inside, slot, real, pair, target = _near(index, mask, first, nodes, n, W, WP, G)
        there = (first + tl.arange(0, G) < nodes)[:, None]
        far = tl.load(distance + slot, mask=real, other=0.0)
        x = tl.load(e + (pair.to(tl.int64) * D)[:, :, None] + f[None, None, :])
        near = (target * pitch)[:, :, None] + f[None, None, :]
        keys, vals = tl.load(k + near), tl.load(v + near)
        spread = (node * pitch)[:, None, None] + f[None, :, None] + 0 * h[None, None, :]
        query = tl.load(q + spread, mask=own, other=0.0)  # (G, D, HP)
        score = tl.dot(keys, query, input_precision="ieee") * scale
        score = tl.dot(x, bias, score, input_precision="ieee") - (gamma * far)[:, :, None]
        score = tl.where(real[:, :, None], score, -1e30)
        score = tl.exp(score - tl.max(score, 1)[:, None, :])
        a = (score / tl.sum(score, 1)[:, None, :]).to(dtype)  # (G, WP, HP)
        place = (node * (H * W))[:, None, None] + h[None, None, :] * W + w[None, :, None]
        tl.store(alpha + place, a, mask=inside[:, :, None] & head)
        mixed = tl.dot(tl.trans(vals, (0, 2, 1)), a, input_precision="ieee")  # (G, D, HP)
        mixed = tl.sum(tl.where(own, mixed, 0.0), 2)
        tl.store(values + node[:, None] * D + f[None, :], mixed.to(dtype), mask=there)
        mixed = tl.dot(tl.trans(x, (0, 2, 1)), a, input_precision="ieee").to(dtype)
        place = (node * (H * D))[:, None, None] + h[None, None, :] * D + f[None, :, None]
        tl.store(edges + place, mixed, mask=there[:, :, None] & head)


@triton.jit
def _backward_pairs(
    v, e, weight, index, mask, distance, alpha, dvalues, dedges, de, pairs, partial,
    nodes, n, pitch, edge_pitch, head_pitch, share,
    H: tl.constexpr, HP: tl.constexpr, D: tl.constexpr, W: tl.constexpr, WP: tl.constexpr, G: tl.constexpr,
):  # fmt: skip
    """Score gradients, and from them those of the near edge states (added), edge bias and strength.

    Weights and score gradients are the two halves of one matrix with ``2 HP`` columns, because that is what
    the edge states' gradient needs: ``sum_h a_h dedges_h + ds_h weight_h``.
    """
    f, c, w = tl.arange(0, D), tl.arange(0, 2 * HP), tl.arange(0, WP)
    h = c % HP
    dtype = e.dtype.element_ty
    head, upper = h < H, c >= HP
    own = ((f // (D // H))[:, None] == h[None, :])[None]  # (1, D, 2 HP)
    bias = tl.load(weight + h[:, None] * D + f[None, :], mask=(head & upper)[:, None], other=0.0)
    bias = bias.to(dtype)[None]
    sum_weight = tl.zeros((D, 2 * HP), tl.float32)
    sum_strength = tl.zeros((G, WP, 2 * HP), tl.float32)
    for turn in range(share):
        first = (tl.program_id(0) * share + turn) * G
        node, inside, slot, real, pair, target = _near(index, mask, first, nodes, n, W, WP, G)
        far = tl.load(distance + slot, mask=real, other=0.0)
        rows = (pair.to(tl.int64) * D)[:, :, None] + f[None, None, :]
        x = tl.load(e + rows)
        vals = tl.load(v + (target * pitch)[:, :, None] + f[None, None, :])
        spread = (node * D)[:, None, None] + f[None, :, None] + 0 * h[None, None, :]
        dvalue = tl.load(dvalues + spread, mask=own, other=0.0)  # (G, D, 2 HP)
        place = (node * edge_pitch)[:, None, None] + h[None, :, None] * head_pitch + f[None, None, :]
        if H == HP:
            dedge = tl.load(dedges + place)  # (G, 2 HP, D)
        else:
            dedge = tl.load(dedges + place, mask=head[None, :, None], other=0.0)
        kept = inside[:, :, None] & head[None, None, :]
        at = node[:, None, None] * H + h[None, None, :]
        a = tl.load(alpha + at * W + w[None, :, None], mask=kept, other=0.0)  # (G, WP, 2 HP), twice
        da = tl.dot(vals, dvalue, input_precision="ieee")
        da = tl.dot(x, tl.trans(dedge, (0, 2, 1)), da, input_precision="ieee")
        ds = a.to(tl.float32)
        ds *= da - tl.sum(ds * da, 1)[:, None, :]
        sum_strength += ds * far[:, :, None]
        both = tl.where(upper[None, None, :], ds.to(dtype), a)
        at = (at * 2 + upper[None, None, :].to(tl.int32)) * W + w[None, :, None]
        tl.store(pairs + at, both, mask=kept)
        change = tl.dot(both, tl.where(upper[None, :, None], bias, dedge), input_precision="ieee").to(dtype)
        change = tl.load(de + rows).to(tl.float32) + change.to(tl.float32)
        tl.store(de + rows, change.to(dtype), mask=real[:, :, None])
        left, right = tl.reshape(x, (G * WP, D)), tl.reshape(both, (G * WP, 2 * HP))
        sum_weight = tl.dot(tl.trans(left), right, sum_weight, input_precision="ieee")
    own_part = partial + tl.program_id(0) * ((H + 1) * D)
    tl.store(own_part + h[None, :] * D + f[:, None], sum_weight, mask=(head & upper)[None, :])
    total = -tl.sum(tl.where((head & upper)[None, None, :], sum_strength, 0.0))
    tl.store(own_part + H * D + f, tl.where(f == 0, total, 0.0))


@triton.jit
def _backward_cities(
    q, k, dvalues, slots, pairs, partial, dq, dk, dv, sums, n, pitch, rows, reducers, scale,
    H: tl.constexpr, D: tl.constexpr, W: tl.constexpr, J: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """Gradients of queries, keys and values for a head and a block of cities.

    The first programs sum what the programs of `_backward_pairs` left, 16 columns each.
    """
    program = tl.program_id(0)
    if program < reducers:
        column = program * 16 + tl.arange(0, 16)
        total = tl.zeros((128, 16), tl.float32)
        for start in range(0, rows, 128):
            row = start + tl.arange(0, 128)
            place = row[:, None] * ((H + 1) * D) + column[None, :]
            total += tl.load(partial + place, mask=(row < rows)[:, None], other=0.0)
        tl.store(sums + column, tl.sum(total, 0))
    else:
        program -= reducers
        block, head, first = program % BLOCKS, program // BLOCKS % H, program // BLOCKS // H * n
        city = block * J + tl.arange(0, J)
        f = head * (D // H) + tl.arange(0, D // H)
        here = (city < n)[:, None]
        sum_q = tl.zeros((J, D // H), tl.float32)
        sum_k = tl.zeros((J, D // H), tl.float32)
        sum_v = tl.zeros((J, D // H), tl.float32)
        for turn in range(BLOCKS):
            other = turn * J + tl.arange(0, J)
            inside = (other < n)[:, None]
            row = (first + other)[:, None]
            # Cities of the block as neighbors of the others: keys and values.
            slot = tl.load(slots + row * (BLOCKS * J) + city[None, :], mask=inside, other=W).to(tl.int32)
            at = pairs + (row * H + head) * (2 * W) + slot
            a = tl.load(at, mask=slot < W, other=0.0)
            ds = tl.load(at + W, mask=slot < W, other=0.0)
            dvalue = tl.load(dvalues + row * D + f[None, :], mask=inside, other=0.0)
            query = tl.load(q + row * pitch + f[None, :], mask=inside, other=0.0)
            key = tl.load(k + row * pitch + f[None, :], mask=inside, other=0.0)
            sum_v = tl.dot(tl.trans(a), dvalue, sum_v, input_precision="ieee")
            sum_k = tl.dot(tl.trans(ds), query, sum_k, input_precision="ieee")
            if BLOCKS > 1:  # the others as neighbors of the block: queries
                row = (first + city)[:, None]
                slot = tl.load(slots + row * (BLOCKS * J) + other[None, :], mask=here, other=W).to(tl.int32)
                at = pairs + (row * H + head) * (2 * W) + slot
                ds = tl.load(at + W, mask=slot < W, other=0.0)
            sum_q = tl.dot(ds, key, sum_q, input_precision="ieee")
        mine = (first + city)[:, None] * D + f[None, :]
        tl.store(dq + mine, (sum_q * scale).to(dq.dtype.element_ty), mask=here)
        tl.store(dk + mine, (sum_k * scale).to(dk.dtype.element_ty), mask=here)
        tl.store(dv + mine, sum_v.to(dv.dtype.element_ty), mask=here)


@triton.jit
def _slots(index, mask, slots, nodes, W: tl.constexpr, WIDTH: tl.constexpr, R: tl.constexpr, J: tl.constexpr):
    node = tl.program_id(0) * R + tl.arange(0, R)
    j = tl.program_id(1) * J + tl.arange(0, J)
    there = node < nodes
    found = tl.full((R, J), W, tl.int32)
    for w in range(W):
        real = there & (tl.load(mask + node * W + w, mask=there, other=0) != 0)
        neighbor = tl.load(index + node * W + w, mask=real, other=-1).to(tl.int32)
        found = tl.where(neighbor[:, None] == j[None, :], w, found)
    tl.store(slots + node[:, None] * WIDTH + j[None, :], found.to(tl.int16), mask=there[:, None])


def blocks_of(n: int) -> tuple[int, int]:
    """The blocks of cities of `_backward_cities`: how many cities in one, and how many blocks."""
    size = min(LAUNCH["cities"].rows, max(16, triton.next_power_of_2(n)))
    return size, triton.cdiv(n, size)


def neighborhood_slots(index: Tensor, mask: Tensor) -> Tensor:
    """At ``[b, i, j]`` the place ``w`` of city ``j`` in the neighborhood of ``i``, or W if it is not there.

    ``(B, n, m)`` with ``m`` at least n. It is the same in every layer: make it once and pass it to
    `neighborhood_attention`.
    """
    batch, n, width = index.shape
    size, blocks = blocks_of(n)
    slots = torch.empty((batch, n, size * blocks), dtype=torch.int16, device=index.device)
    grid = (triton.cdiv(batch * n, 16), blocks)
    _slots[grid](
        index.contiguous(), mask.contiguous(), slots, batch * n, W=width, WIDTH=size * blocks, R=16, J=size
    )
    return slots


def _forward_pass(inputs: tuple[Tensor, ...], heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Averages of values and edge states, and weights ``(B, n, H, W)``."""
    q, index = inputs[0], inputs[6]
    batch, n, d = q.shape
    values = q.new_empty((batch, n, d))
    edges = q.new_empty((batch, n, heads, d))
    alpha = q.new_empty((batch, n, heads, index.shape[2]))
    grid, share, shape = _shares("forward", batch * n, heads, d, index.shape[2])
    _forward[grid](
        *inputs, values, edges, alpha,
        batch * n, n, q.stride(1), share, math.sqrt(heads / d), **shape, **_options("forward"),
    )  # fmt: skip
    return values, edges, alpha


def _backward_pass(
    saved: tuple[Tensor, ...], slots: Tensor, dvalues: Tensor, dedges: Tensor, de: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k and v, and ``(H + 1, d)``: those of weight and, first in the last row, strength.

    That of e is added to ``de``.
    """
    q, k, v, e, weight, index, mask, distance, alpha = saved
    (batch, n, heads, width), d = alpha.shape, q.shape[2]
    grid, share, shape = _shares("pairs", batch * n, heads, d, width)
    pairs = q.new_empty((batch, n, heads, 2, width))
    partial = q.new_empty((grid[0], heads + 1, d), dtype=torch.float32)
    _backward_pairs[grid](
        v, e, weight, index, mask, distance, alpha, dvalues, dedges, de, pairs, partial,
        batch * n, n, q.stride(1), dedges.stride(1), dedges.stride(2), share,
        **shape, **_options("pairs"),
    )  # fmt: skip
    dq, dk, dv = (q.new_empty(q.shape) for _ in range(3))
    sums = q.new_empty((heads + 1, d), dtype=torch.float32)
    size, blocks = blocks_of(n)
    reducers = (heads + 1) * d // 16
    _backward_cities[(reducers + batch * heads * blocks,)](
        q, k, dvalues, slots, pairs, partial, dq, dk, dv, sums,
        n, q.stride(1), grid[0], reducers, math.sqrt(heads / d),
        H=heads, D=d, W=width, J=size, BLOCKS=blocks,
        **_options("cities"),
    )  # fmt: skip
    return dq, dk, dv, sums


class _NeighborhoodAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
        *read, slots, heads = inputs
        q, k, v, e, weight, strength, index, mask, distance = read
        ctx.is_native = neighborhood_attention_cuda.fits(q, k, v, index, heads)
        if ctx.is_native:
            values, edges, alpha = neighborhood_attention_cuda.forward_pass(tuple(read))
        else:
            values, edges, alpha = _forward_pass(tuple(read), heads)
        ctx.save_for_backward(q, k, v, e, weight, index, mask, distance, alpha, strength, slots)
        ctx.set_materialize_grads(False)
        return values, edges, e

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        *saved, strength, slots = ctx.saved_tensors
        q, _, _, e, weight, index, mask, _, alpha = saved
        (batch, n, d), heads = q.shape, alpha.shape[2]
        slots = neighborhood_slots(index, mask) if slots is None else slots
        shapes = (q.shape, (batch, n, heads, d), e.shape)
        dvalues, dedges, de = (
            q.new_zeros(shape) if grad is None else grad for grad, shape in zip(grads, shapes, strict=True)
        )
        dvalues, de = dvalues.contiguous(), de.contiguous()
        if dedges.stride(3) != 1 or dedges.stride(0) != n * dedges.stride(1):  # heads may be outermost
            dedges = dedges.contiguous()
        run = neighborhood_attention_cuda.backward_pass if ctx.is_native else _backward_pass
        dq, dk, dv, sums = run(tuple(saved), slots, dvalues, dedges, de)
        dstrength = sums[heads, 0].view(strength.shape).to(strength.dtype)
        return dq, dk, dv, de, sums[:heads].to(weight.dtype), dstrength, *[None] * 5


def _shares(
    kernel: str, nodes: int, heads: int, d: int, width: int
) -> tuple[tuple[int], int, dict[str, int]]:
    """Grid, tiles per program and compile-time sizes of a kernel that walks along the cities."""
    cover = max(16, triton.next_power_of_2(width))
    group = max(1, LAUNCH[kernel].rows // cover)
    tiles = triton.cdiv(nodes, group)
    share = triton.cdiv(tiles, LAUNCH[kernel].programs)
    shape = {"H": heads, "HP": max(8, triton.next_power_of_2(heads)), "D": d, "W": width}
    return (triton.cdiv(tiles, share),), share, shape | {"WP": cover, "G": group}


def _options(kernel: str) -> dict[str, int]:
    # One stage: the compiler's pipelining prefetches the values, past the cache that serves them best.
    return {"num_warps": LAUNCH[kernel].warps, "num_stages": 1, "maxnreg": LAUNCH[kernel].registers}


def neighborhood_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    e: Tensor,
    bias_weight: Tensor,
    strength: Tensor,
    index: Tensor,
    mask: Tensor,
    distance: Tensor,
    *,
    heads: int,
    slots: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The fused attention; arguments and results as `neighborhood_attention_reference`.

    ``q, k, v, e`` share one dtype, the rest of the real arguments is float32. ``d`` (at least 16) and
    ``d / H`` are powers of two, ``e`` is contiguous, and no city occurs twice in a neighborhood. ``slots`` is
    `neighborhood_slots` of ``index`` and ``mask``; without it, backward makes it again.

    The third result is ``e`` passed through, and whatever reads the edge states next must read this result,
    not ``e``. Backward then receives the whole gradient of the later readers and adds that of the near pairs
    **in place**: a gradient tensor that anything else still needs must not arrive there. (One that is not
    contiguous is copied first; without one, zeros are made.)
    """
    batch, n, d = q.shape
    if e.shape != (batch, n, n, d) or not e.is_contiguous():
        raise ValueError(f"e must be a contiguous {(batch, n, n, d)}, got {tuple(e.shape)}")
    step = q.stride(1)  # the three may be parts of one (B, n, 3, d) projection
    if any(x.stride() != (n * step, step, 1) for x in (q, k, v)):
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    places = (index.contiguous(), mask.contiguous(), distance.contiguous())
    weight = bias_weight.contiguous()
    return _NeighborhoodAttention.apply(q, k, v, e, weight, strength, *places, slots, heads)
