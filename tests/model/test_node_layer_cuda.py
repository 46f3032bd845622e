"""The CUDA kernels of the node tower on an emulated block, against the layers in float64."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from emulated import Emulated, off
from torch import Tensor

from georoutenet.model import fused, native, node_layer_cuda
from georoutenet.model.config import PolicyConfig
from georoutenet.model.geometry import neighborhood, pair_distances
from georoutenet.model.georoutenet import GeoRouteNet
from georoutenet.model.layers import linear_maps


def put_in_place(emulated: Emulated, warps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "hopper", lambda device: warps > 2)
    monkeypatch.setattr(node_layer_cuda, "FORWARD", {warps: partial(emulated, "node_forward")})
    monkeypatch.setattr(node_layer_cuda, "BACKWARD", {warps: partial(emulated, "node_backward")})
    monkeypatch.setattr(node_layer_cuda, "_warps", lambda rows, device: warps)


@pytest.fixture(scope="module", params=[2, 4], ids=["", "hopper"])
def kernels(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Emulated, int]:
    folder, warps = tmp_path_factory.mktemp("node_layer"), request.param
    return Emulated("node_layer.cu", folder, warps=warps, hopper=warps > 2), warps


@pytest.fixture
def _emulated(kernels: tuple[Emulated, int], monkeypatch: pytest.MonkeyPatch) -> None:
    put_in_place(*kernels, monkeypatch)


def make_net(layers: int = 3) -> GeoRouteNet:
    """A small tower whose weights are numbers of bfloat16, so that both sides have the same."""
    torch.manual_seed(0)
    net = GeoRouteNet(PolicyConfig(layers=layers))
    with torch.no_grad():
        for parameter in net.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
            parameter.copy_(parameter.bfloat16())
    return net


def reference(net: GeoRouteNet, values: list[Tensor], edges: list[Tensor], first: Tensor) -> list[Tensor]:
    history, outputs = [first], []
    for number, layer in enumerate(net.layers):
        h = layer.node(layer.message(values[number], edges[number]), history)
        history.append(h)
        following = [] if number == len(net.layers) - 1 else net.layers[number + 1].queries(h.dtype)
        outputs += [h, *linear_maps(h, [*layer.ends(h.dtype), *following])]
    return outputs


def run(
    net: GeoRouteNet, tower: Callable[..., list[Tensor]], inputs: list[list[Tensor]], upstream: list[Tensor]
) -> dict[str, Tensor]:
    """Outputs and all gradients, by name."""
    net.zero_grad()
    values, edges, (first,) = ([x.detach().requires_grad_() for x in part] for part in inputs)
    outputs = tower(net, values, edges, first)
    sum((x * y.to(x.dtype)).sum() for x, y in zip(outputs, upstream, strict=True)).backward()
    found = {f"output {k}": x.detach() for k, x in enumerate(outputs)}
    found |= {f"values {k}": x.grad for k, x in enumerate(values)}
    found |= {f"edges {k}": x.grad for k, x in enumerate(edges)} | {"first": first.grad}
    return found | {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}


def in_kernels(net: GeoRouteNet, values: list[Tensor], edges: list[Tensor], first: Tensor) -> list[Tensor]:
    tower = node_layer_cuda.Tower(net, first)
    return [x for k in range(len(values)) for x in tower.layer(k, values[k], edges[k])]


def compare(batch: int, n: int, layers: int, device: str = "cpu") -> None:
    torch.manual_seed(n)
    inputs = [
        [torch.randn(batch, n, 128, device=device).bfloat16() for _ in range(layers)],
        [torch.randn(batch, n, 8, 128, device=device).bfloat16() for _ in range(layers)],
        [torch.randn(batch, n, 128, device=device).bfloat16()],
    ]
    upstream = [torch.randn(batch, n, 128, device=device) for _ in range(6 * layers - 3)]
    net = make_net(layers).to(device)
    found = run(net, in_kernels, inputs, upstream)
    wide = [[x.double() for x in part] for part in inputs]
    expected = run(net.double(), reference, wide, upstream)
    assert expected.keys() == found.keys()
    worst = {}
    for name, value in expected.items():
        if name.startswith("layers.0.residual"):  # one state to attend to: the softmax is constant
            assert found[name].abs().max() < 1e-3
        else:
            worst[name] = off(found[name], value)
    # Rounding to bfloat16 at every step, 2^-9 a time.
    assert all(far < 0.015 for far in worst.values()), worst


@pytest.mark.usefixtures("_emulated")
@pytest.mark.parametrize(("batch", "n", "layers"), [(1, 5, 6), (2, 17, 1), (3, 16, 2), (2, 40, 3)])
def test_against_the_layers(batch: int, n: int, layers: int) -> None:
    compare(batch, n, layers)


def test_two_groups_of_warps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More rows a block; one group has none in the last block."""
    put_in_place(Emulated("node_layer.cu", tmp_path, warps=8, hopper=True), 8, monkeypatch)
    compare(3, 47, 2)


@pytest.mark.usefixtures("_emulated")
def test_scores_with_the_tower() -> None:
    """With plain operations on the edges, the scores and gradients of the network."""
    torch.manual_seed(1)
    coords = torch.rand(2, 12, 2)
    net = make_net()
    plain = fused.operations(plain=True)
    with_tower = dataclasses.replace(plain, tower=node_layer_cuda.Tower)
    near = neighborhood(coords, net.config.neighbors)
    distance = pair_distances(coords.unsqueeze(2), coords.unsqueeze(1))
    found: list[list[Tensor]] = []
    for use, dtype in ((with_tower, torch.bfloat16), (plain, torch.bfloat16), (plain, torch.float32)):
        net.zero_grad()
        scores = fused.all_pairs(net, coords, distance, near, dtype, use)
        torch.manual_seed(2)
        sum((x * torch.randn(x.shape)).sum() for x in scores).backward()
        grads = [p.grad.flatten() for name, p in net.named_parameters() if p.grad is not None]
        found.append([*(x.detach() for x in scores), torch.cat(grads)])
    for mine, narrow, exact in zip(*found, strict=True):
        assert off(mine, exact) < 1.5 * off(narrow, exact) + 1e-3


@pytest.mark.gpu
@pytest.mark.parametrize("hopper", [False, True])
@pytest.mark.parametrize(("batch", "n", "layers"), [(1, 5, 6), (3, 63, 1), (64, 50, 6), (512, 50, 3)])
def test_on_the_device(
    batch: int, n: int, layers: int, hopper: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where four warps multiply together."""
    monkeypatch.setattr(native, "HOPPER", hopper)
    states = torch.empty(1, 128, dtype=torch.bfloat16, device="cuda")
    if native.hopper(states.device) != hopper or not node_layer_cuda.fits(
        PolicyConfig(layers=layers), states
    ):
        pytest.skip("no such CUDA kernels on this device")
    compare(batch, n, layers, "cuda")
