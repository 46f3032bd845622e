"""Sums over pairs for the edge update's backward pass in CUDA C++ (`edge_sums.cu`): bfloat16, 128 features.

They are what the Triton kernel `edge_update_triton._sums` computes, with both tensors read once through a queue
of copies into shared memory.
"""

from __future__ import annotations

from torch import Tensor, float32

from georoutenet.model import native
from georoutenet.model.native import TILE, Kernel

TARGETS = 64  # of an item, at most
# Three stages of four tiles of both tensors; two blocks a multiprocessor, one works while the other waits.
SUMS = Kernel("edge_sums.cu", "update_sums", warps=8, shared=3 * 4 * 2 * TILE, blocks=2)


def fits(du: Tensor) -> bool:
    """Whether the kernel takes these gradients."""
    return native.fits(du, SUMS)


def split(batch: int, m: int, n: int, places: int) -> tuple[int, int, int, int]:
    """Items of about equal work, of all targets or blocks of them, and of all sources or parts of them.

    Returns the number of blocks, the targets of one, the number of parts, and the sources of one: such that the
    longest walk of a place on the device is short. A new part costs about two sources.
    """
    blocks = -(-n // TARGETS)
    walks = {}
    for wanted in range(1, min(m, max(1, 4 * places // (batch * blocks)) + 1) + 1):
        chunk = -(-m // wanted)
        parts = -(-m // chunk)
        walks[parts, chunk] = -(-batch * blocks * parts // places) * (chunk + 2)
    parts, chunk = min(walks, key=lambda key: walks[key])
    return blocks, -(-n // blocks), parts, chunk


def sums(e: Tensor, du: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of sources (B, blocks, m, d) and targets (B, parts, n, d) in parts, and of the weight (d, d)."""
    batch, m, n, d = e.shape
    places = SUMS.count((e,))
    blocks, width, parts, chunk = split(batch, m, n, places)
    items = batch * blocks * parts
    count = min(places, items)
    dw = e.new_empty((count, d, d), dtype=float32)
    ds = e.new_empty((batch, blocks, m, d), dtype=float32)
    dt = e.new_empty((batch, parts, n, d), dtype=float32)
    SUMS(du, e, dw, ds, dt, m, n, items, blocks, width, parts, chunk, blocks=count)
    return ds, dt, dw.sum(0)
