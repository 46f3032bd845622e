"""NAR4TSP in kernels as it trains on a GPU: its distances, and that a compiler takes it.

The whole of it is compared with the plain encoder in `test_nar4tsp_layer_cuda` and `test_nar4tsp_triton`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from emulated import Emulated
from torch import Tensor

from georoutenet.model import nearest_cuda, start_attention_cuda
from georoutenet.model.config import PolicyConfig
from georoutenet.model.nar4tsp import Nar4Tsp

pytest.importorskip("triton", reason="Triton is not installed")
from test_nar4tsp_layer_cuda import OnTheCpu, emulate_nodes, plain_head
from test_nar4tsp_triton import off

from georoutenet.model import nar4tsp_fused, nar4tsp_triton


def check_distances(batch: int, n: int, k: int, device: str) -> None:
    torch.manual_seed(n)
    coords = torch.rand(batch, n, 2, device=device)
    coords[:, -1] = coords[:, 0]  # two cities at one place
    distance, reach = nar4tsp_fused.distances(coords, k)
    literal = ((coords.unsqueeze(2) - coords.unsqueeze(1)) ** 2).sum(-1).sqrt()
    torch.testing.assert_close(distance, literal)
    torch.testing.assert_close(reach, distance.sort().values[:, :, min(k, n - 1)], rtol=0, atol=0)


@pytest.mark.parametrize(("n", "k"), [(2, 3), (7, 3), (20, 10)])
def test_distances(n: int, k: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_distances(2, n, k, "cpu")
    kernel = OnTheCpu(Emulated("nearest.cu", tmp_path, warps=nearest_cuda.WARPS), "nearest")
    monkeypatch.setattr(nearest_cuda, "NEAREST", {128: kernel})
    monkeypatch.setattr(nearest_cuda, "fits", lambda *_: True)
    check_distances(2, n, k, "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize(("n", "k"), [(2, 10), (11, 10), (50, 10), (64, 31), (200, 10)])
def test_distances_on_the_device(n: int, k: int) -> None:
    check_distances(3, n, k, "cuda")


@pytest.mark.gpu
def test_repeats_bit_for_bit() -> None:
    """Nothing is read before it is there: the start attention has a stream of its own."""
    if not nar4tsp_fused.fits(PolicyConfig(encoder="nar4tsp"), 50, "cuda", torch.bfloat16):
        pytest.skip("no such kernels on this device")
    torch.manual_seed(0)
    encoder = Nar4Tsp(PolicyConfig(encoder="nar4tsp")).cuda()
    coords = torch.rand(64, 50, 2, device="cuda")
    parameters = list(encoder.parameters())

    def run() -> list[Tensor]:
        start, logits = encoder.from_batch(coords, torch.bfloat16, fused=True)
        loss = start[:, 0].sum() + logits.log_softmax(2).diagonal(dim1=1, dim2=2).sum()
        found = torch.autograd.grad(loss, parameters, allow_unused=True)
        return [start, logits, *(gradient for gradient in found if gradient is not None)]

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        eager = run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run()
    graph.replay()
    once = [value.clone() for value in captured]
    for _ in range(20):
        graph.replay()
        for one, other in zip(once, captured, strict=True):
            assert torch.equal(one, other)
    # A bias that the norms take out again has a gradient of rounding errors alone.
    least = 1e-2 * max(gradient.norm().item() for gradient in eager[2:])
    for one, other in zip(once, eager, strict=True):
        assert off(one, other.double(), least) < 1e-2


def plain_layer(
    x: Tensor, scale: Tensor, offset: Tensor, weight: Tensor, source: Tensor, target: Tensor, *rest: Tensor
) -> tuple[Tensor | None, ...]:
    given = (value.float() for value in (x, scale, offset, weight, source, target, *rest))
    p, scale, offset, scores = nar4tsp_triton.edge_layer_reference(*given)
    return p.bfloat16(), scale, offset, scores.bfloat16(), None


def test_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled, the encoder gives the same scores and gradients. A single instance's start has no norm."""
    emulate_nodes(monkeypatch)
    starts = Emulated("start_attention.cu", tmp_path, warps=8)
    for name in ("STATE", "STATE_BACKWARD", "DISTRIBUTION", "DISTRIBUTION_BACKWARD"):
        monkeypatch.setattr(start_attention_cuda, name, OnTheCpu(starts, f"start_{name.lower()}"))
    monkeypatch.setattr(nar4tsp_fused, "fits", lambda *_: True)
    monkeypatch.setattr(nar4tsp_triton, "edge_layer", plain_layer)
    monkeypatch.setattr(nar4tsp_triton, "edge_logit", plain_head)
    torch.manual_seed(0)
    encoder = Nar4Tsp(PolicyConfig(encoder="nar4tsp", layers=2, neighbors=3))
    coords = torch.rand(2, 6, 2)
    with torch.no_grad():
        start, _ = encoder.from_batch(coords[:1], torch.bfloat16, fused=True)
    assert start.exp().sum().item() == pytest.approx(1, abs=1e-2)
    results = []
    for function in (encoder.from_batch, torch.compile(encoder.from_batch, backend="aot_eager")):
        encoder.zero_grad()
        start, logits = function(coords, torch.bfloat16, fused=True)
        (start.sum() + logits.log_softmax(2).diagonal(dim1=1, dim2=2).sum()).backward()
        results.append([start, logits, *(p.grad for p in encoder.parameters() if p.grad is not None)])
    for eager, compiled in zip(*results, strict=True):
        assert torch.isfinite(eager).all()
        torch.testing.assert_close(compiled, eager)
