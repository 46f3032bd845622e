"""The CUDA kernel of column sums on emulated blocks, against float64 in plain PyTorch."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from emulated import Emulated, off

from georoutenet.model import column_sums_cuda
from georoutenet.model.column_sums_cuda import WARPS, column_sums, sums


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Emulated:
    return Emulated("column_sums.cu", tmp_path_factory.mktemp("column_sums"), warps=WARPS)


# One row, less rows than warps, parts without rows, many rows a warp; other columns beside.
SHAPES = [(1, 256, 256), (7, 512, 640), (34, 1280, 1664), (97, 512, 512), (600, 256, 384)]


@pytest.mark.parametrize("places", [1, 5, 30])
@pytest.mark.parametrize(("rows", "columns", "stride"), SHAPES)
def test_against_the_reference(
    kernels: Emulated, monkeypatch: pytest.MonkeyPatch, rows: int, columns: int, stride: int, places: int
) -> None:
    monkeypatch.setattr(column_sums_cuda, "SUMS", partial(kernels, "column_sums"))
    torch.manual_seed(rows)
    x = torch.randn(rows, stride).bfloat16()[:, :columns]
    assert off(sums(x, places), x.double().sum(0)) < 1e-6


def test_without_a_device() -> None:
    x = torch.randn(9, 256).bfloat16()
    assert torch.equal(column_sums(x), x.sum(0, dtype=torch.float32))


@pytest.mark.gpu
@pytest.mark.parametrize(("rows", "columns", "stride"), [*SHAPES, (3200, 1280, 1664), (25_600, 1280, 1664)])
def test_on_the_device(rows: int, columns: int, stride: int) -> None:
    x = torch.randn(rows, stride, device="cuda").bfloat16()[:, :columns]
    if not column_sums_cuda.fits(x):
        pytest.skip("no CUDA kernels on this device")
    assert off(column_sums(x), x.double().sum(0)) < 1e-5
