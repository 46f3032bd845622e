"""All that GeoRouteNet's layers do at the nodes, fused: attention, and what follows it row by row.

    g = W_o (values + W_ve edges)                    Eq. node_message, from the averages of the attention
    h' = LayerNorm(g + sum_l b_l h_l)                Eqs. residual_attention and residual_mix
    h = LayerNorm(h' + W_f (SiLU(W_g h') * W_u h'))  Eqs. swiglu and node_ffn
    W_s h, W_t h + b, and q, k, v of the following layer

The averages of edge states, eight times as many numbers as a state has, are not kept for the backward pass
but recomputed by that of the attention, which reads the near edges anyway.

The states of a node are read by all later layers. Their gradients from there do not pass through autograd,
which would add them one by one: backward passes run from the last layer to the first and add up in a buffer.
The kernels are in `cuda.neighborhood_attention`, `cuda.node_layer` and `cuda.node_gradients`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from georoutenet.kernels.cuda import neighborhood_attention as attention
from georoutenet.kernels.cuda import node_layer as cuda
from georoutenet.kernels.cuda.compile import WIDTH
from georoutenet.kernels.cuda.node_gradients import Traces, of_parameters
from georoutenet.kernels.cuda.node_weights import arranged, parameters_of
from georoutenet.kernels.neighborhood_attention import neighborhood_attention_reference
from georoutenet.kernels.streams import deferred
from georoutenet.model.layers import linear_maps

if TYPE_CHECKING:
    from georoutenet.model.geometry import Neighborhood
    from georoutenet.model.georoutenet import GeoRouteNet


def node_layer_reference(
    net: GeoRouteNet,
    number: int,
    queries: Sequence[Tensor],
    e: Tensor,
    strength: Tensor,
    near: Neighborhood,
    history: Sequence[Tensor],
) -> tuple[Tensor, ...]:
    """`Tower.layer` in plain PyTorch, given the nodes' states so far."""
    layer, following = net.layers[number], net.layers[number + 1 : number + 2]
    q, k, v = queries
    values, edges = neighborhood_attention_reference(
        q, k, v, e, layer.edge_bias.weight, strength, near.index, near.mask, near.distance, heads=layer.heads
    )
    h = layer.node(layer.message(values, edges), history)
    x = h.to(e.dtype)
    of_following = [one for after in following for one in after.queries(x.dtype)]
    return e, x, *linear_maps(x, [*layer.ends(x.dtype), *of_following])


class Tower:
    """One pass through the layers: bf16 weights in the kernels' order, and the nodes' states so far."""

    def __init__(self, net: GeoRouteNet, first: Tensor, *, hopper: bool) -> None:
        self.hopper = hopper
        layers = list(net.layers)
        following = [*layers[1:], None]
        self.bias_weights = [layer.edge_bias.weight for layer in layers]
        self.parameters = [parameters_of(*pair) for pair in zip(layers, following, strict=True)]
        self.history = [first.detach()]  # (B, n, d), the states that later layers look back on
        self.first = first
        self.fragments, self.vectors, self.starts = arranged(net, hopper=hopper)
        self.of_history: Tensor | None = None  # gradients of the states from later layers

    def layer(
        self,
        number: int,
        queries: Sequence[Tensor],
        e: Tensor,
        strength: Tensor,
        near: Neighborhood,
        slots: Tensor | None,
    ) -> tuple[Tensor, ...]:
        """The attention of the cities' ``q, k, v`` with the edge states ``e (B, n, n, d)``, and
        `Layer.advance` without the start attention: ``e`` passed through, the new states, ``W_s h``,
        ``W_t h + b``, and q, k, v of the following layer if there is one.

        Whatever reads the edge states next must read this result, not ``e``. Backward then receives the
        whole gradient of the later readers and adds that of the near pairs **in place**: a gradient tensor
        that anything else still needs must not arrive there. q, k and v lie alike; ``slots`` are needed by
        the backward pass alone.
        """
        assert e.is_contiguous()
        assert len({x.stride() for x in queries}) == 1
        where = (near.index.contiguous(), near.mask.contiguous(), near.distance.contiguous(), slots)
        given = (*queries, e, self.bias_weights[number].contiguous(), strength, self.first)
        e, state, *maps = _NodeLayer.apply(self, number, where, *given, *self.parameters[number])
        self.history.append(state.detach())
        return e, state, *maps

    def weights(self, number: int, *, backward: bool) -> Tensor:
        part = 2 * number + backward
        return self.fragments[self.starts[part] : self.starts[part + 1]]

    def is_last(self, number: int) -> bool:
        return number == len(self.parameters) - 1


class _NodeLayer(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tower: Tower, number: int, where: tuple[Tensor, ...], *inputs: Tensor
    ) -> tuple[Tensor, ...]:
        q, k, v, e, weight, strength, *_ = inputs
        *near, slots = where
        values, edges, alpha = attention.forward((*inputs[:6], *near))
        state, maps, kept = cuda.forward(
            values, edges, tower.history[: number + 1], tower.weights(number, backward=False),
            tower.vectors[number], is_last=tower.is_last(number), hopper=tower.hopper,
        )  # fmt: skip
        ctx.tower, ctx.number, ctx.gates = tower, number, kept.gates
        of_attention = (q, k, v, e, weight, *near, alpha, slots, strength)
        ctx.save_for_backward(*of_attention, kept.vectors, kept.shares, kept.scales, state)
        return e, state, *maps.unbind(0)

    @staticmethod
    def backward(ctx: Any, de: Tensor, *of_outputs: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.gates is None:
            raise RuntimeError("there is one backward pass only: it writes over what it reads")
        tower, number = ctx.tower, ctx.number
        *of_attention, slots, strength, vectors, shares, scales, state = ctx.saved_tensors
        if tower.is_last(number):
            tower.of_history = state.new_empty((len(tower.parameters), *state.shape))
        assert tower.of_history is not None, "the last layer's backward pass comes first"
        given = [x.contiguous() for x in of_outputs]
        left = cuda.backward(
            cuda.Kept(vectors, ctx.gates, shares, scales), tower.history[: number + 1],
            tower.weights(number, backward=True), tower.vectors[number], given, tower.of_history,
            is_last=tower.is_last(number), hopper=tower.hopper,
        )  # fmt: skip
        ctx.gates = None  # what follows takes their memory
        dq, dk, dv, sums = attention.backward(
            tuple(of_attention), slots, left.of_values, left.of_edges, de := de.contiguous(),
            hopper=tower.hopper,
        )  # fmt: skip
        norm = tower.vectors[number, : 2 * WIDTH]
        edges = left.of_edges  # by now the averages themselves
        traces = Traces(
            left.gradients, left.products, left.of_values, edges, vectors, norm, state, left.of_norms,
            given[1:],
        )  # fmt: skip
        with deferred(*traces.tensors()):
            own = of_parameters(traces, hopper=tower.hopper)
        of_first = tower.of_history[0] if number == 0 else None
        of_strength = sums[-1, 0].view(strength.shape)
        return None, None, None, dq, dk, dv, de, sums[:-1], of_strength, of_first, *own
