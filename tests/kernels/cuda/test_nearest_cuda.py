"""The CUDA kernel of distances and neighborhoods on an emulated block: the same bits as `geometry`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import partial

import pytest
import torch
from emulated import Emulated
from torch import Tensor

from georoutenet.kernels import encoder as fused
from georoutenet.kernels.cuda import nearest as nearest_cuda
from georoutenet.kernels.cuda.nearest import WARPS, nearest
from georoutenet.model import geometry
from georoutenet.model.config import PolicyConfig
from georoutenet.model.geometry import Neighborhood, neighborhood
from georoutenet.policy import Policy
from georoutenet.policy import policy as policy_module

pytest.importorskip("triton", reason="Triton is not installed")


@pytest.fixture
def _emulated(kernel: Emulated, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(nearest_cuda, "_kernel", lambda n: partial(kernel, "nearest"))
    monkeypatch.setattr(geometry, "pair_distances", rounded_distances)
    torch.use_deterministic_algorithms(True)  # what is allocated holds no numbers
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Emulated:
    return Emulated("nearest.cu", tmp_path_factory.mktemp("nearest"), warps=WARPS)


def rounded_distances(a: Tensor, b: Tensor) -> Tensor:
    """`pair_distances` as on a GPU: PyTorch's square root on a CPU may be one bit off."""
    return (a - b).square().sum(-1).double().sqrt().float()


def cities(batch: int, n: int) -> Tensor:
    """Random instances; a grid full of ties; the last with all cities at one of two places."""
    torch.manual_seed(n)
    coords = torch.rand(batch, n, 2)
    if batch > 1:
        coords[1] = torch.stack((torch.arange(n) % 4, torch.arange(n) // 4), -1) / 4
        coords[-1] = coords[-1, torch.arange(n) % 2]
    return coords


def slots_of(index: Tensor, mask: Tensor, pitch: int) -> Tensor:
    batch, n, width = index.shape
    slots = torch.full((batch, n, pitch), width, dtype=torch.int16)
    for b, i, w in mask.cpu().nonzero().tolist():
        slots[b, i, index[b, i, w]] = w
    return slots


def compare(coords: Tensor, k: int, width: int, reach: float, pitch: int) -> None:
    distance, near, slots = nearest(coords, k, width, reach, pitch)
    expected = neighborhood(coords, k, width)
    every = geometry.pair_distances(coords.unsqueeze(2), coords.unsqueeze(1))
    far = (lambda d: d.clamp(max=reach)) if reach else (lambda d: d)
    assert torch.equal(distance, far(every))
    assert torch.equal(near.index.long(), expected.index)
    assert torch.equal(near.mask, expected.mask)
    assert torch.equal(near.distance, far(expected.distance))
    assert torch.equal(slots.cpu(), slots_of(expected.index, expected.mask, pitch))


CASES = [
    (3, 2, 1, 2, 0.0, 16),
    (3, 5, 10, 11, 0.0, 16),  # fewer cities than neighbors
    (4, 11, 10, 11, 0.3, 16),
    (3, 20, 10, 16, 0.0, 32),  # ties at the boundary, some beyond the width
    (3, 50, 10, 11, 0.4, 64),
    (1, 70, 5, 32, 0.0, 128),
    (1, 68, 31, 32, 0.0, 128),
]


@pytest.mark.usefixtures("_emulated")
@pytest.mark.parametrize(("batch", "n", "k", "width", "reach", "pitch"), CASES)
def test_the_same_bits(batch: int, n: int, k: int, width: int, reach: float, pitch: int) -> None:
    compare(cities(batch, n), k, width, reach, pitch)


@pytest.mark.usefixtures("_emulated")
@pytest.mark.parametrize(("unit", "reach"), [("square", 0.0), ("density", 0.2)])
def test_the_policy_with_the_kernel(unit: str, reach: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """All pairs by plain operations, with and without the kernel: the same scores, to the bit."""
    policy = Policy(PolicyConfig(hidden=16, heads=2, layers=2, neighbors=4, unit=unit, reach=reach))
    plain, coords = fused.operations(plain=True), cities(3, 9)
    monkeypatch.setattr(policy_module, "pair_distances", rounded_distances)
    found = []
    for near in (plain.near, near_of):
        use = dataclasses.replace(plain, near=near)
        monkeypatch.setattr(fused, "operations", lambda use=use: use)
        found.append(policy._fused(coords, torch.float32, 6))
    for left, right in zip(*found, strict=True):
        assert torch.equal(left, right)


def near_of(
    places: Tensor, config: PolicyConfig, width: int | None
) -> tuple[Tensor, Neighborhood, fused.Tables]:
    assert width is not None
    distance, near, _ = nearest(places, config.neighbors, width, config.reach, 16)
    return distance, near, {}


def test_what_fits() -> None:
    """Only on CUDA, and only where the width is fixed."""
    assert not nearest_cuda.fits(torch.rand(1, 5, 2), 3, 4)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("batch", "n", "k", "width", "reach", "pitch"),
    [*CASES, (64, 50, 10, 11, 0.0, 64), (3, 129, 10, 16, 0.5, 192), (2, 1024, 10, 16, 0.0, 1024)],
)
def test_on_the_device(batch: int, n: int, k: int, width: int, reach: float, pitch: int) -> None:
    coords = cities(batch, n).cuda()
    assert nearest_cuda.fits(coords, k, width)
    assert not nearest_cuda.fits(coords, k, None)
    compare(coords, k, width, reach, pitch)
