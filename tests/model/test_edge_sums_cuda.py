"""The CUDA kernel of the sums over pairs on an emulated block, against float64 in plain PyTorch."""

from __future__ import annotations

import pytest
import torch
from emulated import Emulated, off

from georoutenet.model.edge_sums_cuda import SUMS, TARGETS, split


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Emulated:
    return Emulated("edge_sums.cu", tmp_path_factory.mktemp("edge_sums"), warps=SUMS.warps)


# One to four tiles a source, several sources a stage, parts of sources, two blocks of targets, a single pair.
SHAPES = [(1, 1, 1), (1, 6, 11), (3, 5, 16), (2, 5, 20), (5, 1, 35), (2, 4, 50), (1, 3, 64), (1, 4, 67)]


@pytest.mark.parametrize(("batch", "m", "n"), SHAPES)
def test_against_the_reference(kernels: Emulated, batch: int, m: int, n: int) -> None:
    torch.manual_seed(n)
    d = 128
    du, e = (torch.randn(batch, m, n, d).bfloat16() for _ in range(2))
    blocks, width, parts, chunk = split(batch, m, n, kernels.blocks)
    items = batch * blocks * parts
    dw = torch.full((kernels.blocks, d, d), torch.nan)
    ds = torch.full((batch, blocks, m, d), torch.nan)
    dt = torch.full((batch, parts, n, d), torch.nan)
    kernels("update_sums", du, e, dw, ds, dt, m, n, items, blocks, width, parts, chunk)
    exact, states = du.double(), e.double()
    # Products and sums are in float32.
    assert off(dw.sum(0), torch.einsum("bmno,bmni->oi", exact, states)) < 1e-6
    assert off(ds.sum(1), exact.sum(2)) < 1e-6
    assert off(dt.sum(1), exact.sum(1)) < 1e-6


@pytest.mark.parametrize("places", [1, 2, 264])
@pytest.mark.parametrize(("batch", "m"), [(1, 1), (1, 7), (3, 50), (64, 50), (512, 20), (512, 200)])
@pytest.mark.parametrize("n", [1, 20, 64, 65, 200])
def test_split_covers_all_pairs(batch: int, m: int, n: int, places: int) -> None:
    blocks, width, parts, chunk = split(batch, m, n, places)
    assert 1 <= width <= TARGETS
    assert (blocks - 1) * width < n <= blocks * width
    assert (parts - 1) * chunk < m <= parts * chunk


@pytest.mark.parametrize(
    ("batch", "n", "least"),
    [(512, 20, 0.95), (512, 50, 0.95), (64, 50, 0.9), (512, 100, 0.95), (64, 200, 0.95)],
)
def test_split_is_even(batch: int, n: int, least: float) -> None:
    """The places of an H200 have about the same number of sources to walk along."""
    places = 264
    blocks, _, parts, chunk = split(batch, n, n, places)
    longest = -(-batch * blocks * parts // places) * chunk
    assert batch * blocks * n / places > least * longest
