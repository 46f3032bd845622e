"""The CUDA kernels of the start attention on an emulated block, against the layers in float64."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch
from emulated import Emulated, off
from torch import Tensor

from georoutenet.kernels import encoder as fused
from georoutenet.kernels.cuda import start_attention as start_attention_cuda
from georoutenet.kernels.cuda.start_attention import start_distribution, start_state
from georoutenet.model.config import PolicyConfig
from georoutenet.model.geometry import Neighborhood, neighborhood, pair_distances
from georoutenet.model.georoutenet import GeoRouteNet, Layer
from georoutenet.model.layers import linear_maps

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


def state_reference(s: Tensor, x: Tensor, layer: Layer) -> Tensor:
    return layer.start(s, x)


def distribution_reference(s: Tensor, x: Tensor, layer: Layer) -> Tensor:
    return layer.start_attention.distribution(s, x)


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
    found = run(start_distribution if is_last else start_state, s, x, layer, upstream)
    reference = distribution_reference if is_last else state_reference
    expected = run(reference, s.double(), x.double(), layer.double(), upstream)
    assert expected.keys() == found.keys()
    worst = {}
    for name, value in expected.items():
        if name == "start_attention.key.bias":  # it cancels in the softmax
            assert value.abs().max() < 1e-9
            assert not found[name].any()
        else:
            worst[name] = off(found[name], value)
    if is_last:
        assert found["result"].dtype == torch.float32
        assert found["result"].exp().sum(1).cpu() == pytest.approx(1, abs=1e-4)
    # Folded queries, weights and their gradients are rounded to bfloat16, 2^-9 a time.
    assert all(far < 0.008 for far in worst.values()), worst


@pytest.mark.usefixtures("_emulated")
@pytest.mark.parametrize("is_last", [False, True])
# Batches of one and odd ones, less than a tile, each warp of a crew one, several tiles a warp.
@pytest.mark.parametrize(("batch", "n"), [(1, 5), (3, 17), (2, 64), (1, 131)])
def test_against_the_layer(batch: int, n: int, *, is_last: bool) -> None:
    compare(batch, n, "cpu", is_last=is_last)


@pytest.mark.usefixtures("_emulated")
def test_certain_starts() -> None:
    """Scores far apart: no weight overflows, and logarithms of weights that vanish stay exact."""
    layer = make_layer(is_last=True)
    with torch.no_grad():
        layer.start_attention.query.weight.mul_(64)
        s, x = torch.randn(1, 128).bfloat16(), torch.randn(1, 40, 128).bfloat16()
        found = start_distribution(s, x, layer)
        expected = layer.double().start_attention.distribution(s.double(), x.double())
    assert expected.min() < -100
    assert off(found, expected) < 0.01


class PlainTower:
    """The layers at the nodes without kernels, apart from the start attention."""

    def __init__(self, net: GeoRouteNet, first: Tensor) -> None:
        self.layers, self.history = list(net.layers), [first]

    def layer(
        self,
        number: int,
        queries: tuple[Tensor, ...],
        e: Tensor,
        weight: Tensor,
        strength: Tensor,
        near: Neighborhood,
        slots: None,
    ) -> tuple[Tensor, ...]:
        layer, following = self.layers[number], self.layers[number + 1 : number + 2]
        places = near.index, near.mask, near.distance
        attend = fused.operations(plain=True).attention
        values, edges, e = attend(*queries, e, weight, strength, *places, heads=layer.heads)
        h = layer.node(layer.message(values, edges), self.history)
        self.history.append(h)
        x = h.to(values.dtype)
        of_following = [one for after in following for one in after.queries(x.dtype)]
        return e, x, *linear_maps(x, [*layer.ends(x.dtype), *of_following])


@pytest.mark.usefixtures("_emulated")
def test_scores_with_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores and gradients of the network, the rest of it in plain operations."""
    pytest.importorskip("triton", reason="Triton is not installed")
    torch.manual_seed(1)
    net, coords = GeoRouteNet(PolicyConfig(layers=3)), torch.rand(3, 12, 2)
    plain = fused.operations(plain=True)
    with_kernels = dataclasses.replace(plain, tower=PlainTower, tables=lambda near: {"slots": None})
    monkeypatch.setattr(start_attention_cuda, "fits", lambda config, x: True)
    near = neighborhood(coords, net.config.neighbors)
    distance = pair_distances(coords.unsqueeze(2), coords.unsqueeze(1))
    found: list[dict[str, Tensor]] = []
    for use, dtype in ((with_kernels, torch.bfloat16), (plain, torch.bfloat16), (plain, torch.float32)):
        net.zero_grad()
        start, logits = fused.all_pairs(net, coords, distance, near, dtype, use)
        torch.manual_seed(2)
        sum((x * torch.randn(x.shape)).sum() for x in (start, logits)).backward()
        grads = {name: p.grad.flatten() for name, p in net.named_parameters() if p.grad is not None}
        of_start = torch.cat([grad for name, grad in grads.items() if "start" in name])
        found.append({"start": start.detach(), "of start": of_start, "all": torch.cat(list(grads.values()))})
    mine, narrow, exact = found
    for name, value in exact.items():
        assert off(mine[name], value) < 1.5 * off(narrow[name], value) + 1e-3, name


@pytest.mark.gpu
@pytest.mark.parametrize("is_last", [False, True])
@pytest.mark.parametrize(("batch", "n"), [(1, 5), (3, 63), (64, 50), (513, 50), (5, 200)])
def test_on_the_device(batch: int, n: int, *, is_last: bool) -> None:
    states = torch.empty(1, 128, dtype=torch.bfloat16, device="cuda")
    if not start_attention_cuda.fits(PolicyConfig(), states):
        pytest.skip("no CUDA kernels on this device")
    compare(batch, n, "cuda", is_last=is_last)
