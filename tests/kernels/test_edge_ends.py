"""The kernels of the edge tower's ends on emulated blocks, and on a GPU, against references in float64."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from emulated import off, on_gpu, worst_row
from test_edge_update import arguments as update_arguments
from torch import Tensor

from georoutenet.kernels.cuda.compile import Kernel
from georoutenet.kernels.edge_ends import (
    edge_embedding,
    edge_embedding_reference,
    edge_logit_reference,
    edge_update_logit,
    edge_update_logit_reference,
)
from georoutenet.kernels.edge_update import edge_update_reference
from georoutenet.model.config import PolicyConfig
from georoutenet.model.georoutenet import GeoRouteNet
from georoutenet.model.layers import edge_logits

D, BASES = 128, 16


def random(*shapes: tuple[int, ...]) -> list[Tensor]:
    """Parameters; matrices are of numbers of bf16, so that both sides have the same."""
    values = [torch.randn(shape) for shape in shapes]
    return [(x * x.shape[1] ** -0.5).bfloat16().float() if x.dim() == 2 else x for x in values]


def results(call, given: list[Tensor], upstream: Tensor, fixed: int = 0) -> list[Tensor]:
    """The result and the gradients of all but the first ``fixed`` arguments."""
    leaves = [x.detach().requires_grad_(k >= fixed) for k, x in enumerate(given)]
    result = call(*leaves)
    return [result.detach(), *torch.autograd.grad(result, leaves[fixed:], upstream.to(result.dtype))]


def compare_embedding(pairs: int, *, hopper: bool, device: str = "cpu") -> None:
    torch.manual_seed(pairs)
    given = [torch.rand(pairs) * 1.4, torch.linspace(0, 1.4, BASES), torch.tensor(0.11)]
    given = [x.to(device) for x in (*given, *random((D, BASES), (D,), (D, D), (D,)))]
    upstream = torch.randn(pairs, D).bfloat16().to(device)
    found = results(partial(edge_embedding, hopper=hopper), given, upstream, fixed=1)
    exact = partial(edge_embedding_reference, dtype=torch.float64)
    expected = results(exact, [x.double() for x in given], upstream.double(), fixed=1)
    # What differs is the rounding to bf16, 2^-9 a time; the bandwidth has one number, a sum that cancels.
    limits = (4e-3, 1e-2, 0.1, 6e-3, 6e-3, 5e-3, 1e-5)
    for mine, value, limit in zip(found, expected, limits, strict=True):
        assert mine.shape == value.shape
        assert off(mine, value) < 2 * limit if device == "cuda" else limit
        assert worst_row(mine, value) < 4 * limit


def rounded_between(*given: Tensor) -> Tensor:
    """`edge_update_logit_reference` with states in bf16 between both, which decide on the ReLU's side."""
    e = edge_update_reference(*given[:6])
    return edge_logit_reference(e + (e.bfloat16().double() - e).detach(), *given[6:])


def compare_logit(batch: int, m: int, n: int, *, hopper: bool, in_place: bool, device: str = "cpu") -> None:
    torch.manual_seed(n)
    head = [x.to(device) for x in random((D, D), (D,), (D,), (1,))]
    given = [*(x.detach() for x in update_arguments(batch, m, n, device)), *head]
    upstream = torch.randn(batch, m, n, device=device)
    call = partial(edge_update_logit, in_place=in_place, hopper=hopper)
    found = results(call, given, upstream)
    expected = results(rounded_between, [x.double() for x in given], upstream.double())
    assert worst_row(found[0].unsqueeze(-1), expected[0].unsqueeze(-1)) < 0.02
    # Here and there a hidden unit is on the ReLU's other side, since the states are not quite the same.
    for k, (mine, value) in enumerate(zip(found, expected, strict=True)):
        assert mine.shape == value.shape
        assert off(mine, value) < 0.1, k
    of_rows = (found[1].double() - expected[1]).norm(dim=-1) / expected[1].norm(dim=-1)
    assert (of_rows > 0.03).double().mean() < 0.15
    assert of_rows.max() < 0.5
    assert off(found[-1], expected[-1]) < 1e-5  # the offset's gradient is a sum


# A block takes 128 pairs at a time.
@pytest.mark.usefixtures("launched")
@pytest.mark.parametrize("hopper", [False, True])
@pytest.mark.parametrize("pairs", [1, 17, 64, 129, 321, 650])
def test_embedding(pairs: int, hopper: bool) -> None:
    compare_embedding(pairs, hopper=hopper)


SHAPES = [(1, 1, 1), (2, 5, 4), (3, 1, 7), (1, 3, 67), (3, 11, 11)]


@pytest.mark.usefixtures("launched")
@pytest.mark.parametrize("hopper", [False, True])
@pytest.mark.parametrize(("batch", "m", "n"), SHAPES)
def test_update_and_logit(batch: int, m: int, n: int, hopper: bool) -> None:
    compare_logit(batch, m, n, hopper=hopper, in_place=n % 2 == 0)


def compare_alone(batch: int, m: int, n: int, *, hopper: bool, device: str = "cpu") -> None:
    """Without gradients nothing but the logits is written, and they are the same."""
    torch.manual_seed(n)
    head = [x.to(device) for x in random((D, D), (D,), (D,), (1,))]
    given = [*(x.detach() for x in update_arguments(batch, m, n, device)), *head]
    kept = edge_update_logit(*given, hopper=hopper)
    with torch.no_grad():
        alone = edge_update_logit(*given, hopper=hopper)
    assert torch.equal(alone, kept)
    assert not alone.isnan().any()


@pytest.mark.parametrize("hopper", [False, True])
def test_logits_alone(hopper: bool, launched: list[Kernel]) -> None:
    for shape in SHAPES:
        compare_alone(*shape, hopper=hopper)
    assert [kernel.name for kernel in launched[-2:]] == ["update_logit_forward", "update_logit_alone"]


def test_what_is_launched(launched: list[Kernel]) -> None:
    compare_logit(2, 5, 4, hopper=True, in_place=True)
    names = ["update_logit_forward", "logit_backward", "logit_totals", "update_gradients", "part_sums"]
    assert [kernel.name for kernel in launched] == names


def test_the_references_are_the_network() -> None:
    torch.manual_seed(3)
    net = GeoRouteNet(PolicyConfig(hidden=16, heads=2, layers=1)).double()
    distance, e = torch.rand(2, 5, 5).double(), torch.randn(2, 5, 5, 16).double()
    first, _, second = net.edge_input
    found = edge_embedding_reference(
        distance, *net.rbf.parameters_of_bases(), first.weight, first.bias, second.weight, second.bias,
        dtype=torch.float64,
    )  # fmt: skip
    torch.testing.assert_close(found, net.edge_states(distance, torch.float64))
    first, _, last = net.edge_head
    head = (first.weight, first.bias, last.weight.flatten(), last.bias)
    torch.testing.assert_close(edge_logit_reference(e, *head), edge_logits(net.edge_head, e))
    update = [e, *torch.randn(2, 2, 5, 16).double(), torch.eye(16).double(), *torch.rand(2, 16).double()]
    after = edge_logit_reference(edge_update_reference(*update), *head)
    assert torch.equal(edge_update_logit_reference(*update, *head), after)


@pytest.mark.gpu
@pytest.mark.parametrize("hopper", [False, True])
@pytest.mark.parametrize("n", [5, 11, 50, 63, 64, 65, 100, 127, 200])
def test_on_the_device(n: int, hopper: bool) -> None:
    device = on_gpu(hopper)
    compare_embedding(3 * n * n, hopper=hopper, device=device)
    compare_logit(3, n, n, hopper=hopper, in_place=n % 2 == 0, device=device)
    compare_alone(3, n, n, hopper=hopper, device=device)
