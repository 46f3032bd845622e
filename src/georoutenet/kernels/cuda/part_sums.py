"""Sums of the parts that blocks of threads leave behind, several arrays at a time (`part_sums.cu`)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from georoutenet.kernels.cuda.compile import Kernel

LANES = 8
ARRAYS = 4  # of a launch
SUM = Kernel("part_sums.cu", "part_sums", warps=LANES, shared=LANES * 32 * 16)


def part_sums(*arrays: Tensor, dtypes: Sequence[torch.dtype]) -> list[Tensor]:
    """``x.sum(1)`` of up to four contiguous fp32 arrays ``(groups, parts, ...)``, each in its dtype. What a
    part holds is a multiple of four numbers."""
    assert all(x.is_contiguous() and x[0, 0].numel() % 4 == 0 for x in arrays)
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
    in_bf16 = sum(1 << k for k, dtype in enumerate(dtypes) if dtype == torch.bfloat16)
    SUM(*arguments, in_bf16, blocks=blocks)
    return found
