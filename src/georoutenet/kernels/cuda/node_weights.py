"""A layer's weights at the nodes in the order in which the kernels of `node_layer.cu` read them: matrix by
matrix as a pass uses them, and within a matrix in the order of the instructions' operands.

One kernel (`arrange.cu`) writes all of them, in bf16. It finds the stored weights by a table of their
addresses, which is made anew when they move; that must not happen while a CUDA graph is recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from georoutenet.kernels.cuda.compile import WIDTH, Kernel

if TYPE_CHECKING:
    from georoutenet.model.georoutenet import GeoRouteNet, Layer

WARPS = 8
PARTS = 4  # of a matrix, a block each
ELEMENTS = WIDTH * WIDTH  # of a matrix as the kernels read it
SECOND = 1 << 15  # marks indices into the second of two stored matrices
ARRANGE = Kernel("arrange.cu", "arrange", warps=WARPS, shared=0)

# The parameters of a layer, with their shapes, in the order of `parameters_of`.
MATRICES = {
    "edge_value": (WIDTH, WIDTH), "output": (WIDTH, WIDTH), "residual_query": (WIDTH, WIDTH),
    "residual_key": (WIDTH, WIDTH), "ffn_gate": (2 * WIDTH, WIDTH), "ffn_value": (2 * WIDTH, WIDTH),
    "ffn_output": (WIDTH, 2 * WIDTH), "source": (WIDTH, WIDTH), "target": (WIDTH, WIDTH),
    "query": (WIDTH, WIDTH), "key": (WIDTH, WIDTH), "value": (WIDTH, WIDTH),
}  # fmt: skip
BIASES = {
    "norm1": WIDTH, "norm1.bias": WIDTH, "norm2": WIDTH, "norm2.bias": WIDTH, "ffn_output.bias": WIDTH,
    "ffn_gate.bias": 2 * WIDTH, "ffn_value.bias": 2 * WIDTH,
    "edge_update.bias": WIDTH, "query.bias": WIDTH, "key.bias": WIDTH, "value.bias": WIDTH,
}  # fmt: skip
MAPS = ("source", "target", "query", "key", "value")


def parameters_of(layer: Layer, following: Layer | None) -> list[Tensor]:
    """The layer's parameters in the order of `MATRICES` and `BIASES`; without ``following`` no q, k, v."""
    of_maps = [] if following is None else [following.query, following.key, following.value]
    norms = (layer.norm1, layer.norm2)
    own = (layer.edge_value, layer.output, layer.residual_query, layer.residual_key, layer.ffn_gate)
    ends = (layer.ffn_value, layer.ffn_output, layer.source, layer.target)
    return [
        *(part.weight for part in (*own, *ends, *of_maps)),
        *(vector for norm in norms for vector in (norm.weight, norm.bias)),
        layer.ffn_output.bias,
        layer.ffn_gate.bias,
        layer.ffn_value.bias,
        layer.edge_update.bias,
        *(part.bias for part in of_maps),
    ]


def names_of(*, is_last: bool) -> tuple[list[str], list[str]]:
    """The names of `parameters_of`: matrices and vectors."""
    absent = {"query", "key", "value"} if is_last else set()
    vectors = [name for name in BIASES if name.removesuffix(".bias") not in absent]
    return [name for name in MATRICES if name not in absent], vectors


def _columns(q: np.ndarray, n: np.ndarray) -> np.ndarray:
    """The feature of column n of n-tile q."""
    return 32 * (q // 4) + 8 * (n // 2) + 2 * (q % 4) + n % 2


def _head_columns(q: np.ndarray, n: np.ndarray) -> np.ndarray:
    """The same where features are kept by heads: two n-tiles a head."""
    return 16 * (q // 2) + 4 * (n // 2) + 2 * (q % 2) + n % 2


def _along(c: np.ndarray, t: np.ndarray, i: np.ndarray) -> np.ndarray:
    """The feature of element i of lane t in the fragments c."""
    return 32 * c + 8 * t + i


def _along_heads(c: np.ndarray, t: np.ndarray, i: np.ndarray) -> np.ndarray:
    return 16 * (2 * c + i // 4) + 4 * t + i % 4


def _order(*, is_last: bool, backward: bool, hopper: bool) -> list[tuple[str, np.ndarray]]:
    """The matrices of a pass: for each element of the fragments, its index in the named matrix."""
    q, c, g, t, i = np.ogrid[:16, :4, :8, :4, :8]  # lane 4 g + t
    shape = (16, 4, 8, 4, 8)
    out, along, by_heads = _columns(q, g), _along(c, t, i), _head_columns(q, g)

    def of(name: str, row: np.ndarray, column: np.ndarray) -> tuple[str, np.ndarray]:
        return name, np.broadcast_to(row * MATRICES[name][1] + column, shape).reshape(-1)

    maps = [name for name in MAPS if name in names_of(is_last=is_last)[0]]
    halves = (0, WIDTH)
    if backward:
        inner = [
            one
            for half in halves
            for one in (
                of("ffn_output", along, half + out),
                of("ffn_gate", half + along, out),
                of("ffn_value", half + along, out),
            )
        ]
        edges = of("edge_value", _along_heads(c, t, i), out)
        if not hopper:
            # A step of 16 features a head: elements are (head, pair of n-tiles, lane, n-tile and feature).
            h, pair, g, t, k, i = np.ogrid[:8, :8, :8, :4, :2, :4]
            indices = (16 * h + 4 * t + i) * WIDTH + _columns(2 * pair + k, g)
            edges = ("edge_value", indices.reshape(-1))
        return [
            *(of(name, along, out) for name in maps),
            *inner,
            of("residual_key", out, along),
            of("residual_query", along, out),
            of("output", along, by_heads),
            edges,
        ]
    inner = []
    for half in halves:
        for quarter in range(2):
            gate, value = (
                of(name, half + _columns(8 * quarter + q % 8, g), along)[1].reshape(shape)
                for name in ("ffn_gate", "ffn_value")
            )
            inner.append(("ffn_gate+ffn_value", np.concatenate((gate[:8], value[8:])).reshape(-1)))
        inner.append(of("ffn_output", out, half + along))
    return [
        of("edge_value", by_heads, along),
        of("output", out, _along_heads(c, t, i)),
        of("residual_query", out, along),
        of("residual_key", along, out),
        *inner,
        *(of(name, out, along) for name in maps),
    ]


def _in_cores(indices: np.ndarray) -> np.ndarray:
    """From the order of fragments to that of cores, 8 x 8 numbers each, as `place` of `tiles.cuh` does it."""
    # From (q, c, g, t, p, and which of a word) to (c, p, q, g, t, and which of a word).
    return indices.reshape(16, 4, 8, 4, 4, 2).transpose(1, 4, 0, 2, 3, 5).reshape(-1)


def _positions(layers: int, *, hopper: bool) -> tuple[list[np.ndarray], list[np.ndarray], np.ndarray]:
    """Where each layer's fragments, forward and backward, and vectors are in all parameters in a row; a zero
    stands at the end."""
    forward: list[np.ndarray] = []
    backward: list[np.ndarray] = []
    vectors: list[np.ndarray] = []
    start, zero = 0, _count(layers)
    for number in range(layers):
        is_last = number == layers - 1
        at = {}
        matrices, names = names_of(is_last=is_last)
        for name in matrices:
            at[name] = start
            start += MATRICES[name][0] * MATRICES[name][1]
        for name in names:
            at[name] = start
            start += BIASES[name]
        for found, is_backward in ((forward, False), (backward, True)):
            order = _order(is_last=is_last, backward=is_backward, hopper=hopper)
            parts = [_absolute(one, at) for one in order]
            found.append(np.concatenate([_in_cores(part) if hopper else part for part in parts]))
        indices = []
        for name in BIASES:
            if name == "edge_update.bias":
                indices.append(np.full(WIDTH, zero))  # the source has none
            given = name in at
            indices.append(at[name] + np.arange(BIASES[name]) if given else np.full(BIASES[name], zero))
        vectors.append(np.concatenate(indices))
    return forward, backward, np.stack(vectors)


def _absolute(matrix: tuple[str, np.ndarray], at: dict[str, int]) -> np.ndarray:
    name, indices = matrix
    if name != "ffn_gate+ffn_value":
        return at[name] + indices
    both = indices.reshape(2, -1)
    return np.concatenate((at["ffn_gate"] + both[0], at["ffn_value"] + both[1]))


def _count(layers: int) -> int:
    matrices = [
        sum(a * b for a, b in (MATRICES[k] for k in names_of(is_last=last)[0])) for last in (False, True)
    ]
    biases = [sum(BIASES[k] for k in names_of(is_last=last)[1]) for last in (False, True)]
    return (layers - 1) * (matrices[0] + biases[0]) + matrices[1] + biases[1]


@cache
def indices_of(layers: int, hopper: bool) -> tuple[np.ndarray, np.ndarray]:
    """The indices of all fragments in a row, and of the vectors."""
    forward, backward, vectors = _positions(layers, hopper=hopper)
    parts = [part for pair in zip(forward, backward, strict=True) for part in pair]
    return np.concatenate(parts), vectors


@cache
def starts_of(layers: int, hopper: bool) -> list[int]:
    """Where in a row each layer's fragments, forward and backward, begin."""
    parts = [
        len(_order(is_last=number == layers - 1, backward=backward, hopper=hopper))
        for number in range(layers)
        for backward in (False, True)
    ]
    return [WIDTH * WIDTH * start for start in accumulate(parts, initial=0)]


class Source(NamedTuple):
    """Where everything comes from."""

    matrices: list[tuple[int, int, int]]  # numbers of one or two stored tensors, and of the pattern
    vectors: list[tuple[int, int] | None]  # number of a stored tensor and index in it; none: zeros
    patterns: Tensor  # (patterns, 128 * 128) in 16 bits, on the device


class Table(NamedTuple):
    """Addresses of stored weights on their device."""

    of: tuple[int, ...]  # the same on the host
    matrices: Tensor  # (count, 3): two addresses and the pattern's number
    vectors: Tensor  # (rows,)


@cache
def source_of(layers: int, device: torch.device, hopper: bool) -> Source:
    """Where the fragments and vectors of this number of layers come from."""
    fragments, vectors = indices_of(layers, hopper)
    sizes = []
    for number in range(layers):
        matrices, names = names_of(is_last=number == layers - 1)
        sizes += [MATRICES[name][0] * MATRICES[name][1] for name in matrices]
        sizes += [BIASES[name] for name in names]
    return find_source(fragments.reshape(-1, ELEMENTS), vectors.reshape(-1, WIDTH), sizes, device)


def find_source(
    matrices: np.ndarray, vectors: np.ndarray, sizes: Sequence[int], device: torch.device
) -> Source:
    """From indices into all stored tensors in a row: ``matrices (count, 128 * 128)``, each in at most two of
    them, and ``vectors (rows, 128)``, each in one or, behind all of them, nowhere."""
    ends = np.cumsum(sizes)
    starts = ends - sizes
    patterns: dict[bytes, int] = {}
    rows: list[tuple[int, int, int]] = []
    for indices in matrices:
        owner = np.searchsorted(ends, indices, side="right")
        first, second = owner.min(), owner.max()
        local = indices - starts[owner]
        assert local.max() < SECOND
        assert np.isin(owner, (first, second)).all()
        pattern = (local + SECOND * ((owner == second) & (first != second))).astype(np.uint16).tobytes()
        rows.append((int(first), int(second), patterns.setdefault(pattern, len(patterns))))
    owners = np.searchsorted(ends, vectors[:, 0], side="right")
    is_given = owners < len(ends)
    assert (vectors - vectors[:, :1] == np.arange(WIDTH) * is_given[:, None]).all()
    of_vectors = [
        (int(owner), int(index - starts[owner])) if given else None
        for owner, index, given in zip(owners, vectors[:, 0], is_given, strict=True)
    ]
    stacked = np.frombuffer(b"".join(patterns), np.int16).reshape(-1, ELEMENTS)
    return Source(rows, of_vectors, torch.from_numpy(stacked.copy()).to(device))


def make_table(source: Source, stored: Sequence[Tensor], known: Table | None = None) -> Table:
    """The table of these tensors, which is ``known`` if nothing moved since."""
    at = [tensor.data_ptr() for tensor in stored]
    of = (*(x for first, second, pattern in source.matrices for x in (at[first], at[second], pattern)),)
    of = (*of, *(0 if v is None else at[v[0]] + stored[v[0]].element_size() * v[1] for v in source.vectors))
    if known is not None and known.of == of and known.matrices.device == stored[0].device:
        return known
    assert all(tensor.is_contiguous() for tensor in stored)
    table = torch.tensor(of, dtype=torch.int64).to(stored[0].device)
    matrices, vectors = table.split([3 * len(source.matrices), len(source.vectors)])
    return Table(of, matrices.view(-1, 3), vectors)


def _arrange(source: Source, table: Table) -> tuple[Tensor, Tensor]:
    """All matrices' numbers in a row in bfloat16, and the vectors ``(rows, 128)``."""
    count, rows = len(source.matrices), len(source.vectors)
    fragments = source.patterns.new_empty(count * ELEMENTS, dtype=torch.bfloat16)
    values = source.patterns.new_empty((rows, WIDTH), dtype=torch.float32)
    blocks = PARTS * count + -(-rows // WARPS)
    ARRANGE(table.matrices, table.vectors, source.patterns, fragments, values, count, rows, blocks=blocks)
    return fragments, values


_tables: WeakKeyDictionary[GeoRouteNet, Table] = WeakKeyDictionary()


def table_of(net: GeoRouteNet) -> Table | None:
    """Where the weights are, as the last pass of ``net`` read it."""
    return _tables.get(net)


def arranged(net: GeoRouteNet, *, hopper: bool) -> tuple[Tensor, Tensor, list[int]]:
    """All layers' fragments in a row in bf16; the vectors ``(layers, 14 * 128)`` in fp32; and where each
    layer's fragments, forward and backward, begin."""
    stored, layers = stored_of(net), len(net.layers)
    source = source_of(layers, stored[0].device, hopper)
    _tables[net] = table = make_table(source, stored, _tables.get(net))
    fragments, vectors = _arrange(source, table)
    return fragments, vectors.view(layers, -1), starts_of(layers, hopper)


def stored_of(net: GeoRouteNet) -> list[Tensor]:
    """The parameters of all layers, as `parameters_of` orders them."""
    layers = list(net.layers)
    pairs = zip(layers, [*layers[1:], None], strict=True)
    return [parameter.detach() for pair in pairs for parameter in parameters_of(*pair)]
