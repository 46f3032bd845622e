"""The CUDA kernels of the node tower on an emulated block, against the layers in float64."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest
import torch
from emulated import Emulated, launching, off
from test_neighborhood_attention_cuda import slots_of
from torch import Tensor

from georoutenet.kernels import encoder as fused
from georoutenet.kernels.cuda import compile as native
from georoutenet.kernels.cuda import node_layer as node_layer_cuda
from georoutenet.model.config import PolicyConfig
from georoutenet.model.geometry import Neighborhood, neighborhood, pair_distances
from georoutenet.model.georoutenet import GeoRouteNet
from georoutenet.model.layers import linear_maps

attention = pytest.importorskip("georoutenet.kernels.neighborhood_attention")


Kernels = tuple[Emulated, Emulated, int]
"""Those of the nodes, those of attention, and how many warps a block has."""


@contextmanager
def in_place(kernels: Kernels, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    of_nodes, of_attention, warps = kernels
    monkeypatch.setattr(native, "hopper", lambda device: warps > 2)
    monkeypatch.setattr(node_layer_cuda, "FORWARD", {warps: partial(of_nodes, "node_forward")})
    monkeypatch.setattr(node_layer_cuda, "BACKWARD", {warps: partial(of_nodes, "node_backward")})
    monkeypatch.setattr(node_layer_cuda, "_warps", lambda rows, device: warps)
    with launching(of_attention, monkeypatch):
        yield


def make_kernels(factory: pytest.TempPathFactory, warps: int) -> Kernels:
    of_nodes = Emulated("node_layer.cu", factory.mktemp("node_layer"), warps=warps, hopper=warps > 2)
    return of_nodes, Emulated("neighborhood_attention.cu", factory.mktemp("attention")), warps


@pytest.fixture(scope="module", params=[2, 4], ids=["", "hopper"])
def kernels(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    return make_kernels(tmp_path_factory, request.param)


@pytest.fixture
def _emulated(kernels: Kernels, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with in_place(kernels, monkeypatch):
        yield


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


@dataclasses.dataclass
class Inputs:
    """What a tower is given: by layer q, k, v, edge states and the distance's strength."""

    queries: list[Tensor]  # (3, B, n, d)
    edges: list[Tensor]
    strengths: list[Tensor]
    first: Tensor
    near: Neighborhood

    def leaves(self) -> dict[str, Tensor]:
        lists = {"queries": self.queries, "edges": self.edges, "strengths": self.strengths}
        return {f"{name} {k}": x for name, all_of in lists.items() for k, x in enumerate(all_of)} | {
            "first": self.first
        }

    def to(self, states: torch.dtype, others: torch.dtype) -> Inputs:
        """The same numbers as new leaves: states in one precision, strengths and distances in another."""

        def leaf(x: Tensor, dtype: torch.dtype) -> Tensor:
            return x.detach().to(dtype).requires_grad_()

        return Inputs(
            [leaf(x, states) for x in self.queries],
            [leaf(x, states) for x in self.edges],
            [leaf(x, others) for x in self.strengths],
            leaf(self.first, states),
            dataclasses.replace(self.near, distance=self.near.distance.to(others)),
        )


def random_inputs(batch: int, n: int, layers: int, device: str = "cpu") -> Inputs:
    torch.manual_seed(n)
    return Inputs(
        [torch.randn(3, batch, n, 128, device=device) for _ in range(layers)],
        [torch.randn(batch, n, n, 128, device=device) for _ in range(layers)],
        [torch.rand((), device=device) for _ in range(layers)],
        torch.randn(batch, n, 128, device=device),
        neighborhood(torch.rand(batch, n, 2, device=device), 10),
    ).to(torch.bfloat16, torch.float32)


def reference(net: GeoRouteNet, given: Inputs) -> list[Tensor]:
    history, outputs = [given.first], []
    places = given.near.index, given.near.mask, given.near.distance
    for number, layer in enumerate(net.layers):
        q, k, v = given.queries[number]
        values, edges, e = attention.neighborhood_attention_reference(
            q, k, v, given.edges[number], layer.edge_bias.weight, given.strengths[number], *places, heads=8
        )
        h = layer.node(layer.message(values, edges), history)
        history.append(h)
        following = [] if number == len(net.layers) - 1 else net.layers[number + 1].queries(h.dtype)
        outputs += [e, h, *linear_maps(h, [*layer.ends(h.dtype), *following])]
    return outputs


def run(
    net: GeoRouteNet, tower: Callable[..., list[Tensor]], given: Inputs, upstream: list[Tensor]
) -> dict[str, Tensor]:
    """Outputs and all gradients, by name."""
    net.zero_grad()
    outputs = tower(net, given)
    torch.autograd.backward(outputs, [y.to(x.dtype) for x, y in zip(outputs, upstream, strict=True)])
    found = {f"output {k}": x.detach() for k, x in enumerate(outputs)}
    found |= {name: x.grad for name, x in given.leaves().items()}
    return found | {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}


def in_kernels(net: GeoRouteNet, given: Inputs) -> list[Tensor]:
    tower = node_layer_cuda.Tower(net, given.first)
    make_slots = attention.neighborhood_slots if given.first.is_cuda else slots_of
    slots, outputs = make_slots(given.near.index, given.near.mask), []
    for number, layer in enumerate(net.layers):
        of_layer = layer.edge_bias.weight, given.strengths[number]
        queries = given.queries[number].unbind(0)
        outputs += tower.layer(number, queries, given.edges[number], *of_layer, given.near, slots)
    return outputs


def compare(batch: int, n: int, layers: int, device: str = "cpu") -> None:
    net = make_net(layers).to(device)
    given = random_inputs(batch, n, layers, device)
    shapes = [x.shape for x in reference(net, given.to(torch.float32, torch.float32))]
    upstream = [torch.randn(shape, device=device).bfloat16() for shape in shapes]
    found = run(net, in_kernels, given, [x.clone() for x in upstream])
    expected = run(net.double(), reference, given.to(torch.float64, torch.float64), upstream)
    assert expected.keys() == found.keys()
    worst = {}
    for name, value in expected.items():
        if name.startswith("layers.0.residual"):  # one state to attend to: the softmax is constant
            assert found[name].abs().max() < 1e-3
        elif not name.startswith("strengths"):
            worst[name] = off(found[name], value)
    # Rounding to bfloat16 at every step, 2^-9 a time.
    assert all(far < 0.015 for far in worst.values()), worst
    # A number a layer, a sum that cancels.
    mine, exact = (
        torch.stack([each[f"strengths {k}"].double() for k in range(layers)]) for each in (found, expected)
    )
    assert off(mine, exact) < 0.05


@pytest.mark.usefixtures("_emulated")
@pytest.mark.parametrize(("batch", "n", "layers"), [(1, 5, 6), (2, 17, 1), (3, 16, 2), (2, 40, 3)])
def test_against_the_layers(batch: int, n: int, layers: int) -> None:
    compare(batch, n, layers)


def test_two_groups_of_warps(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More rows a block; one group has none in the last block."""
    with in_place(make_kernels(tmp_path_factory, 8), monkeypatch):
        compare(3, 47, 2)


@pytest.mark.usefixtures("_emulated")
@pytest.mark.parametrize("width", [None, 17])
def test_scores_with_the_tower(width: int | None) -> None:
    """With plain operations on the edges, the scores and gradients of the network. Where neighborhoods are
    too wide for the kernels, the tower is not used."""
    torch.manual_seed(1)
    coords = torch.rand(2, 12 if width is None else 20, 2)
    net = make_net()
    plain = fused.operations(plain=True)
    with_tower = dataclasses.replace(
        plain,
        tower=node_layer_cuda.Tower,
        attention=lambda *given, slots, heads: plain.attention(*given, heads=heads),
        tables=lambda near: {"slots": slots_of(near.index, near.mask)},
    )
    near = neighborhood(coords, net.config.neighbors, width)
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
        assert torch.equal(mine, narrow) == (width is not None)


@pytest.mark.usefixtures("_emulated")
def test_one_backward_pass_only() -> None:
    outputs = in_kernels(make_net(1), random_inputs(1, 5, 1))
    upstream = [torch.randn_like(x) for x in outputs]
    torch.autograd.backward(outputs, upstream, retain_graph=True)
    with pytest.raises(RuntimeError, match="one backward pass only"):
        torch.autograd.backward(outputs, upstream)


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
