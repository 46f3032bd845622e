"""The last edge update with the head in one CUDA kernel, against the two apart: equal bits."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from emulated import Emulated, emulate_kernels
from torch import Tensor

from georoutenet.kernels.cuda import compile as native
from georoutenet.kernels.cuda import edge_update as edge_update_cuda

D = 128


def arguments(batch: int, m: int, n: int, device: str = "cpu") -> list[Tensor]:
    """Of the update and of the head."""
    torch.manual_seed(n)
    states = (torch.randn(shape).bfloat16() for shape in ((batch, m, n, D), (batch, m, D), (batch, n, D)))
    update = torch.randn(D, D) * D**-0.5, torch.rand(D) + 0.5, torch.randn(D)
    head = torch.randn(D, D) * D**-0.5, torch.randn(D), torch.randn(D), torch.randn(1)
    return [x.to(device).requires_grad_() for x in (*states, *update, *head)]


@pytest.fixture(scope="module", params=["each warp", "four warps"])
def kernels(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Emulated]:
    """By source. Blocks of three groups of warps do not share their tiles evenly."""
    hopper = request.param == "four warps"
    return {
        file: Emulated(file, tmp_path_factory.mktemp(file), hopper=hopper, warps=12 if hopper else 3)
        for file in ("edge_update.cu", "edge_ends.cu")
    }


@pytest.mark.parametrize(
    ("batch", "m", "n"), [(1, 3, 3), (2, 5, 5), (1, 2, 21), (3, 1, 7), (2, 7, 4), (3, 5, 1), (2, 12, 25)]
)
def test_one_kernel_is_both(kernels: dict[str, Emulated], batch: int, m: int, n: int) -> None:
    e, source, target, weight, gamma, beta, hidden, *rest = (x.detach() for x in arguments(batch, m, n))
    pairs = batch * m * n
    update = e, source, target, weight.bfloat16(), gamma, beta
    head = hidden.bfloat16(), *rest

    def outputs() -> tuple[Tensor, ...]:
        norms = torch.full((2, pairs), torch.nan)
        on = torch.full((pairs, 4), -1, dtype=torch.int32)
        return torch.full_like(e, torch.nan), norms[0], norms[1], torch.full((pairs,), torch.nan), on

    together, (states, scales, shifts, logits, on) = outputs(), outputs()
    kernels["edge_update.cu"]("update_logit_forward", *update, *head, *together, m, n, pairs)
    kernels["edge_update.cu"]("update_forward", *update, states, scales, shifts, m, n, pairs)
    kernels["edge_ends.cu"]("logit_forward", states, *head, logits, on, pairs)
    assert not logits.isnan().any()
    for mine, apart in zip(together, (states, scales, shifts, logits, on), strict=True):
        assert torch.equal(mine, apart)


def scores_and_gradients(operation: Callable[..., Tensor], inputs: list[Tensor]) -> list[Tensor]:
    out = operation(*inputs)
    torch.manual_seed(1)
    return [out, *torch.autograd.grad(out, inputs, torch.randn(out.shape).to(out.device))]


def compare(inputs: list[Tensor]) -> None:
    """The operation with the two apart, with gradients in place and not."""
    from georoutenet.kernels.cuda.edge_last import edge_last
    from georoutenet.kernels.edge_ends import edge_logit
    from georoutenet.kernels.edge_update import edge_update

    def apart(*x: Tensor, in_place: bool) -> Tensor:
        return edge_logit(edge_update(*x[:6], in_place=in_place), *x[6:], in_place=in_place)

    for in_place in (False, True):
        both, one = (
            scores_and_gradients(partial(each, in_place=in_place), inputs) for each in (apart, edge_last)
        )
        for mine, other in zip(one, both, strict=True):
            assert mine.dtype == other.dtype
            assert torch.equal(mine, other)


def test_gradients_are_those_of_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    names = emulate_kernels(tmp_path, monkeypatch)
    compare(arguments(2, 5, 4))
    backward = ["logit_backward", "logit_totals", "update_gradients", "part_sums"]
    assert names == 2 * ["update_forward", "logit_forward", *backward, "update_logit_forward", *backward]


def test_states_before_the_last_may_be_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    from georoutenet.kernels.cuda.edge_last import edge_last
    from georoutenet.kernels.encoder import MadeAgain

    emulate_kernels(tmp_path, monkeypatch)
    inputs, made = arguments(1, 3, 5), []

    def make() -> Tensor:
        made.append(inputs[0].detach().clone())
        return made[-1]

    def again(*x: Tensor) -> Tensor:
        with MadeAgain(x[0], make).hooks():
            return edge_last(*x, in_place=True)

    kept, found = scores_and_gradients(edge_last, inputs), scores_and_gradients(again, inputs)
    assert all(torch.equal(mine, other) for mine, other in zip(found, kept, strict=True))
    assert len(made) == 1


@pytest.mark.gpu
@pytest.mark.parametrize("hopper", [False, True])
@pytest.mark.parametrize(
    ("batch", "m", "n"), [(1, 3, 3), (2, 5, 5), (3, 1, 7), (3, 63, 63), (64, 50, 50), (512, 50, 50)]
)
def test_on_the_device(batch: int, m: int, n: int, hopper: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "HOPPER", hopper)
    inputs = arguments(batch, m, n, "cuda")
    if native.hopper(inputs[0].device) != hopper or not edge_update_cuda.last_fits(inputs[0]):
        pytest.skip("no such kernels on this device")
    compare(inputs)
