"""GeoRouteNet over all pairs with one set of edge states, in fused kernels: how it trains on a GPU.

The node tower and the edge tower of `georoutenet.model.georoutenet` each carry edge states of their own,
which keeps the node tower small. In training all pairs exist anyway, so here attention reads the near pairs'
states from those of all pairs, ``(B, n, n, d)``, layer by layer. The function is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from georoutenet.kernels.cuda import bases as bases_cuda
from georoutenet.kernels.cuda import compile as native
from georoutenet.kernels.cuda import nearest as nearest_cuda
from georoutenet.kernels.cuda import node_layer as node_layer_cuda
from georoutenet.kernels.cuda import start_attention as start_attention_cuda
from georoutenet.kernels.cuda.node_layer import Tower
from georoutenet.kernels.streams import beside, mark, rejoin, reserve, wait_for
from georoutenet.model.geometry import Neighborhood
from georoutenet.model.georoutenet import node_features
from georoutenet.model.layers import narrowed

if TYPE_CHECKING:
    from georoutenet.model.config import PolicyConfig
    from georoutenet.model.georoutenet import GeoRouteNet, Layer
    from georoutenet.model.layers import Linear


Tables = dict[str, Tensor]
"""What attention wants to know of the neighborhoods in every layer."""


@dataclass(frozen=True)
class Operations:
    """The operations on edge states; each exists as a plain function and as fused kernels."""

    embedding: Callable[..., Tensor]
    attention: Callable[..., tuple[Tensor, Tensor, Tensor]]
    update: Callable[..., Tensor]
    last: Callable[..., Tensor]
    """The last layer's update, and the head."""
    near: Callable[[Tensor, PolicyConfig, int | None], tuple[Tensor, Neighborhood, Tables] | None]
    """All distances, neighborhoods of this width, and their tables, in one kernel; nothing where it does not
    fit."""
    tables: Callable[[Neighborhood], Tables]
    bases: Callable[[GeoRouteNet], bases_cuda.Start]
    """What the embedding and every layer's attention want to know of the distances' parameters."""
    tower: Callable[[GeoRouteNet, Tensor], Tower | None]
    """The layers' work at the nodes in kernels, given the first states; nothing where there are none."""


@cache
def operations(*, plain: bool = False) -> Operations:
    """The fused operations (they need Triton), or the plain ones that they are tested against."""
    from georoutenet.kernels import edge_ends as ends
    from georoutenet.kernels import edge_update as update
    from georoutenet.kernels import neighborhood_attention as attention
    from georoutenet.kernels.cuda import edge_last as last

    if plain:
        return Operations(
            ends.edge_embedding_reference,
            attention.neighborhood_attention_reference,
            update.edge_update_reference,
            last.edge_last_reference,
            lambda places, config, width: None,
            lambda near: {},
            bases_cuda.bases_reference,
            lambda net, first: None,
        )

    def near(
        places: Tensor, config: PolicyConfig, width: int | None
    ) -> tuple[Tensor, Neighborhood, Tables] | None:
        if width is None or not nearest_cuda.fits(places, config.neighbors, width):
            return None
        size, blocks = attention.blocks_of(places.shape[1])
        distance, found, slots = nearest_cuda.nearest(
            places, config.neighbors, width, config.reach, size * blocks
        )
        return distance, found, {"slots": slots}

    # The gradient of the last edge states takes their place, and that of earlier ones the later ones'.
    return Operations(
        ends.edge_embedding,
        attention.neighborhood_attention,
        partial(update.edge_update, in_place=True),
        partial(last.edge_last, in_place=True),
        near,
        lambda near: {"slots": attention.neighborhood_slots(near.index, near.mask)},
        lambda net: (bases_cuda.bases if bases_cuda.fits(net) else bases_cuda.bases_reference)(net),
        lambda net, first: Tower(net, first) if node_layer_cuda.fits(net.config, first) else None,
    )


def fits(config: PolicyConfig, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether the kernels take this model: bfloat16 on GPUs that have it, sizes that are powers of two."""
    sizes = (config.hidden, config.rbf, config.heads)
    powers = all(size & (size - 1) == 0 for size in sizes) and min(config.hidden, config.rbf) >= 16
    return dtype == torch.bfloat16 and powers and native.is_capable(device)


def compile_nodes(net: GeoRouteNet) -> None:
    """Compile what happens at the nodes outside of kernels, for all batch sizes and numbers of cities. Only
    `all_pairs` uses it, so that scores in another precision (of a validation, say) compile nothing."""

    def begin_of_net(coords: Tensor, dtype: torch.dtype) -> tuple[list[Tensor], Tensor, tuple[Tensor, ...]]:
        return begin(net, coords, dtype)

    net.compiled = torch.compile(begin_of_net, dynamic=True)
    states = net.start["query"].new_empty((0, net.config.hidden), dtype=torch.bfloat16)
    if not node_layer_cuda.fits(net.config, states):
        for layer in net.layers:
            is_last = layer is net.layers[-1]
            layer.compiled = torch.compile(layer.conclude if is_last else layer.advance, dynamic=True)


def begin(
    net: GeoRouteNet, coords: Tensor, dtype: torch.dtype
) -> tuple[list[Tensor], Tensor, tuple[Tensor, ...]]:
    """`GeoRouteNet.begin` in few kernels: the first node states are in ``dtype``, which is how layers look
    back on them, and the first q, k, v are side by side in one tensor ``(B, n, 3 d)``."""
    features, into = node_features(coords), net.node_input
    # A matrix for each instance: backward then has many short sums over rows, and not one long one.
    ones, both = torch.ones_like(features[..., :1]), torch.cat((into.weight, into.bias.unsqueeze(-1)), -1)
    first = torch.bmm(torch.cat((features, ones), -1), both.T.expand(len(coords), -1, -1)).to(dtype)
    s = net.start["query"].expand(len(coords), -1).to(dtype)  # (B, d)
    # First together, then in ``dtype``: the gradients of q, k and v are parts of one.
    weights, biases = zip(*net.layers[0].queries(both.dtype), strict=True)
    maps = torch.cat(weights).to(dtype), torch.cat(biases).to(dtype)
    return [first], s, (functional.linear(first, *maps),)


def embed(
    net: GeoRouteNet, distance: Tensor, bases: tuple[Tensor, Tensor], dtype: torch.dtype, use: Operations
) -> Tensor:
    """Eq. edge_embedding: the first edge states of pairs at these distances."""
    first, second = cast("Linear", net.edge_input[0]), cast("Linear", net.edge_input[2])
    return use.embedding(
        distance,
        *bases,
        first.weight,
        first.bias,
        second.weight,
        second.bias,
        dtype,
    )


def update(layer: Layer, e: Tensor, source: Tensor, target: Tensor, use: Operations) -> Tensor:
    """Eqs. edge_proposal and edge_update of sources ``(B, m, d)`` with targets ``(B, n, d)``."""
    return use.update(*_of_update(layer, e, source, target))


def _of_update(layer: Layer, e: Tensor, source: Tensor, target: Tensor) -> tuple[Tensor, ...]:
    norm = layer.edge_norm
    return e, source.contiguous(), target, layer.edge_update.weight, norm.weight, norm.bias


def logits(net: GeoRouteNet, e: Tensor, source: Tensor, target: Tensor, use: Operations) -> Tensor:
    """The last layer's update, and the edge head."""
    first, last = cast("Linear", net.edge_head[0]), cast("Linear", net.edge_head[2])
    head = first.weight, first.bias, last.weight.flatten(), last.bias
    return use.last(*_of_update(net.layers[-1], e, source, target), *head)


def start(net: GeoRouteNet, layer: Layer, s: Tensor, x: Tensor, *, is_last: bool) -> Tensor:
    """The start state after attending to the nodes ``x``; of the last layer the start distribution."""
    if start_attention_cuda.fits(net.config, x):
        in_kernels = start_attention_cuda.start_distribution if is_last else start_attention_cuda.start_state
        return in_kernels(s, x, layer)
    return layer.start_attention.distribution(s, x) if is_last else layer.start(s, x)


@dataclass(frozen=True)
class Ahead:
    """What a pass needs besides distances and neighborhoods, and when it is there."""

    bases: tuple[Tensor, Tensor]
    strengths: list[Tensor]
    has_bases: torch.cuda.Event | None
    first: Tensor  # node states (B, n, d)
    s: Tensor
    queries: tuple[Tensor, ...]  # q, k, v of the first layer (B, n, d)
    has_queries: torch.cuda.Event | None
    tower: Tower | None
    has_tower: torch.cuda.Event | None


def prepare(net: GeoRouteNet, coords: Tensor, dtype: torch.dtype, use: Operations) -> Ahead:
    """Begin a pass: many small kernels, beside those of the distances and the first edge states."""
    with beside(coords):
        centers, bandwidth, strengths = use.bases(net)
        has_bases = mark(coords)
        (first,), s, (together,) = net.compiled(coords, dtype) if net.compiled else begin(net, coords, dtype)
        queries = together.unflatten(-1, (3, -1)).unbind(2)
        has_queries = mark(coords)
        tower = use.tower(net, first)
        has_tower = mark(coords)
        reserve(coords)
    reserve(centers, bandwidth, *strengths, first, s, together)
    if tower is not None and coords.is_cuda:
        reserve(tower.fragments, tower.vectors)
    bases = (centers, bandwidth)
    return Ahead(bases, strengths, has_bases, first, s, queries, has_queries, tower, has_tower)


@contextmanager
def _narrowed(net: GeoRouteNet, ahead: Ahead, dtype: torch.dtype) -> Iterator[None]:
    """`narrowed` of the maps that are not in kernels, or whose kernels want them so."""
    if ahead.tower is None or not start_attention_cuda.fits(net.config, ahead.first):
        with narrowed(net, dtype):
            yield
        return
    starts = nn.ModuleList(layer.start_attention for layer in net.layers)
    copies = narrowed(starts, dtype)
    with beside(ahead.first), torch.no_grad():  # these kernels' gradients go to the stored weights
        copies.__enter__()
    try:
        yield
    finally:
        copies.__exit__(None, None, None)


class MadeAgain:
    """Edge states that the backward pass does not find in memory but makes again, with the same bits."""

    def __init__(self, states: Tensor, make: Callable[[], Tensor]) -> None:
        self.place, self.make = (states.data_ptr(), states.shape), make
        self.readers = 0
        self.states: Tensor | None = None

    def hooks(self) -> AbstractContextManager[object]:
        """What is called within saves these states as a promise."""
        return torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)

    def _pack(self, tensor: Tensor) -> Tensor | MadeAgain:
        if (tensor.data_ptr(), tensor.shape) != self.place:
            return tensor.detach()  # a node that saves its own result would keep itself alive
        self.readers += 1
        return self

    @staticmethod
    def _unpack(saved: Tensor | MadeAgain) -> Tensor:
        return saved._read() if isinstance(saved, MadeAgain) else saved

    @torch.no_grad()
    def _read(self) -> Tensor:
        states = self.make() if self.states is None else self.states
        self.readers -= 1
        self.states = states if self.readers else None
        return states


def all_pairs(
    net: GeoRouteNet,
    coords: Tensor,
    distance: Tensor,
    near: Neighborhood,
    dtype: torch.dtype,
    use: Operations,
    *,
    tables: Tables | None = None,
    ahead: Ahead | None = None,
    recompute: int = 0,
) -> tuple[Tensor, Tensor]:
    """Start log-probabilities ``(B, n)`` and all logits ``(B, n, n)``, with gradients. ``tables`` and
    ``ahead`` are made where they are not given. ``recompute`` sets of edge states are not kept for the
    backward pass but made again: those that layers 0, 2, 4 ... read, as many as it says."""
    ahead = ahead or prepare(net, coords, dtype, use)
    if ahead.tower is not None and not node_layer_cuda.reads(near):
        ahead = replace(ahead, tower=None)
    tables = use.tables(near) if tables is None else tables
    with _narrowed(net, ahead, dtype):
        return _all_pairs(net, ahead, distance, near, tables, dtype, use, recompute)


def _all_pairs(
    net: GeoRouteNet,
    ahead: Ahead,
    distance: Tensor,
    near: Neighborhood,
    tables: Tables,
    dtype: torch.dtype,
    use: Operations,
    recompute: int = 0,
) -> tuple[Tensor, Tensor]:
    tower, s, history = ahead.tower, ahead.s, [ahead.first]
    wait_for(ahead.has_bases, distance)
    e = embed(net, distance, ahead.bases, dtype, use)  # (B, n, n, d)
    make = partial(embed, net, distance, ahead.bases, dtype, use) if recompute else None
    wait_for(ahead.has_queries, distance)
    q, k, v = ahead.queries
    for number, layer in enumerate(net.layers):
        is_last = layer is net.layers[-1]
        again = MadeAgain(e, make) if make and number % 2 == 0 and number < 2 * recompute else None
        if tower is not None and number == 0:
            wait_for(ahead.has_tower, distance)
        of_layer = layer.edge_bias.weight, ahead.strengths[number]
        with again.hooks() if again else nullcontext():
            if tower is not None:
                e, x, source, target, *following = tower.layer(
                    number, (q, k, v), e, *of_layer, near, tables["slots"]
                )
            else:
                places = near.index, near.mask, near.distance
                values, edges, e = use.attention(q, k, v, e, *of_layer, *places, heads=layer.heads, **tables)
        if tower is not None:
            with beside(x):
                s = start(net, layer, s, x, is_last=is_last)
        elif is_last:
            s, source, target = (layer.compiled or layer.conclude)(values, edges, history, s)
        else:
            advance = layer.compiled or layer.advance
            h, s, source, target, *following = advance(values, edges, history, s, net.layers[number + 1])
            history.append(h)
        if not is_last:
            q, k, v = following
        make = partial(update, layer, e, source, target, use) if recompute else None
        with again.hooks() if again else nullcontext():
            if is_last:
                scores = logits(net, e, source, target, use)
            else:
                e = update(layer, e, source, target, use)
    rejoin(s)
    return s, scores


def pairs(
    net: GeoRouteNet,
    distance: Tensor,
    sources: Sequence[Tensor],
    targets: Sequence[Tensor],
    use: Operations,
) -> Tensor:
    """`GeoRouteNet.edges` for all pairs of sources ``(B, m, d)`` and targets ``(B, n, d)`` per layer."""
    e = embed(net, distance, net.rbf.parameters_of_bases(), sources[0].dtype, use)
    for layer, source, target in zip(net.layers[:-1], sources[:-1], targets[:-1], strict=True):
        e = update(layer, e, source, target, use)
    return logits(net, e, sources[-1], targets[-1], use)
