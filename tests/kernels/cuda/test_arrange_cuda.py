"""The CUDA kernel that arranges weights on an emulated block, against a gather from all of them in a row."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from emulated import Emulated

from georoutenet.kernels.cuda import arrange as arrange_cuda
from georoutenet.kernels.cuda import node_layer as node_layer_cuda
from georoutenet.kernels.cuda.arrange import WARPS, arrange, make_table
from georoutenet.model.config import PolicyConfig
from georoutenet.model.georoutenet import GeoRouteNet

LAYERS = 2


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Emulated:
    return Emulated("arrange.cu", tmp_path_factory.mktemp("arrange"), warps=WARPS)


def compare(device: str, *, hopper: bool) -> None:
    torch.manual_seed(1)
    net = GeoRouteNet(PolicyConfig(layers=LAYERS)).to(device)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(torch.randn_like(parameter))
    first, last = net.layers
    stored = [
        parameter.detach()
        for layer, following in ((first, last), (last, None))
        for parameter in node_layer_cuda.parameters_of(layer, following)
    ]
    plan = node_layer_cuda._plan(LAYERS, torch.device(device), hopper)
    table = make_table(plan, stored)
    fragments, vectors = arrange(plan, table)
    states = torch.empty(0, dtype=torch.bfloat16, device=device)
    expected = node_layer_cuda._arranged(stored, LAYERS, states, hopper)
    assert torch.equal(fragments, expected[0])
    assert torch.equal(vectors.view(-1), expected[1])
    assert node_layer_cuda._starts(LAYERS, hopper)[-1] == len(fragments)
    assert make_table(plan, stored, table) is table
    assert make_table(plan, [tensor.clone() for tensor in stored], table) is not table  # they moved


@pytest.mark.parametrize("hopper", [False, True])
def test_the_same_as_a_gather(hopper: bool, kernel: Emulated, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrange_cuda, "ARRANGE", partial(kernel, "arrange"))
    torch.use_deterministic_algorithms(True)  # what is allocated holds no numbers
    compare("cpu", hopper=hopper)
    torch.use_deterministic_algorithms(False)


@pytest.mark.gpu
@pytest.mark.parametrize("hopper", [False, True])
def test_on_the_device(hopper: bool) -> None:
    compare("cuda", hopper=hopper)
