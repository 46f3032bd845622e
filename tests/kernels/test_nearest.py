"""The kernel of distances and neighborhoods on an emulated block: the same bits as `geometry`."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from georoutenet.kernels.nearest import nearest, slots_pitch, slots_reference
from georoutenet.model import geometry
from georoutenet.model.geometry import neighborhood


def rounded_distances(a: Tensor, b: Tensor) -> Tensor:
    """`pair_distances` as on a GPU: PyTorch's square root on a CPU may be one bit off."""
    return (a - b).square().sum(-1).double().sqrt().float()


def cities(batch: int, n: int) -> Tensor:
    """Random instances; a grid full of ties; the last with all cities at one of two points."""
    torch.manual_seed(n)
    coords = torch.rand(batch, n, 2)
    if batch > 1:
        coords[1] = torch.stack((torch.arange(n) % 4, torch.arange(n) // 4), -1) / 4
        coords[-1] = coords[-1, torch.arange(n) % 2]
    return coords


def compare(coords: Tensor, k: int, width: int, reach: float) -> None:
    distance, near, slots = nearest(coords, k, width, reach)
    expected = neighborhood(coords, k, width)
    every = geometry.pair_distances(coords.unsqueeze(2), coords.unsqueeze(1))
    far = (lambda d: d.clamp(max=reach)) if reach else (lambda d: d)
    assert torch.equal(distance, far(every))
    assert torch.equal(near.index.long(), expected.index)
    assert torch.equal(near.mask, expected.mask)
    assert torch.equal(near.distance, far(expected.distance))
    assert torch.equal(slots, slots_reference(expected.index, expected.mask))


CASES = [
    (3, 2, 1, 2, 0.0),
    (3, 5, 10, 11, 0.0),  # fewer cities than neighbors
    (4, 11, 10, 11, 0.3),
    (3, 20, 10, 16, 0.0),  # ties at the boundary, some beyond the width
    (3, 50, 10, 11, 0.4),
    (1, 70, 5, 32, 0.0),
    (1, 68, 31, 32, 0.0),
]


@pytest.mark.usefixtures("launched")
@pytest.mark.parametrize(("batch", "n", "k", "width", "reach"), CASES)
def test_the_same_bits(
    batch: int, n: int, k: int, width: int, reach: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(geometry, "pair_distances", rounded_distances)
    compare(cities(batch, n), k, width, reach)


def test_slots_by_hand() -> None:
    near = neighborhood(cities(3, 21), 4)
    slots = slots_reference(near.index, near.mask)
    expected = torch.full((3, 21, 32), near.index.shape[2], dtype=torch.int16)
    for b, i, w in near.mask.nonzero().tolist():
        expected[b, i, near.index[b, i, w]] = w
    assert torch.equal(slots, expected)
    assert [slots_pitch(n) for n in (1, 16, 17, 64, 65, 200)] == [16, 16, 32, 64, 128, 256]


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("batch", "n", "k", "width", "reach"),
    [*CASES, (64, 50, 10, 11, 0.0), (3, 129, 10, 16, 0.5), (2, 1024, 10, 16, 0.0)],
)
def test_on_the_device(batch: int, n: int, k: int, width: int, reach: float) -> None:
    compare(cities(batch, n).cuda(), k, width, reach)
