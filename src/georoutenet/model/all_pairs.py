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
    from georoutenet.model.georoutenet import GeoRouteNet
    from georoutenet.model.layers import Linear


def all_pairs(
    net: GeoRouteNet, coords: Tensor, distance: Tensor, near: Neighborhood, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Start log-probabilities ``(B, n)`` and all logits ``(B, n, n)``, with gradients."""
    pick, index = net.pick(near.index, dtype), rows_of(near.index)
    first, silu, second = net.edge_input
    e = linear(second, silu(linear(first, net.rbf(distance).to(dtype))))
    history, s, (q, k, v) = net.begin(coords, dtype)
    for layer, following in zip(net.layers, [*net.layers[1:], None], strict=True):
        product, states = ProductAndNear.apply(e, layer.edge_update.map(dtype)[0], index)
        values, edges = layer.attention(q, k, v, states.view(*near.index.shape, -1), near, pick)
        if following is None:
            s, source, target = layer.conclude(values, edges, history, s)
        else:
            h, s, source, target, q, k, v = layer.advance(values, edges, history, s, following)
            history.append(h)
        e = layer.edge_norm(functional.silu(Ends.apply(product, source, target)).add_(e))
    return s, last_logits(net.edge_head, linear(net.edge_head[0], e).relu())


def rows_of(index: Tensor) -> Tensor:
    """Where the near pairs ``(B, n, W)`` lie among all ``B n n`` pairs."""
    batch, n, _ = index.shape
    return (index + n * torch.arange(batch * n, device=index.device).view(batch, n, 1)).flatten()


def linear(layer: nn.Module, x: Tensor) -> Tensor:
    """A linear map of all pairs."""
    return Product.apply(x, *cast("Linear", layer).map(x.dtype))


# Autograd, and a compiler after it, derive backward passes from what is written. Those that follow move less
# memory.


class Product(torch.autograd.Function):
    """A linear map of states ``(B, n, n, k)`` by a weight ``(d, k)`` and a bias ``(d,)``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return grad @ weight, of_weight(grad, x), grad.sum((0, 1, 2))


def of_weight(grad: Tensor, x: Tensor) -> Tensor:
    """The gradient of a linear map's weight ``(d, k)``: a product for each instance, because a single one has
    far too few results, each of far too many terms, to occupy a GPU."""
    return wide(grad.flatten(1, 2).transpose(1, 2) @ x.flatten(1, 2)).sum(0).to(x.dtype)


class ProductAndNear(torch.autograd.Function):
    """States ``(B, n, n, d)`` by a weight ``(d, d)``, and beside that the near pairs' states ``(B n W, d)``.

    No pair is twice among the near ones, so the gradient of their states is written where it belongs: nothing
    is filled with zeros, sorted, or added up atomically.
    """

    @staticmethod
    def forward(ctx: Any, e: Tensor, weight: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(e, weight, index)
        return functional.linear(e, weight), e.view(-1, e.shape[-1]).index_select(0, index)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, of_near: Tensor) -> tuple[Tensor, Tensor, None]:
        e, weight, index = ctx.saved_tensors
        of_e = (grad @ weight).view(-1, e.shape[-1])
        of_e = of_e.index_put((index,), of_e.index_select(0, index) + of_near)
        return of_e.view_as(e), of_weight(grad, e), None


class Ends(torch.autograd.Function):
    """States ``(B, n, n, d)`` plus what their sources and targets ``(B, n, d)`` add."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, source: Tensor, target: Tensor) -> Tensor:
        # Not in place: compiled by PyTorch 2.11, that loses the gradient of the sources.
        return u + source.unsqueeze(2) + target.unsqueeze(1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return grad, *(sums_by_product(grad) if grad.is_cuda else (grad.sum(2), grad.sum(1)))


def sums_by_product(x: Tensor) -> tuple[Tensor, Tensor]:
    """``x (B, n, n, d)`` summed over targets and over sources, as one product with zeros and ones: on a GPU
    one pass at the speed of memory instead of two, each with the terms of the sum computed again."""
    n, pair = x.shape[1], torch.arange(x.shape[1] ** 2, device=x.device)
    city = torch.arange(n, device=x.device).unsqueeze(1)
    ends = torch.cat((pair // n == city, pair % n == city)).to(x.dtype)  # (2 n, n n)
    of_sources, of_targets = (ends @ x.flatten(1, 2)).split(n, 1)
    return of_sources, of_targets
