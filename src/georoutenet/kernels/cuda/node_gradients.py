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

from georoutenet.kernels.cuda.compile import TILE, WIDTH, Kernel

TEAMS = {True: 2, False: 1}  # of a block, by whether the GPU is Hopper: others have less shared memory
STAGE = 64  # rows
# A team has 8 warps and three stages: of eight tiles of 16 rows, or nine by heads.
PARTS = {
    hopper: Kernel("node_gradients.cu", "node_gradients", warps=8 * teams, shared=teams * 3 * 9 * TILE)
    for hopper, teams in TEAMS.items()
}
TOTALS = Kernel("node_gradients.cu", "node_totals", warps=8, shared=0)
OWN = 9  # matrices besides ``edge_value`` and the maps
SLAB = (WIDTH + 1) * WIDTH  # numbers of a part: a matrix and its sums over rows


def kernels(*, hopper: bool) -> list[Kernel]:
    """All that a GPU needs."""
    return [PARTS[hopper], TOTALS]


@dataclass(frozen=True)
class Traces:
    """What a layer's passes leave behind: rows in bf16, d = 128, contiguous; ``rows`` may be ``B, n``."""

    gradients: Tensor  # (rows, 8 d): gate 2 d, value 2 d, output d, and of attention 3 d
    products: Tensor  # (rows, 2 d), the gated values
    of_values: Tensor  # (rows, d), by heads
    edges: Tensor  # (rows, 8, d), the averages of edges for each head
    kept: Tensor  # (6, rows, d): message, node, query, ..., and fifth what the first norm gave
    norm: Tensor  # (2 d), that norm's gain and offset in fp32
    state: Tensor  # (rows, d), the new states
    of_norms: Tensor  # (blocks, 4, d) in fp32, parts of the norms' gradients
    of_maps: Sequence[Tensor]  # two or five gradients of the new states' maps, (rows, d) each

    def __post_init__(self) -> None:
        assert all(rows.is_contiguous() for rows in self.tensors()), "the kernel walks along rows"

    def tensors(self) -> list[Tensor]:
        """All of them; the last field has several."""
        *own, of_maps = (getattr(self, field.name) for field in fields(self))
        return [*own, *of_maps]


def of_parameters(traces: Traces, *, hopper: bool) -> list[Tensor]:
    """Gradients of `cuda.node_weights.parameters_of`, in their order; in fp32, contiguous."""
    return views(totals(traces, PARTS[hopper].count((traces.kept,)), hopper=hopper), len(traces.of_maps))


def views(flat: Tensor, maps: int) -> list[Tensor]:
    """A layer's parameters in a row, one by one."""
    d = WIDTH
    matrices = [(d, d)] * 4 + [(2 * d, d)] * 2 + [(d, 2 * d)] + [(d, d)] * maps
    vectors = [(d,)] * 5 + [(2 * d,)] * 2 + [(d,)] * (maps - 1)
    shapes = [torch.Size(shape) for shape in (*matrices, *vectors)]
    parts = flat.split([shape.numel() for shape in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


def split(rows: int, matrices: int, most: int, teams: int) -> tuple[int, int, int, int]:
    """How many chunks of the rows there are, and how many rows a chunk has; the same for ``edge_value``.

    By heads, nine numbers are read where otherwise two are: a quarter of the blocks has this matrix.
    """
    chunks = max(1, min(3 * most // (4 * matrices), -(-rows // (teams * STAGE))))
    by_heads = max(1, min(most - chunks * matrices, -(-rows // (teams * 16))))
    return chunks, -(-rows // (16 * chunks)) * 16, by_heads, -(-rows // (16 * by_heads)) * 16


def totals(traces: Traces, most: int, *, hopper: bool) -> Tensor:
    """The kernels' gradients with about this many blocks: all parameters' in a row."""
    maps, rows = list(traces.of_maps), traces.gradients.shape[0]
    matrices = OWN + len(maps)
    chunks, chunk, by_heads, chunk_by_heads = split(rows, matrices, most, TEAMS[hopper])
    blocks = by_heads + chunks * matrices
    parts = traces.of_norms.new_empty((blocks, SLAB))
    PARTS[hopper](
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
