"""Sums over pairs for the edge update's backward pass in CUDA C++ (`edge_sums.cu`): bfloat16, 128 features.

They are what the Triton kernel `edge_update_triton._sums` computes, with both tensors read once through a
queue of copies into shared memory.
"""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import Tensor

from georoutenet.kernels.cuda import compile as native
from georoutenet.kernels.cuda.compile import TILE, Kernel
from georoutenet.kernels.cuda.part_sums import part_sums
from georoutenet.kernels.streams import later

TARGETS = 64  # of an item, at most
TEAMS = 2  # of a block, which work on items of their own: one works while the other waits
# A team has 8 warps and three stages of four tiles of both tensors.
SUMS = Kernel("edge_sums.cu", "update_sums", warps=8 * TEAMS, shared=TEAMS * 3 * 4 * 2 * TILE)


def fits(du: Tensor) -> bool:
    """Whether the kernel takes these gradients."""
    return native.fits(du, SUMS)


def split(batch: int, m: int, n: int, teams: int) -> tuple[int, int, int, int]:
    """Items of about equal work: a band of an instance's targets and a part of its sources each.

    Returns the number of bands, the targets of one, the number of parts, and the sources of one, such that
    the longest walk of a team is short. An item costs about two sources more than it has.
    """
    bands = -(-n // TARGETS)
    walks = {}
    for wanted in range(1, min(m, 4 * teams // (batch * bands) + 1) + 1):
        chunk = -(-m // wanted)
        parts = -(-m // chunk)
        walks[parts, chunk] = -(-batch * bands * parts // teams) * (chunk + 2)
    parts, chunk = min(walks, key=lambda key: walks[key])
    return bands, -(-n // bands), parts, chunk


def outputs(e: Tensor, bands: int, parts: int, blocks: int) -> tuple[Tensor, Tensor, Tensor]:
    """Where the sums go: of the weight's gradient, each block's; others in bfloat16 if in one piece."""
    batch, m, n, d = e.shape
    wide, narrow = torch.float32, e.dtype
    return (
        e.new_empty((blocks, d, d), dtype=wide),
        e.new_empty((batch, bands, m, d), dtype=narrow if bands == 1 else wide),
        e.new_empty((batch, parts, n, d), dtype=narrow if parts == 1 else wide),
    )


def totals(
    dw: Tensor, ds: Tensor, dt: Tensor, norms: Tensor, narrow: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of sources ``(B, m, d)``, targets ``(B, n, d)``, the weight and the norm from their parts."""
    in_parts = [x for x in (ds, dt) if x.shape[1] > 1]
    dtypes = [dw.dtype, norms.dtype, *[narrow] * len(in_parts)]
    # One kernel adds up all of them, and gradients of cities are wanted at once.
    with nullcontext() if in_parts else later(dw, norms):
        weight, norm, *found = part_sums(dw.unsqueeze(0), norms.unsqueeze(0), *in_parts, dtypes=dtypes)
    sources, targets = (found.pop(0) if x.shape[1] > 1 else x.squeeze(1) for x in (ds, dt))
    return sources, targets, weight.squeeze(0), norm.squeeze(0)


def sums(e: Tensor, du: Tensor, norms: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of sources, targets and the weight; and norms ``(parts, 2, d)`` added up."""
    batch, m, n, _ = e.shape
    places = SUMS.count((e,))
    bands, width, parts, chunk = split(batch, m, n, TEAMS * places)
    items = batch * bands * parts
    blocks = min(places, items)
    dw, ds, dt = outputs(e, bands, parts, blocks)
    SUMS(du, e, dw, ds, dt, m, n, items, bands, width, parts, chunk, blocks=blocks)
    return totals(dw, ds, dt, norms, e.dtype)
