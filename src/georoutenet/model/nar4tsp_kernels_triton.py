"""The kernels of `nar4tsp_triton`, which says what they are for.

Most kernels give each program a range of consecutive pairs (numbered as in `tiles_triton`), which it walks
through in tiles of ``P``: an instance's projections stay in the cache meanwhile. Sums over all pairs are left
by program. One compilation serves all numbers of cities and instances.
"""

# mypy: disable-error-code="no-untyped-def"
# ruff: noqa: SIM108  (a kernel's branches may differ in shape)
from __future__ import annotations

import triton
import triton.language as tl

from georoutenet.model.tiles_triton import ends, tanh


@triton.jit
def _both_ends(source, target, first, n, inside, f, D: tl.constexpr, P: tl.constexpr):
    """``s_i + t_j``, in their own precision: half the bytes on the way to the product's layout."""
    i, j = ends(first, n, n, 1.0 / n, 1.0 / n, P)
    s = tl.load(source + i[:, None] * D + f[None, :], mask=inside[:, None], other=0.0)
    t = tl.load(target + j[:, None] * D + f[None, :], mask=inside[:, None], other=0.0)
    return (s.to(tl.float32) + t.to(tl.float32)).to(s.dtype).to(tl.float32)


@triton.jit
def _by_head(first, n, heads, h, P: tl.constexpr):
    """Places in ``(B, H, n, n)`` of the ``P`` pairs from ``first`` on, ``(P, H)``."""
    instance = first // (n * n)
    pair = first - instance * n * n + tl.arange(0, P)
    # A tile crosses into one more instance at most, but for a handful of cities; then the product is exact.
    few = ((pair.to(tl.float32) + 0.5) * (1.0 / (n * n))).to(tl.int32)
    crossed = tl.where(n * n < P, few, (pair >= n * n).to(tl.int32))
    place = (instance + crossed) * (heads * n * n) + pair - crossed * (n * n)
    return place[:, None] + h[None, :] * (n * n)


@triton.jit
def _fold(x, P: tl.constexpr, D: tl.constexpr, PRODUCT: tl.constexpr):
    """Sums of rows that lie in one thread, so that nothing is exchanged.

    A product leaves rows ``r`` and ``r + 8`` there, a load those 16 apart (with eight warps).
    """
    if PRODUCT:
        return tl.reshape(tl.sum(tl.reshape(x, (P // 16, 2, 8, D)), 1), (P // 2, D))
    else:
        return tl.sum(tl.reshape(x, (P // 16, 16, D)), 0)


@triton.jit(do_not_specialize=["pairs", "n"])
def forward(
    x, scale, offset, weight, source, target, p, sums, pairs, n, chunk,
    D: tl.constexpr, P: tl.constexpr, FIRST: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """``p``, and of every program's pairs its sum and the sum of its square."""
    program = tl.program_id(0)
    f = tl.arange(0, D)
    if FIRST:
        w = tl.load(weight + f).to(tl.float32)
    else:
        w = tl.load(weight + f[None, :] * D + f[:, None])  # transposed: (in, out)
    a, c = tl.load(scale + f), tl.load(offset + f)
    ROWS: tl.constexpr = 16 if FIRST else P // 2
    total = tl.zeros((ROWS, D), tl.float32)
    square = tl.zeros((ROWS, D), tl.float32)
    start = program.to(tl.int64) * chunk
    for first in range(0, chunk, P):
        pair = first + tl.arange(0, P)
        inside = start + pair < pairs
        local = pair[:, None] * D + f[None, :]
        both = _both_ends(source, target, program * chunk + first, n, inside, f, D, P)
        if FIRST:
            raw = tl.load(x + start + pair, mask=inside, other=0.0).to(tl.float32)[:, None]
            u = raw * w[None, :] + both
            rest = raw * a[None, :] + c[None, :]
        else:
            raw = tl.load(x + start * D + local, mask=inside[:, None], other=0.0)
            u = tl.dot(raw, w, input_precision="ieee") + both
            rest = (raw.to(tl.float32) * a[None, :] + c[None, :]).to(raw.dtype).to(tl.float32)
        y = 0.5 * tanh(u, FAST) + rest
        tl.store(p + start * D + local, y.to(p.dtype.element_ty), mask=inside[:, None])
        y = tl.where(inside[:, None], y, 0.0)
        total += _fold(y, P, D, not FIRST)
        square += _fold(y * y, P, D, not FIRST)
    tl.store(sums + program * 2 * D + f, tl.sum(total, 0))
    tl.store(sums + program * 2 * D + D + f, tl.sum(square, 0))


@triton.jit(do_not_specialize=["programs", "pairs", "heads"])
def finish(
    sums, gamma, score, scale, offset, moments, scaled, constant, programs, pairs, heads,
    D: tl.constexpr, H: tl.constexpr,
):  # fmt: skip
    """From the programs' sums to scale', offset', mean and 1 / deviation; and the scores' affine map."""
    f = tl.arange(0, D)
    total = tl.zeros((32, D), tl.float32)
    square = tl.zeros((32, D), tl.float32)
    for first in range(0, programs, 32):
        row = first + tl.arange(0, 32)
        local = row[:, None] * (2 * D) + f[None, :]
        total += tl.load(sums + local, mask=(row < programs)[:, None], other=0.0)
        square += tl.load(sums + D + local, mask=(row < programs)[:, None], other=0.0)
    mean = tl.sum(total, 0) / pairs
    inverse = tl.rsqrt(tl.maximum(tl.sum(square, 0) / pairs - mean * mean, 0.0) + 1e-5)
    a = tl.load(gamma + f) * inverse
    tl.store(scale + f, a)
    tl.store(offset + f, -mean * a)
    tl.store(moments + f, mean)
    tl.store(moments + D + f, inverse)
    if H > 0:
        h = tl.arange(0, H)
        local = f[:, None] * heads + h[None, :]
        v = tl.load(score + local, mask=(h < heads)[None, :], other=0.0).to(tl.float32) * a[:, None]
        tl.store(scaled + local, v.to(scaled.dtype.element_ty), mask=(h < heads)[None, :])
        tl.store(constant + h, -tl.sum(v * mean[:, None], 0), mask=h < heads)


@triton.jit(do_not_specialize=["pairs", "n", "heads"])
def scores(
    p, scaled, constant, scores, pairs, n, heads, chunk, D: tl.constexpr, P: tl.constexpr, H: tl.constexpr
):
    """``p scaled + constant``."""
    start = tl.program_id(0).to(tl.int64) * chunk
    f, h = tl.arange(0, D), tl.arange(0, H)
    v = tl.load(scaled + f[:, None] * heads + h[None, :], mask=(h < heads)[None, :], other=0.0)
    c = tl.load(constant + h, mask=h < heads, other=0.0)
    for first in range(0, chunk, P):
        pair = first + tl.arange(0, P)
        inside = (start + pair < pairs)[:, None]
        value = tl.load(p + start * D + pair[:, None] * D + f[None, :], mask=inside, other=0.0)
        value = tl.dot(value, v, input_precision="ieee") + c[None, :]
        place = scores + _by_head(tl.program_id(0) * chunk + first, n, heads, h, P)
        tl.store(place, value.to(scores.dtype.element_ty), mask=inside & (h < heads)[None, :])


@triton.jit(do_not_specialize=["pairs", "n", "heads"])
def score_sums(
    p, grad, products, sums, pairs, n, heads, chunk, D: tl.constexpr, P: tl.constexpr, H: tl.constexpr
):
    """Of every program's pairs ``sum p^T grad (d, H)`` and ``sum grad (H)``."""
    program = tl.program_id(0)
    start = program.to(tl.int64) * chunk
    f, h = tl.arange(0, D), tl.arange(0, H)
    product = tl.zeros((D, H), tl.float32)
    total = tl.zeros((P, H), tl.float32)
    for first in range(0, chunk, P):
        pair = first + tl.arange(0, P)
        inside = start + pair < pairs
        value = tl.load(p + start * D + pair[:, None] * D + f[None, :], mask=inside[:, None], other=0.0)
        place = grad + _by_head(program * chunk + first, n, heads, h, P)
        change = tl.load(place, mask=inside[:, None] & (h < heads)[None, :], other=0.0)
        product += tl.dot(tl.trans(value), change, input_precision="ieee")
        total += change.to(tl.float32)
    place = products + program * D * heads + f[:, None] * heads + h[None, :]
    tl.store(place, product, mask=(h < heads)[None, :])
    tl.store(sums + program * heads + h, tl.sum(total, 0), mask=h < heads)


@triton.jit(do_not_specialize=["pairs", "n", "heads"])
def backward_proposal(
    grad, grad_scores, scaled, slope, level, p, x, scale, weight, source, target, dx, du, sums,
    pairs, n, heads, chunk,
    D: tl.constexpr, P: tl.constexpr, H: tl.constexpr, FIRST: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """From the gradients of what the layer hands on to those of ``u`` and ``x``.

    ``dp = grad + p slope + level + grad_scores scaled^T`` (slope and level are the statistics' share),
    ``du = dp tanh'(u)``, twice the gradient of ``u``; ``dx = dp scale + du W / 2``; and of every program's
    pairs ``sum dp x``.
    """
    program = tl.program_id(0)
    f = tl.arange(0, D)
    if FIRST:
        w = tl.load(weight + f).to(tl.float32)
    else:
        w = tl.load(weight + f[None, :] * D + f[:, None])  # transposed: (in, out)
        back = tl.load(weight + f[:, None] * D + f[None, :])  # as stored: (out, in)
        a = tl.load(scale + f)
    if H > 0:
        h = tl.arange(0, H)
        v = tl.load(scaled + f[None, :] * heads + h[:, None], mask=(h < heads)[:, None], other=0.0)
    k, m = tl.load(slope + f), tl.load(level + f)
    total = tl.zeros((P // 2 if H > 0 else 16, D), tl.float32)
    start = program.to(tl.int64) * chunk
    for first in range(0, chunk, P):
        pair = first + tl.arange(0, P)
        inside = start + pair < pairs
        local = pair[:, None] * D + f[None, :]
        both = _both_ends(source, target, program * chunk + first, n, inside, f, D, P)
        if FIRST:
            raw = tl.load(x + start + pair, mask=inside, other=0.0).to(tl.float32)[:, None]
            u = raw * w[None, :] + both
        else:
            raw = tl.load(x + start * D + local, mask=inside[:, None], other=0.0)
            u = tl.dot(raw, w, input_precision="ieee") + both
        tangent = tanh(u, FAST)
        change = tl.load(grad + start * D + local, mask=inside[:, None], other=0.0)
        value = tl.load(p + start * D + local, mask=inside[:, None], other=0.0).to(tl.float32)
        value = change.to(tl.float32) + (value * k[None, :] + m[None, :])
        value = tl.where(inside[:, None], value, 0.0).to(change.dtype).to(tl.float32)
        if H > 0:
            place = grad_scores + _by_head(program * chunk + first, n, heads, h, P)
            g = tl.load(place, mask=inside[:, None] & (h < heads)[None, :], other=0.0)
            value += tl.dot(g, v, input_precision="ieee")
        total += _fold(value * raw.to(tl.float32), P, D, H > 0)
        down = (value * (1.0 - tangent * tangent)).to(change.dtype)
        tl.store(du + start * D + local, down, mask=inside[:, None])
        if not FIRST:
            # Read back what was just written: a product whose operand comes out of another product in
            # registers would have its rows spread over all warps, twice as many as there are rows for.
            tl.debug_barrier()
            down = tl.load(du + start * D + local, mask=inside[:, None], other=0.0)
            value = value * a[None, :] + 0.5 * tl.dot(down, back, input_precision="ieee")
            tl.store(dx + start * D + local, value.to(dx.dtype.element_ty), mask=inside[:, None])
    tl.store(sums + program * D + f, tl.sum(total, 0))


@triton.jit(do_not_specialize=["n"])
def backward_weight(du, x, products, ds, dt, n, chunk, D: tl.constexpr, J: tl.constexpr, FIRST: tl.constexpr):
    """Half of ``du^T x`` and of the sums of ``du`` over targets and sources, for part of an instance's pairs.

    The program walks along the sources with a block of targets in hand.
    """
    instance, block, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    program = (instance * tl.num_programs(1) + block) * tl.num_programs(2) + part
    j, f = block * J + tl.arange(0, J), tl.arange(0, D)
    inside = j < n
    local = j[:, None] * D + f[None, :]
    if FIRST:
        product = tl.zeros((J, D), tl.float32)
    else:
        product = tl.zeros((D, D), tl.float32)
    total = tl.zeros((J, D), tl.float32)
    first = instance.to(tl.int64) * n * n
    for i in range(part * chunk, tl.minimum(part * chunk + chunk, n)):
        change = tl.load(du + (first + i * n) * D + local, mask=inside[:, None], other=0.0)
        wide = change.to(tl.float32)
        if FIRST:
            raw = tl.load(x + first + i * n + j, mask=inside, other=0.0).to(tl.float32)
            product += wide * raw[:, None]
        else:
            raw = tl.load(x + (first + i * n) * D + local, mask=inside[:, None], other=0.0)
            product += tl.dot(tl.trans(change), raw, input_precision="ieee")  # (out, in)
        total += wide
        tl.store(ds + ((block * tl.num_programs(0) + instance) * n + i) * D + f, 0.5 * tl.sum(wide, 0))
    tl.store(dt + (part * tl.num_programs(0) + instance) * n * D + local, 0.5 * total, mask=inside[:, None])
    if FIRST:
        tl.store(products + program * D + f, 0.5 * tl.sum(product, 0))
    else:
        tl.store(products + program * D * D + f[:, None] * D + f[None, :], 0.5 * product)
