"""The CUDA kernels of the edge tower's ends on an emulated block, against float64 in plain PyTorch."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from emulated import Emulated, off

from georoutenet.kernels.cuda import edge_ends as edge_ends_cuda
from georoutenet.kernels.edge_ends import edge_embedding_reference, edge_logit_reference

# A block takes 128 pairs at a time.
SIZES = [(1, 1), (17, 2), (64, 1), (129, 2), (321, 2), (650, 1)]


@dataclass
class Kernels:
    """The kernels of both passes."""

    forward: Emulated
    backward: Emulated


@pytest.fixture(scope="module", params=["each warp", "four warps"])
def kernels(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    forward, backward = (tmp_path_factory.mktemp(name) for name in ("forward", "backward"))
    if request.param == "each warp":
        return Kernels(
            Emulated("edge_ends.cu", forward, warps=8),
            Emulated("edge_ends_backward.cu", backward, warps=8),
        )
    return Kernels(
        Emulated("edge_ends.cu", forward, warps=8, hopper=True),
        Emulated("edge_ends_hopper.cu", backward, warps=16, hopper=True),
    )


@pytest.mark.parametrize(("pairs", "blocks"), SIZES)
def test_embedding(kernels: Kernels, pairs: int, blocks: int) -> None:
    torch.manual_seed(pairs)
    d, k = 128, 16
    distance = torch.rand(pairs) * 1.4
    centers, bandwidth = torch.linspace(0, 1.4, k), torch.tensor(0.11)
    weight1, weight2 = (torch.randn(d, size).mul(size**-0.5).bfloat16() for size in (k, d))
    bias1, bias2 = torch.randn(2, d)
    grad = torch.randn(pairs, d).bfloat16()
    out = torch.full_like(grad, torch.nan)
    read = (distance, centers, bandwidth, weight1, bias1, weight2)
    kernels.forward("embedding_forward", *read, bias2, out, pairs, blocks=blocks)
    parts = torch.full((blocks, edge_ends_cuda.EMBEDDING_SHARE), torch.nan)
    kernels.backward("embedding_backward", *read, grad, parts, pairs, blocks=blocks)

    exact = [x.double().requires_grad_() for x in (*read, bias2)]
    result = edge_embedding_reference(*exact, dtype=torch.float64)
    result.backward(grad.double())
    # What differs is the rounding to bfloat16, 2^-9 a time.
    assert off(out, result) < 4e-3
    found = [x.fill_(torch.nan) for x in edge_ends_cuda.embedding_gradients(bandwidth)]
    rows = edge_ends_cuda.EMBEDDING_TOTALS_ROWS
    kernels.forward("embedding_totals", parts, *found, blocks, blocks=rows)
    for value, x, limit in zip(found, exact[1:], (1e-2, 3e-2, 5e-3, 5e-3, 4e-3, 1e-6), strict=True):
        assert value.shape == x.shape
        assert off(value, x.grad) < limit


@pytest.mark.parametrize(("pairs", "blocks"), SIZES)
def test_logit(kernels: Kernels, pairs: int, blocks: int) -> None:
    torch.manual_seed(pairs)
    d = 128
    e = torch.randn(pairs, d).bfloat16()
    weight = (torch.randn(d, d) * d**-0.5).bfloat16()
    bias, last = torch.randn(2, d)
    offset, grad = torch.randn(1), torch.randn(pairs)
    out, de = torch.full((pairs,), torch.nan), torch.full_like(e, torch.nan)
    on = torch.full((pairs, 4), -1, dtype=torch.int32)
    kernels.forward("logit_forward", e, weight, bias, last, offset, out, on, pairs, blocks=blocks)
    parts = torch.full((blocks, edge_ends_cuda.LOGIT_SHARE), torch.nan)
    kernels.backward("logit_backward", e, weight, last, on, grad, de, parts, pairs, blocks=blocks)
    both, again = e.clone(), torch.full_like(parts, torch.nan)  # the gradient goes where the states were
    kernels.backward("logit_backward", both, weight, last, on, grad, both, again, pairs, blocks=blocks)
    assert torch.equal(both, de)
    assert torch.equal(again.nan_to_num(), parts.nan_to_num())

    exact = [x.double().requires_grad_() for x in (e, weight, bias, last, offset)]
    result = edge_logit_reference(*exact)
    result.backward(grad.double())
    assert off(out, result) < 1e-5
    assert off(de, exact[0].grad) < 5e-3
    found = [x.fill_(torch.nan) for x in edge_ends_cuda.logit_gradients(last)]
    rows = edge_ends_cuda.LOGIT_TOTALS_ROWS
    kernels.forward("logit_totals", parts, weight, bias, last, *found, blocks, blocks=rows)
    for value, x in zip(found, exact[1:], strict=True):
        assert value.shape == x.shape
        assert off(value, x.grad) < 5e-3


def test_a_unit_at_zero_is_off(kernels: Kernels) -> None:
    """Where the hidden unit is exactly zero, ReLU has no gradient."""
    d, pairs = 128, 2
    e, weight = torch.zeros(pairs, d).bfloat16(), torch.zeros(d, d).bfloat16()
    bias = torch.zeros(d)
    bias[7], bias[100] = 1.0, -1.0
    on = torch.full((pairs, 4), -1, dtype=torch.int32)
    kernels.forward(
        "logit_forward", e, weight, bias, torch.ones(d), torch.zeros(1), torch.empty(pairs), on, pairs
    )
    # Feature 7 = 4 + 3: byte 3 of lane 0, second from the top.
    assert on.tolist() == [[1 << 30, 0, 0, 0]] * pairs


def test_totals_of_many_shares(kernels: Kernels) -> None:
    """As many as a GPU has multiprocessors, and more than a block of the emulator has warps."""
    torch.manual_seed(0)
    d, parts = 128, 37
    shares = torch.randn(parts, edge_ends_cuda.LOGIT_SHARE)
    weight, (bias, last) = torch.randn(d, d).bfloat16(), torch.randn(2, d)
    found = [x.fill_(torch.nan) for x in edge_ends_cuda.logit_gradients(last)]
    rows = edge_ends_cuda.LOGIT_TOTALS_ROWS
    kernels.forward("logit_totals", shares, weight, bias, last, *found, parts, blocks=rows)
    sums = shares.double().sum(0)
    product, count = sums[: d * d].view(d, d), sums[d * d : d * d + d]
    of_last = (weight * product).sum(1) + bias * count
    exact = (last.unsqueeze(1) * product, last * count, of_last, sums[d * d + d : d * d + d + 1])
    assert all(off(a, b) < 1e-6 for a, b in zip(found, exact, strict=True))

    shares = torch.randn(parts, edge_ends_cuda.EMBEDDING_SHARE)
    gradients = edge_ends_cuda.embedding_gradients(torch.tensor(0.1))
    rows = edge_ends_cuda.EMBEDDING_TOTALS_ROWS
    kernels.forward("embedding_totals", shares, *gradients, parts, blocks=rows)
    weight2, weight1, bias1, bias2, centers, widths = (
        shares.double().sum(0).split([d * d, 16 * d, d, d, 16, 8])
    )
    exact = (centers, widths.sum(), weight1.view(16, d).t(), bias1, weight2.view(d, d), bias2)
    assert all(off(a, b) < 1e-6 for a, b in zip(gradients, exact, strict=True))
