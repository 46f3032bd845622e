"""The CUDA kernel that adds up parts, on emulated blocks, against plain PyTorch."""

from __future__ import annotations

import pytest
import torch
from emulated import off, worst_row
from torch import Tensor

from georoutenet.kernels.cuda.part_sums import part_sums

FP32, BF16 = torch.float32, torch.bfloat16
# One array and several; one part, a few, as many as share threads; less and more columns than a block has.
SHAPES = [
    ([(1, 1, 4)], [FP32]),
    ([(1, 132, 2, 128), (3, 2, 7, 128)], [FP32, BF16]),
    ([(2, 17, 40), (1, 16, 1032), (5, 3, 12)], [BF16, FP32, FP32]),
    ([(1, 20, 8), (1, 2, 8), (2, 3, 4), (1, 40, 300)], [FP32, BF16, FP32, BF16]),
]


def check(found: list[Tensor], arrays: list[Tensor], dtypes: list[torch.dtype]) -> None:
    for mine, x, dtype in zip(found, arrays, dtypes, strict=True):
        assert mine.dtype == dtype
        assert mine.shape == x.sum(1).shape
        limit = 1e-6 if dtype == FP32 else 2**-8
        assert off(mine, x.double().sum(1)) < limit
        assert worst_row(mine, x.double().sum(1)) < 4 * limit


@pytest.mark.usefixtures("launched")
@pytest.mark.parametrize(("shapes", "dtypes"), SHAPES)
def test_against_the_reference(shapes: list[tuple[int, ...]], dtypes: list[torch.dtype]) -> None:
    arrays = [torch.randn(shape) for shape in shapes]
    check(part_sums(*arrays, dtypes=dtypes), arrays, dtypes)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("shapes", "dtypes"), [*SHAPES, ([(1, 132, 128, 128), (64, 2, 50, 128)], [FP32, BF16])]
)
def test_on_the_device(shapes: list[tuple[int, ...]], dtypes: list[torch.dtype]) -> None:
    arrays = [torch.randn(shape, device="cuda") for shape in shapes]
    check(part_sums(*arrays, dtypes=dtypes), arrays, dtypes)
