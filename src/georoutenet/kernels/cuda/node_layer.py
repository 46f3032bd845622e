"""All that GeoRouteNet's layers do at the nodes, in CUDA C++: attention (`neighborhood_attention_cuda`), and
one kernel a layer and pass for what follows it (`node_layer.cu`).

From the attention's averages on, a layer works row by row: `Layer.node` and the maps that edges and the
following layer read. A warp takes 16 rows through all of it in registers while the weights pass through
shared memory, matrix by matrix in the order of `_order`, and within a matrix in that of the instructions'
operands. The parameters' gradients are sums over rows of what both kernels leave (`node_gradients_cuda`).
One of them wants the averages of edge states, eight times as many numbers as a state has: they are not kept,
but made again by the attention's backward pass, which reads the near edges anyway.

The states of a node are read by all later layers. Their gradients from there do not pass through autograd,
which would add them one by one: backward passes run from the last layer to the first and add up in a buffer.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from georoutenet.kernels.cuda import compile as native
from georoutenet.kernels.cuda import neighborhood_attention as neighborhood_attention_cuda
from georoutenet.kernels.cuda.arrange import ARRANGE, Plan, Table, arrange, make_plan, make_table
from georoutenet.kernels.cuda.compile import MATRIX, WIDTH, Kernel
from georoutenet.kernels.cuda.node_gradients import Traces, of_parameters
from georoutenet.kernels.streams import later

if TYPE_CHECKING:
    from georoutenet.model.config import PolicyConfig
    from georoutenet.model.geometry import Neighborhood
    from georoutenet.model.georoutenet import GeoRouteNet, Layer

VECTORS = 14 * WIDTH
COLUMNS = 8 * WIDTH
KEPT = 6  # vectors of a node that the backward pass wants


def _kernel(name: str, warps: int, matrices: int, floats: int) -> Kernel:
    """A kernel with matrices and other numbers in shared memory."""
    shared = MATRIX * matrices + 4 * floats
    return Kernel("node_layer.cu", name, warps=warps, shared=shared, groups=warps > 2)


# Few rows a block for small batches, so that all multiprocessors have work. Two blocks of 4 warps fit on one.
FORWARD = {warps: _kernel("node_forward", warps, 3, VECTORS) for warps in (2, 4, 8)}
# Each warp has its sums for the norms, and half of its gates and values.
BACKWARD = {warps: _kernel("node_backward", warps, 2, 4 * WIDTH + 20 * WIDTH * warps) for warps in (2, 4, 8)}
HOPPER_WARPS = 4
PAST = 6  # states of a node that a layer may look back on


def fits(config: PolicyConfig, states: Tensor) -> bool:
    """Whether the kernels take this model and such states."""
    sizes = (config.hidden, config.heads) == (WIDTH, neighborhood_attention_cuda.HEADS)
    sizes = sizes and config.layers <= PAST and config.neighbors < neighborhood_attention_cuda.SLOTS
    warps = (HOPPER_WARPS,) if native.hopper(states.device) else (2, 8)
    of_nodes = (kernels[w] for kernels in (FORWARD, BACKWARD) for w in warps)
    of_attention = neighborhood_attention_cuda.kernels(states.device)
    return sizes and native.fits(states, ARRANGE, *of_nodes, *of_attention)


def reads(near: Neighborhood) -> bool:
    """Whether the kernels take these neighborhoods, which ties may widen."""
    return near.index.shape[2] <= neighborhood_attention_cuda.SLOTS


def _warps(rows: int, device: torch.device) -> int:
    if native.hopper(device):
        return HOPPER_WARPS
    places = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
    return 8 if rows > 64 * places else 2


# The parameters of a layer, with their shapes, in the order in which `Tower` concatenates them.
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
    """The feature of place i of lane t in the fragments c."""
    return 32 * c + 8 * t + i


def _along_heads(c: np.ndarray, t: np.ndarray, i: np.ndarray) -> np.ndarray:
    return 16 * (2 * c + i // 4) + 4 * t + i % 4


def _order(*, is_last: bool, backward: bool, hopper: bool) -> list[tuple[str, np.ndarray]]:
    """The matrices of a pass: for each element of the fragments, its place in the named matrix."""
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
            # A step of 16 features a head: the places are (head, pair of n-tiles, lane, n-tile and feature).
            h, pair, g, t, k, i = np.ogrid[:8, :8, :8, :4, :2, :4]
            places = (16 * h + 4 * t + i) * WIDTH + _columns(2 * pair + k, g)
            edges = ("edge_value", places.reshape(-1))
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


def _in_cores(places: np.ndarray) -> np.ndarray:
    """From the order of fragments to that of cores, 8 x 8 numbers each, as `place` of `tiles.cuh` does it."""
    # From (q, c, g, t, p, and which of a word) to (c, p, q, g, t, and which of a word).
    return places.reshape(16, 4, 8, 4, 4, 2).transpose(1, 4, 0, 2, 3, 5).reshape(-1)


def _places(layers: int, *, hopper: bool) -> tuple[list[np.ndarray], list[np.ndarray], np.ndarray]:
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
        places = []
        for name in BIASES:
            if name == "edge_update.bias":
                places.append(np.full(WIDTH, zero))  # the source has none
            given = name in at
            places.append(at[name] + np.arange(BIASES[name]) if given else np.full(BIASES[name], zero))
        vectors.append(np.concatenate(places))
    return forward, backward, np.stack(vectors)


def _absolute(matrix: tuple[str, np.ndarray], at: dict[str, int]) -> np.ndarray:
    name, places = matrix
    if name != "ffn_gate+ffn_value":
        return at[name] + places
    both = places.reshape(2, -1)
    return np.concatenate((at["ffn_gate"] + both[0], at["ffn_value"] + both[1]))


def _count(layers: int) -> int:
    matrices = [
        sum(a * b for a, b in (MATRICES[k] for k in names_of(is_last=last)[0])) for last in (False, True)
    ]
    biases = [sum(BIASES[k] for k in names_of(is_last=last)[1]) for last in (False, True)]
    return (layers - 1) * (matrices[0] + biases[0]) + matrices[1] + biases[1]


@cache
def _indices(layers: int, hopper: bool) -> tuple[np.ndarray, np.ndarray]:
    """The places of all fragments in a row, and of the vectors."""
    forward, backward, vectors = _places(layers, hopper=hopper)
    parts = [part for pair in zip(forward, backward, strict=True) for part in pair]
    return np.concatenate(parts), vectors


@cache
def _starts(layers: int, hopper: bool) -> list[int]:
    """Where in a row each layer's fragments, forward and backward, begin."""
    parts = [
        len(_order(is_last=number == layers - 1, backward=backward, hopper=hopper))
        for number in range(layers)
        for backward in (False, True)
    ]
    return [WIDTH * WIDTH * start for start in accumulate(parts, initial=0)]


@cache
def _plan(layers: int, device: torch.device, hopper: bool) -> Plan:
    """How `arrange` makes fragments and vectors."""
    fragments, vectors = _indices(layers, hopper)
    sizes = []
    for number in range(layers):
        matrices, names = names_of(is_last=number == layers - 1)
        sizes += [MATRICES[name][0] * MATRICES[name][1] for name in matrices]
        sizes += [BIASES[name] for name in names]
    return make_plan(fragments.reshape(-1, WIDTH * WIDTH), vectors.reshape(-1, WIDTH), sizes, device)


_tables: WeakKeyDictionary[GeoRouteNet, Table] = WeakKeyDictionary()


def _arranged(stored: Sequence[Tensor], layers: int, first: Tensor, hopper: bool) -> tuple[Tensor, Tensor]:
    """`arrange` without a kernel."""
    flat = torch.cat([*(tensor.reshape(-1) for tensor in stored), first.new_zeros(1, dtype=torch.float32)])
    fragments, vectors = (torch.from_numpy(x.reshape(-1)).to(first.device) for x in _indices(layers, hopper))
    return flat.to(first.dtype).index_select(0, fragments), flat.index_select(0, vectors)


class Tower:
    """One pass through the layers: narrowed weights in the kernels' order, and the nodes' states so far."""

    def __init__(self, net: GeoRouteNet, first: Tensor) -> None:
        layers = list(net.layers)
        self.layers = len(layers)
        self.parameters = [
            parameters_of(layer, following)
            for layer, following in zip(layers, [*layers[1:], None], strict=True)
        ]
        self.history = [first.detach()]  # (B, n, d), the states that later layers look back on
        self.first = first
        stored = [parameter.detach() for parameters in self.parameters for parameter in parameters]
        hopper = native.hopper(first.device)
        self.starts = _starts(self.layers, hopper)
        if first.is_cuda:
            plan = _plan(self.layers, first.device, hopper)
            _tables[net] = table = make_table(plan, stored, _tables.get(net))
            self.fragments, vectors = arrange(plan, table)
        else:
            self.fragments, vectors = _arranged(stored, self.layers, first, hopper)
        self.vectors = vectors.view(self.layers, VECTORS)
        self.of_history: Tensor | None = None  # gradients of the states from later layers

    def layer(
        self,
        number: int,
        queries: Sequence[Tensor],
        e: Tensor,
        bias_weight: Tensor,
        strength: Tensor,
        near: Neighborhood,
        slots: Tensor,
    ) -> tuple[Tensor, ...]:
        """`neighborhood_attention` of the cities' ``q, k, v`` with the edge states ``e (B, n, n, d)``, and
        `Layer.advance` without the start attention: ``e`` passed through, the new states, ``W_s h``,
        ``W_t h + b``, and q, k, v of the following layer if there is one.

        As there, what reads the edge states next must read this result, whose gradient is written to; and
        q, k and v lie alike."""
        assert e.is_contiguous()
        assert len({x.stride() for x in queries}) == 1
        places = (near.index.contiguous(), near.mask.contiguous(), near.distance.contiguous(), slots)
        given = (*queries, e, bias_weight.contiguous(), strength, self.first)
        e, state, *maps = _NodeLayer.apply(self, number, places, *given, *self.parameters[number])
        self.history.append(state.detach())
        return e, state, *maps

    def weights(self, number: int, *, backward: bool) -> Tensor:
        part = 2 * number + backward
        return self.fragments[self.starts[part] : self.starts[part + 1]]


def _padded(history: Sequence[Tensor], count: int) -> list[Tensor]:
    given = list(history[:count])
    return given + [given[0]] * (PAST - count)


class _NodeLayer(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tower: Tower, number: int, places: tuple[Tensor, ...], *inputs: Tensor
    ) -> tuple[Tensor, ...]:
        q, k, v, e, weight, strength, *_ = inputs
        *near, slots = places
        values, edges, alpha = neighborhood_attention_cuda.forward_pass((*inputs[:6], *near))
        is_last, past = number == tower.layers - 1, number + 1
        rows, outputs = values.shape[0] * values.shape[1], 2 if is_last else 5
        kept = values.new_empty((KEPT, rows, WIDTH))
        gates = values.new_empty((rows, 4 * WIDTH))
        shares = values.new_empty((rows, 8), dtype=torch.float32)
        scales = values.new_empty((rows, 2), dtype=torch.float32)
        state = torch.empty_like(values)
        maps = values.new_empty((outputs, *values.shape))
        warps = _warps(rows, values.device)
        FORWARD[warps](
            values, edges, *_padded(tower.history, past), tower.weights(number, backward=False),
            tower.vectors[number], kept, gates, shares, scales, state, maps, past, outputs, rows,
            blocks=-(-rows // (16 * warps)),
        )  # fmt: skip
        ctx.tower, ctx.number, ctx.gates = tower, number, gates
        of_attention = (q, k, v, e, weight, *near, alpha, slots, strength)
        ctx.save_for_backward(*of_attention, kept, shares, scales, state)
        return e, state, *maps.unbind(0)

    @staticmethod
    def backward(ctx: Any, de: Tensor, of_state: Tensor, *of_maps: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.gates is None:
            raise RuntimeError("there is one backward pass only: it writes over what it reads")
        tower, number = ctx.tower, ctx.number
        *of_attention, slots, strength, kept, shares, scales, state = ctx.saved_tensors
        is_last, past = number == tower.layers - 1, number + 1
        rows, outputs = state.shape[0] * state.shape[1], len(of_maps)
        if is_last:
            tower.of_history = state.new_empty((tower.layers, *state.shape))
        assert tower.of_history is not None, "the last layer's backward pass comes first"
        gradients = state.new_empty((rows, COLUMNS))
        products = state.new_empty((rows, 2 * WIDTH))
        of_values = torch.empty_like(state)
        edges = state.new_empty((*state.shape[:2], 8, WIDTH))  # gradients of averages, then the averages
        warps = _warps(rows, state.device)
        blocks = -(-rows // (16 * warps))
        of_norms = scales.new_empty((blocks, 4, WIDTH))
        given = [x.contiguous() for x in (of_state, *of_maps)]
        BACKWARD[warps](
            *_padded(tower.history, past), tower.weights(number, backward=True), tower.vectors[number], kept,
            ctx.gates, shares, scales, *given, *[given[0]] * (5 - outputs), tower.of_history, gradients,
            products, of_values, edges, of_norms, past, outputs, int(is_last), rows,
            blocks=blocks,
        )  # fmt: skip
        ctx.gates = None  # what follows takes their place
        dq, dk, dv, sums = neighborhood_attention_cuda.backward_pass(
            tuple(of_attention), slots, of_values, edges, de := de.contiguous(), edges
        )
        norm = tower.vectors[number, : 2 * WIDTH]
        traces = Traces(gradients, products, of_values, edges, kept, norm, state, of_norms, given[1:])
        with later(*traces.tensors()):
            own = of_parameters(traces)
        of_first = tower.of_history[0] if number == 0 else None
        of_strength = sums[-1, 0].view(strength.shape)
        return None, None, None, dq, dk, dv, de, sums[:-1], of_strength, of_first, *own
