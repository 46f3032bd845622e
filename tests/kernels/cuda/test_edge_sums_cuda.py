"""The CUDA kernel of the sums over pairs on emulated blocks, against float64 in plain PyTorch."""

from __future__ import annotations

import pytest
import torch
from emulated import Emulated, off
from torch import Tensor

from georoutenet.kernels.cuda import edge_sums as edge_sums_cuda
from georoutenet.kernels.cuda.edge_sums import SUMS, TARGETS, TEAMS, outputs, split, sums, totals


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Emulated:
    return Emulated("edge_sums.cu", tmp_path_factory.mktemp("edge_sums"), warps=SUMS.warps)


def random(batch: int, m: int, n: int, device: str) -> tuple[Tensor, Tensor]:
    torch.manual_seed(n)
    e, du = torch.randn(2, batch, m, n, 128).bfloat16().to(device)
    return e, du


def check(e: Tensor, du: Tensor, norms: Tensor, ds: Tensor, dt: Tensor, dw: Tensor, norm: Tensor) -> None:
    states, exact = e.double(), du.double()
    # Products and sums are in float32; those of sources and targets are rounded to bfloat16 at last, 2^-9.
    assert off(dw, torch.einsum("bmno,bmni->oi", exact, states)) < 1e-5
    assert off(norm, norms.double().sum(0)) < 1e-5
    for found, sum_ in ((ds, exact.sum(2)), (dt, exact.sum(1))):
        assert off(found, sum_) < 3e-3


# One to four tiles a source, several sources a stage, more than eight sources, parts of sources, two bands of
# targets, less items than teams, several items a team.
SHAPES = [
    (1, 1, 1),
    (1, 30, 11),
    (5, 5, 16),
    (5, 6, 20),
    (4, 9, 20),
    (9, 1, 35),
    (1, 11, 41),
    (6, 4, 50),
    (1, 5, 64),
    (3, 3, 67),
]


@pytest.mark.parametrize(("batch", "m", "n"), SHAPES)
def test_against_the_reference(kernels: Emulated, batch: int, m: int, n: int) -> None:
    e, du = random(batch, m, n, "cpu")
    bands, width, parts, chunk = split(batch, m, n, TEAMS * kernels.blocks)
    dw, ds, dt = (x.fill_(torch.nan) for x in outputs(e, bands, parts, kernels.blocks))
    kernels("update_sums", du, e, dw, ds, dt, m, n, batch * bands * parts, bands, width, parts, chunk)
    norms = torch.randn(3, 2, 128)
    check(e, du, norms, *totals(dw, ds, dt, norms, e.dtype))


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("batch", "m", "n"), [*SHAPES, (64, 50, 50), (300, 50, 50), (2, 7, 200), (600, 20, 20)]
)
def test_on_the_device(batch: int, m: int, n: int) -> None:
    e, du = random(batch, m, n, "cuda")
    if not edge_sums_cuda.fits(du):
        pytest.skip("no CUDA kernels on this device")
    norms = torch.randn(132, 2, 128, device="cuda")
    check(e, du, norms, *sums(e, du, norms))


@pytest.mark.parametrize("teams", [1, 2, 264])
@pytest.mark.parametrize(("batch", "m"), [(1, 1), (1, 7), (3, 50), (64, 50), (512, 20), (512, 200)])
@pytest.mark.parametrize("n", [1, 20, 64, 65, 200])
def test_split_covers_all_pairs(batch: int, m: int, n: int, teams: int) -> None:
    bands, width, parts, chunk = split(batch, m, n, teams)
    assert 1 <= width <= TARGETS
    assert (bands - 1) * width < n <= bands * width
    assert (parts - 1) * chunk < m <= parts * chunk


@pytest.mark.parametrize(
    ("batch", "n", "least"),
    [(512, 20, 0.95), (512, 50, 0.95), (64, 50, 0.9), (512, 100, 0.95), (64, 200, 0.95)],
)
def test_split_is_even(batch: int, n: int, least: float) -> None:
    """The teams of an H200 have about the same number of sources to walk along."""
    teams = 264
    bands, _, parts, chunk = split(batch, n, n, teams)
    longest = -(-batch * bands * parts // teams) * chunk
    assert batch * bands * n / teams > least * longest
