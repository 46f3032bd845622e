"""The NAR4TSP encoder and heads: the reference that GeoRouteNet is compared with.

All its norms are batch norms whose statistics always come from the batch at hand, so an instance's scores
depend on its neighbors in the batch. That is kept for training and can be asked for at evaluation
(``statistics = "batch"``). With ``"frozen"``, statistics collected once from uniform instances take their
place; then every instance stands alone, and the computation splits into a node tower and an edge tower as
GeoRouteNet's does.

Shapes: B instances, n cities, W width of the neighborhoods, H heads, d features.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from georoutenet.errors import InputError
from georoutenet.model.config import PolicyConfig
from georoutenet.model.geometry import Neighborhood, pair_distances
from georoutenet.model.georoutenet import NodeStates
from georoutenet.model.layers import Linear, StartAttention, attend, edge_logits, split_heads, take, wide


class BatchNorm(nn.Module):
    """Batch normalization over all but the features, by the batch's own or by frozen statistics."""

    mean: Tensor
    variance: Tensor

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))
        self.bias = nn.Parameter(torch.zeros(hidden))
        self.register_buffer("mean", torch.full((hidden,), torch.nan))
        self.register_buffer("variance", torch.full((hidden,), torch.nan))

    def from_batch(self, x: Tensor, *, collect: bool = False) -> Tensor:
        flat = wide(x).flatten(0, -2)
        variance, mean = torch.var_mean(flat, dim=0, correction=0)
        if collect:
            self.mean.copy_(mean)
            self.variance.copy_(variance)
        return self._normalize(x, mean, variance)

    def frozen(self, x: Tensor) -> Tensor:
        return self._normalize(x, self.mean, self.variance)

    def _normalize(self, x: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        scale = self.weight * (variance + 1e-5).rsqrt()
        return ((wide(x) - mean) * scale + self.bias).to(x.dtype)


class Layer(nn.Module):
    def __init__(self, config: PolicyConfig) -> None:
        super().__init__()
        d, self.heads = config.hidden, config.heads
        self.node = Linear(d, d, bias=False)
        self.edge = Linear(d, d, bias=False)
        limit = (3 * d // self.heads) ** -0.5  # as a Linear(48, 1) would start
        self.attention = nn.Parameter(torch.empty(3 * d // self.heads).uniform_(-limit, limit))
        self.node_norm = BatchNorm(d)
        self.edge_self, self.edge_target, self.edge_source = Linear(d, d), Linear(d, d), Linear(d, d)
        self.edge_norm = BatchNorm(d)
        self.start_attention = StartAttention(d, self.heads)
        self.start_norm = BatchNorm(d)

    def node_parts(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """``g = W h (B, n, H, q)`` and its two shares of the attention score, ``(B, n, H)`` each."""
        g = split_heads(self.node(x), self.heads)
        of_source, of_target, _ = self.attention.to(x.dtype).chunk(3)
        return g, g @ of_source, g @ of_target

    def edge_score(self, dtype: torch.dtype) -> Tensor:
        """``(d, H)``, what the edge's share of the score is read with: ``<a_e, W_e e> = <W_e^T a_e, e>``."""
        weight = self.edge.weight.to(dtype).unflatten(0, (self.heads, -1))  # (H, q, d)
        return torch.einsum("hqd,q->dh", weight, self.attention.to(dtype).chunk(3)[2])

    def edge_part(self, e: Tensor) -> Tensor:
        """The edge's share of the score, ``(..., H)``."""
        return e @ self.edge_score(e.dtype)

    def message(self, h: Tensor, of_edge: Tensor, far: Tensor) -> Tensor:
        """Attention of all nodes to their neighborhoods: ``of_edge (B, n, n, H)``, ``far (B, n, n, 1)``."""
        g, of_source, of_target = self.node_parts(h)
        scores = wide(of_source.unsqueeze(2) + of_target.unsqueeze(1)) + wide(of_edge)
        scores = functional.leaky_relu(scores, 0.2).masked_fill(far, -torch.inf)  # (B, n, n, H)
        return torch.einsum("bijh,bjhq->bihq", scores.softmax(2).to(h.dtype), g).flatten(2)

    def edge_proposal(self, e: Tensor, source: Tensor, target: Tensor) -> Tensor:
        return (self.edge_self(e) + source + target).sigmoid() + e


class Nar4Tsp(nn.Module):
    """The encoder with its start and edge heads."""

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__()
        d = config.hidden
        self.config = config
        self.node_input = Linear(2, d)
        self.edge_input = Linear(1, d)
        layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.layers = cast("Sequence[Layer]", layers)
        self.start = nn.ParameterDict({"query": nn.Parameter(torch.randn(d))})
        self.edge_head = nn.Sequential(Linear(d, d), nn.ReLU(), Linear(d, 1))

    def edge_states(self, distance: Tensor, dtype: torch.dtype) -> Tensor:
        return self.edge_input(distance.unsqueeze(-1)).to(dtype)  # the raw distance enters in full precision

    def from_batch(
        self, coords: Tensor, dtype: torch.dtype, *, collect: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Start log-probabilities ``(B, n)`` and logits ``(B, n, n)`` by the batch's own statistics."""
        batch, n, _ = coords.shape
        distance = pair_distances(coords.unsqueeze(2), coords.unsqueeze(1))  # (B, n, n)
        reach = distance.kthvalue(min(self.config.neighbors + 1, n), dim=-1).values
        far = (distance > reach.unsqueeze(2)).unsqueeze(-1)
        h = self.node_input(coords).to(dtype)  # (B, n, d)
        e = self.edge_states(distance, dtype)  # (B, n, n, d)
        s = self.start["query"].expand(batch, -1).to(dtype)  # (B, d)
        for number, layer in enumerate(self.layers):
            message = layer.message(h, layer.edge_part(e), far)
            h = layer.node_norm.from_batch(message + h, collect=collect)
            source, target = layer.edge_source(h).unsqueeze(2), layer.edge_target(h).unsqueeze(1)
            e = layer.edge_norm.from_batch(layer.edge_proposal(e, source, target), collect=collect)
            if number < len(self.layers) - 1:
                s = layer.start_attention(s, h) + s
                if batch > 1:  # the published code leaves this norm out for a single instance
                    s = layer.start_norm.from_batch(s, collect=collect)
                s = s.to(dtype)
        return layer.start_attention.distribution(s, h), edge_logits(self.edge_head, e)

    def check_frozen(self) -> None:
        if not bool(torch.isfinite(self.layers[0].node_norm.mean).all()):
            raise InputError(
                "this NAR4TSP policy has no frozen statistics yet: call policy.collect_statistics(coords) "
                "with instances of the training kind, or set policy.statistics = 'batch'"
            )

    def nodes(
        self, coords: Tensor, near: Neighborhood, dtype: torch.dtype, blocks: list[slice]
    ) -> NodeStates:
        """The node tower with frozen statistics, over neighborhood edges only."""
        rows = [Neighborhood(near.index[:, r], near.mask[:, r], near.distance[:, r]) for r in blocks]
        h = self.node_input(coords).to(dtype)
        e = [self.edge_states(near.distance[:, r], dtype) for r in blocks]
        s = self.start["query"].expand(len(coords), -1).to(dtype)
        sources, targets = [], []
        for number, layer in enumerate(self.layers):
            g, of_source, of_target = layer.node_parts(h)
            message = []
            for r, row, edge in zip(blocks, rows, e, strict=True):
                scores = wide(
                    of_source[:, r].unsqueeze(2) + take(of_target, row.index) + layer.edge_part(edge)
                )
                scores = functional.leaky_relu(scores, 0.2).masked_fill(~row.mask.unsqueeze(-1), -torch.inf)
                near_g = split_heads(take(g.flatten(2), row.index), layer.heads)  # (B, n, W, H, q)
                message.append(attend(scores.softmax(2).to(dtype), near_g).flatten(2))
            h = layer.node_norm.frozen(torch.cat(message, 1) + h)
            source, target = layer.edge_source(h), layer.edge_target(h)
            sources.append(source)
            targets.append(target)
            if number < len(self.layers) - 1:
                s = layer.start_norm.frozen(layer.start_attention(s, h) + s)
                for block, (r, row) in enumerate(zip(blocks, rows, strict=True)):
                    proposal = layer.edge_proposal(
                        e[block], source[:, r].unsqueeze(2), take(target, row.index)
                    )
                    e[block] = layer.edge_norm.frozen(proposal)
        return NodeStates(layer.start_attention.distribution(s, h), sources, targets)

    def edges(self, distance: Tensor, sources: Sequence[Tensor], targets: Sequence[Tensor]) -> Tensor:
        """The edge tower with frozen statistics: logits of any pairs; shapes as in `GeoRouteNet.edges`."""
        e = self.edge_states(distance, sources[0].dtype)
        for layer, source, target in zip(self.layers, sources, targets, strict=True):
            e = layer.edge_norm.frozen(layer.edge_proposal(e, source, target))
        return edge_logits(self.edge_head, e)
