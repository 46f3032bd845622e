"""GeoRouteNet over all pairs in CUDA kernels, with one set of edge states: how it trains on a GPU.

The node tower and the edge tower of `georoutenet.model.georoutenet` each carry edge states of their own,
which keeps the node tower small. In training all pairs exist anyway, so here attention reads the near pairs'
states from those of all pairs, ``(B, n, n, d)``, layer by layer. The function is that of
`georoutenet.model.all_pairs`, in bf16. `georoutenet.kernels.choose` says where it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor
from torch.nn import functional

from georoutenet.kernels import bases as bases_module
from georoutenet.kernels.bases import bases
from georoutenet.kernels.cuda import (
    edge_ends,
    edge_update,
    neighborhood_attention,
    node_gradients,
    node_layer,
)
from georoutenet.kernels.cuda.compile import Kernel
from georoutenet.kernels.cuda.node_weights import ARRANGE
from georoutenet.kernels.cuda.start_attention import KERNELS as START
from georoutenet.kernels.edge_ends import edge_embedding, edge_update_logit
from georoutenet.kernels.edge_update import edge_update as update_edges
from georoutenet.kernels.nearest import CITIES, NEAREST, nearest, slots_reference
from georoutenet.kernels.node_layer import Tower
from georoutenet.kernels.start_attention import bf16_weights, start_distribution, start_state
from georoutenet.kernels.streams import join, keep_alive, mark, side_stream, wait_for
from georoutenet.model.geometry import Neighborhood, neighborhood, pair_distances
from georoutenet.model.georoutenet import node_features

if TYPE_CHECKING:
    from georoutenet.model.georoutenet import GeoRouteNet, Layer
    from georoutenet.model.layers import Linear

BF16 = torch.bfloat16


def kernels(*, hopper: bool) -> list[Kernel]:
    """All that a pass launches, forward and backward."""
    by_gpu = (edge_ends, edge_update, neighborhood_attention, node_gradients, node_layer)
    others = (ARRANGE, *START, *NEAREST.values(), bases_module.FORWARD, bases_module.BACKWARD)
    return [*(kernel for module in by_gpu for kernel in module.kernels(hopper=hopper)), *others]


def begin(net: GeoRouteNet, coords: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`GeoRouteNet.begin` in few kernels: the first node states, the start state, and the first q, k, v side
    by side in one tensor ``(B, n, 3 d)``; all in bf16."""
    features, into = node_features(coords), net.node_input
    # A matrix for each instance: backward then has many short sums over rows, and not one long one.
    ones, both = torch.ones_like(features[..., :1]), torch.cat((into.weight, into.bias.unsqueeze(-1)), -1)
    first = torch.bmm(torch.cat((features, ones), -1), both.T.expand(len(coords), -1, -1)).to(BF16)
    s = net.start["query"].expand(len(coords), -1).to(BF16)  # (B, d)
    # First together, then in bf16: the gradients of q, k and v are parts of one.
    weights, biases = zip(*net.layers[0].queries(both.dtype), strict=True)
    return first, s, functional.linear(first, torch.cat(weights).to(BF16), torch.cat(biases).to(BF16))


@cache
def compiled_begin() -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
    """`begin`, compiled for all batch sizes and numbers of cities."""
    return torch.compile(begin, dynamic=True)


@dataclass(frozen=True)
class Ahead:
    """What a pass needs besides distances and neighborhoods, and when it is there."""

    bases: tuple[Tensor, Tensor]
    strengths: list[Tensor]
    has_bases: torch.cuda.Event | None
    s: Tensor
    queries: tuple[Tensor, ...]  # q, k, v of the first layer (B, n, d)
    has_queries: torch.cuda.Event | None
    tower: Tower
    starts: list[list[Tensor]]  # bf16 weights of each layer's start attention
    has_tower: torch.cuda.Event | None


def prepare(net: GeoRouteNet, coords: Tensor, *, hopper: bool, compiled: bool) -> Ahead:
    """Begin a pass: many small kernels on the side stream, next to those of the distances and the first edge
    states."""
    with side_stream(coords):
        centers, bandwidth, strengths = bases(net)
        has_bases = mark(coords)
        first, s, together = (compiled_begin() if compiled else begin)(net, coords)
        queries = together.unflatten(-1, (3, -1)).unbind(2)
        has_queries = mark(coords)
        tower = Tower(net, first, hopper=hopper)
        has_tower = mark(coords)
        starts = bf16_weights(net.layers)
        keep_alive(coords)
    keep_alive(centers, bandwidth, *strengths, first, s, together, tower.fragments, tower.vectors)
    return Ahead(
        (centers, bandwidth), strengths, has_bases, s, queries, has_queries, tower, starts, has_tower
    )


@dataclass(frozen=True)
class Pairs:
    """All distances ``(B, n, n)``, the neighborhoods, and their slots, which the backward pass reads."""

    distance: Tensor
    near: Neighborhood
    slots: Tensor | None

    def are_cut(self) -> Tensor:
        """Whether a neighborhood reaches to the width it was given, so that ties may be missing."""
        mask = self.near.mask
        return mask[..., -1].any() if mask.shape[2] < self.distance.shape[2] else mask.new_zeros(())


def find_pairs(net: GeoRouteNet, coords: Tensor, width: int | None, near: Neighborhood | None) -> Pairs:
    """The pairs of cities at ``coords``, which are in the unit of the distances. One kernel finds them if
    ``width`` is fixed, ``near`` is None and there are at most `CITIES` cities."""
    n, k, reach = coords.shape[1], net.config.neighbors, net.config.reach
    if near is None and width is not None and 2 <= n <= CITIES:
        return Pairs(*nearest(coords, k, width, reach))

    def seen(distance: Tensor) -> Tensor:
        return distance.clamp(max=reach) if reach else distance

    if near is None:
        found = neighborhood(coords, k, width)
        near = Neighborhood(found.index, found.mask, seen(found.distance))
    slots = slots_reference(near.index, near.mask) if torch.is_grad_enabled() else None
    return Pairs(seen(pair_distances(coords.unsqueeze(2), coords.unsqueeze(1))), near, slots)


def embed(net: GeoRouteNet, distance: Tensor, bases: tuple[Tensor, Tensor], *, hopper: bool) -> Tensor:
    """Eq. edge_embedding: the first edge states of pairs at these distances."""
    first, second = cast("Linear", net.edge_input[0]), cast("Linear", net.edge_input[2])
    maps = (first.weight, first.bias, second.weight, second.bias)
    return edge_embedding(distance, *bases, *maps, hopper=hopper)


def update(layer: Layer, e: Tensor, source: Tensor, target: Tensor, *, hopper: bool) -> Tensor:
    """Eqs. edge_proposal and edge_update of sources ``(B, m, d)`` with targets ``(B, n, d)``. The gradient of
    ``e`` overwrites that of the result."""
    return update_edges(*_of_update(layer, e, source, target), in_place=True, hopper=hopper)


def logits(net: GeoRouteNet, e: Tensor, source: Tensor, target: Tensor, *, hopper: bool) -> Tensor:
    """The last layer's update, and the edge head. The gradient of the last states takes their memory."""
    first, last = cast("Linear", net.edge_head[0]), cast("Linear", net.edge_head[2])
    head = first.weight, first.bias, last.weight.flatten(), last.bias
    of_update = _of_update(net.layers[-1], e, source, target)
    return edge_update_logit(*of_update, *head, in_place=True, hopper=hopper)


def _of_update(layer: Layer, e: Tensor, source: Tensor, target: Tensor) -> tuple[Tensor, ...]:
    norm = layer.edge_norm
    return e, source.contiguous(), target, layer.edge_update.weight, norm.weight, norm.bias


class Recomputed:
    """Edge states that the backward pass does not find in memory but recomputes, with the same bits."""

    def __init__(self, states: Tensor, make: Callable[[], Tensor]) -> None:
        self.address, self.make = (states.data_ptr(), states.shape), make
        self.readers = 0
        self.states: Tensor | None = None

    def hooks(self) -> AbstractContextManager[object]:
        """What is called within saves these states as a promise."""
        return torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)

    def _pack(self, tensor: Tensor) -> Tensor | Recomputed:
        if (tensor.data_ptr(), tensor.shape) != self.address:
            return tensor.detach()  # a node that saves its own result would keep itself alive
        self.readers += 1
        return self

    @staticmethod
    def _unpack(saved: Tensor | Recomputed) -> Tensor:
        return saved._read() if isinstance(saved, Recomputed) else saved

    @torch.no_grad()
    def _read(self) -> Tensor:
        states = self.make() if self.states is None else self.states
        self.readers -= 1
        self.states = states if self.readers else None
        return states


def all_pairs(
    net: GeoRouteNet,
    coords: Tensor,
    scaled: Tensor,
    width: int | None = None,
    *,
    near: Neighborhood | None = None,
    pairs: Pairs | None = None,
    hopper: bool,
    compiled: bool = False,
    recompute: int = 0,
) -> tuple[Tensor, Tensor]:
    """Start log-probabilities ``(B, n)`` and all logits ``(B, n, n)``, with gradients.

    ``scaled`` are the coordinates in the unit of the distances. Neighborhoods are found with this ``width``,
    or given, alone or with all distances (``pairs``). ``recompute`` is how many sets of edge states are
    recomputed in the backward pass instead of stored: those that layers 0, 2, 4 ... read. ``hopper`` says
    which build of the kernels runs, ``compiled`` whether the few operations outside of kernels are compiled.
    """
    ahead = prepare(net, coords, hopper=hopper, compiled=compiled)
    pairs = pairs or find_pairs(net, scaled, width, near)
    tower, s, distance = ahead.tower, ahead.s, pairs.distance
    wait_for(ahead.has_bases, distance)
    e = embed(net, distance, ahead.bases, hopper=hopper)  # (B, n, n, d)
    make = partial(embed, net, distance, ahead.bases, hopper=hopper) if recompute else None
    wait_for(ahead.has_queries, distance)
    queries: Sequence[Tensor] = ahead.queries
    for number, layer in enumerate(net.layers):
        is_last = layer is net.layers[-1]
        again = Recomputed(e, make) if make and number % 2 == 0 and number < 2 * recompute else None
        if number == 0:
            wait_for(ahead.has_tower, distance)
        with again.hooks() if again else nullcontext():
            e, x, source, target, *queries = tower.layer(
                number, queries, e, ahead.strengths[number], pairs.near, pairs.slots
            )
        with side_stream(x):
            s = (start_distribution if is_last else start_state)(s, x, layer, ahead.starts[number])
        make = partial(update, layer, e, source, target, hopper=hopper) if recompute else None
        with again.hooks() if again else nullcontext():
            if is_last:
                scores = logits(net, e, source, target, hopper=hopper)
            else:
                e = update(layer, e, source, target, hopper=hopper)
    join(s)
    return s, scores


def edge_logits(
    net: GeoRouteNet,
    distance: Tensor,
    sources: Sequence[Tensor],
    targets: Sequence[Tensor],
    *,
    hopper: bool,
) -> Tensor:
    """`GeoRouteNet.edges` for all pairs of sources ``(B, m, d)`` and targets ``(B, n, d)`` per layer."""
    e = embed(net, distance, net.rbf.parameters_of_bases(), hopper=hopper)
    for layer, source, target in zip(net.layers[:-1], sources[:-1], targets[:-1], strict=True):
        e = update(layer, e, source, target, hopper=hopper)
    return logits(net, e, sources[-1], targets[-1], hopper=hopper)
