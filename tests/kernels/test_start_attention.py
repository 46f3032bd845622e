"""The kernels of the start attention on emulated blocks, and on a GPU, against the layer in float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from emulated import off, on_gpu, worst_row
from torch import Tensor

from georoutenet.kernels.start_attention import (
    bf16_weights,
    start_distribution,
    start_distribution_reference,
    start_state,
    start_state_reference,
)
from georoutenet.model.config import PolicyConfig
from georoutenet.model.georoutenet import Layer


def make_layer(*, is_last: bool) -> Layer:
    """Weights are numbers of bfloat16, so that both sides have the same; attention is not quite even."""
    torch.manual_seed(3)
    layer = Layer(PolicyConfig(), is_last=is_last)
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
            if name.startswith("start_attention"):
                parameter.mul_(2)
            parameter.copy_(parameter.bfloat16())
    return layer


def run(
    start: Callable[..., Tensor], s: Tensor, x: Tensor, layer: Layer, upstream: Tensor
) -> dict[str, Tensor]:
    """The result and all gradients, by name."""
    layer.zero_grad()
    s, x = s.detach().requires_grad_(), x.detach().requires_grad_()
    result = start(s, x, layer)
    result.backward(upstream.to(result.dtype))
    assert s.grad is not None
    assert x.grad is not None
    found = {"result": result.detach(), "s": s.grad, "x": x.grad}
    return found | {name: p.grad.clone() for name, p in layer.named_parameters() if p.grad is not None}


def compare(batch: int, n: int, device: str, *, is_last: bool) -> None:
    torch.manual_seed(n)
    s = torch.randn(batch, 128, device=device).bfloat16()
    x = torch.randn(batch, n, 128, device=device).bfloat16()
    upstream = torch.randn(batch, n if is_last else 128, device=device).bfloat16()
    layer = make_layer(is_last=is_last).to(device)

    def fused(s: Tensor, x: Tensor, layer: Layer) -> Tensor:
        (weights,) = bf16_weights([layer])
        return (start_distribution if is_last else start_state)(s, x, layer, weights)

    found = run(fused, s, x, layer, upstream)
    reference = start_distribution_reference if is_last else start_state_reference
    expected = run(reference, s.double(), x.double(), layer.double(), upstream)
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        if name == "start_attention.key.bias":  # it cancels in the softmax
            assert value.abs().max() < 1e-9
            assert not found[name].any()
        else:
            # Folded queries, weights and their gradients are rounded to bf16, 2^-9 a time.
            assert off(found[name], value) < 0.008, name
            assert worst_row(found[name], value) < 0.05, name
    if is_last:
        assert found["result"].dtype == torch.float32
        assert found["result"].exp().sum(1).cpu() == pytest.approx(1, abs=1e-4)


@pytest.mark.usefixtures("launched")
@pytest.mark.parametrize("is_last", [False, True])
# Batches of one and odd ones, less than a tile, each warp of a crew one, several tiles a warp.
@pytest.mark.parametrize(("batch", "n"), [(1, 5), (3, 17), (2, 64), (1, 131)])
def test_against_the_layer(batch: int, n: int, *, is_last: bool) -> None:
    compare(batch, n, "cpu", is_last=is_last)


@pytest.mark.usefixtures("launched")
def test_certain_starts() -> None:
    """Scores far apart: no weight overflows, and logarithms of weights that vanish stay exact."""
    layer = make_layer(is_last=True)
    with torch.no_grad():
        layer.start_attention.query.weight.mul_(64)
        s, x = torch.randn(1, 128).bfloat16(), torch.randn(1, 40, 128).bfloat16()
        found = start_distribution(s, x, layer, *bf16_weights([layer]))
        expected = layer.double().start_attention.distribution(s.double(), x.double())
    assert expected.min() < -100
    assert off(found, expected) < 0.01


@pytest.mark.gpu
@pytest.mark.parametrize("is_last", [False, True])
@pytest.mark.parametrize(("batch", "n"), [(1, 5), (3, 63), (64, 50), (513, 50), (5, 200)])
def test_on_the_device(batch: int, n: int, *, is_last: bool) -> None:
    compare(batch, n, on_gpu(False), is_last=is_last)
