"""The CUDA kernels of the edge update on an emulated block, against float64 in plain PyTorch."""

from __future__ import annotations

import pytest
import torch
from emulated import Emulated, off

from georoutenet.kernels.cuda import compile as native
from georoutenet.kernels.cuda import edge_update as edge_update_cuda
from georoutenet.kernels.edge_update import edge_update_reference


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Emulated:
    return Emulated("edge_update.cu", tmp_path_factory.mktemp("edge_update"))


@pytest.fixture(scope="module")
def grouped(tmp_path_factory: pytest.TempPathFactory) -> Emulated:
    """Four warps multiply together."""
    return Emulated("edge_update.cu", tmp_path_factory.mktemp("edge_update_grouped"), hopper=True, warps=8)


@pytest.mark.parametrize(
    ("batch", "m", "n"), [(1, 3, 3), (2, 5, 5), (1, 2, 21), (3, 1, 7), (2, 7, 4), (3, 5, 1), (2, 12, 25)]
)
def test_against_the_reference(kernels: Emulated, grouped: Emulated, batch: int, m: int, n: int) -> None:
    torch.manual_seed(n)
    d, pairs = 128, batch * m * n
    e, source, target, grad = (
        torch.randn(shape).bfloat16()
        for shape in ((batch, m, n, d), (batch, m, d), (batch, n, d), (batch, m, n, d))
    )
    weight = (torch.randn(d, d) * d**-0.5).bfloat16()
    gamma, beta = torch.rand(d) + 0.5, torch.randn(d)
    together, out, de, du = (torch.full_like(e, torch.nan) for _ in range(4))
    scales, shifts, *others = torch.full((4, pairs), torch.nan)
    norms = torch.full((kernels.blocks, 2, d), torch.nan)
    read = (e, source, target, weight, gamma)
    grouped("update_forward", *read, beta, together, *others, m, n, pairs)
    kernels("update_forward", *read, beta, out, scales, shifts, m, n, pairs)
    kernels("update_backward", *read, scales, shifts, grad, de, du, norms, m, n, pairs)
    given = grad.clone()
    kernels("update_backward", *read, scales, shifts, given, given, du, norms, m, n, pairs)  # in place
    assert torch.equal(given, de)

    exact = [x.double().requires_grad_() for x in (*read, beta)]
    result = edge_update_reference(*exact)
    result.backward(grad.double())
    ge, gs, gt, gw, ggamma, gbeta = (x.grad for x in exact)
    # What differs is the rounding to bfloat16, 2^-9 a time.
    assert off(out, result) < 4e-3
    assert off(together, result) < 4e-3
    assert off(torch.stack(others), torch.stack((scales, shifts))) < 1e-3
    assert off(de, ge) < 6e-3
    assert off(du.float().sum(2), gs) < 8e-3
    assert off(du.float().sum(1), gt) < 8e-3
    assert off(torch.einsum("bmno,bmni->oi", du.double(), e.double()), gw) < 8e-3
    assert off(norms.sum(0)[0], ggamma) < 1e-2
    assert off(norms.sum(0)[1], gbeta) < 1e-5


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("batch", "m", "n"), [(1, 3, 3), (2, 5, 5), (3, 1, 7), (3, 63, 63), (64, 50, 50), (512, 50, 50)]
)
def test_hopper_on_the_device(batch: int, m: int, n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four warps together compute what each warp computes alone: only sums are added in another order."""
    torch.manual_seed(n)
    d = 128
    shapes = ((batch, m, n, d), (batch, m, d), (batch, n, d), (d, d))
    e, source, target, weight = (torch.randn(shape, device="cuda").bfloat16() for shape in shapes)
    weight *= d**-0.5
    gamma, beta = torch.rand(d, device="cuda") + 0.5, torch.randn(d, device="cuda")
    found = []
    for hopper in (False, True):
        monkeypatch.setattr(native, "HOPPER", hopper)
        if native.hopper(e.device) != hopper or not edge_update_cuda.fits(e):
            pytest.skip("no such kernels on this device")
        found.append(edge_update_cuda.forward_pass((e, source, target, weight, gamma, beta)))
    assert all(off(mine, alone) < 3e-3 for mine, alone in zip(*found, strict=True))
