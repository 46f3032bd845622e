"""NAR4TSP's layers at the nodes in CUDA C++ on emulated blocks and on a GPU, against float64 in PyTorch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed")
from test_nar4tsp_layer_cuda import emulate_nodes, poisoned
from test_nar4tsp_triton import off

from georoutenet.model import nar4tsp_nodes_cuda

HEADS, WIDTH = 8, 128


def compare_nodes(batch: int, n: int, device: str, *, first: bool, last: bool) -> dict[str, float]:
    """Differences of results and gradients from the float64 reference."""
    torch.manual_seed(batch * n)
    narrow, wide = torch.bfloat16, torch.float32
    d, none = WIDTH, (0,)
    shapes = {
        "g": ((batch, n, d), narrow),
        "of_ends": ((HEADS, 2, d // HEADS), wide),
        "of_edge": (none if first else (batch, HEADS, n, n), narrow),
        "slope": ((HEADS,), wide),
        "constant": ((HEADS,), wide),
        "h": ((batch, n, d), narrow),
        "gamma": ((d,), wide),
        "beta": ((d,), wide),
        "bias": ((d,), wide),
        "maps": ((2 if last else 3, d, d), narrow),
    }
    low = {name: torch.randn(shape, dtype=dtype, device=device) for name, (shape, dtype) in shapes.items()}
    low["h"] += 3 * torch.randn(d, device=device).to(narrow)  # the norm has a mean to take out
    low["maps"] *= d**-0.5
    points = torch.rand(batch, n, 2, device=device)
    distance = torch.cdist(points, points)
    reach = distance.sort().values[:, :, min(3, n - 1)]
    exact = {name: value.double() for name, value in low.items()}
    stored = low["maps"].float().requires_grad_()
    for inputs in (low, exact):
        for name, value in inputs.items():
            value.requires_grad_(inputs is exact or name != "maps")

    def run(layer: object, inputs: dict[str, Tensor], *weights: Tensor) -> list[Tensor]:
        before, after = list(inputs.values())[:5], list(inputs.values())[5:]
        dtype = inputs["slope"].dtype
        return list(layer(*before, distance.to(dtype), reach.to(dtype), *after, *weights)[:4])  # type: ignore[operator]

    weights = [*stored, *[stored.new_empty(0)] * (3 - len(stored))]
    found = run(nar4tsp_nodes_cuda.node_layer, low, low["maps"].mT.contiguous(), *weights)
    wanted = run(nar4tsp_nodes_cuda.node_layer_reference, exact)
    weights = [torch.randn_like(value) for value in wanted]
    for results in (found, wanted):
        sum(
            (result.double() * weight).sum() for result, weight in zip(results, weights, strict=True)
        ).backward()
    names = ("states", "sources", "targets", "nodes")[: 3 if last else 4]
    results = {name: off(*pair) for name, *pair in zip(names, found, wanted, strict=False)}
    for name in exact:
        unused = (name == "slope" and not first) or exact[name].numel() == 0
        if unused:
            continue
        results[name] = off((stored if name == "maps" else low[name]).grad, exact[name].grad)
    return results


@pytest.fixture
def _emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    emulate_nodes(monkeypatch)
    for owner, name in ((torch.Tensor, "new_empty"), (torch, "empty_like")):
        monkeypatch.setattr(owner, name, poisoned(getattr(owner, name)))


def check(found: dict[str, float], tolerance: float) -> None:
    for name, difference in found.items():
        # A softmax does not see a constant but through the bend of the ReLU: little is left of its gradient.
        assert difference < tolerance * (5 if name == "constant" else 1), (name, difference)


# Rows that are less than a tile, whole tiles, and tails; more tiles than warps; chunks of the products.
@pytest.mark.usefixtures("_emulated")
@pytest.mark.parametrize(
    ("batch", "n", "first", "last", "least"),
    [
        (3, 3, False, False, 192),
        (2, 16, True, False, 16),
        (4, 33, False, True, 50),
        (3, 50, False, False, 70),
    ],
)
def test_against_the_reference(
    batch: int, n: int, first: bool, last: bool, least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nar4tsp_nodes_cuda, "LEAST", least)
    # Rounding to bfloat16, 2^-9 a time, of gradients part of which the norm and the softmax take out.
    check(compare_nodes(batch, n, "cpu", first=first, last=last), 2e-2)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("batch", "n", "first", "last"),
    [
        (3, 5, False, False),
        (2, 17, True, False),
        (3, 51, False, True),
        (64, 50, False, False),
        (512, 50, True, True),
    ],
)
def test_on_the_device(batch: int, n: int, first: bool, last: bool) -> None:
    if not nar4tsp_nodes_cuda.fits(n, WIDTH, HEADS, "cuda", torch.bfloat16):
        pytest.skip("no such kernels on this device")
    check(compare_nodes(batch, n, "cuda", first=first, last=last), 3e-2)
