"""The CUDA kernels of the nodes' gradients on emulated blocks, against float64 in plain PyTorch."""

from __future__ import annotations

import itertools
from dataclasses import fields

import pytest
import torch
from emulated import off, on_gpu, worst_row
from torch import Tensor

from georoutenet.kernels.cuda import node_gradients
from georoutenet.kernels.cuda.node_gradients import STAGE, Traces
from georoutenet.kernels.cuda.node_weights import parameters_of
from georoutenet.model.config import PolicyConfig
from georoutenet.model.georoutenet import GeoRouteNet


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
        assert worst_row(mine, value) < 3e-5


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
SHAPES = [(1, 5), (5, 2), (63, 5), (130, 2), (330, 5)]


@pytest.mark.usefixtures("launched")
@pytest.mark.parametrize("hopper", [False, True])
@pytest.mark.parametrize(("rows", "maps"), SHAPES)
def test_against_the_reference(rows: int, maps: int, hopper: bool) -> None:
    traces = random(rows, maps)
    blocks = 15 if rows == 330 else 40  # one chunk of rows, or several
    check(node_gradients.views(node_gradients.totals(traces, blocks, hopper=hopper), maps), traces)


def test_chunks_cover_all_rows() -> None:
    for case in itertools.product((1, 16, 17, 130, 3200, 25_600), (11, 14), (1, 20, 108, 132), (1, 2)):
        rows, matrices, most, _ = case
        chunks, chunk, by_heads, chunk_by_heads = node_gradients.split(*case)
        assert chunks * chunk >= rows, case
        assert by_heads * chunk_by_heads >= rows, case
        assert chunk % 16 == chunk_by_heads % 16 == 0, case
        assert by_heads + chunks * matrices <= max(most, matrices + 1), case


def test_an_even_split() -> None:
    """All multiprocessors of an H200 read about as much."""
    most = 132
    for rows, matrices in itertools.product((3200, 25_600), (11, 14)):
        chunks, chunk, by_heads, chunk_by_heads = node_gradients.split(rows, matrices, most, 2)
        assert by_heads + chunks * matrices > 0.97 * most, (rows, matrices)
        mean = rows * (2 * matrices + 9) / most
        stages = -(-chunk // (2 * STAGE)) * 2 * STAGE
        assert max(2 * stages, 9 * chunk_by_heads) < 1.4 * mean, (rows, matrices)


@pytest.mark.gpu
@pytest.mark.parametrize("hopper", [False, True])
@pytest.mark.parametrize(("rows", "maps"), [*SHAPES, (3200, 2), (3200, 5), (25_600, 2), (25_600, 5)])
def test_on_the_device(rows: int, maps: int, hopper: bool) -> None:
    traces = random(rows, maps, on_gpu(hopper))
    found = node_gradients.of_parameters(traces, hopper=hopper)
    check(found, traces)
    again = node_gradients.of_parameters(traces, hopper=hopper)
    assert all(torch.equal(x, y) for x, y in zip(found, again, strict=True))
