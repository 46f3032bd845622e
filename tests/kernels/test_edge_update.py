"""The edge update's kernels on emulated blocks, and on a GPU, against the reference in float64."""

from __future__ import annotations

import pytest
import torch
from emulated import off, on_gpu, worst_row
from torch import Tensor

from georoutenet.kernels.cuda import edge_update as cuda
from georoutenet.kernels.cuda.compile import Kernel
from georoutenet.kernels.edge_update import edge_update, edge_update_reference
from georoutenet.model.config import PolicyConfig
from georoutenet.model.georoutenet import Layer

D = 128
NAMES = ("e", "source", "target", "weight", "gamma", "beta")


def arguments(batch: int, m: int, n: int, device: str = "cpu") -> list[Tensor]:
    """Random leaves; the weight is of numbers of bf16, so that both sides have the same."""
    torch.manual_seed(batch + m + n)
    states = [torch.randn(shape).bfloat16() for shape in ((batch, m, n, D), (batch, m, D), (batch, n, D))]
    weight = (torch.randn(D, D) * D**-0.5).bfloat16().float()
    leaves = [*states, weight, torch.rand(D) + 0.5, torch.randn(D)]
    return [leaf.to(device).requires_grad_() for leaf in leaves]


def results(call, leaves: list[Tensor], upstream: Tensor) -> dict[str, Tensor]:
    """The result and the gradients of all leaves, by name."""
    result = call(*leaves)
    found = torch.autograd.grad(result, leaves, upstream.to(result.dtype))
    return {"result": result.detach(), **dict(zip(NAMES, found, strict=True))}


def compare(batch: int, m: int, n: int, *, hopper: bool, in_place: bool, device: str = "cpu") -> None:
    leaves = arguments(batch, m, n, device)
    upstream = torch.randn(leaves[0].shape, device=device).bfloat16()

    def fused(*given: Tensor) -> Tensor:
        return edge_update(*given, in_place=in_place, hopper=hopper)

    found = results(fused, leaves, upstream.clone())
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    expected = results(edge_update_reference, exact, upstream)
    # What differs is the rounding to bf16, 2^-9 a time; on a GPU, tanh too.
    times = 1.0 if device == "cpu" else 2.0
    limits = dict(zip(("result", *NAMES), (4e-3, 6e-3, 8e-3, 8e-3, 8e-3, 1e-2, 1e-5), strict=True))
    for name, limit in limits.items():
        assert off(found[name], expected[name]) < times * limit, name
        assert worst_row(found[name], expected[name]) < 2 * times * limit, name


# Bands of one target and of several, the last one narrower; parts of sources; stages with fewer sources than
# others; more blocks than items and several items a block; one to four tiles a source, several sources a
# stage, two bands of targets for the sums.
SHAPES = [
    (1, 1, 1), (2, 5, 5), (3, 11, 11), (3, 1, 7), (2, 7, 4), (3, 5, 1), (1, 9, 25), (1, 30, 11), (3, 20, 50),
    (1, 4, 63), (1, 6, 64), (3, 3, 67), (5, 2, 33),
]  # fmt: skip


@pytest.mark.usefixtures("launched")
@pytest.mark.parametrize("hopper", [False, True])
@pytest.mark.parametrize(("batch", "m", "n"), SHAPES)
def test_against_the_reference(batch: int, m: int, n: int, hopper: bool) -> None:
    compare(batch, m, n, hopper=hopper, in_place=n % 2 == 0)


def test_what_is_launched(launched: list[Kernel]) -> None:
    compare(2, 5, 4, hopper=True, in_place=True)
    assert [kernel.name for kernel in launched] == ["update_forward", "update_gradients", "part_sums"]
    launched.clear()
    compare(2, 5, 4, hopper=False, in_place=False)
    before = ["update_forward", "update_backward", "update_sums", "part_sums"]
    assert [kernel.name for kernel in launched] == before
    assert not any(kernel.wgmma for kernel in launched)


def test_the_reference_is_the_layer() -> None:
    torch.manual_seed(3)
    layer = Layer(PolicyConfig(hidden=16, heads=2), is_last=False).double()
    e, h = torch.randn(2, 5, 5, 16).double(), torch.randn(2, 2, 5, 16).double()
    bias = layer.edge_update.bias
    source, target = layer.source(h[0]), layer.target(h[1]) + bias
    norm = layer.edge_norm
    found = edge_update_reference(e, source, target, layer.edge_update.weight, norm.weight, norm.bias)
    torch.testing.assert_close(found, layer.edge(e, source.unsqueeze(2), target.unsqueeze(1)))


def test_plans_cover_all_pairs() -> None:
    """Of both backward passes, for any sizes and numbers of blocks."""
    for batch, m in [(1, 1), (1, 7), (3, 50), (64, 50), (512, 20), (512, 200)]:
        for n in (1, 20, 50, 64, 65, 200):
            for blocks in (1, 2, 132):
                case = (batch, m, n, blocks)
                plan = cuda.plan(*case)
                assert plan.width * plan.height <= cuda.ROWS, case
                assert plan.width + plan.height <= cuda.COLUMNS, case
                assert (plan.bands - 1) * plan.width < n <= plan.bands * plan.width, case
                assert (plan.parts - 1) * plan.chunk < m <= plan.parts * plan.chunk, case
                bands, width, parts, chunk = cuda.split(batch, m, n, blocks)
                assert 1 <= width <= cuda.TARGETS, case
                assert (bands - 1) * width < n <= bands * width, case
                assert (parts - 1) * chunk < m <= parts * chunk, case


def test_plans_are_even() -> None:
    """The longest way of a block of an H200 is hardly longer than it has to be."""
    blocks = 132
    for batch, n, least in [(512, 20, 0.7), (512, 50, 0.94), (64, 50, 0.94), (512, 100, 0.94)]:
        plan = cuda.plan(batch, n, n, blocks)
        longest = -(-batch * plan.parts // blocks) * plan.stages()
        assert batch * n * n / (blocks * cuda.ROWS) > least * longest, (batch, n)
    for batch, n, least in [(512, 20, 0.95), (512, 50, 0.95), (64, 50, 0.9), (512, 100, 0.95)]:
        bands, _, parts, chunk = cuda.split(batch, n, n, blocks)
        longest = -(-batch * bands * parts // blocks) * chunk
        assert batch * bands * n / blocks > least * longest, (batch, n)


@pytest.mark.gpu
@pytest.mark.parametrize("hopper", [False, True])
@pytest.mark.parametrize(
    ("batch", "m", "n"),
    [*SHAPES, (3, 50, 50), (7, 63, 63), (5, 64, 64), (64, 50, 50), (300, 20, 20), (2, 3, 200), (512, 50, 50)],
)
def test_on_the_device(batch: int, m: int, n: int, hopper: bool) -> None:
    compare(batch, m, n, hopper=hopper, in_place=n % 2 == 0, device=on_gpu(hopper))


@pytest.mark.gpu
@pytest.mark.parametrize("hopper", [False, True])
def test_repeats_bit_for_bit_on_the_device(hopper: bool) -> None:
    leaves = arguments(64, 50, 50, on_gpu(hopper))
    upstream = torch.randn_like(leaves[0])
    first, again = (
        results(lambda *given: edge_update(*given, hopper=hopper), leaves, upstream) for _ in range(2)
    )
    assert all(torch.equal(first[name], again[name]) for name in first)
