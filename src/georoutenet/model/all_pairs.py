"""GeoRouteNet with one set of edge states for both towers, in PyTorch alone: how it trains without kernels.

The node tower of `georoutenet.model.georoutenet` carries the states of near pairs and the edge tower those of
all pairs, near ones included. In training all pairs are kept anyway, so here attention reads the near pairs'
states where they lie in ``(B, n, n, d)``, layer by layer. The function is the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from georoutenet.model.geometry import Neighborhood
from georoutenet.model.layers import last_logits, wide

if TYPE_CHECKING:
    from georoutenet.model.georoutenet import GeoRouteNet, Layer
    from georoutenet.model.layers import Linear


def all_pairs(
    net: GeoRouteNet, coords: Tensor, distance: Tensor, near: Neighborhood, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Start log-probabilities ``(B, n)`` and all logits ``(B, n, n)``, with gradients."""
    pick, index = net.pick(near.index, dtype), places(near.index)
    first, silu, second = net.edge_input
    e = linear(second, silu(linear(first, net.rbf(distance).to(dtype))))
    history, s, (q, k, v) = net.begin(coords, dtype)
    for layer, following in zip(net.layers, [*net.layers[1:], None], strict=True):
        again, states = Near.apply(e, index)
        values, edges = layer.attention(q, k, v, states.view(*near.index.shape, -1), near, pick)
        if following is None:
            s, source, target = layer.conclude(values, edges, history, s)
        else:
            h, s, source, target, q, k, v = layer.advance(values, edges, history, s, following)
            history.append(h)
        e = update(layer, e, again, source, target)
    return s, last_logits(net.edge_head, linear(net.edge_head[0], e).relu())


def places(index: Tensor) -> Tensor:
    """Where the near pairs ``(B, n, W)`` lie among all ``B n n`` pairs."""
    batch, n, _ = index.shape
    return (index + n * torch.arange(batch * n, device=index.device).view(batch, n, 1)).flatten()


class Near(torch.autograd.Function):
    """All states, and beside them those of the near pairs ``(B n W, d)``.

    No pair is twice among the near ones, so their gradient is written where it belongs: nothing is filled
    with zeros, sorted, or added up atomically.
    """

    @staticmethod
    def forward(ctx: Any, e: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(index)
        return e.view_as(e), e.view(-1, e.shape[-1]).index_select(0, index)

    @staticmethod
    def backward(ctx: Any, of_all: Tensor, of_near: Tensor) -> tuple[Tensor, None]:
        (index,) = ctx.saved_tensors
        rows = of_all.reshape(-1, of_all.shape[-1])
        return rows.index_put((index,), rows.index_select(0, index) + of_near).view_as(of_all), None


def update(layer: Layer, e: Tensor, again: Tensor, source: Tensor, target: Tensor) -> Tensor:
    """Eqs. edge_proposal and edge_update of all pairs; ``again`` is ``e`` too, with another gradient."""
    if not torch.compiler.is_compiling():
        return layer.edge(again, source.unsqueeze(2), target.unsqueeze(1))
    u = Ends.apply(Product.apply(again, layer.edge_update.map(e.dtype)[0], None), source, target)
    return layer.edge_norm(functional.silu(u) + e)


def linear(layer: nn.Module, x: Tensor) -> Tensor:
    """A linear map of all pairs."""
    if not torch.compiler.is_compiling():
        return layer(x)
    return Product.apply(x, *cast("Linear", layer).map(x.dtype))


# A compiler derives backward passes from what is written. Those of the two that follow move less memory.


class Product(torch.autograd.Function):
    """A linear map of states ``(B, n, n, k)`` by a weight ``(d, k)`` and a bias ``(d,)`` or none.

    The weight's gradient is a product for each instance: a single one would have far too few results, each
    of far too many terms, to occupy a GPU.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None
        return functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        x, weight = ctx.saved_tensors
        of_weight = grad.flatten(1, 2).transpose(1, 2) @ x.flatten(1, 2)  # (B, d, k)
        of_bias = grad.sum((0, 1, 2)) if ctx.has_bias else None
        return grad @ weight, wide(of_weight).sum(0).to(weight.dtype), of_bias


class Ends(torch.autograd.Function):
    """States ``(B, n, n, d)`` plus what their sources and targets ``(B, n, d)`` add.

    The gradients are sums over targets and over sources: one product with zeros and ones, in one pass.
    """

    @staticmethod
    def forward(ctx: Any, u: Tensor, source: Tensor, target: Tensor) -> Tensor:
        return u + source.unsqueeze(2) + target.unsqueeze(1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        n, pair = grad.shape[1], torch.arange(grad.shape[1] ** 2, device=grad.device)
        city = torch.arange(n, device=grad.device).unsqueeze(1)
        ends = torch.cat((pair // n == city, pair % n == city)).to(grad.dtype)  # (2 n, n n)
        return grad, *(ends @ grad.flatten(1, 2)).split(n, 1)
