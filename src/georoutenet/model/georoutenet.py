"""GeoRouteNet's geometry-aware encoder and heads, in the order of the paper.

The work is split where the method allows it. Node attention reads edges only inside ``N_k(i)``, and an edge
state reads only itself and its two end nodes, so

- the **node tower** (`GeoRouteNet.nodes`) carries the nodes and their neighborhood edges, ``O(n k)``;
- the **edge tower** (`GeoRouteNet.edges`) takes any set of pairs from distance to logit, given the source and
  target projections of every layer that the node tower leaves behind.

Shapes: B instances, n cities, W width of the neighborhoods, H heads, d features.

The default configuration has 2,024,344 parameters. Biases are where the paper's equations show them, and
on the query, key and value projections and the start attention; there is none on ``W_o``, the residual mixer,
the edge bias, the edge value, ``W_s`` and ``W_t``. The start query is normalized after the first five layers
only; the value and output maps of the sixth start attention are counted but nothing reads them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from georoutenet.model.config import PolicyConfig
from georoutenet.model.geometry import Neighborhood
from georoutenet.model.layers import (
    LayerNorm,
    Linear,
    StartAttention,
    attend,
    edge_logits,
    linear_maps,
    split_heads,
    take,
    wide,
)


@dataclass(frozen=True)
class NodeStates:
    """What the node tower leaves for the heads: the start distribution and each layer's edge projections."""

    start: Tensor  # (B, n) log-probabilities
    sources: list[Tensor]  # per layer (B, n, d): what an edge reads of the city it leaves
    targets: list[Tensor]  # per layer (B, n, d): what it reads of the city it enters, with the bias


def node_features(coords: Tensor) -> Tensor:
    """Eq. node_features: coordinates, offsets from the centroid, radius; ``(B, n, 2)`` to ``(B, n, 5)``."""
    offset = coords - coords.mean(dim=1, keepdim=True)
    return torch.cat([coords, offset, offset.norm(dim=-1, keepdim=True)], -1)


class RadialBasis(nn.Module):
    """Learnable Gaussian bases of the distance."""

    def __init__(self, count: int) -> None:
        super().__init__()
        fraction = torch.linspace(0, 1, count).clamp(1e-4, 1 - 1e-4)
        self.centers = nn.Parameter(fraction.logit())  # a
        self.log_bandwidth = nn.Parameter(torch.tensor(math.log(math.sqrt(2) / (count - 1))))  # rho

    def parameters_of_bases(self) -> tuple[Tensor, Tensor]:
        """Eq. rbf_parameterization: the sorted centers ``(K_rbf,)`` and their common bandwidth."""
        centers = (math.sqrt(2) * self.centers.sigmoid()).sort().values
        return centers, self.log_bandwidth.exp().clamp(min=1e-3)

    def forward(self, distance: Tensor) -> Tensor:
        """Eq. rbf: ``(...)`` to ``(..., K_rbf)``."""
        centers, bandwidth = self.parameters_of_bases()
        return (-(((distance.unsqueeze(-1) - centers) / bandwidth) ** 2)).exp()


class Layer(nn.Module):
    """One distance-aware node-edge layer."""

    def __init__(self, config: PolicyConfig, *, is_last: bool) -> None:
        super().__init__()
        d, self.heads = config.hidden, config.heads
        self.query, self.key, self.value = (Linear(d, d) for _ in range(3))
        self.output = Linear(d, d, bias=False)
        self.edge_bias = Linear(d, self.heads, bias=False)
        self.edge_value = Linear(d, d, bias=False)
        self.distance = nn.Parameter(torch.zeros(()))  # gamma
        self.residual_query = Linear(d, d, bias=False)
        self.residual_key = Linear(d, d, bias=False)
        self.norm1 = LayerNorm(d)
        self.ffn_gate, self.ffn_value = Linear(d, 2 * d), Linear(d, 2 * d)
        self.ffn_output = Linear(2 * d, d)
        self.norm2 = LayerNorm(d)
        self.edge_update = Linear(d, d)
        self.source, self.target = Linear(d, d, bias=False), Linear(d, d, bias=False)
        self.edge_norm = LayerNorm(d)
        self.start_attention = StartAttention(d, self.heads)
        if not is_last:
            self.start_norm = LayerNorm(d)

    def attention(
        self, q: Tensor, k: Tensor, v: Tensor, e: Tensor, near: Neighborhood, pick: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Eqs. attention_logit and attention_weights for the rows of ``near``: averages over each
        neighborhood, per head, of the nodes' values ``(B, n, d)`` and of the edge states ``(B, n, H, d)``."""
        query = split_heads(q, self.heads)  # (B, n, H, q)
        keys = split_heads(take(k, near.index, pick), self.heads)  # (B, n, W, H, q)
        values = split_heads(take(v, near.index, pick), self.heads)
        scores = wide((query.unsqueeze(2) * keys).sum(-1)) / math.sqrt(query.shape[-1])  # (B, n, W, H)
        scores = scores + wide(self.edge_bias(e))
        scores = scores - self.strength() * near.distance.unsqueeze(-1)
        scores = scores.masked_fill(~near.mask.unsqueeze(-1), -torch.inf)
        weights = scores.softmax(dim=2).to(q.dtype)  # (B, n, W, H)
        return attend(weights, values).flatten(2), attend(weights, e.unsqueeze(3))

    def strength(self) -> Tensor:
        """lambda_l of Eq. attention_logit, the weight of the distance."""
        return functional.softplus(self.distance)

    def message(self, values: Tensor, edges: Tensor) -> Tensor:
        """Eq. node_message from the averages of `attention`.

        Edge states are averaged first and projected once per node and head, which is the same sum:
        ``sum_j a_ij (W_ve e_ij) = W_ve (sum_j a_ij e_ij)``.
        """
        edge_value = self.edge_value.map(values.dtype)[0].unflatten(0, (self.heads, -1))  # (H, q, d)
        return self.output(values + torch.einsum("bnhd,hqd->bnhq", edges, edge_value).flatten(2))

    def residual(self, g: Tensor, history: Sequence[Tensor]) -> Tensor:
        """Eqs. residual_attention and residual_mix, up to the norm: attention over the node's own past.

        ``<W_Q g, W_K h> = <W_K^T W_Q g, h>``, so the query is projected twice and the history never.
        """
        query = self.residual_query(g) @ self.residual_key.map(g.dtype)[0]  # (B, n, d)
        past = torch.stack([h.to(g.dtype) for h in history], dim=2)  # (B, n, l, d)
        scores = wide((query.unsqueeze(2) * past).sum(-1)) / math.sqrt(g.shape[-1])
        return (scores.softmax(-1).unsqueeze(-1) * wide(past)).sum(2)

    def feed_forward(self, h: Tensor) -> Tensor:
        """Eq. swiglu."""
        gate, value = linear_maps(h, [self.ffn_gate.map(h.dtype), self.ffn_value.map(h.dtype)])
        return self.ffn_output(functional.silu(gate) * value)

    def node(self, g: Tensor, history: Sequence[Tensor]) -> Tensor:
        """Eqs. residual_mix and node_ffn: the new node states, kept in float32 or better."""
        h = self.norm1(wide(g) + self.residual(g, history))
        return self.norm2(h + wide(self.feed_forward(h.to(g.dtype))))

    def advance(
        self, values: Tensor, edges: Tensor, history: Sequence[Tensor], s: Tensor, following: Layer
    ) -> tuple[Tensor, ...]:
        """All that a layer does at the nodes, from `attention` on: the new node states, the start state, and
        what edges and the following layer's attention read of the nodes: ``W_s h``, ``W_t h + b``, q, k, v.
        """
        h = self.node(self.message(values, edges), history)
        x = h.to(values.dtype)
        return h, self.start(s, x), *linear_maps(x, [*self.ends(x.dtype), *following.queries(x.dtype)])

    def conclude(
        self, values: Tensor, edges: Tensor, history: Sequence[Tensor], s: Tensor
    ) -> tuple[Tensor, ...]:
        """`advance` of the last layer: the start distribution, and what the edges read of the nodes."""
        x = self.node(self.message(values, edges), history).to(values.dtype)
        return self.start_attention.distribution(s, x), *linear_maps(x, self.ends(x.dtype))

    def start(self, s: Tensor, x: Tensor) -> Tensor:
        """The start state ``(B, d)`` after attending to the nodes ``(B, n, d)``."""
        return self.start_norm(s + self.start_attention(s, x))

    def queries(self, dtype: torch.dtype) -> list[tuple[Tensor, Tensor | None]]:
        """The maps to q, k and v."""
        return [part.map(dtype) for part in (self.query, self.key, self.value)]

    def ends(self, dtype: torch.dtype) -> list[tuple[Tensor, Tensor | None]]:
        """What an edge reads of the city it leaves, and of the one it enters with the proposal's bias."""
        return [self.source.map(dtype), (self.target.map(dtype)[0], self.edge_update.map(dtype)[1])]

    def edge(self, e: Tensor, source: Tensor, target: Tensor) -> Tensor:
        """Eqs. edge_proposal and edge_update, with ``source = W_s h_i`` and ``target = W_t h_j + b``."""
        proposal = functional.linear(e, self.edge_update.map(e.dtype)[0])
        proposal = proposal.add_(source).add_(target)  # in place: these tensors are the large ones
        return self.edge_norm(functional.silu(proposal).add_(e))


class GeoRouteNet(nn.Module):
    """The encoder with its start and edge heads."""

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__()
        d = config.hidden
        self.config = config
        self.node_input = Linear(5, d)
        self.rbf = RadialBasis(config.rbf)
        self.edge_input = nn.Sequential(Linear(config.rbf, d), nn.SiLU(), Linear(d, d))
        layers = nn.ModuleList(
            Layer(config, is_last=number == config.layers - 1) for number in range(config.layers)
        )
        self.layers = cast("Sequence[Layer]", layers)
        self.start = nn.ParameterDict({"query": nn.Parameter(torch.randn(d))})
        self.edge_head = nn.Sequential(Linear(d, d), nn.ReLU(), Linear(d, 1))

    def edge_states(self, distance: Tensor, dtype: torch.dtype) -> Tensor:
        """Eq. edge_embedding: the initial edge states ``(..., d)`` of pairs at these distances."""
        return self.edge_input(self.rbf(distance).to(dtype))

    def nodes(
        self, coords: Tensor, near: Neighborhood, dtype: torch.dtype, blocks: list[slice]
    ) -> NodeStates:
        """The node tower. ``blocks`` are the row ranges to work on at a time; one slice when training."""
        pick = self.pick(near.index, dtype)
        rows = [Neighborhood(near.index[:, r], near.mask[:, r], near.distance[:, r]) for r in blocks]
        e = [self.edge_states(near.distance[:, r], dtype) for r in blocks]  # blocks of (B, n, W, d)
        history, s, (q, k, v) = self.begin(coords, dtype)
        sources, targets = [], []
        for number, layer in enumerate(self.layers):
            read = [
                layer.attention(q[:, r], k, v, edge, row, pick)
                for r, row, edge in zip(blocks, rows, e, strict=True)
            ]
            values, edges = (torch.cat(parts, 1) for parts in zip(*read, strict=True))
            if layer is self.layers[-1]:
                start, source, target = layer.conclude(values, edges, history, s)
            else:
                h, s, source, target, q, k, v = layer.advance(
                    values, edges, history, s, self.layers[number + 1]
                )
                history.append(h)
                for block, (r, row) in enumerate(zip(blocks, rows, strict=True)):
                    e[block] = layer.edge(e[block], source[:, r].unsqueeze(2), take(target, row.index, pick))
            sources.append(source)
            targets.append(target)
        return NodeStates(start, sources, targets)

    @staticmethod
    def pick(index: Tensor, dtype: torch.dtype) -> Tensor | None:
        """What picks neighbors by a matrix product (see `take`), where gradients are recorded on a GPU."""
        if not (torch.is_grad_enabled() and index.is_cuda):
            return None
        return functional.one_hot(index, index.shape[1]).to(dtype)  # (B, n, W, n)

    def begin(self, coords: Tensor, dtype: torch.dtype) -> tuple[list[Tensor], Tensor, tuple[Tensor, ...]]:
        """The history with the first node states ``(B, n, d)``, the start state, and the first q, k, v."""
        h = self.node_input(node_features(coords))
        s = self.start["query"].expand(len(coords), -1).to(dtype)  # (B, d)
        return [h], s, linear_maps(h.to(dtype), self.layers[0].queries(dtype))

    def edges(self, distance: Tensor, sources: Sequence[Tensor], targets: Sequence[Tensor]) -> Tensor:
        """The edge tower: logits of pairs from their distances and both projections per layer.

        Projections broadcast against each other to ``(..., d)``; ``distance`` and the result are ``(...)``.
        """
        e = self.edge_states(distance, sources[0].dtype)
        for layer, source, target in zip(self.layers, sources, targets, strict=True):
            e = layer.edge(e, source, target)
        return edge_logits(self.edge_head, e)
