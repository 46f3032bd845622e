"""Sums of the parts that blocks of threads leave behind, several arrays at a time (`part_sums.cu`)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from georoutenet.kernels.cuda import compile as native
from georoutenet.kernels.cuda.compile import WIDTH, Kernel

LANES = 8
ARRAYS = 4  # of a launch
SUMS = Kernel("part_sums.cu", "part_sums", warps=LANES, shared=LANES * 32 * 16)


def part_sums(*arrays: Tensor, dtypes: Sequence[torch.dtype]) -> list[Tensor]:
    """``x.sum(1)`` of up to four float32 arrays ``(groups, parts, ...)``, each in its dtype."""
    rows = torch.empty((0, WIDTH), dtype=torch.bfloat16, device=arrays[0].device)
    if not all(_is_whole(x) for x in arrays) or not native.fits(rows, SUMS):
        return [x.sum(1).to(dtype) for x, dtype in zip(arrays, dtypes, strict=True)]
    return sums(arrays, dtypes)


def _is_whole(x: Tensor) -> bool:
    return x.dtype == torch.float32 and x.is_contiguous() and x[0, 0].numel() % 4 == 0


def sums(arrays: Sequence[Tensor], dtypes: Sequence[torch.dtype]) -> list[Tensor]:
    """`part_sums` in the kernel."""
    found = [
        x.new_empty((len(x), *x.shape[2:]), dtype=dtype) for x, dtype in zip(arrays, dtypes, strict=True)
    ]
    arguments: list[Tensor | int] = []
    blocks = 0
    for x, out in zip(arrays, found, strict=True):
        parts, columns = x.shape[1], out.numel() // 4
        arguments += [x, out, columns, columns // len(x), parts]
        blocks += -(-columns * (LANES if parts > 2 * LANES else 1) // (32 * LANES))
    for _ in range(ARRAYS - len(arrays)):
        arguments += [arrays[0], found[0], 0, 1, 1]
    narrow = sum(1 << k for k, dtype in enumerate(dtypes) if dtype == torch.bfloat16)
    SUMS(*arguments, narrow, blocks=blocks)
    return found
