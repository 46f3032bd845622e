"""NAR4TSP's start attention in CUDA C++ on an emulated block, against the layers in float64."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
import torch
from emulated import Emulated, off
from torch import Tensor

from georoutenet.model import nar4tsp_start_cuda, start_attention_cuda
from georoutenet.model.layers import StartAttention

KERNELS = ("STATE", "STATE_BACKWARD", "DISTRIBUTION", "DISTRIBUTION_BACKWARD")


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Emulated:
    return Emulated("start_attention.cu", tmp_path_factory.mktemp("start_attention"), warps=8)


@pytest.fixture
def _emulated(kernels: Emulated, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in KERNELS:
        monkeypatch.setattr(start_attention_cuda, name, partial(kernels, f"start_{name.lower()}"))
    torch.use_deterministic_algorithms(True)  # what is allocated holds no numbers
    yield
    torch.use_deterministic_algorithms(False)


def narrowed(attention: StartAttention) -> list[Tensor]:
    return [part.weight.detach().bfloat16() for part in nar4tsp_start_cuda.maps(attention)]


def run(s: Tensor, x: Tensor, attention: StartAttention, upstream: Tensor, *, is_last: bool) -> list[Tensor]:
    """The result and all gradients; in float64 by the layer."""
    attention.zero_grad()
    s, x = s.detach().requires_grad_(), x.detach().requires_grad_()
    if s.dtype == torch.float64:
        result = attention.distribution(s, x) if is_last else s + attention(s, x)
    elif is_last:
        result = nar4tsp_start_cuda.start_distribution(s, x, attention, narrowed(attention))
    else:
        result = nar4tsp_start_cuda.start_sum(s, x, attention, narrowed(attention))
    result.backward(upstream.to(result.dtype))
    names = [name for name, p in attention.named_parameters() if p.grad is not None and name != "key.bias"]
    gradients = [attention.get_parameter(name).grad for name in names]
    return [result.detach(), s.grad, x.grad, *gradients]  # type: ignore[list-item]


def compare(batch: int, n: int, device: str, *, is_last: bool) -> None:
    torch.manual_seed(n)
    attention = StartAttention(128, 8)
    with torch.no_grad():
        for parameter in attention.parameters():  # numbers of bfloat16; attention is not quite even
            parameter.copy_(2 * parameter.bfloat16())
    attention.to(device)
    s, x = (
        torch.randn(batch, 128, device=device).bfloat16(),
        torch.randn(batch, n, 128, device=device).bfloat16(),
    )
    upstream = torch.randn(batch, n if is_last else 128, device=device).bfloat16()
    found = run(s, x, attention, upstream, is_last=is_last)
    assert attention.key.bias.grad is not None
    assert not attention.key.bias.grad.any()  # it cancels in the softmax
    expected = run(s.double(), x.double(), attention.double(), upstream, is_last=is_last)
    # Folded queries, weights and their gradients are rounded to bfloat16, 2^-9 a time.
    for mine, exact in zip(found, expected, strict=True):
        assert off(mine, exact) < 0.008


@pytest.mark.usefixtures("_emulated")
@pytest.mark.parametrize("is_last", [False, True])
@pytest.mark.parametrize(("batch", "n"), [(1, 5), (3, 17), (2, 64)])
def test_against_the_layer(batch: int, n: int, *, is_last: bool) -> None:
    compare(batch, n, "cpu", is_last=is_last)


@pytest.mark.usefixtures("_emulated")
def test_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler takes the operators as they are, and the answer whether they fit as a constant."""
    monkeypatch.setattr(start_attention_cuda, "fits", lambda *_: True)
    torch.manual_seed(0)
    attention = StartAttention(128, 8)

    def starts(s: Tensor, x: Tensor) -> Tensor:
        assert nar4tsp_start_cuda.fits(128, 8, str(x.device), x.dtype)
        weights = narrowed(attention)
        s = nar4tsp_start_cuda.start_sum(s, x, attention, weights).to(x.dtype)
        return nar4tsp_start_cuda.start_distribution(s, x, attention, weights)

    s, x = torch.randn(2, 128).bfloat16(), torch.randn(2, 9, 128).bfloat16()
    results = []
    for function in (starts, torch.compile(starts, backend="aot_eager", fullgraph=True)):
        attention.zero_grad()
        result = function(s, x)
        result.square().sum().backward()
        results.append([result.detach(), *(p.grad.clone() for p in attention.parameters())])
    for eager, compiled in zip(*results, strict=True):
        torch.testing.assert_close(compiled, eager)


@pytest.mark.gpu
@pytest.mark.parametrize("is_last", [False, True])
@pytest.mark.parametrize(("batch", "n"), [(1, 5), (3, 63), (64, 50), (513, 50)])
def test_on_the_device(batch: int, n: int, *, is_last: bool) -> None:
    if not nar4tsp_start_cuda.fits(128, 8, "cuda", torch.bfloat16):
        pytest.skip("no CUDA kernels on this device")
    compare(batch, n, "cuda", is_last=is_last)
