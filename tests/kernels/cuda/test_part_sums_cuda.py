"""The CUDA kernel that adds up parts, on emulated blocks, against plain PyTorch."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from emulated import Emulated, off
from torch import Tensor

from georoutenet.kernels.cuda import compile as native
from georoutenet.kernels.cuda import part_sums as part_sums_cuda
from georoutenet.kernels.cuda.part_sums import LANES, SUMS, part_sums, sums

WIDE, NARROW = torch.float32, torch.bfloat16
# One array and several; one part, a few, as many as share threads; less and more columns than a block has.
SHAPES = [
    ([(1, 1, 4)], [WIDE]),
    ([(1, 132, 2, 128), (3, 2, 7, 128)], [WIDE, NARROW]),
    ([(2, 17, 40), (1, 16, 1032), (5, 3, 12)], [NARROW, WIDE, WIDE]),
    ([(1, 20, 8), (1, 2, 8), (2, 3, 4), (1, 40, 300)], [WIDE, NARROW, WIDE, NARROW]),
]


def check(found: list[Tensor], arrays: list[Tensor], dtypes: list[torch.dtype]) -> None:
    for mine, x, dtype in zip(found, arrays, dtypes, strict=True):
        assert mine.dtype == dtype
        assert mine.shape == x.sum(1).shape
        assert off(mine, x.double().sum(1)) < (1e-6 if dtype == WIDE else 2**-8)


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Emulated:
    return Emulated("part_sums.cu", tmp_path_factory.mktemp("part_sums"), warps=LANES)


@pytest.mark.parametrize(("shapes", "dtypes"), SHAPES)
def test_against_the_reference(
    kernels: Emulated,
    monkeypatch: pytest.MonkeyPatch,
    shapes: list[tuple[int, ...]],
    dtypes: list[torch.dtype],
) -> None:
    monkeypatch.setattr(part_sums_cuda, "SUMS", partial(kernels, "part_sums"))
    arrays = [torch.randn(shape) for shape in shapes]
    check(sums(arrays, dtypes), arrays, dtypes)


def test_without_a_device() -> None:
    x = torch.randn(2, 9, 8)
    (found,) = part_sums(x, dtypes=[WIDE])
    assert torch.equal(found, x.sum(1))


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("shapes", "dtypes"), [*SHAPES, ([(1, 132, 128, 128), (64, 2, 50, 128)], [WIDE, NARROW])]
)
def test_on_the_device(shapes: list[tuple[int, ...]], dtypes: list[torch.dtype]) -> None:
    arrays = [torch.randn(shape, device="cuda") for shape in shapes]
    if not native.fits(torch.empty(0, 128, dtype=NARROW, device="cuda"), SUMS):
        pytest.skip("no CUDA kernels on this device")
    check(part_sums(*arrays, dtypes=dtypes), arrays, dtypes)
