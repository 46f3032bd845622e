"""The CUDA kernel that arranges weights on an emulated block, against a gather from all of them in a row."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from georoutenet.kernels.cuda import node_weights
from georoutenet.model.config import PolicyConfig
from georoutenet.model.georoutenet import GeoRouteNet

LAYERS = 2


def gathered(stored: list[Tensor], hopper: bool) -> tuple[Tensor, Tensor]:
    """Fragments and vectors without a kernel."""
    flat = torch.cat([*(tensor.reshape(-1) for tensor in stored), stored[0].new_zeros(1)])
    indices = node_weights.indices_of(LAYERS, hopper)
    fragments, vectors = (torch.from_numpy(x.reshape(-1)).to(flat.device) for x in indices)
    return flat.bfloat16().index_select(0, fragments), flat.index_select(0, vectors)


def compare(device: str, *, hopper: bool) -> None:
    torch.manual_seed(1)
    net = GeoRouteNet(PolicyConfig(layers=LAYERS)).to(device)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(torch.randn_like(parameter))
    fragments, vectors, starts = node_weights.arranged(net, hopper=hopper)
    stored = node_weights.stored_of(net)
    expected = gathered(stored, hopper)
    assert torch.equal(fragments, expected[0])
    assert torch.equal(vectors.view(-1), expected[1])
    assert starts[-1] == len(fragments)
    source = node_weights.source_of(LAYERS, stored[0].device, hopper)
    table = node_weights.make_table(source, stored)
    assert node_weights.make_table(source, stored, table) is table
    moved = [tensor.clone() for tensor in stored]
    assert node_weights.make_table(source, moved, table) is not table


@pytest.mark.usefixtures("launched")
@pytest.mark.parametrize("hopper", [False, True])
def test_the_same_as_a_gather(hopper: bool) -> None:
    compare("cpu", hopper=hopper)


@pytest.mark.gpu
@pytest.mark.parametrize("hopper", [False, True])
def test_on_the_device(hopper: bool) -> None:
    compare("cuda", hopper=hopper)
