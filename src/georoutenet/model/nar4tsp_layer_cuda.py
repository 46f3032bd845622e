"""The passes of NAR4TSP's edge layer over all pairs in CUDA C++ (`nar4tsp_layer.cu`): bfloat16, 128 features.

They compute what the Triton kernels of `nar4tsp_kernels_triton` compute; the sums for the weight, sources and
targets come from the kernel that GeoRouteNet's update uses (`edge_sums_cuda`). In the first layer ``x`` are
distances in float32, ``(B, n, n, 1)``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from georoutenet.model import edge_sums_cuda, native
from georoutenet.model.native import MATRIX, TILE, WIDTH, Kernel
from georoutenet.model.part_sums_cuda import part_sums

FILE = "nar4tsp_layer.cu"
HEADS = 8  # at most
NARROW = 32 * WIDTH  # bytes of a matrix with 16 columns
# As many warps as the registers of a multiprocessor allow.
FORWARD = Kernel(FILE, "nar4tsp_forward", warps=12, shared=MATRIX + 12 * 3 * TILE, groups=True)
FIRST_FORWARD = Kernel(FILE, "nar4tsp_first_forward", warps=12, shared=12 * TILE)
FINISH = Kernel(FILE, "nar4tsp_finish", warps=32, shared=0)
SCORES = Kernel(FILE, "nar4tsp_scores", warps=8, shared=0, blocks=4)
SCORE_SUMS = Kernel(FILE, "nar4tsp_score_sums", warps=24, shared=24 * 2 * TILE)
NORM_BACKWARD = Kernel(FILE, "nar4tsp_norm_backward", warps=8, shared=0)
BACKWARD = Kernel(FILE, "nar4tsp_backward", warps=12, shared=2 * MATRIX + NARROW + 12 * 3 * TILE, groups=True)
BACKWARD_ALONE = Kernel(FILE, "nar4tsp_backward", warps=8, shared=2 * MATRIX + NARROW + 8 * 3 * TILE)
FIRST_BACKWARD = Kernel(FILE, "nar4tsp_first_backward", warps=12, shared=NARROW + 12 * 2 * TILE, groups=True)


def _backward_kernel(device: torch.device, *, is_first: bool) -> Kernel:
    return FIRST_BACKWARD if is_first else BACKWARD if native.hopper(device) else BACKWARD_ALONE


def fits(states: Tensor, heads: int) -> bool:
    """Whether the kernels take such states or projections."""
    forward = (FORWARD, FIRST_FORWARD, FINISH, SCORES)
    sums = (SCORE_SUMS, NORM_BACKWARD, edge_sums_cuda.SUMS, FIRST_BACKWARD)
    backward = _backward_kernel(states.device, is_first=False)
    return heads <= HEADS and native.fits(states, *forward, *sums, backward)


def forward_pass(
    x: Tensor,
    scale: Tensor,
    offset: Tensor,
    weight: Tensor,
    source: Tensor,
    target: Tensor,
    gamma: Tensor,
    score: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """``p``, its ``scale'`` and ``offset'``, scores, and mean and 1 / deviation of ``p``."""
    batch, n, d = source.shape
    heads, pairs = score.shape[1], batch * n * n
    kernel = FORWARD
    if x.shape[-1] == 1:
        kernel, x, weight = FIRST_FORWARD, x.float(), weight.float()
    p = source.new_empty(batch, n, n, d)
    sums = gamma.new_empty(kernel.count((source,)), 2, d)
    kernel(x, scale, offset, weight, source, target, p, sums, n, pairs)
    out_scale, out_offset, moments = gamma.new_empty(d), gamma.new_empty(d), gamma.new_empty(2, d)
    scaled, constant = torch.empty_like(score), gamma.new_empty(heads)
    out = (out_scale, out_offset, moments, scaled, constant)
    FINISH(sums, gamma, score, *out, len(sums), pairs, heads, blocks=1)
    scores = source.new_empty(batch, heads, n, n)
    if heads:
        SCORES(p, scaled, constant, scores, n, heads, pairs)
    return p, out_scale, out_offset, scores, moments


def norm_backward(
    p: Tensor,
    grad_scores: Tensor,
    grad_scale: Tensor,
    grad_offset: Tensor,
    score: Tensor,
    scale: Tensor,
    offset: Tensor,
    moments: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """What statistics and scores add to ``dp``: slope, level and scaled; gradients of gamma and score."""
    batch, n, _, d = p.shape
    heads, pairs = score.shape[1], batch * n * n
    blocks = SCORE_SUMS.count((p,)) if heads else 0
    products, sums = moments.new_empty(blocks, d, HEADS), moments.new_empty(blocks, HEADS)
    if heads:
        SCORE_SUMS(p, grad_scores, products, sums, n, heads, pairs)
    slope, level, dgamma = (torch.empty_like(scale) for _ in range(3))
    scaled, dscore = torch.empty_like(score), torch.empty_like(score)
    read = (products, sums, grad_scale, grad_offset, score, scale, offset, moments)
    written = (slope, level, scaled, dgamma, dscore)
    NORM_BACKWARD(*read, *written, blocks, heads, pairs, blocks=d // 8)
    return written


def backward_pass(
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
    """Gradients of ``x`` (empty for distances), ``scale``, ``weight``, ``source`` and ``target``."""
    batch, n, _, d = p.shape
    pairs, heads, is_first = batch * n * n, scaled.shape[1], x.shape[-1] == 1
    kernel = _backward_kernel(p.device, is_first=is_first)
    above, ends = (grad, grad_scores, scaled, slope, level, p), (source, target)
    du, dx = torch.empty_like(p), p.new_empty(0) if is_first else torch.empty_like(p)
    dscale = p.new_empty((1, kernel.count((p,)), d), dtype=torch.float32)

    places = edge_sums_cuda.SUMS.count((p,))
    bands, width, parts, chunk = edge_sums_cuda.split(batch, n, n, edge_sums_cuda.TEAMS * places)
    items = batch * bands * parts
    blocks = min(places, items)
    dw, ds, dt = edge_sums_cuda.outputs(p, bands, parts, blocks)
    shape = (n, n, items, bands, width, parts, chunk)
    if is_first:
        dweight = torch.empty_like(dscale)
        kernel(*above, x.float(), weight.float(), *ends, du, dscale, dweight, n, heads, pairs)
        edge_sums_cuda.SUMS(du, du, dw, ds, dt, *shape, blocks=blocks)  # of which dw is not used
    else:
        dweight = dw.unsqueeze(0)
        kernel(*above, x, scale, weight, *ends, dx, du, dscale, n, heads, pairs)
        edge_sums_cuda.SUMS(du, x, dw, ds, dt, *shape, blocks=blocks)

    in_parts = [share for share in (ds, dt) if share.shape[1] > 1]
    dtypes = [scale.dtype, weight.dtype, *(p.dtype for _ in in_parts)]
    dscale, dweight, *found = part_sums(dscale, dweight, *in_parts, dtypes=dtypes)
    ds, dt = (found.pop(0) if share.shape[1] > 1 else share.squeeze(1) for share in (ds, dt))
    return dx, dscale.view_as(scale), dweight.view_as(weight), ds, dt
