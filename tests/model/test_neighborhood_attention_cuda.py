"""The CUDA kernels of the neighborhood attention on an emulated block, against float64 in plain PyTorch."""

from __future__ import annotations

import pytest
import torch
from emulated import Emulated, off
from test_neighborhood_attention_triton import problem
from torch import Tensor

D, HEADS, SLOTS = 128, 8, 16
SIZES = [(1, 1, 1), (1, 3, 3), (2, 5, 16), (2, 11, 7), (1, 17, 16), (1, 37, 11)]


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Emulated:
    return Emulated("neighborhood_attention.cu", tmp_path_factory.mktemp("neighborhood_attention"))


def poison(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.full(shape, torch.nan, dtype=dtype)


@pytest.mark.parametrize(("batch", "n", "width"), SIZES)
@pytest.mark.parametrize("joined", [False, True])
def test_against_the_reference(kernels: Emulated, batch: int, n: int, width: int, joined: bool) -> None:
    """Queries, keys and values one by one, or parts of one projection with 32-bit indices."""
    from georoutenet.model.neighborhood_attention_triton import neighborhood_attention_reference

    leaves, near, (dvalues, dedges, de) = problem(batch, n, width, D, HEADS, torch.bfloat16, "cpu")
    q, k, v, e, weight, strength = leaves
    index, mask, distance = near
    if joined:
        q, k, v = torch.stack([q, k, v], 2).unbind(2)
        index = index.int()
    places = (index, mask, distance)
    sizes = (batch * n, n, q.stride(1) // 8, width, int(not joined))
    values, edges, alpha = (poison(batch, n, *shape) for shape in ((D,), (HEADS, D), (HEADS, SLOTS)))
    kernels("attention_forward", q, k, v, e, weight, strength, *places, values, edges, alpha, *sizes)

    exact = [x.double().requires_grad_() for x in leaves]
    results = neighborhood_attention_reference(*exact, index, mask, distance.double(), heads=HEADS)
    # What differs is the rounding to bfloat16, 2^-9 a time.
    assert off(values, results[0]) < 4e-3
    assert off(edges, results[1]) < 4e-3
    assert not alpha[..., width:].any()
    torch.testing.assert_close(alpha.sum(-1), torch.ones_like(alpha[..., 0]), rtol=0, atol=1e-2)
