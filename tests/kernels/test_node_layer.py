"""The kernels of the nodes on emulated blocks, and on a GPU, against the reference in float64."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial

import pytest
import torch
from emulated import off, on_gpu, worst_row
from torch import Tensor

from georoutenet.kernels.cuda import node_layer as cuda
from georoutenet.kernels.nearest import slots_reference
from georoutenet.kernels.node_layer import Tower, node_layer_reference
from georoutenet.model.config import PolicyConfig
from georoutenet.model.geometry import Neighborhood, neighborhood
from georoutenet.model.georoutenet import GeoRouteNet


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
    for number in range(len(net.layers)):
        of_layer = (given.queries[number].unbind(0), given.edges[number], given.strengths[number])
        found = node_layer_reference(net, number, *of_layer, given.near, history)
        history.append(found[1])
        outputs += found
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


def in_kernels(net: GeoRouteNet, given: Inputs, *, hopper: bool) -> list[Tensor]:
    tower = Tower(net, given.first, hopper=hopper)
    slots, outputs = slots_reference(given.near.index, given.near.mask), []
    for number in range(len(net.layers)):
        of_layer = (given.queries[number].unbind(0), given.edges[number], given.strengths[number])
        outputs += tower.layer(number, *of_layer, given.near, slots)
    return outputs


def compare(batch: int, n: int, layers: int, *, hopper: bool, device: str = "cpu") -> None:
    net = make_net(layers).to(device)
    given = random_inputs(batch, n, layers, device)
    shapes = [x.shape for x in reference(net, given.to(torch.float32, torch.float32))]
    upstream = [torch.randn(shape, device=device).bfloat16() for shape in shapes]
    found = run(net, partial(in_kernels, hopper=hopper), given, [x.clone() for x in upstream])
    expected = run(net.double(), reference, given.to(torch.float64, torch.float64), upstream)
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        if name.startswith("layers.0.residual"):  # one state to attend to: the softmax is constant
            assert found[name].abs().max() < 1e-3
        elif not name.startswith("strengths"):  # rounding to bf16 at every step, 2^-9 a time
            assert off(found[name], value) < 0.015, name
            assert worst_row(found[name], value) < 0.15, name
    # A number a layer, a sum that cancels.
    mine, exact = (
        torch.stack([each[f"strengths {k}"].double() for k in range(layers)]) for each in (found, expected)
    )
    assert off(mine, exact) < 0.05


@pytest.mark.usefixtures("launched")
@pytest.mark.parametrize("hopper", [False, True])
# Few rows and 2 warps a block, or many and 8; on Hopper always 4.
@pytest.mark.parametrize(("batch", "n", "layers"), [(1, 5, 3), (2, 17, 1), (3, 47, 2)])
def test_against_the_reference(batch: int, n: int, layers: int, hopper: bool) -> None:
    compare(batch, n, layers, hopper=hopper)


def test_few_rows_a_block_for_small_batches() -> None:
    cpu = torch.device("cpu")
    assert [cuda._warps(rows, cpu, hopper=False) for rows in (1, 64, 65)] == [2, 2, 8]
    assert cuda._warps(65, cpu, hopper=True) == cuda.HOPPER_WARPS


@pytest.mark.usefixtures("launched")
def test_one_backward_pass_only() -> None:
    outputs = in_kernels(make_net(1), random_inputs(1, 5, 1), hopper=True)
    upstream = [torch.randn_like(x) for x in outputs]
    torch.autograd.backward(outputs, upstream, retain_graph=True)
    with pytest.raises(RuntimeError, match="one backward pass only"):
        torch.autograd.backward(outputs, upstream)


@pytest.mark.usefixtures("launched")
def test_the_gradient_of_edge_states_is_added_in_place() -> None:
    """The tensor that arrives for the pass-through is the one that leaves, unless its rows overlap."""
    given = random_inputs(1, 5, 1)
    e, *others = in_kernels(make_net(1), given, hopper=True)
    through, upstream = torch.randn_like(e), [torch.randn_like(x) for x in others]
    (found,) = torch.autograd.grad([e, *others], given.edges, [through, *upstream])
    assert found.data_ptr() == through.data_ptr()
    e, *others = in_kernels(make_net(1), given, hopper=True)
    ones = torch.ones(1, 1, 1, 128, dtype=e.dtype)
    torch.autograd.grad([e, *others], given.edges, [ones.expand_as(e), *upstream])
    assert torch.equal(ones, torch.ones_like(ones))


@pytest.mark.gpu
@pytest.mark.parametrize("hopper", [False, True])
@pytest.mark.parametrize(("batch", "n", "layers"), [(1, 5, 6), (3, 63, 1), (64, 50, 6), (512, 50, 3)])
def test_on_the_device(batch: int, n: int, layers: int, hopper: bool) -> None:
    compare(batch, n, layers, hopper=hopper, device=on_gpu(hopper))
