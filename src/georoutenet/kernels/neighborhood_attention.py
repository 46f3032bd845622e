"""Eqs. attention_logit, attention_weights and the averages of node_message over the neighborhoods.

    s_ijh = <q_i, k_j>_h / sqrt(d / H) + <b_h, e_ij> - lambda d_ij,    a_ih = softmax_j s_ijh over N(i)
    values_ih = sum_j a_ijh v_jh,    edges_ih = sum_j a_ijh e_ij

In training all edge states ``e (B, n, n, d)`` are in memory, so the near pairs are read where they lie: row
``e[b, i, index[b, i, w]]``. The kernels are in `cuda.neighborhood_attention`; their autograd function is that
of the whole layer at the nodes, `georoutenet.kernels.node_layer`.

Shapes: B instances, n cities, W width of the neighborhoods, H heads, d features.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from georoutenet.model.layers import split_heads, take, wide


def neighborhood_attention_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    e: Tensor,
    bias_weight: Tensor,
    strength: Tensor,
    index: Tensor,
    mask: Tensor,
    distance: Tensor,
    *,
    heads: int,
) -> tuple[Tensor, Tensor]:
    """``q, k, v (B, n, d)``, ``e (B, n, n, d)``, ``bias_weight (H, d)``, ``strength ()``, others (B, n, W).

    ``strength`` is the positive factor of the distance, ``softplus(gamma)``. Returns, per city and head,
    the weighted sums of the values ``(B, n, d)`` and of the edge states ``(B, n, H, d)``.
    """
    index = index.long().where(mask, 0)  # padding may hold anything
    near = e.gather(2, index.unsqueeze(-1).expand(-1, -1, -1, e.shape[-1]))  # (B, n, W, d)
    query = split_heads(q, heads)  # (B, n, H, d / H)
    keys, values = (split_heads(take(x, index), heads) for x in (k, v))  # (B, n, W, H, d / H)
    scores = wide((query.unsqueeze(2) * keys).sum(-1)) / math.sqrt(query.shape[-1])  # (B, n, W, H)
    scores = scores + wide(functional.linear(near, bias_weight.to(e.dtype)))
    scores = scores - strength * distance.unsqueeze(-1)
    weights = scores.masked_fill(~mask.unsqueeze(-1), -torch.inf).softmax(2).to(q.dtype)
    mixed = torch.einsum("bnwh,bnwhq->bnhq", weights, values).flatten(2)
    return mixed, weights.transpose(2, 3) @ near
