"""NAR4TSP, the reference encoder, step by step: loops over instances, nodes, pairs, heads and layers.

Slow on purpose and in float64, as ``literal_georoutenet``, from which it takes the elementary functions,
the start symbol's attention and the edge head. Its batch norms have no running statistics: they normalize
by the batch at hand (so all instances go through a layer together) or by statistics that are given.
"""

from __future__ import annotations

import numpy as np
from literal_georoutenet import (
    NORM_EPSILON,
    EdgeStates,
    NodeStates,
    Weights,
    affine,
    distance,
    edge_head,
    head_average,
    head_block,
    project,
    random_parameter,
    sigmoid,
    softmax,
    start_attention,
    start_attention_weights,
)

Statistics = dict[str, np.ndarray]
"""``layers.{l}.{node,edge,start}_norm.{mean,variance}`` -> (d,); the variance is the biased one."""


def neighborhood(d: np.ndarray, i: int, neighbors: int) -> list[int]:
    """All ``j`` with ``d_ij`` at most the (k+1)-th smallest of row ``i``: self, k nearest, ties to 3e-6."""
    row = sorted(d[i])
    boundary = row[min(neighbors, len(row) - 1)]
    return [j for j in range(len(d)) if d[i, j] <= boundary * (1 + 3e-6)]


def batch_statistics(vectors: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and biased variance of each feature over all the vectors."""
    total = np.zeros(len(vectors[0]))
    for x in vectors:
        total = total + x
    mean = total / len(vectors)
    squares = np.zeros(len(mean))
    for x in vectors:
        squares = squares + (x - mean) ** 2
    return mean, squares / len(vectors)


def batch_norm(
    vectors: list[np.ndarray],
    weights: Weights,
    name: str,
    *,
    statistics: Statistics | None = None,
    record: Statistics | None = None,
) -> list[np.ndarray]:
    """Each vector normalized by the mean and variance over all of them, or by those given.

    What was used is written to ``record``.
    """
    if statistics is None:
        mean, variance = batch_statistics(vectors)
    else:
        mean, variance = statistics[f"{name}.mean"], statistics[f"{name}.variance"]
    if record is not None:
        record[f"{name}.mean"], record[f"{name}.variance"] = mean, variance
    scale, shift = weights[f"{name}.weight"], weights[f"{name}.bias"]
    return [(x - mean) / np.sqrt(variance + NORM_EPSILON) * scale + shift for x in vectors]


def attention_logit(
    h_i: np.ndarray, h_j: np.ndarray, e_ij: np.ndarray, weights: Weights, *, layer: int, head: int, heads: int
) -> float:
    """``LeakyReLU_0.2(a . [g_i ; g_j ; f_ij])`` for one head; ``a`` is shared by the heads."""
    g_i = head_block(project(h_i, weights, f"layers.{layer}.node"), head, heads)
    g_j = head_block(project(h_j, weights, f"layers.{layer}.node"), head, heads)
    f_ij = head_block(project(e_ij, weights, f"layers.{layer}.edge"), head, heads)
    score = float(np.dot(weights[f"layers.{layer}.attention"], np.concatenate([g_i, g_j, f_ij])))
    return score if score >= 0.0 else 0.2 * score


def attention_weights(
    i: int,
    h: NodeStates,
    e: EdgeStates,
    members: list[int],
    weights: Weights,
    *,
    layer: int,
    head: int,
    heads: int,
) -> list[float]:
    """Masked softmax: the weights of one head on each ``j`` of ``members``, in order."""
    logits = [
        attention_logit(h[i], h[j], e[i][j], weights, layer=layer, head=head, heads=heads) for j in members
    ]
    return softmax(logits)


def node_message(
    i: int,
    h: NodeStates,
    e: EdgeStates,
    members: list[int],
    weights: Weights,
    *,
    layer: int,
    heads: int,
) -> np.ndarray:
    """``sum_j alpha_ij g_j`` of every head, concatenated; no output projection, no edge value."""
    blocks = []
    for head in range(heads):
        alpha = attention_weights(i, h, e, members, weights, layer=layer, head=head, heads=heads)
        block = np.zeros(len(h[i]) // heads)
        for position, j in enumerate(members):
            g_j = project(h[j], weights, f"layers.{layer}.node")
            block = block + alpha[position] * head_block(g_j, head, heads)
        blocks.append(block)
    return np.concatenate(blocks)


def edge_proposal(
    e_ij: np.ndarray, h_i: np.ndarray, h_j: np.ndarray, weights: Weights, *, layer: int
) -> np.ndarray:
    """``u_ij = A e_ij + B h_j + C h_i``, three maps with a bias each; the node states are the new ones."""
    return (
        affine(e_ij, weights, f"layers.{layer}.edge_self")
        + affine(h_j, weights, f"layers.{layer}.edge_target")
        + affine(h_i, weights, f"layers.{layer}.edge_source")
    )


def scores(
    coords: np.ndarray,
    weights: Weights,
    *,
    heads: int,
    layers: int,
    neighbors: int,
    statistics: Statistics | None = None,
    record: Statistics | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Start probabilities (B, n) and directed edge logits (B, n, n) of a batch, coords (B, n, 2).

    Without ``statistics`` every norm uses the batch at hand, and a batch of one skips the start norm
    altogether (no normalization, no scale, no shift). With them no norm is skipped and instances do not
    see each other. The statistics used are written to ``record``.
    """
    instances, n = range(len(coords)), len(coords[0])
    nodes = [(b, i) for b in instances for i in range(n)]
    pairs = [(b, i, j) for b in instances for i in range(n) for j in range(n)]
    d = [distance(coords[b]) for b in instances]
    members = {(b, i): neighborhood(d[b], i, neighbors) for b, i in nodes}
    h = [[affine(coords[b][i], weights, "node_input") for i in range(n)] for b in instances]
    e = [
        [[affine(d[b][i, j : j + 1], weights, "edge_input") for j in range(n)] for i in range(n)]
        for b in instances
    ]
    s = [weights["start.query"] for b in instances]
    start = []

    for layer in range(layers):
        at = f"layers.{layer}"

        messages = {
            (b, i): node_message(i, h[b], e[b], members[b, i], weights, layer=layer, heads=heads)
            for b, i in nodes
        }
        normed = batch_norm(
            [messages[b, i] + h[b][i] for b, i in nodes],
            weights,
            f"{at}.node_norm",
            statistics=statistics,
            record=record,
        )
        for (b, i), state in zip(nodes, normed, strict=True):
            h[b][i] = state

        normed = batch_norm(
            [
                sigmoid(edge_proposal(e[b][i][j], h[b][i], h[b][j], weights, layer=layer)) + e[b][i][j]
                for b, i, j in pairs
            ],
            weights,
            f"{at}.edge_norm",
            statistics=statistics,
            record=record,
        )
        for (b, i, j), state in zip(pairs, normed, strict=True):
            e[b][i][j] = state

        if layer == layers - 1:
            start = [
                head_average(start_attention_weights(s[b], h[b], weights, layer=layer, heads=heads))
                for b in instances
            ]
        else:
            s = [start_attention(s[b], h[b], weights, layer=layer, heads=heads) + s[b] for b in instances]
            if len(s) > 1 or statistics is not None:
                s = batch_norm(s, weights, f"{at}.start_norm", statistics=statistics, record=record)

    logits = [[[edge_head(e[b][i][j], weights) for j in range(n)] for i in range(n)] for b in instances]
    return np.array(start), np.array(logits)


def shapes(*, hidden: int, heads: int, layers: int) -> dict[str, tuple[int, ...]]:
    """The shape of every parameter; the last layer keeps the start values, output and norm it never uses."""
    d = hidden
    found: dict[str, tuple[int, ...]] = {"start.query": (d,)}

    def linear(name: str, outputs: int, inputs: int, *, bias: bool = True) -> None:
        found[f"{name}.weight"] = (outputs, inputs)
        if bias:
            found[f"{name}.bias"] = (outputs,)

    linear("node_input", d, 2)
    linear("edge_input", d, 1)
    for layer in range(layers):
        at = f"layers.{layer}"
        linear(f"{at}.node", d, d, bias=False)
        linear(f"{at}.edge", d, d, bias=False)
        found[f"{at}.attention"] = (3 * (d // heads),)
        for name in ("edge_self", "edge_target", "edge_source"):
            linear(f"{at}.{name}", d, d)
        for name in ("query", "key", "value", "output"):
            linear(f"{at}.start_attention.{name}", d, d)
        for name in ("node_norm", "edge_norm", "start_norm"):
            found[f"{at}.{name}.weight"] = found[f"{at}.{name}.bias"] = (d,)
    linear("edge_head.0", d, d)
    linear("edge_head.2", 1, d)
    return found


def random_weights(*, hidden: int, heads: int, layers: int, rng: np.random.Generator) -> Weights:
    return {
        name: random_parameter(name, shape, rng)
        for name, shape in shapes(hidden=hidden, heads=heads, layers=layers).items()
    }


def random_statistics(*, hidden: int, layers: int, rng: np.random.Generator) -> Statistics:
    """Plausible frozen statistics for every norm; the last layer's start norm is never used and has none."""
    found: Statistics = {}
    for layer in range(layers):
        for name in ("node_norm", "edge_norm", "start_norm"):
            if name == "start_norm" and layer == layers - 1:
                continue
            found[f"layers.{layer}.{name}.mean"] = 0.5 * rng.normal(size=hidden)
            found[f"layers.{layer}.{name}.variance"] = rng.uniform(0.3, 2.0, hidden)
    return found
