"""The kernels of bases and strengths on an emulated block, against the reference in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from georoutenet.kernels.bases import Start, bases, bases_reference
from georoutenet.model.config import PolicyConfig
from georoutenet.model.georoutenet import GeoRouteNet
from georoutenet.train.pins import NO_DISTANCE


def run(net: GeoRouteNet, start: Start, upstream: Tensor) -> list[Tensor]:
    """The numbers, and the gradients of what they are made of."""
    net.zero_grad()
    centers, bandwidth, strengths = start
    every = torch.cat((centers, torch.stack((bandwidth, *strengths))))
    (every * upstream.to(every)).sum().backward()
    parameters = (net.rbf.centers, net.rbf.log_bandwidth, *(layer.distance for layer in net.layers))
    assert all(p.grad is not None for p in parameters)
    return [every.detach(), *(p.grad.clone() for p in parameters if p.grad is not None)]


def compare(layers: int, rbf: int, log_bandwidth: float, device: str) -> None:
    torch.manual_seed(rbf)
    net = GeoRouteNet(PolicyConfig(hidden=16, layers=layers, rbf=rbf)).to(device)
    with torch.no_grad():
        net.rbf.centers.copy_(3 * torch.randn(rbf))  # in any order
        net.rbf.log_bandwidth.fill_(log_bandwidth)
        for layer in net.layers:
            layer.distance.copy_(3 * torch.randn(()))
        net.layers[-1].distance.fill_(25.0)
    upstream = torch.randn(rbf + 1 + layers)
    found = run(net, bases(net), upstream)
    expected = run(net.double(), bases_reference(net.double()), upstream)
    for mine, exact in zip(found, expected, strict=True):
        torch.testing.assert_close(mine.double(), exact, rtol=1e-5, atol=1e-6)


CASES = [(6, 16, -2.0), (3, 2, -9.0), (1, 32, 0.5)]


@pytest.mark.usefixtures("launched")
@pytest.mark.parametrize(("layers", "rbf", "log_bandwidth"), CASES)
def test_against_the_modules(layers: int, rbf: int, log_bandwidth: float) -> None:
    """Also where the bandwidth is at its least, so that it has no gradient."""
    compare(layers, rbf, log_bandwidth, "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize(("layers", "rbf", "log_bandwidth"), CASES)
def test_on_the_device(layers: int, rbf: int, log_bandwidth: float) -> None:
    compare(layers, rbf, log_bandwidth, "cuda")


def no_distance(device: str) -> None:
    """A pinned distance coefficient is none at all, and has no gradient."""
    net = GeoRouteNet(PolicyConfig(hidden=16)).to(device)
    with torch.no_grad():
        for layer in net.layers[1:]:
            layer.distance.fill_(NO_DISTANCE)
    _, _, strengths = bases(net)
    assert strengths[0] > 0
    assert [float(strength.detach()) for strength in strengths[1:]] == [0.0] * 5
    torch.stack(strengths).sum().backward()
    assert [float(layer.distance.grad) for layer in net.layers[1:] if layer.distance.grad is not None] == [
        0.0
    ] * 5


@pytest.mark.usefixtures("launched")
def test_a_pinned_coefficient_is_zero() -> None:
    no_distance("cpu")


@pytest.mark.gpu
def test_a_pinned_coefficient_is_zero_on_the_device() -> None:
    no_distance("cuda")
