"""NAR4TSP's small work between its layers in CUDA C++ on emulated blocks and on a GPU, against float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from emulated import Emulated
from torch import Tensor

from georoutenet.model import nar4tsp_vectors_cuda as module
from georoutenet.model import native

pytest.importorskip("triton", reason="Triton is not installed")
from test_nar4tsp_layer_cuda import OnTheCpu, poisoned
from test_nar4tsp_triton import off

WIDTH = 128


@pytest.fixture
def _emulated(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, kernel in vars(module).copy().items():
        if isinstance(kernel, native.Kernel):
            folder = tmp_path_factory.mktemp(kernel.name)
            emulated = Emulated(module.FILE, folder, warps=kernel.warps)
            monkeypatch.setattr(module, name, OnTheCpu(emulated, kernel.name, kernel.warps))
    for owner, name in ((torch.Tensor, "new_empty"), (torch, "empty_like")):
        monkeypatch.setattr(owner, name, poisoned(getattr(owner, name)))


def compare(
    mine: Callable[..., tuple[Tensor, ...]], exact: Callable[..., tuple[Tensor, ...]], *inputs: Tensor
) -> None:
    """Results and all gradients."""
    low = [x.clone().requires_grad_() for x in inputs]
    high = [x.double().requires_grad_() for x in inputs]
    found, wanted = mine(*low), exact(*high)
    weights = [torch.randn_like(result).bfloat16().double() for result in wanted]
    for results in (found, wanted):
        sum(
            (result.double() * weight).sum() for result, weight in zip(results, weights, strict=True)
        ).backward()
    pairs = [*zip(found, wanted, strict=True), *((a.grad, b.grad) for a, b in zip(low, high, strict=True))]
    for number, (one, other) in enumerate(pairs):
        assert off(one, other) < 5e-3, (number, off(one, other))


def check_norm(rows: int, device: str) -> None:
    torch.manual_seed(rows)
    x = torch.randn(rows, WIDTH, device=device) + 10 * torch.randn(WIDTH, device=device)
    vectors = torch.randn(2, WIDTH, device=device)
    compare(
        lambda *given: module.start_norm(*given)[:1],
        lambda *given: (module.start_norm_reference(*given),),
        x,
        *vectors,
    )


def check_fold(device: str, *, is_half: bool) -> None:
    torch.manual_seed(0)
    weight = torch.randn(WIDTH, WIDTH, device=device)
    vectors = torch.randn(4, WIDTH, device=device)
    compare(
        lambda *given: module.fold(*given, is_half),
        lambda *given: module.fold_reference(*given, is_half),
        weight,
        *vectors,
    )


@pytest.mark.usefixtures("_emulated")
@pytest.mark.parametrize("rows", [3, 40])
def test_norm(rows: int) -> None:
    check_norm(rows, "cpu")


@pytest.mark.usefixtures("_emulated")
@pytest.mark.parametrize("is_half", [False, True])
def test_fold(is_half: bool) -> None:
    check_fold("cpu", is_half=is_half)


@pytest.mark.gpu
def test_on_the_device() -> None:
    if not module.fits(WIDTH, "cuda", torch.bfloat16):
        pytest.skip("no such kernels on this device")
    for rows in (2, 64, 513):
        check_norm(rows, "cuda")
    for is_half in (False, True):
        check_fold("cuda", is_half=is_half)
