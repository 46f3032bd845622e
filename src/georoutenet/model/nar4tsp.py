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
from dataclasses import dataclass
from typing import NamedTuple, cast

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


@dataclass(frozen=True)
class LazyStates:
    """Edge states ``x scale + offset + constant`` that are not written."""

    x: Tensor  # (B, n, n, d), or the distances (B, n, n, 1)
    scale: Tensor  # (d,), as the next two
    offset: Tensor
    constant: Tensor

    def folded(self, map: Linear) -> tuple[Tensor, Tensor]:
        """The weight and bias by which ``map`` of the states is computed from ``x``."""
        return map.weight * self.scale, map.weight @ (self.offset + self.constant) + map.bias


class EdgeShare(NamedTuple):
    """The edges' share of attention scores: ``of_edge + constant``, or ``slope distance + constant``."""

    of_edge: Tensor  # (B, H, n, n), or empty
    slope: Tensor  # (H,)
    constant: Tensor  # (H,)


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

    def maps(self) -> tuple[Linear, Linear, Linear]:
        """Of the node states, for attention and for both ends of the edges."""
        return self.node, self.edge_source, self.edge_target

    def message(self, h: Tensor, of_edge: Tensor, far: Tensor) -> Tensor:
        """Attention of all nodes to their neighborhoods: ``of_edge (B, n, n, H)``, ``far (B, n, n, 1)``."""
        g, of_source, of_target = self.node_parts(h)
        scores = wide(of_source.unsqueeze(2) + of_target.unsqueeze(1)) + wide(of_edge)
        scores = functional.leaky_relu(scores, 0.2).masked_fill(far, -torch.inf)  # (B, n, n, H)
        return torch.einsum("bijh,bjhq->bihq", scores.softmax(2).to(h.dtype), g).flatten(2)

    def edge_proposal(self, e: Tensor, source: Tensor, target: Tensor) -> Tensor:
        return (self.edge_self(e) + source + target).sigmoid() + e

    def of_ends(self) -> Tensor:
        """``(2, d / H)``, what the shares of source and target in the score are read with."""
        return wide(self.attention).unflatten(0, (3, -1))[:2]

    def edge_map(self, e: LazyStates, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Half the weight of `edge_self` for the states' ``x``, and all biases of the edge update."""
        weight, bias = e.folded(self.edge_self)
        weight = (weight / 2).to(dtype) if e.x.shape[-1] > 1 else weight.sum(1, keepdim=True) / 2
        return weight, bias + self.edge_source.bias + self.edge_target.bias

    def nodes_fused(
        self,
        h: Tensor,
        maps: Sequence[Tensor],
        bias: Tensor,
        of_edge: EdgeShare,
        distance: Tensor,
        reach: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """`message` in one kernel, if it fits, and the norm; and for the edges, of the new states, half the
        shares of source and target with the ``bias``: ``distance (B, n, n)``, ``reach (B, n)``; the weights
        of `maps` are in the precision of ``h``."""
        from georoutenet.model import nar4tsp_attention_triton as kernels

        of_node, of_source, of_target = maps
        of_ends = self.of_ends()
        arguments = functional.linear(h, of_node), of_ends, *of_edge, distance, reach
        if h.shape[1] > kernels.MAX_CITIES or of_ends.shape[1] < kernels.MIN_WIDTH:
            message = kernels.attention_reference(*arguments)
        else:
            message = kernels.attention(*arguments)[0]
        h = self.node_norm.from_batch(message + h)
        half = h / 2  # The edge kernel's sigmoid is a tangent of half the argument.
        source = functional.linear(half, of_source)
        return h, source, functional.linear(half, of_target, (bias / 2).to(h.dtype))

    def edge_fused(
        self, e: LazyStates, weight: Tensor, source: Tensor, target: Tensor, score: Tensor
    ) -> tuple[LazyStates, EdgeShare]:
        """`edge_proposal` and its norm for all pairs in a few kernels, and the new states times ``score``;
        the ``weight`` is that of `edge_map`, ``source`` and ``target`` are those of `nodes_fused`."""
        from georoutenet.model.nar4tsp_triton import edge_layer

        x, scale, offset, of_edge, _ = edge_layer(
            e.x, e.scale, e.offset, weight, source, target, self.edge_norm.weight, score
        )
        constant = self.edge_norm.bias @ wide(score)
        return LazyStates(x, scale, offset, self.edge_norm.bias), EdgeShare(of_edge, constant, constant)


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

    def wide_edge_scores(self) -> Tensor:
        """`Layer.edge_score` of all layers at once, ``(L, d, H)``."""
        weights = torch.stack([layer.edge.weight for layer in self.layers])
        weights = wide(weights).unflatten(1, (self.config.heads, -1))  # (L, H, q, d)
        shares = torch.stack([layer.attention.chunk(3)[2] for layer in self.layers])  # (L, q)
        return (weights * shares[:, None, :, None]).sum(2).transpose(1, 2)

    def edge_scores(self, dtype: torch.dtype) -> list[Tensor]:
        return list(self.wide_edge_scores().to(dtype).contiguous().unbind(0))

    def from_batch(
        self, coords: Tensor, dtype: torch.dtype, *, collect: bool = False, fused: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Start log-probabilities ``(B, n)`` and logits ``(B, n, n)`` by the batch's own statistics.

        ``fused`` (float32 parameters, on a GPU, ``hidden`` a power of two) uses the fused kernels.
        """
        batch, n, _ = coords.shape
        fused = fused and not collect
        device = str(coords.device)
        if fused:  # imported here, as it takes a second
            from georoutenet.model import nar4tsp_fused

            if nar4tsp_fused.fits(self.config, n, device, dtype):
                return nar4tsp_fused.all_pairs(self, nar4tsp_fused.begin(self, coords, dtype))
        distance = pair_distances(coords.unsqueeze(2), coords.unsqueeze(1))  # (B, n, n)
        reach = distance.kthvalue(min(self.config.neighbors + 1, n), dim=-1).values
        h = self.node_input(coords).to(dtype)  # (B, n, d)
        s = self.start["query"].expand(batch, -1).to(dtype)  # (B, d)
        scores = self.edge_scores(dtype)
        scores.append(scores[0][:, :0])  # no attention reads the last states
        starts_fused = False
        if fused:
            from georoutenet.model import nar4tsp_start_cuda as start_kernels
            from georoutenet.model.nar4tsp_triton import edge_head, narrow

            starts_fused = start_kernels.fits(self.config.hidden, self.config.heads, device, dtype)
            stored = [map.weight for layer in self.layers for map in layer.maps()]
            weights = narrow(stored, dtype)
            if starts_fused:
                attentions = [layer.start_attention for layer in self.layers]
                stored = [map.weight.detach() for part in attentions for map in start_kernels.maps(part)]
                of_starts = narrow(stored, dtype)
            scale, constant = self.edge_input.weight[:, 0], self.edge_input.bias
            lazy = LazyStates(distance.unsqueeze(-1), scale, torch.zeros_like(scale), constant)
            share = EdgeShare(h.new_empty(0), scale @ wide(scores[0]), constant @ wide(scores[0]))
        else:
            e = self.edge_states(distance, dtype)  # (B, n, n, d)
            far = (distance > reach.unsqueeze(2)).unsqueeze(-1)
        for number, layer in enumerate(self.layers):
            if fused:
                weight, bias = layer.edge_map(lazy, dtype)
                three = weights[3 * number : 3 * number + 3]
                h, source, target = layer.nodes_fused(h, three, bias, share, distance, reach)
                lazy, share = layer.edge_fused(lazy, weight, source, target, scores[number + 1])
            else:
                message = layer.message(h, e @ scores[number], far)
                h = layer.node_norm.from_batch(message + h, collect=collect)
                source, target = layer.edge_source(h).unsqueeze(2), layer.edge_target(h).unsqueeze(1)
                e = layer.edge_norm.from_batch(layer.edge_proposal(e, source, target), collect=collect)
            if number < len(self.layers) - 1:
                if starts_fused:
                    four = of_starts[4 * number : 4 * number + 4]
                    s = start_kernels.start_sum(s, h, layer.start_attention, four)
                else:
                    s = layer.start_attention(s, h) + s
                if batch > 1:  # the published code leaves this norm out for a single instance
                    s = layer.start_norm.from_batch(s, collect=collect)
                s = s.to(dtype)
        if starts_fused:
            start = start_kernels.start_distribution(s, h, layer.start_attention, of_starts[-4:])
        else:
            start = layer.start_attention.distribution(s, h)
        if fused:
            first, last = cast("Linear", self.edge_head[0]), cast("Linear", self.edge_head[2])
            return start, edge_head(lazy.x, *lazy.folded(first), last.weight[0], last.bias)
        return start, edge_logits(self.edge_head, e)

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
        e = [self.edge_states(row.distance, dtype) for row in rows]
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
