"""The CUDA kernels of the edge update on an emulated block, against float64 in plain PyTorch."""

from __future__ import annotations

import pytest
import torch
from emulated import Emulated, off

from georoutenet.model.edge_update_triton import edge_update_reference


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Emulated:
    return Emulated("edge_update.cu", tmp_path_factory.mktemp("edge_update"))


@pytest.mark.parametrize(("batch", "m", "n"), [(1, 3, 3), (2, 5, 5), (1, 2, 21), (3, 1, 7), (2, 7, 4)])
def test_against_the_reference(kernels: Emulated, batch: int, m: int, n: int) -> None:
    torch.manual_seed(n)
    d, pairs = 128, batch * m * n
    e, source, target, grad = (
        torch.randn(shape).bfloat16()
        for shape in ((batch, m, n, d), (batch, m, d), (batch, n, d), (batch, m, n, d))
    )
    weight = (torch.randn(d, d) * d**-0.5).bfloat16()
    gamma, beta = torch.rand(d) + 0.5, torch.randn(d)
    out, de, du = (torch.full_like(e, torch.nan) for _ in range(3))
    scales, shifts = torch.full((2, pairs), torch.nan)
    norms = torch.full((kernels.blocks, 2, d), torch.nan)
    read = (e, source, target, weight, gamma)
    kernels("update_forward", *read, beta, out, scales, shifts, m, n, pairs)
    kernels("update_backward", *read, scales, shifts, grad, de, du, norms, m, n, pairs)

    exact = [x.double().requires_grad_() for x in (*read, beta)]
    result = edge_update_reference(*exact)
    result.backward(grad.double())
    ge, gs, gt, gw, ggamma, gbeta = (x.grad for x in exact)
    # What differs is the rounding to bfloat16, 2^-9 a time.
    assert off(out, result) < 4e-3
    assert off(de, ge) < 6e-3
    assert off(du.float().sum(2), gs) < 8e-3
    assert off(du.float().sum(1), gt) < 8e-3
    assert off(torch.einsum("bmno,bmni->oi", du.double(), e.double()), gw) < 8e-3
    assert off(norms.sum(0)[0], ggamma) < 1e-2
    assert off(norms.sum(0)[1], gbeta) < 1e-2
