"""The fused edge kernels against their plain versions in float64: values and all gradients.

Without a GPU the kernels run in Triton's interpreter, in a process of their own, at tiny sizes.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor


def compare(
    fused: Callable[..., Tensor], plain: Callable[..., Tensor], low: list[Tensor], names: str
) -> dict[str, float]:
    """Relative difference (2-norm) of output and gradients from the float64 version of the same arguments."""
    exact = [value.detach().double().requires_grad_(value.requires_grad) for value in low]
    out, expected = fused(*low), plain(*exact)
    upstream = torch.randn(expected.shape, dtype=torch.float64).to(out)
    out.backward(upstream)
    expected.backward(upstream.double())

    def off(a: Tensor | None, b: Tensor | None) -> float:
        assert a is not None
        assert b is not None
        return ((a.double() - b).norm() / b.norm()).item()

    found = {"out": off(out, expected)}
    triples = zip(names.split(), low, exact, strict=True)
    return found | {name: off(a.grad, b.grad) for name, a, b in triples if a.requires_grad}


def random(shapes: list[tuple[int, ...]], states: set[int], dtype: torch.dtype, device: str) -> list[Tensor]:
    """Random arguments; those numbered in ``states`` have the precision of the states."""
    torch.manual_seed(sum(map(sum, shapes)))
    values = [torch.randn(s) * (s[-1] ** -0.5 if len(s) == 2 else 1.0) for s in shapes]
    return [
        value.to(device, dtype if k in states else torch.float32).requires_grad_()
        for k, value in enumerate(values)
    ]


def compare_update(batch: int, m: int, n: int, d: int, dtype: torch.dtype, device: str) -> dict[str, float]:
    from georoutenet.kernels.edge_update import edge_update, edge_update_reference

    shapes = [(batch, m, n, d), (batch, m, d), (batch, n, d), (d, d), (d,), (d,)]
    low = random(shapes, {0, 1, 2}, dtype, device)
    return compare(edge_update, edge_update_reference, low, "e source target weight gamma beta")


def compare_embedding(batch: int, n: int, d: int, dtype: torch.dtype, device: str) -> dict[str, float]:
    from georoutenet.kernels.edge_ends import edge_embedding, edge_embedding_reference

    low = random([(batch, n, n), (16,), (), (d, 16), (d,), (d, d), (d,)], set(), dtype, device)
    low[0] = torch.rand(batch, n, n, device=device)
    low[1].data.copy_(torch.linspace(0, 1.4, 16))
    low[2].data.fill_(0.11)
    names = "distance centers bandwidth weight1 bias1 weight2 bias2"
    exact = partial(edge_embedding_reference, dtype=torch.float64)
    return compare(partial(edge_embedding, dtype=dtype), exact, low, names)


def compare_logit(batch: int, n: int, d: int, dtype: torch.dtype, device: str) -> dict[str, float]:
    from georoutenet.kernels.edge_ends import edge_logit, edge_logit_reference

    low = random([(batch, n, n, d), (d, d), (d,), (d,), (1,)], {0}, dtype, device)
    low[1].data.copy_(low[1].data.to(dtype))  # or some units are on the ReLU's other side
    return compare(edge_logit, edge_logit_reference, low, "e weight bias last offset")


SCRIPT = """
import sys, torch
sys.path.insert(0, {folder!r})
from test_edge_kernels_triton import compare_embedding, compare_logit, compare_update
for batch, m, n in ((1, 2, 2), (3, 1, 7), (2, 5, 5), (2, 11, 11), (1, 17, 65)):
    for name, off in compare_update(batch, m, n, 16, torch.float32, "cpu").items():
        assert off < 3e-6, ("update", batch, m, n, name, off)
for batch, n in ((1, 2), (2, 5), (2, 11)):
    for compare in (compare_embedding, compare_logit):
        for name, off in compare(batch, n, 16, torch.float32, "cpu").items():
            assert off < 3e-6, (compare, batch, n, name, off)
print("agreed")
"""


def test_in_the_interpreter(interpret: Callable[[str], None]) -> None:
    interpret(SCRIPT.format(folder=os.path.dirname(__file__)))


def test_less_memory_takes_smaller_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    from georoutenet.kernels.tiles_triton import Launch

    usual = Launch(64, warps=4, stages=2, share=2)
    assert usual.on(torch.device("cpu")) is usual
    for memory, expected in ((99 << 10, (32, 1)), (163 << 10, (64, 2)), (227 << 10, (64, 2))):
        given = SimpleNamespace(shared_memory_per_block_optin=memory)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device, given=given: given)
        found = usual.on(torch.device("cuda:0"))
        assert (found.rows, found.stages) == expected


SIZES = [5, 11, 50, 63, 64, 65, 100, 127, 200]


def check(**found: dict[str, float]) -> None:
    """Inputs are equal in both; what differs is the rounding to bfloat16 inside, 2^-9 a time."""
    worst = {what: max(offs.items(), key=lambda item: item[1]) for what, offs in found.items()}
    assert all(off < 1.5e-2 for _, off in worst.values()), worst


@pytest.mark.gpu
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("kernels", ["cuda", "cuda, two kernels", "triton", "triton, less memory"])
def test_update_on_the_device(n: int, kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from georoutenet.kernels.cuda import edge_backward as edge_backward_cuda
    from georoutenet.kernels.cuda import edge_sums as edge_sums_cuda
    from georoutenet.kernels.cuda import edge_update as edge_update_cuda

    if kernels == "cuda, two kernels":
        monkeypatch.setattr(edge_backward_cuda, "MERGED", False)
    if kernels == "triton, less memory":
        monkeypatch.setattr("georoutenet.kernels.tiles_triton.SHARED_MEMORY", 1 << 30)
    if kernels.startswith("triton"):
        monkeypatch.setattr(edge_update_cuda, "fits", lambda e: False)
        monkeypatch.setattr(edge_sums_cuda, "fits", lambda du: False)
    elif not edge_update_cuda.fits(torch.empty(1, 1, 1, 128, dtype=torch.bfloat16, device="cuda")):
        pytest.skip("no CUDA kernels on this device")
    check(
        square=compare_update(3, n, n, 128, torch.bfloat16, "cuda"),
        few_sources=compare_update(2, 3, n, 128, torch.bfloat16, "cuda"),
    )


@pytest.mark.gpu
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("kernels", ["cuda", "cuda, each warp", "triton", "triton, less memory"])
def test_ends_on_the_device(n: int, kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from georoutenet.kernels.cuda import compile as native
    from georoutenet.kernels.cuda import edge_ends as edge_ends_cuda

    states = torch.empty(1, 128, dtype=torch.bfloat16, device="cuda")
    if kernels == "cuda, each warp":
        monkeypatch.setattr(native, "HOPPER", False)
    if kernels == "triton, less memory":
        monkeypatch.setattr("georoutenet.kernels.tiles_triton.SHARED_MEMORY", 1 << 30)
    if kernels.startswith("triton"):
        monkeypatch.setattr(native, "fits", lambda *_: False)
    elif not (edge_ends_cuda.embedding_fits(states, 16) and edge_ends_cuda.logit_fits(states)):
        pytest.skip("no CUDA kernels on this device")
    embedding = compare_embedding(3, n, 128, torch.bfloat16, "cuda")
    embedding["bandwidth"] /= 10  # one number, a sum that cancels
    check(embedding=embedding, logit=compare_logit(3, n, 128, torch.bfloat16, "cuda"))
