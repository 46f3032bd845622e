"""The CUDA kernels of the nodes' gradients on emulated blocks, against float64 in plain PyTorch."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch
from emulated import Emulated, off
from torch import Tensor

from georoutenet.kernels.cuda import compile as native
from georoutenet.kernels.cuda import node_gradients as node_gradients_cuda
from georoutenet.kernels.cuda.node_gradients import PARTS, STAGE, TEAMS, TOTALS, Traces
from georoutenet.kernels.cuda.node_layer import parameters_of
from georoutenet.model.config import PolicyConfig
from georoutenet.model.georoutenet import GeoRouteNet


class _Launched:
    """A kernel on emulated blocks."""

    def __init__(self, emulated: Emulated, name: str) -> None:
        self.emulated, self.name, self.warps = emulated, name, PARTS.warps

    def __call__(self, *arguments: Tensor | int, blocks: int) -> None:
        self.emulated(self.name, *arguments, blocks=blocks)


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Emulated:
    return Emulated("node_gradients.cu", tmp_path_factory.mktemp("node_gradients"), warps=PARTS.warps)


@pytest.fixture
def _emulated(kernels: Emulated, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_gradients_cuda, "PARTS", _Launched(kernels, "node_gradients"))
    monkeypatch.setattr(node_gradients_cuda, "TOTALS", _Launched(kernels, "node_totals"))
    empty = torch.Tensor.new_empty
    monkeypatch.setattr(torch.Tensor, "new_empty", lambda *a, **k: empty(*a, **k).fill_(torch.nan))


def random(rows: int, maps: int, device: str = "cpu") -> Traces:
    torch.manual_seed(rows)

    def some(*shape: int) -> Tensor:
        return torch.randn(shape, device=device).bfloat16()

    return Traces(
        some(rows, 8 * 128), some(rows, 256), some(rows, 128), some(rows, 8, 128), some(6, rows, 128),
        some(256).float(), some(rows, 128), some(1 + rows // 7, 4, 128).float(),
        [some(rows, 128) for _ in range(maps)],
    )  # fmt: skip


def check(found: list[Tensor], traces: Traces) -> None:
    *own, of_maps = (getattr(traces, field.name) for field in fields(traces))
    exact = plain(*(x.double() for x in own), [x.double() for x in of_maps])
    shapes = [parameter.shape for parameter in parameters(len(of_maps))]
    assert [x.shape for x in exact] == shapes
    assert [x.shape for x in found] == shapes
    for mine, value in zip(found, exact, strict=True):
        assert mine.is_contiguous()
        assert off(mine, value) < 1e-5


def parameters(maps: int) -> list[Tensor]:
    layers = GeoRouteNet(PolicyConfig(layers=2)).layers
    return parameters_of(layers[0], layers[1] if maps == 5 else None)


def plain(
    gradients: Tensor, products: Tensor, of_values: Tensor, edges: Tensor, kept: Tensor, norm: Tensor,
    state: Tensor, of_norms: Tensor, of_maps: list[Tensor],
) -> list[Tensor]:  # fmt: skip
    """Each parameter's gradient, column by column of the gradients."""
    gate0, gate1, value0, value1, output, of_node, of_query, of_projected = gradients.split(128, 1)
    gate, value = torch.cat((gate0, gate1), 1), torch.cat((value0, value1), 1)
    message, node, query, _, normed, _ = kept
    hidden = normed * norm[:128] + norm[128:]
    heads = [of.t() @ edges[:, h] for h, of in enumerate(of_values.split(16, 1))]
    return [
        torch.cat(heads),
        of_node.t() @ message,
        of_query.t() @ node,
        query.t() @ of_projected,
        gate.t() @ hidden,
        value.t() @ hidden,
        output.t() @ products,
        *(of.t() @ state for of in of_maps),
        *of_norms.sum(0),
        output.sum(0),
        gate.sum(0),
        value.sum(0),
        *(of.sum(0) for of in of_maps[1:]),
    ]


# One row, less than a tile, than a stage, than both teams' stages, more stages than there is room for.
SHAPES = [(1, 5), (5, 2), (63, 5), (130, 2), (400, 5)]


@pytest.mark.usefixtures("_emulated")
@pytest.mark.parametrize(("rows", "maps"), SHAPES)
def test_against_the_reference(rows: int, maps: int) -> None:
    traces = random(rows, maps)
    places = 15 if rows == 400 else 40  # one chunk of rows, or several
    check(node_gradients_cuda.views(node_gradients_cuda.totals(traces, places), maps), traces)


@pytest.mark.parametrize(("rows", "maps"), SHAPES)
def test_without_a_device(rows: int, maps: int) -> None:
    traces = random(rows, maps)
    check(node_gradients_cuda.of_parameters(traces), traces)


@pytest.mark.parametrize("places", [1, 20, 108, 132])
@pytest.mark.parametrize("rows", [1, 16, 17, 130, 3200, 25_600])
@pytest.mark.parametrize("matrices", [11, 14])
def test_chunks_cover_all_rows(rows: int, matrices: int, places: int) -> None:
    chunks, chunk, by_heads, chunk_by_heads = node_gradients_cuda.split(rows, matrices, places)
    assert chunks * chunk >= rows
    assert by_heads * chunk_by_heads >= rows
    assert chunk % 16 == chunk_by_heads % 16 == 0
    assert by_heads + chunks * matrices <= max(places, matrices + 1)


@pytest.mark.parametrize("rows", [3200, 25_600])
@pytest.mark.parametrize("matrices", [11, 14])
def test_an_even_split(rows: int, matrices: int) -> None:
    """All places of an H200 read about as much."""
    places = 132
    chunks, chunk, by_heads, chunk_by_heads = node_gradients_cuda.split(rows, matrices, places)
    assert by_heads + chunks * matrices > 0.97 * places
    mean = rows * (2 * matrices + 9) / places
    stages = -(-chunk // (TEAMS * STAGE)) * TEAMS * STAGE
    assert max(2 * stages, 9 * chunk_by_heads) < 1.4 * mean


@pytest.mark.gpu
@pytest.mark.parametrize(("rows", "maps"), [*SHAPES, (3200, 2), (3200, 5), (25_600, 2), (25_600, 5)])
def test_on_the_device(rows: int, maps: int) -> None:
    traces = random(rows, maps, "cuda")
    if not native.fits(traces.kept, PARTS, TOTALS):
        pytest.skip("no CUDA kernels on this device")
    found = node_gradients_cuda.of_parameters(traces)
    check(found, traces)
    again = node_gradients_cuda.of_parameters(traces)
    assert all(torch.equal(x, y) for x, y in zip(found, again, strict=True))
