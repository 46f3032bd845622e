"""NAR4TSP's attention in CUDA C++ on emulated blocks, against float64 in plain PyTorch; on a GPU, with the
Triton kernels beside it."""

from __future__ import annotations

import pytest
import torch

from georoutenet.model import nar4tsp_attention_cuda, native

pytest.importorskip("triton", reason="Triton is not installed")
from test_nar4tsp_layer_cuda import emulate_nodes, poisoned
from test_nar4tsp_triton import compare_attention


# A row alone and fewer than a tile has; tails of tiles; an odd number of cities, whose rows are not whole
# words; all that a block has room for.
@pytest.mark.parametrize(
    ("batch", "n", "first"),
    [(1, 2, False), (2, 5, False), (1, 17, True), (2, 33, False), (1, 50, False), (1, 64, True)],
)
def test_against_the_reference(batch: int, n: int, first: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    emulate_nodes(monkeypatch)
    monkeypatch.setattr(nar4tsp_attention_cuda, "fits", lambda *_: True)
    for owner, name in ((torch.Tensor, "new_empty"), (torch, "empty_like")):
        monkeypatch.setattr(owner, name, poisoned(getattr(owner, name)))
    for name, difference in compare_attention(batch, n, 128, 8, torch.bfloat16, "cpu", first=first).items():
        # A softmax does not see a constant but through the bend of the ReLU: little is left of its gradient.
        assert difference < (5e-2 if name == "constant" else 1e-2), (name, difference)


@pytest.mark.gpu
@pytest.mark.parametrize("how", ["Triton", "CUDA"])
@pytest.mark.parametrize(
    ("batch", "n", "first"),
    [
        (3, 2, False),
        (3, 5, True),
        (3, 17, False),
        (512, 50, False),
        (64, 50, True),
        (3, 51, False),
        (3, 64, False),
    ],
)
def test_on_the_device(how: str, batch: int, n: int, first: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if how == "Triton":
        monkeypatch.setattr(native, "fits", lambda *_: False)
    else:
        states = torch.empty(1, n, 128, device="cuda", dtype=torch.bfloat16)
        if not nar4tsp_attention_cuda.fits(states, 8):
            pytest.skip("no such kernels on this device")
    found = compare_attention(batch, n, 128, 8, torch.bfloat16, "cuda", first=first)
    for name, difference in found.items():
        assert difference < (1e-1 if name == "constant" else 3e-2), (name, difference)
