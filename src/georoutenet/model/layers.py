"""Small pieces both encoders share: precision, gathering, one-query attention."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional


class Linear(nn.Linear):
    """A linear map that computes in the dtype of its input; the stored weights keep their own precision."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, *self.map(x.dtype))

    def map(self, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
        """Weight and bias in this precision."""
        return self.weight.to(dtype), None if self.bias is None else self.bias.to(dtype)


def linear_maps(x: Tensor, maps: Sequence[tuple[Tensor, Tensor | None]]) -> tuple[Tensor, ...]:
    """Several linear maps ``(weight, bias)`` of one input by one matrix product; each result contiguous."""
    weight = torch.cat([weight for weight, _ in maps])
    bias = torch.cat([weight.new_zeros(len(weight)) if b is None else b for weight, b in maps])
    parts = functional.linear(x, weight, bias).split([len(weight) for weight, _ in maps], -1)
    return tuple(part.contiguous() for part in parts)


class LayerNorm(nn.LayerNorm):
    """Layer normalization over the features, computed in float32 or better, returned in the input's dtype."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(wide(x)).to(x.dtype)


def wide(x: Tensor) -> Tensor:
    """At least float32, for softmaxes, norms and sums."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def split_heads(x: Tensor, heads: int) -> Tensor:
    return x.unflatten(-1, (heads, -1))  # (..., d) -> (..., H, d / H)


def take(x: Tensor, index: Tensor, selection: Tensor | None = None) -> Tensor:
    """Rows ``x[b, index[b, i, c]]``: ``(B, n, d)`` and ``(B, n, W)`` give ``(B, n, W, d)``.

    ``selection`` is ``one_hot(index)``: with it the rows are picked by a matrix product, whose gradient is
    another matrix product instead of scattered atomic additions. The values are the same, bit for bit.
    """
    batch, n, width = index.shape
    if selection is not None:
        return (selection.flatten(1, 2).to(x.dtype) @ x).view(batch, n, width, x.shape[-1])
    rows = index + torch.arange(batch, device=index.device).view(-1, 1, 1) * x.shape[1]
    return x.flatten(0, 1).index_select(0, rows.flatten()).view(batch, n, width, x.shape[-1])


def attend(weights: Tensor, values: Tensor) -> Tensor:
    """The weighted sum over ``W``: ``(B, n, W, H)`` and ``(B, n, W, H, q)`` give ``(B, n, H, q)``.

    ``values`` may have one head for all. Compiled, product and sum become one kernel; otherwise a batched
    matrix product avoids the product's memory.
    """
    if torch.compiler.is_compiling():
        return (weights.unsqueeze(-1) * values).sum(2)
    if values.shape[3] == 1:
        return weights.transpose(2, 3) @ values.squeeze(3)
    return torch.einsum("bnwh,bnwhq->bnhq", weights, values)


class StartAttention(nn.Module):
    """Multi-head attention of one start representation over all nodes.

    There is a single query, so keys and values are never formed for all nodes:
    ``<q, W_k h_j + b_k> = <W_k^T q, h_j> + <q, b_k>`` and
    ``sum_j a_j (W_v h_j + b_v) = W_v (sum_j a_j h_j) + b_v``.
    """

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = Linear(hidden, hidden)
        self.key = Linear(hidden, hidden)
        self.value = Linear(hidden, hidden)
        self.output = Linear(hidden, hidden)

    def log_weights(self, s: Tensor, h: Tensor) -> Tensor:
        """Logarithms of the attention weights, ``s (B, d)`` and ``h (B, n, d)`` to ``(B, H, n)``."""
        query = split_heads(self.query(s), self.heads)  # (B, H, q)
        weight, offset = self.key.map(s.dtype)
        assert offset is not None
        key = weight.unflatten(0, (self.heads, -1))  # (H, q, d)
        bias = split_heads(offset, self.heads)  # (H, q)
        folded = torch.einsum("bhq,hqd->bhd", query, key)
        scores = folded @ h.transpose(1, 2) + (query * bias).sum(-1, keepdim=True)  # (B, H, n)
        return wide(scores / math.sqrt(query.shape[-1])).log_softmax(-1)

    def forward(self, s: Tensor, h: Tensor) -> Tensor:
        weights = self.log_weights(s, h).exp().to(h.dtype)
        pooled = weights @ h  # (B, H, d)
        weight, bias = self.value.map(s.dtype)
        assert bias is not None
        value = weight.unflatten(0, (self.heads, -1))
        return self.output(torch.einsum("bhd,hqd->bhq", pooled, value).flatten(1) + bias)

    def distribution(self, s: Tensor, h: Tensor) -> Tensor:
        """Logarithm of the head-averaged attention weights, ``(B, n)``: the start distribution."""
        return self.log_weights(s, h).logsumexp(1) - math.log(self.heads)


def edge_logits(head: nn.Sequential, e: Tensor) -> Tensor:
    """The two-layer ReLU edge head, states ``(..., d)`` to logits ``(...)``."""
    return last_logits(head, head[1](head[0](e)))


def last_logits(head: nn.Sequential, hidden: Tensor) -> Tensor:
    """The head's last map, in float32: trained logits reach into the thousands, where half precision would
    merge neighboring values."""
    hidden, last = wide(hidden), cast("Linear", head[2])
    if torch.compiler.is_compiling():  # product, sum and ReLU become one kernel
        return (hidden * last.weight[0]).sum(-1) + last.bias
    return last(hidden).squeeze(-1)
