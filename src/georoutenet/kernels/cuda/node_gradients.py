"""Gradients of a layer's parameters at the nodes, in CUDA C++ (`node_gradients.cu`): products over rows.

They are of matrices of 128 x 128 numbers, in this order: ``edge_value`` (by heads), ``output``,
``residual_query``, ``residual_key``, two each of ``ffn_gate``, ``ffn_value`` and ``ffn_output``, and the maps
``source``, ``target`` and, if a layer follows, ``query``, ``key``, ``value``. A block has a matrix and some
of the rows; a second kernel adds up their parts, always in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from georoutenet.kernels.cuda import compile as native
from georoutenet.kernels.cuda.compile import TILE, WIDTH, Kernel, product_over_rows

TEAMS = 2  # of a block
STAGE = 64  # rows
# A team has 8 warps and three stages: of eight tiles of 16 rows, or nine by heads.
PARTS = Kernel("node_gradients.cu", "node_gradients", warps=8 * TEAMS, shared=TEAMS * 3 * 9 * TILE)
TOTALS = Kernel("node_gradients.cu", "node_totals", warps=8, shared=0)
OWN = 9  # matrices besides ``edge_value`` and the maps
SLAB = (WIDTH + 1) * WIDTH  # numbers of a part: a matrix and its sums over rows


@dataclass(frozen=True)
class Traces:
    """What a layer's passes leave behind: rows in bfloat16, d = 128, contiguous; ``rows`` may be ``B, n``."""

    gradients: Tensor  # (rows, 8 d): gate 2 d, value 2 d, output d, and of attention 3 d
    products: Tensor  # (rows, 2 d), the gated values
    of_values: Tensor  # (rows, d), by heads
    edges: Tensor  # (rows, 8, d), the averages of edges for each head
    kept: Tensor  # (6, rows, d): message, node, query, ..., and fifth what the first norm gave
    norm: Tensor  # (2 d), that norm's gain and offset in float32
    state: Tensor  # (rows, d), the new states
    of_norms: Tensor  # (blocks, 4, d) in float32, parts of the norms' gradients
    of_maps: Sequence[Tensor]  # two or five gradients of the new states' maps, (rows, d) each

    def __post_init__(self) -> None:
        assert all(rows.is_contiguous() for rows in self.tensors()), "the kernel walks along rows"

    def tensors(self) -> list[Tensor]:
        """All of them; the last field has several."""
        *own, of_maps = (getattr(self, field.name) for field in fields(self))
        return [*own, *of_maps]


def of_parameters(traces: Traces) -> list[Tensor]:
    """Gradients of `node_layer_cuda.parameters_of`, in their order; in float32, contiguous."""
    if native.fits(traces.kept, PARTS, TOTALS):
        return views(totals(traces, PARTS.count((traces.kept,))), len(traces.of_maps))
    return reference(traces)


def views(flat: Tensor, maps: int) -> list[Tensor]:
    """A layer's parameters in a row, one by one."""
    d = WIDTH
    matrices = [(d, d)] * 4 + [(2 * d, d)] * 2 + [(d, 2 * d)] + [(d, d)] * maps
    vectors = [(d,)] * 5 + [(2 * d,)] * 2 + [(d,)] * (maps - 1)
    shapes = [torch.Size(shape) for shape in (*matrices, *vectors)]
    parts = flat.split([shape.numel() for shape in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


def split(rows: int, matrices: int, places: int) -> tuple[int, int, int, int]:
    """How many chunks of the rows there are, and how many rows a chunk has; the same for ``edge_value``.

    By heads, nine numbers are read where otherwise two are: a quarter of the blocks has this matrix.
    """
    chunks = max(1, min(3 * places // (4 * matrices), -(-rows // (TEAMS * STAGE))))
    by_heads = max(1, min(places - chunks * matrices, -(-rows // (TEAMS * 16))))
    return chunks, -(-rows // (16 * chunks)) * 16, by_heads, -(-rows // (16 * by_heads)) * 16


def totals(traces: Traces, places: int) -> Tensor:
    """The kernels' gradients with about this many blocks: all parameters' in a row."""
    maps, rows = list(traces.of_maps), traces.gradients.shape[0]
    matrices = OWN + len(maps)
    chunks, chunk, by_heads, chunk_by_heads = split(rows, matrices, places)
    blocks = by_heads + chunks * matrices
    parts = traces.of_norms.new_empty((blocks, SLAB))
    PARTS(
        *maps, *[maps[0]] * (5 - len(maps)), traces.gradients, traces.products, traces.of_values,
        traces.edges, traces.kept, traces.state, parts, rows, matrices, chunk, by_heads, chunk_by_heads,
        blocks=blocks,
    )  # fmt: skip
    lines = 4 + (matrices + 1) * (WIDTH + 1)
    found = parts.new_empty((matrices + 1) * WIDTH * WIDTH + (8 + len(maps)) * WIDTH)
    TOTALS(
        parts, traces.of_norms, traces.norm, found, matrices, chunks, by_heads, traces.of_norms.shape[0],
        blocks=-(-8 * lines // TOTALS.warps),
    )  # fmt: skip
    return found


def reference(traces: Traces) -> list[Tensor]:
    """`of_parameters` in PyTorch."""
    d, rows, of, kept = WIDTH, len(traces.gradients), traces.gradients, traces.kept
    of_values, edges = (x.view(rows, 8, -1).transpose(0, 1) for x in (traces.of_values, traces.edges))
    state, *of_maps = (x.view(rows, d) for x in (traces.state, *traces.of_maps))
    of_bias = of[:, : 5 * d].sum(0, dtype=torch.float32)
    gain, offset = traces.norm.split(d)
    of_inner = product_over_rows(of[:, : 4 * d], kept[4]) * gain + of_bias[: 4 * d, None] * offset
    return [
        product_over_rows(of_values, edges).view(d, d),
        product_over_rows(of[:, 5 * d : 6 * d], kept[0]),
        product_over_rows(of[:, 6 * d : 7 * d], kept[1]),
        product_over_rows(kept[2], of[:, 7 * d :]),
        *of_inner.split(2 * d),
        product_over_rows(of[:, 4 * d : 5 * d], traces.products),
        *(product_over_rows(x, state) for x in of_maps),
        *traces.of_norms.sum(0),
        of_bias[4 * d :],
        of_bias[: 2 * d],
        of_bias[2 * d : 4 * d],
        *(x.sum(0, dtype=torch.float32) for x in of_maps[1:]),
    ]
