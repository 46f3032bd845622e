"""The CUDA kernels of the neighborhood attention on emulated blocks, against float64 in plain PyTorch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from emulated import Emulated, launching
from test_neighborhood_attention_triton import compare, in_place, problem, strided
from torch import Tensor


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Emulated:
    return Emulated("neighborhood_attention.cu", tmp_path_factory.mktemp("neighborhood_attention"))


def slots_of(index: Tensor, mask: Tensor) -> Tensor:
    """`neighborhood_slots` in plain PyTorch."""
    batch, n, width = index.shape
    slots = torch.full((batch, n, n + 16 - n % 16), width, dtype=torch.int16)
    for b, i, w in mask.nonzero().tolist():
        slots[b, i, index[b, i, w]] = w
    return slots


@pytest.fixture(autouse=True)
def on_the_cpu(kernels: Emulated, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The attention runs the emulated kernels."""
    from georoutenet.kernels import neighborhood_attention as neighborhood_attention_triton
    from georoutenet.kernels.cuda import neighborhood_attention as neighborhood_attention_cuda

    monkeypatch.setattr(neighborhood_attention_cuda, "fits", lambda *arguments: True)
    monkeypatch.setattr(neighborhood_attention_triton, "neighborhood_slots", slots_of)
    with launching(kernels, monkeypatch):
        yield


@pytest.mark.parametrize(
    ("batch", "n", "width", "through"),
    [
        (1, 2, 1, True),
        (1, 3, 3, True),
        (2, 5, 16, False),
        (2, 11, 7, True),
        (1, 17, 16, True),
        (1, 37, 11, False),
        (1, 67, 4, True),
    ],
)
def test_against_the_reference(batch: int, n: int, width: int, through: bool) -> None:
    found = compare(batch, n, width, 128, 8, torch.bfloat16, "cpu", through=through)
    if width == 1:  # the weight is 1 whatever the scores are
        found = {name: found[name] for name in ("values", "edges", "v", "e")}
    else:
        found["strength"] /= 50  # one number, a sum that cancels
    for name, off in found.items():  # the rounding to bfloat16, 2^-9 a time
        assert off < 6e-3, (name, off)


def test_weights() -> None:
    """They sum to one over the neighbors, and there are none beside them."""
    from georoutenet.kernels.cuda.neighborhood_attention import forward_pass

    leaves, near, _ = problem(2, 7, 5, 128, 8, torch.bfloat16, "cpu")
    _, _, alpha = forward_pass((*leaves, *near))
    real = torch.nn.functional.pad(near[1], (0, 11)).unsqueeze(2).expand_as(alpha)
    assert torch.equal(alpha > 0, real)
    torch.testing.assert_close(alpha.float().sum(-1), torch.ones(2, 7, 8), rtol=0, atol=1e-2)


def test_views_and_the_gradient_in_place() -> None:
    strided("cpu", 128, 8, torch.bfloat16)
    in_place("cpu", 128, 8, torch.bfloat16)
