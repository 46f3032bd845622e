"""The edge update's backward kernel for Hopper on emulated blocks, against float64 and two other kernels."""

from __future__ import annotations

import pytest
import torch
from emulated import Emulated, off
from torch import Tensor

from georoutenet.kernels.cuda import edge_backward as edge_backward_cuda
from georoutenet.kernels.cuda import edge_sums as edge_sums_cuda
from georoutenet.kernels.cuda import edge_update as edge_update_cuda
from georoutenet.kernels.cuda.edge_backward import COLUMNS, GRADIENTS, ROWS, arguments, gather, outputs, plan
from georoutenet.kernels.edge_update import edge_update_reference


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Emulated:
    folder = tmp_path_factory.mktemp("edge_backward")
    return Emulated("edge_backward.cu", folder, hopper=True, warps=GRADIENTS.warps)


def random(batch: int, m: int, n: int, device: str) -> tuple[tuple[Tensor, ...], Tensor]:
    """What the backward pass needs of the forward pass, and the gradient of its result."""
    torch.manual_seed(n)
    d = 128
    shapes = ((batch, m, n, d), (batch, m, d), (batch, n, d), (batch, m, n, d))
    e, source, target, grad = (torch.randn(shape).bfloat16().to(device) for shape in shapes)
    weight = (torch.randn(d, d) * d**-0.5).bfloat16().to(device)
    gamma = torch.rand(d).to(device) + 0.5
    proposal = e.float() @ weight.float().T + source.float().unsqueeze(2) + target.float().unsqueeze(1)
    y = (e.float() + torch.nn.functional.silu(proposal)).view(-1, d)
    scales = (y.var(1, unbiased=False) + 1e-5).rsqrt()
    return (e, source, target, weight, gamma, scales, -y.mean(1) * scales), grad


def check(saved: tuple[Tensor, ...], grad: Tensor, *found: Tensor, times: float = 1.0) -> None:
    """What differs is the rounding to bfloat16, 2^-9 a time; on a GPU, tanh too."""
    exact = [x.double().requires_grad_() for x in (*saved[:5], torch.zeros_like(saved[4]))]
    edge_update_reference(*exact).backward(grad.double())
    ge, gs, gt, gw, ggamma, gbeta = (x.grad for x in exact)
    de, ds, dt, dw, (dgamma, dbeta) = found
    assert off(de, ge) < 6e-3 * times
    assert off(ds, gs) < 8e-3 * times
    assert off(dt, gt) < 8e-3 * times
    assert off(dw, gw) < 8e-3 * times
    assert off(dgamma, ggamma) < 1e-2 * times
    assert off(dbeta, gbeta) < 1e-5 * times


# Bands of one target and of several, the last one narrower; parts of sources; stages with less sources than
# others; more blocks than items and several items a block.
SHAPES = [
    (1, 1, 1),
    (2, 5, 5),
    (3, 11, 11),
    (3, 1, 7),
    (1, 9, 25),
    (3, 20, 50),
    (1, 4, 63),
    (1, 6, 64),
    (1, 3, 67),
    (5, 2, 33),
]


@pytest.mark.parametrize(("batch", "m", "n"), SHAPES)
@pytest.mark.parametrize("in_place", [False, True])
def test_against_the_reference(kernels: Emulated, batch: int, m: int, n: int, in_place: bool) -> None:
    saved, grad = random(batch, m, n, "cpu")
    e = saved[0]
    divided = plan(batch, m, n, kernels.blocks)
    blocks = min(kernels.blocks, batch * divided.parts)
    given = grad.clone()
    de = given if in_place else torch.full_like(e, torch.nan)
    found = outputs(e, divided, blocks)
    for out in found:
        out.fill_(torch.nan)
    kernels("update_gradients", *saved, given, de, *found, *arguments(e, divided), blocks=blocks)
    check(saved, grad, de, *gather(found, e))


@pytest.mark.gpu
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize(
    ("batch", "m", "n"), [*SHAPES, (3, 50, 50), (7, 63, 63), (5, 64, 64), (64, 50, 50), (300, 20, 20)]
)
def test_on_the_device(batch: int, m: int, n: int, in_place: bool) -> None:
    saved, grad = random(batch, m, n, "cuda")
    if not edge_backward_cuda.fits(saved[0]):
        pytest.skip("no such kernel on this device")

    def passes() -> tuple[Tensor, ...]:
        given = grad.clone()
        de = given if in_place else torch.empty_like(grad)
        return de, *edge_backward_cuda.backward_pass(saved, given, de)

    found, again = passes(), passes()
    assert all(torch.equal(one, other) for one, other in zip(found, again, strict=True))
    check(saved, grad, *found, times=2.0)
    de = torch.empty_like(grad)
    du, norms = edge_update_cuda.backward_pass(saved, grad, de)
    for one, other in zip(found, (de, *edge_sums_cuda.sums(saved[0], du, norms)), strict=True):
        assert off(one, other) < 3e-3


@pytest.mark.parametrize("blocks", [1, 2, 132])
@pytest.mark.parametrize(("batch", "m"), [(1, 1), (1, 7), (3, 50), (64, 50), (512, 20), (512, 200)])
@pytest.mark.parametrize("n", [1, 20, 50, 64, 65, 200])
def test_plan_covers_all_pairs(batch: int, m: int, n: int, blocks: int) -> None:
    divided = plan(batch, m, n, blocks)
    assert divided.width * divided.height <= ROWS
    assert divided.width + divided.height <= COLUMNS
    assert (divided.bands - 1) * divided.width < n <= divided.bands * divided.width
    assert (divided.parts - 1) * divided.chunk < m <= divided.parts * divided.chunk


@pytest.mark.parametrize(
    ("batch", "n", "least"), [(512, 20, 0.7), (512, 50, 0.94), (64, 50, 0.94), (512, 100, 0.94)]
)
def test_plan_is_even(batch: int, n: int, least: float) -> None:
    """The longest way of a block of an H200 is hardly longer than it has to be."""
    blocks = 132
    divided = plan(batch, n, n, blocks)
    longest = -(-batch * divided.parts // blocks) * divided.stages()
    assert batch * n * n / (blocks * ROWS) > least * longest
