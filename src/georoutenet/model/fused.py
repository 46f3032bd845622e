"""GeoRouteNet over all pairs with one set of edge states, in fused kernels: how it trains on a GPU.

The node tower and the edge tower of `georoutenet.model.georoutenet` each carry edge states of their own,
which keeps the node tower small. In training all pairs exist anyway, so here attention reads the near pairs'
states from those of all pairs, ``(B, n, n, d)``, layer by layer. The function is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from georoutenet.model import node_layer_cuda, start_attention_cuda
from georoutenet.model.geometry import Neighborhood
from georoutenet.model.layers import narrowed
from georoutenet.model.node_layer_cuda import Tower

if TYPE_CHECKING:
    from georoutenet.model.config import PolicyConfig
    from georoutenet.model.georoutenet import GeoRouteNet, Layer
    from georoutenet.model.layers import Linear


@dataclass(frozen=True)
class Operations:
    """The operations on edge states; each exists as a plain function and as fused kernels."""

    embedding: Callable[..., Tensor]
    attention: Callable[..., tuple[Tensor, Tensor, Tensor]]
    update: Callable[..., Tensor]
    logit: Callable[..., Tensor]
    tables: Callable[[Neighborhood], dict[str, Tensor]]
    """What ``attention`` wants to know of the neighborhoods in every layer."""
    tower: Callable[[GeoRouteNet, Tensor], Tower | None]
    """The layers' work at the nodes in kernels, given the first states; nothing where there are none."""


@cache
def operations(*, plain: bool = False) -> Operations:
    """The fused operations (they need Triton), or the plain ones that they are tested against."""
    from georoutenet.model import edge_ends_triton as ends
    from georoutenet.model import edge_update_triton as update
    from georoutenet.model import neighborhood_attention_triton as attention

    if plain:
        return Operations(
            ends.edge_embedding_reference,
            attention.neighborhood_attention_reference,
            update.edge_update_reference,
            ends.edge_logit_reference,
            lambda near: {},
            lambda net, first: None,
        )
    return Operations(
        ends.edge_embedding,
        attention.neighborhood_attention,
        update.edge_update,
        ends.edge_logit,
        lambda near: {"slots": attention.neighborhood_slots(near.index, near.mask)},
        lambda net, first: Tower(net, first) if node_layer_cuda.fits(net.config, first) else None,
    )


def fits(config: PolicyConfig, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether the kernels take this model: bfloat16 on CUDA, sizes that are powers of two."""
    sizes = (config.hidden, config.rbf, config.heads)
    powers = all(size & (size - 1) == 0 for size in sizes) and min(config.hidden, config.rbf) >= 16
    return device.type == "cuda" and dtype == torch.bfloat16 and powers


def compile_nodes(net: GeoRouteNet) -> None:
    """Compile what happens at the nodes outside of kernels, for all batch sizes and numbers of cities. Only
    `all_pairs` uses it, so that scores in another precision (of a validation, say) compile nothing."""
    net.compiled = torch.compile(net.begin, dynamic=True)
    states = net.start["query"].new_empty((0, net.config.hidden), dtype=torch.bfloat16)
    if not node_layer_cuda.fits(net.config, states):
        for layer in net.layers:
            is_last = layer is net.layers[-1]
            layer.compiled = torch.compile(layer.conclude if is_last else layer.advance, dynamic=True)


def embed(net: GeoRouteNet, distance: Tensor, dtype: torch.dtype, use: Operations) -> Tensor:
    """Eq. edge_embedding: the first edge states of pairs at these distances."""
    first, second = cast("Linear", net.edge_input[0]), cast("Linear", net.edge_input[2])
    return use.embedding(
        distance,
        *net.rbf.parameters_of_bases(),
        first.weight,
        first.bias,
        second.weight,
        second.bias,
        dtype,
    )


def update(layer: Layer, e: Tensor, source: Tensor, target: Tensor, use: Operations) -> Tensor:
    """Eqs. edge_proposal and edge_update of sources ``(B, m, d)`` with targets ``(B, n, d)``."""
    norm = layer.edge_norm
    return use.update(e, source.contiguous(), target, layer.edge_update.weight, norm.weight, norm.bias)


def logits(net: GeoRouteNet, e: Tensor, use: Operations) -> Tensor:
    """The edge head."""
    first, last = cast("Linear", net.edge_head[0]), cast("Linear", net.edge_head[2])
    return use.logit(e, first.weight, first.bias, last.weight.flatten(), last.bias)


def start(net: GeoRouteNet, layer: Layer, s: Tensor, x: Tensor, *, is_last: bool) -> Tensor:
    """The start state after attending to the nodes ``x``; of the last layer the start distribution."""
    if start_attention_cuda.fits(net.config, x):
        in_kernels = start_attention_cuda.start_distribution if is_last else start_attention_cuda.start_state
        return in_kernels(s, x, layer)
    return layer.start_attention.distribution(s, x) if is_last else layer.start(s, x)


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


@contextmanager
def beside(x: Tensor) -> Iterator[None]:
    """Work on ``x`` that runs beside what follows on a GPU: many small kernels next to a few large ones. Its
    backward pass runs on the same stream. `rejoin` with the result."""
    if not x.is_cuda:
        yield
        return
    side = _side_stream(x.device)
    side.wait_stream(torch.cuda.current_stream(x.device))
    with torch.cuda.stream(side):
        yield


def rejoin(x: Tensor) -> None:
    """Wait for the work `beside` that made ``x``."""
    if x.is_cuda:
        torch.cuda.current_stream(x.device).wait_stream(_side_stream(x.device))


def all_pairs(
    net: GeoRouteNet,
    coords: Tensor,
    distance: Tensor,
    near: Neighborhood,
    dtype: torch.dtype,
    use: Operations,
) -> tuple[Tensor, Tensor]:
    """Start log-probabilities ``(B, n)`` and all logits ``(B, n, n)``, with gradients."""
    with narrowed(net, dtype):
        return _all_pairs(net, coords, distance, near, dtype, use)


def _all_pairs(
    net: GeoRouteNet,
    coords: Tensor,
    distance: Tensor,
    near: Neighborhood,
    dtype: torch.dtype,
    use: Operations,
) -> tuple[Tensor, Tensor]:
    e = embed(net, distance, dtype, use)  # (B, n, n, d)
    tables = use.tables(near)
    history, s, (q, k, v) = (net.compiled or net.begin)(coords, dtype)
    tower = use.tower(net, history[0].to(dtype))
    for number, layer in enumerate(net.layers):
        is_last = layer is net.layers[-1]
        values, edges, e = use.attention(
            q,
            k,
            v,
            e,
            layer.edge_bias.weight,
            layer.strength(),
            near.index,
            near.mask,
            near.distance,
            heads=layer.heads,
            **tables,
        )
        if tower is not None:
            x, source, target, *following = tower.layer(number, values, edges)
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
        e = update(layer, e, source, target, use)
    scores = logits(net, e, use)
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
    e = embed(net, distance, sources[0].dtype, use)
    for layer, source, target in zip(net.layers, sources, targets, strict=True):
        e = update(layer, e, source, target, use)
    return logits(net, e, use)
