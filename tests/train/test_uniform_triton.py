from __future__ import annotations

import os

import pytest
import torch
from scipy import stats

from georoutenet.errors import InputError

# Without a GPU the kernels run in Triton's interpreter, which must be asked for before the first import.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
pytest.importorskip("triton", reason="triton is not installed")

from georoutenet.train.uniform_triton import uniform_instances, uniform_instances_reference

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def draw(shape: tuple[int, ...], seed: int) -> torch.Tensor:
    return uniform_instances(torch.full(shape, -1.0, device=DEVICE), seed)


@pytest.mark.parametrize("shape", [(1, 1, 2), (3, 7, 2), (5, 50, 2), (2, 1025, 2), (0, 5, 2)])
@pytest.mark.parametrize("seed", [0, 1, 2**40 + 3, -5])
def test_equals_the_reference_bit_for_bit(shape: tuple[int, ...], seed: int) -> None:
    expected = uniform_instances_reference(torch.full(shape, -1.0), seed)
    assert torch.equal(draw(shape, seed).cpu(), expected)


def test_looks_uniform() -> None:
    coords = draw((200, 50, 2), 11).cpu().double()
    assert coords.min() >= 0
    assert coords.max() < 1
    flat = coords.flatten().numpy()
    assert stats.kstest(flat, "uniform").pvalue > 1e-3
    # Four standard errors of the mean and of the variance of 20,000 uniforms.
    assert abs(flat.mean() - 1 / 2) < 4 * (1 / 12 / flat.size) ** 0.5
    assert abs(flat.var() - 1 / 12) < 4 * (1 / 180 / flat.size) ** 0.5
    x, y = coords[..., 0].flatten().numpy(), coords[..., 1].flatten().numpy()
    assert abs(stats.pearsonr(x, y).statistic) < 4 / x.size**0.5


def test_seeds_differ_and_repeat() -> None:
    first, second = draw((4, 9, 2), 1), draw((4, 9, 2), 2)
    assert torch.equal(first, draw((4, 9, 2), 1))
    assert not torch.isin(first, second).any()
    as_tensor = uniform_instances(
        torch.empty(4, 9, 2, device=DEVICE), torch.tensor([1], dtype=torch.int64, device=DEVICE)
    )
    assert torch.equal(first, as_tensor)


def test_a_larger_batch_starts_with_the_smaller_one() -> None:
    assert torch.equal(draw((8, 10, 2), 3)[:2], draw((2, 10, 2), 3))


@pytest.mark.parametrize(
    "out",
    [
        torch.empty(3, 4),
        torch.empty(3, 4, 3),
        torch.empty(3, 4, 2).double(),
        torch.empty(2, 4, 3).mT[..., :2],
    ],
)
def test_wrong_outputs_are_refused(out: torch.Tensor) -> None:
    with pytest.raises(InputError, match=r"float32 \(B, n, 2\)"):
        uniform_instances(out, 0)


@pytest.mark.gpu
def test_replays_in_a_graph_with_a_new_seed() -> None:
    seed = torch.tensor([5], dtype=torch.int64, device="cuda")
    out = torch.empty(64, 50, 2, device="cuda")
    uniform_instances(out, seed)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        uniform_instances(out, seed)
    for value in (6, 7):
        seed.fill_(value)
        graph.replay()
        assert torch.equal(out.cpu(), uniform_instances_reference(torch.empty(64, 50, 2), value))
