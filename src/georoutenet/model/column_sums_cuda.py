"""Sums over the rows of a bfloat16 matrix in CUDA C++ (`column_sums.cu`): a bias' gradient for every row."""

from __future__ import annotations

import torch
from torch import Tensor

from georoutenet.model import native
from georoutenet.model.native import WIDTH, Kernel

BAND = 256  # columns of a block
WARPS = 16
SUMS = Kernel("column_sums.cu", "column_sums", warps=WARPS, shared=4 * WARPS * BAND)


def fits(x: Tensor) -> bool:
    """Whether the kernel takes these rows."""
    whole = x.shape[1] % BAND == 0 and x.stride(0) % 8 == 0 and x.stride(1) == 1 and x.data_ptr() % 16 == 0
    return whole and native.fits(x[:, :WIDTH], SUMS)


def column_sums(x: Tensor) -> Tensor:
    """``x.sum(0)`` in float32; rows may lie apart."""
    return sums(x, SUMS.count((x,))) if fits(x) else x.sum(0, dtype=torch.float32)


def sums(x: Tensor, places: int) -> Tensor:
    """The kernel's sums with about this many blocks: a number of parts of the rows, added up at last."""
    rows, columns = x.shape
    bands = columns // BAND
    parts = max(1, min(places // bands, -(-rows // WARPS)))
    found = x.new_empty((parts, columns), dtype=torch.float32)
    SUMS(x, found, rows, x.stride(0) // 8, bands, -(-rows // parts), blocks=parts * bands)
    return found.sum(0)
