"""NAR4TSP over all pairs by the batch's own statistics, in CUDA kernels: how it trains on a GPU.

What depends on parameters and distances alone is made first, for all layers at once (`begin`): a compiler
turns that into few kernels. The layers then are kernels of their own (`all_pairs`), the start attention
beside the others. The function is that of `Nar4Tsp.from_batch`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor

from georoutenet.model import nar4tsp_nodes_cuda, nar4tsp_start_cuda, nar4tsp_triton, nar4tsp_vectors_cuda
from georoutenet.model import nearest_cuda as nearest_kernel
from georoutenet.model.geometry import pair_distances
from georoutenet.model.streams import beside, rejoin, reserve

if TYPE_CHECKING:
    from georoutenet.model.config import PolicyConfig
    from georoutenet.model.layers import Linear
    from georoutenet.model.nar4tsp import Nar4Tsp


def fits(config: PolicyConfig, n: int, device: str, dtype: torch.dtype) -> bool:
    """Whether the kernels take such a model and instances."""
    sizes = (config.hidden, config.heads, device, dtype)
    return (
        nar4tsp_nodes_cuda.fits(n, *sizes)
        and nar4tsp_start_cuda.fits(*sizes)
        and nar4tsp_vectors_cuda.fits(config.hidden, device, dtype)
    )


@torch.library.custom_op("georoutenet::nar4tsp_distances", mutates_args=())
def distances(coords: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """All distances ``(B, n, n)``, and those to the k-th nearest ``(B, n)``; in one kernel if it fits."""
    n = coords.shape[1]
    k = min(k, n - 1)
    if nearest_kernel.fits(coords, k, k + 1):
        distance, near, _ = nearest_kernel.nearest(coords, k, k + 1, 0.0, n + n % 2)
        return distance, near.distance[:, :, k].contiguous()
    distance = pair_distances(coords.unsqueeze(2), coords.unsqueeze(1))
    return distance, distance.kthvalue(k + 1, dim=-1).values


@distances.register_fake
def _(coords: Tensor, k: int) -> Any:
    batch, n, _ = coords.shape
    return coords.new_empty((batch, n, n)), coords.new_empty((batch, n))


class Ahead(NamedTuple):
    """What the layers need besides their parameters: L layers, H heads."""

    distance: Tensor  # (B, n, n)
    reach: Tensor  # (B, n)
    h: Tensor  # the first node states (B, n, d), and what the first layer attends to
    g: Tensor
    s: Tensor  # (B, d)
    scores: Tensor  # (L, d, H), `Nar4Tsp.edge_scores`
    slope: Tensor  # (H,), for the first layer's distances
    constants: Tensor  # (L, H)
    ends: Tensor  # (L, H, 2, d / H), `Layer.of_ends` for every head
    weight: Tensor  # (d, 1), `Layer.edge_map` of the first layer
    biases: Tensor  # (L, d), with those of both ends; the first is that of the map
    zero: Tensor  # (d,)


def begin(net: Nar4Tsp, coords: Tensor, dtype: torch.dtype) -> Ahead:
    layers, into = list(net.layers), net.node_input
    distance, reach = distances(coords.detach(), net.config.neighbors)
    # With a matrix for each instance the backward pass has as many short sums over rows, not a long one.
    places, both = (
        torch.cat((coords, torch.ones_like(coords[..., :1])), -1),
        torch.cat((into.weight.T, into.bias[None])),
    )
    h = torch.bmm(places, both.expand(len(coords), -1, -1)).to(dtype)
    s = net.start["query"].expand(len(coords), -1).to(dtype)
    scores = net.wide_edge_scores()
    scale, constant = net.edge_input.weight.flatten(), net.edge_input.bias
    betas = torch.stack([constant, *(layer.edge_norm.bias for layer in layers[:-1])])
    first = layers[0].edge_self.weight
    ends = [(layer.edge_self, layer.edge_source, layer.edge_target) for layer in layers]
    biases = [own.bias + source.bias + target.bias for own, source, target in ends]
    biases[0] = biases[0] + (first * constant).sum(1)
    return Ahead(
        distance,
        reach,
        h,
        layers[0].node(h),
        s,
        scores.to(dtype).contiguous(),
        (scale.unsqueeze(1) * scores[0]).sum(0),
        (betas.unsqueeze(2) * scores).sum(1),
        torch.stack([layer.of_ends().expand(net.config.heads, -1, -1) for layer in layers]),
        (first * scale).sum(1, keepdim=True) / 2,
        torch.stack(biases),
        torch.zeros_like(constant),
    )


@torch.compiler.disable
def all_pairs(net: Nar4Tsp, ahead: Ahead) -> tuple[Tensor, Tensor]:
    """Start log-probabilities ``(B, n)`` and logits ``(B, n, n)``, with gradients."""
    distance, reach, h, g, s = ahead[:5]
    none, dtype, attentions = h.new_empty(0), h.dtype, [layer.start_attention for layer in net.layers]
    with torch.no_grad():  # the kernels' gradients go to the stored weights
        stored = [map.weight for layer in net.layers for map in layer.maps()]
        maps = h.new_empty((len(stored), *stored[0].shape))
        torch._foreach_copy_(list(maps), stored)
        with beside(h):
            stored = [map.weight for part in attentions for map in nar4tsp_start_cuda.maps(part)]
            of_starts = nar4tsp_triton.narrow(stored, dtype)
            turned = maps.mT.contiguous()  # for the backward pass
            reserve(s)
    scores, constants, ends, biases = (
        x.unbind(0) for x in (ahead.scores, ahead.constants, ahead.ends, ahead.biases)
    )
    # The edge states are x scale + offset + constant.
    x, scale, offset = distance.unsqueeze(-1), net.edge_input.weight.flatten(), ahead.zero
    weight, bias, constant = ahead.weight, biases[0], net.edge_input.bias
    share = (none, ahead.slope)
    for number, layer in enumerate(net.layers):
        is_last = number == len(net.layers) - 1
        if number > 0:
            weight, bias = nar4tsp_vectors_cuda.fold(
                layer.edge_self.weight, scale, offset, constant, biases[number], True
            )
        three = slice(3 * number + 1, 3 * number + 4)  # the third is the next layer's, if there is one
        next_weight = none if is_last else net.layers[number + 1].node.weight
        h, source, target, g, *_ = nar4tsp_nodes_cuda.node_layer(
            g, ends[number], *share, constants[number], distance, reach, h,
            layer.node_norm.weight, layer.node_norm.bias, bias, maps[three], turned[three],
            layer.edge_source.weight, layer.edge_target.weight, next_weight,
        )  # fmt: skip
        with beside(h):
            if not torch.is_grad_enabled():  # otherwise they are kept
                reserve(h)
            four = of_starts[4 * number : 4 * number + 4]
            if is_last:
                s = nar4tsp_start_cuda.start_distribution(s, h, layer.start_attention, four)
            else:
                s = nar4tsp_start_cuda.start_sum(s, h, layer.start_attention, four)
                if len(s) > 1:  # as `Nar4Tsp.from_batch` has it
                    norm = layer.start_norm
                    s, _ = nar4tsp_vectors_cuda.start_norm(s, norm.weight, norm.bias)
                s = s.to(dtype)
        score = scores[0].new_empty((len(scale), 0)) if is_last else scores[number + 1]
        x, scale, offset, of_edge, _ = nar4tsp_triton.edge_layer(
            x, scale, offset, weight, source, target, layer.edge_norm.weight, score
        )
        constant, share = layer.edge_norm.bias, (of_edge, ahead.slope.detach())
    first, last = cast("Linear", net.edge_head[0]), cast("Linear", net.edge_head[2])
    weight, bias = nar4tsp_vectors_cuda.fold(first.weight, scale, offset, constant, first.bias, False)
    logits = nar4tsp_triton.edge_head(x, weight, bias, last.weight[0], last.bias)
    rejoin(s)
    reserve(turned)
    return s, logits
