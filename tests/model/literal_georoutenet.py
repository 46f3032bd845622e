"""GeoRouteNet, equation by equation: loops over nodes, pairs, heads and layers, in float64.

Slow on purpose. One function for each labeled equation of the paper, under the label's name, so that it can
be checked against the page by eye; the fast encoder is then checked against this. Vectors of features
are NumPy arrays, everything else is a loop. ``weights`` is a flat dictionary with the names of the
fast model's ``state_dict``; a linear map's weight is (outputs, inputs).
"""

from __future__ import annotations

from math import exp, log, sqrt

import numpy as np

Weights = dict[str, np.ndarray]
NodeStates = list[np.ndarray]  # h[i]: (d,)
EdgeStates = list[list[np.ndarray]]  # e[i][j]: (d,)

RBF_COUNT = 16
NORM_EPSILON = 1e-5


# Elementary functions


def affine(x: np.ndarray, weights: Weights, name: str) -> np.ndarray:
    """``W x + b``."""
    return np.dot(weights[f"{name}.weight"], x) + weights[f"{name}.bias"]


def project(x: np.ndarray, weights: Weights, name: str) -> np.ndarray:
    """``W x``, a linear map that has no bias."""
    return np.dot(weights[f"{name}.weight"], x)


def head_block(x: np.ndarray, head: int, heads: int) -> np.ndarray:
    """The features of one head: the ``head``-th of ``heads`` contiguous blocks."""
    size = len(x) // heads
    return x[head * size : (head + 1) * size]


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-x))


def silu(x: np.ndarray) -> np.ndarray:
    return x * sigmoid(x)


def relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0.0)


def softplus(x: float) -> float:
    return max(x, 0.0) + log(1.0 + exp(-abs(x)))


def softmax(logits: list[float]) -> list[float]:
    """``exp(s_j) / sum_u exp(s_u)``; taking the largest off first changes nothing but the overflow."""
    largest = max(logits)
    exponentials = [exp(s - largest) for s in logits]
    total = sum(exponentials)
    return [x / total for x in exponentials]


def layer_norm(x: np.ndarray, weights: Weights, name: str) -> np.ndarray:
    """LayerNorm over the features of one vector, with the biased variance."""
    mean = sum(x) / len(x)
    variance = sum((value - mean) ** 2 for value in x) / len(x)
    return (x - mean) / sqrt(variance + NORM_EPSILON) * weights[f"{name}.weight"] + weights[f"{name}.bias"]


# Geometric input encoding


def distance(coords: np.ndarray) -> np.ndarray:
    """Eq. distance: ``d_ij = |x_i - x_j|`` for every ordered pair, (n, n)."""
    n = len(coords)
    d = np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            difference = coords[i] - coords[j]
            d[i, j] = sqrt(difference[0] ** 2 + difference[1] ** 2)
    return d


def node_features(coords: np.ndarray) -> np.ndarray:
    """Eq. node_features: ``u_i = [x_i | c_i | r_i]``, (n, 5)."""
    n = len(coords)
    centroid = sum(coords[j] for j in range(n)) / n
    features = np.zeros((n, 5))
    for i in range(n):
        centered = coords[i] - centroid
        radius = sqrt(centered[0] ** 2 + centered[1] ** 2)
        features[i] = [coords[i][0], coords[i][1], centered[0], centered[1], radius]
    return features


def neighborhood(d: np.ndarray, i: int, neighbors: int) -> list[int]:
    """``N_k(i)``: ``i`` and its ``k`` nearest other nodes; all that tie with the ``k``-th, to 3e-6."""
    others = [j for j in range(len(d)) if j != i]
    if len(others) <= neighbors:
        return sorted([i, *others])
    boundary = sorted(d[i, j] for j in others)[neighbors - 1]
    return sorted([i] + [j for j in others if d[i, j] <= boundary * (1 + 3e-6)])


def rbf_initialization(count: int = RBF_COUNT) -> tuple[np.ndarray, float]:
    """``(a, rho)`` at the start of training: a uniform grid of centers, one grid step of bandwidth."""
    a = np.zeros(count)
    for k in range(count):
        fraction = min(max(k / (count - 1), 1e-4), 1.0 - 1e-4)
        a[k] = log(fraction / (1.0 - fraction))
    return a, log(sqrt(2.0) / (count - 1))


def rbf_parameterization(weights: Weights) -> tuple[np.ndarray, float]:
    """Eq. rbf_parameterization: sorted centers ``mu`` within [0, sqrt 2] and the shared ``sigma``."""
    centers = np.array(sorted(sqrt(2.0) * sigmoid(a) for a in weights["rbf.centers"]))
    return centers, max(exp(float(weights["rbf.log_bandwidth"])), 1e-3)


def rbf(d_ij: float, centers: np.ndarray, bandwidth: float) -> np.ndarray:
    """Eq. rbf: ``phi_k = exp(-((d_ij - mu_k) / sigma)^2)``; no factor of one half."""
    return np.array([exp(-(((d_ij - center) / bandwidth) ** 2)) for center in centers])


def edge_embedding(d_ij: float, weights: Weights) -> np.ndarray:
    """Eq. edge_embedding: ``e_ij^(0)``, a two-layer SiLU network on the radial bases."""
    centers, bandwidth = rbf_parameterization(weights)
    inner = silu(affine(rbf(d_ij, centers, bandwidth), weights, "edge_input.0"))
    return affine(inner, weights, "edge_input.2")


# One layer; h, e are the states that enter it and ``layer`` counts from zero


def attention_logit(
    h_i: np.ndarray,
    h_j: np.ndarray,
    e_ij: np.ndarray,
    d_ij: float,
    weights: Weights,
    *,
    layer: int,
    head: int,
    heads: int,
) -> float:
    """Eq. attention_logit: ``<q_i, k_j> / sqrt(d_q) + b_ij - softplus(gamma) d_ij`` for one head."""
    query = head_block(affine(h_i, weights, f"layers.{layer}.query"), head, heads)
    key = head_block(affine(h_j, weights, f"layers.{layer}.key"), head, heads)
    edge_bias = project(e_ij, weights, f"layers.{layer}.edge_bias")[head]
    decay = softplus(float(weights[f"layers.{layer}.distance"]))
    return float(np.dot(query, key) / sqrt(len(query)) + edge_bias - decay * d_ij)


def attention_weights(
    i: int,
    h: NodeStates,
    e: EdgeStates,
    d: np.ndarray,
    members: list[int],
    weights: Weights,
    *,
    layer: int,
    head: int,
    heads: int,
) -> list[float]:
    """Eq. attention_weights: ``alpha_ij`` of one head for the ``j`` of ``members`` = ``N_k(i)``, in order."""
    logits = [
        attention_logit(h[i], h[j], e[i][j], d[i, j], weights, layer=layer, head=head, heads=heads)
        for j in members
    ]
    return softmax(logits)


def node_message(
    i: int,
    h: NodeStates,
    e: EdgeStates,
    d: np.ndarray,
    members: list[int],
    weights: Weights,
    *,
    layer: int,
    heads: int,
) -> np.ndarray:
    """Eq. node_message: ``g_i``, node and edge values averaged by each head, concatenated, projected."""
    blocks = []
    for head in range(heads):
        alpha = attention_weights(i, h, e, d, members, weights, layer=layer, head=head, heads=heads)
        block = np.zeros(len(h[i]) // heads)
        for position, j in enumerate(members):
            value = head_block(affine(h[j], weights, f"layers.{layer}.value"), head, heads)
            edge_value = head_block(project(e[i][j], weights, f"layers.{layer}.edge_value"), head, heads)
            block = block + alpha[position] * (value + edge_value)
        blocks.append(block)
    return project(np.concatenate(blocks), weights, f"layers.{layer}.output")


def residual_attention(
    g_i: np.ndarray, history: list[np.ndarray], weights: Weights, *, layer: int
) -> list[float]:
    """Eq. residual_attention: ``beta_ir`` over the node's states ``h_i^(0) .. h_i^(layer - 1)``, one head."""
    query = project(g_i, weights, f"layers.{layer}.residual_query")
    logits = []
    for state in history:
        key = project(state, weights, f"layers.{layer}.residual_key")
        logits.append(float(np.dot(query, key)) / sqrt(len(query)))
    return softmax(logits)


def residual_mix(g_i: np.ndarray, history: list[np.ndarray], weights: Weights, *, layer: int) -> np.ndarray:
    """Eq. residual_mix: ``LayerNorm(g_i + sum_r beta_ir h_i^(r))``."""
    beta = residual_attention(g_i, history, weights, layer=layer)
    mixed = np.zeros(len(g_i))
    for r, state in enumerate(history):
        mixed = mixed + beta[r] * state
    return layer_norm(g_i + mixed, weights, f"layers.{layer}.norm1")


def swiglu(x: np.ndarray, weights: Weights, *, layer: int) -> np.ndarray:
    """Eq. swiglu: ``W_f [SiLU(W_g x + b_g) * (W_v x + b_v)] + b_f``."""
    gate = silu(affine(x, weights, f"layers.{layer}.ffn_gate"))
    value = affine(x, weights, f"layers.{layer}.ffn_value")
    return affine(gate * value, weights, f"layers.{layer}.ffn_output")


def node_ffn(mixed: np.ndarray, weights: Weights, *, layer: int) -> np.ndarray:
    """Eq. node_ffn: the new node state ``LayerNorm(x + FFN(x))``."""
    return layer_norm(mixed + swiglu(mixed, weights, layer=layer), weights, f"layers.{layer}.norm2")


def edge_proposal(
    e_ij: np.ndarray, h_i: np.ndarray, h_j: np.ndarray, weights: Weights, *, layer: int
) -> np.ndarray:
    """Eq. edge_proposal: ``u_ij`` from the old edge state and the *new* states of its two ends."""
    return (
        affine(e_ij, weights, f"layers.{layer}.edge_update")
        + project(h_i, weights, f"layers.{layer}.source")
        + project(h_j, weights, f"layers.{layer}.target")
    )


def edge_update(
    e_ij: np.ndarray, h_i: np.ndarray, h_j: np.ndarray, weights: Weights, *, layer: int
) -> np.ndarray:
    """Eq. edge_update: ``LayerNorm(e_ij + SiLU(u_ij))``."""
    proposal = edge_proposal(e_ij, h_i, h_j, weights, layer=layer)
    return layer_norm(e_ij + silu(proposal), weights, f"layers.{layer}.edge_norm")


# The encoder


def encode(
    coords: np.ndarray, weights: Weights, *, heads: int, layers: int, neighbors: int
) -> tuple[list[NodeStates], EdgeStates]:
    """Node states after each layer, the input first (layers + 1 of them), and the last edge states."""
    n = len(coords)
    d = distance(coords)
    members = [neighborhood(d, i, neighbors) for i in range(n)]
    features = node_features(coords)
    states = [[affine(features[i], weights, "node_input") for i in range(n)]]
    e = [[edge_embedding(d[i, j], weights) for j in range(n)] for i in range(n)]
    for layer in range(layers):
        h = []
        for i in range(n):
            g_i = node_message(i, states[-1], e, d, members[i], weights, layer=layer, heads=heads)
            history = [earlier[i] for earlier in states]
            h.append(node_ffn(residual_mix(g_i, history, weights, layer=layer), weights, layer=layer))
        states.append(h)
        e = [[edge_update(e[i][j], h[i], h[j], weights, layer=layer) for j in range(n)] for i in range(n)]
    return states, e


# The heads


def start_attention_weights(
    s: np.ndarray, h: NodeStates, weights: Weights, *, layer: int, heads: int
) -> list[list[float]]:
    """Attention of the start representation ``s`` to all nodes: one list of ``n`` weights for each head."""
    query = affine(s, weights, f"layers.{layer}.start_attention.query")
    alpha = []
    for head in range(heads):
        logits = []
        for state in h:
            key = affine(state, weights, f"layers.{layer}.start_attention.key")
            product = np.dot(head_block(query, head, heads), head_block(key, head, heads))
            logits.append(float(product) / sqrt(len(s) // heads))
        alpha.append(softmax(logits))
    return alpha


def start_attention(s: np.ndarray, h: NodeStates, weights: Weights, *, layer: int, heads: int) -> np.ndarray:
    """What the start representation reads from the nodes: heads concatenated and projected, (d,)."""
    alpha = start_attention_weights(s, h, weights, layer=layer, heads=heads)
    blocks = []
    for head in range(heads):
        block = np.zeros(len(s) // heads)
        for j, state in enumerate(h):
            value = affine(state, weights, f"layers.{layer}.start_attention.value")
            block = block + alpha[head][j] * head_block(value, head, heads)
        blocks.append(block)
    return affine(np.concatenate(blocks), weights, f"layers.{layer}.start_attention.output")


def head_average(alpha: list[list[float]]) -> np.ndarray:
    """The mean over heads of their weights on each node, (n,)."""
    heads, n = len(alpha), len(alpha[0])
    return np.array([sum(alpha[head][j] for head in range(heads)) / heads for j in range(n)])


def start_head(states: list[NodeStates], weights: Weights, *, heads: int) -> np.ndarray:
    """``p^s``: ``states`` are the node states after each layer; the last layer's weights are the answer."""
    last = len(states) - 1
    s = weights["start.query"]
    for layer in range(last):
        read = start_attention(s, states[layer], weights, layer=layer, heads=heads)
        s = layer_norm(s + read, weights, f"layers.{layer}.start_norm")
    return head_average(start_attention_weights(s, states[last], weights, layer=last, heads=heads))


def edge_head(e_ij: np.ndarray, weights: Weights) -> float:
    """``z_ij``: a two-layer ReLU network on the last edge state."""
    return float(affine(relu(affine(e_ij, weights, "edge_head.0")), weights, "edge_head.2")[0])


def scores(
    coords: np.ndarray, weights: Weights, *, heads: int, layers: int, neighbors: int
) -> tuple[np.ndarray, np.ndarray]:
    """Start probabilities (n,) and directed edge logits (n, n) of one instance, coords (n, 2)."""
    n = len(coords)
    states, e = encode(coords, weights, heads=heads, layers=layers, neighbors=neighbors)
    start = start_head(states[1:], weights, heads=heads)
    logits = np.array([[edge_head(e[i][j], weights) for j in range(n)] for i in range(n)])
    return start, logits


# Weights to test with


def shapes(*, hidden: int, heads: int, layers: int) -> dict[str, tuple[int, ...]]:
    """The shape of every parameter; the last start attention has only what its weights need."""
    d = hidden
    found: dict[str, tuple[int, ...]] = {"rbf.centers": (RBF_COUNT,), "rbf.log_bandwidth": ()}

    def linear(name: str, outputs: int, inputs: int, *, bias: bool = True) -> None:
        found[f"{name}.weight"] = (outputs, inputs)
        if bias:
            found[f"{name}.bias"] = (outputs,)

    def norm(name: str) -> None:
        found[f"{name}.weight"] = found[f"{name}.bias"] = (d,)

    linear("node_input", d, 5)
    linear("edge_input.0", d, RBF_COUNT)
    linear("edge_input.2", d, d)
    found["start.query"] = (d,)
    for layer in range(layers):
        at = f"layers.{layer}"
        for name in ("query", "key", "value", "edge_update"):
            linear(f"{at}.{name}", d, d)
        linear(f"{at}.edge_bias", heads, d, bias=False)
        for name in ("output", "edge_value", "residual_query", "residual_key", "source", "target"):
            linear(f"{at}.{name}", d, d, bias=False)
        found[f"{at}.distance"] = ()
        linear(f"{at}.ffn_gate", 2 * d, d)
        linear(f"{at}.ffn_value", 2 * d, d)
        linear(f"{at}.ffn_output", d, 2 * d)
        for name in ("norm1", "norm2", "edge_norm"):
            norm(f"{at}.{name}")
        linear(f"{at}.start_attention.query", d, d)
        linear(f"{at}.start_attention.key", d, d)
        if layer < layers - 1:
            linear(f"{at}.start_attention.value", d, d)
            linear(f"{at}.start_attention.output", d, d)
            norm(f"{at}.start_norm")
    linear("edge_head.0", d, d)
    linear("edge_head.2", 1, d)
    return found


def random_parameter(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """A value with no accidental zero, one or symmetry, so that every parameter changes the scores."""
    if name.endswith("norm.weight") or name.endswith(("norm1.weight", "norm2.weight")):
        return rng.uniform(0.6, 1.4, shape)
    if name == "rbf.centers":
        # Shuffled, so that the sort of Eq. rbf_parameterization is felt.
        return rng.permutation(rbf_initialization(shape[0])[0]) + 0.3 * rng.normal(size=shape)
    if name == "rbf.log_bandwidth":
        return np.array(rbf_initialization()[1] + 0.3 * rng.normal())
    if name.endswith("bias"):
        return 0.3 * rng.normal(size=shape)
    if len(shape) == 2:
        # Wider than usual, to keep softmax weights away from uniform.
        return 1.5 * rng.normal(size=shape) / sqrt(shape[1])
    return np.array(rng.normal(size=shape))


def random_weights(*, hidden: int, heads: int, layers: int, rng: np.random.Generator) -> Weights:
    return {
        name: random_parameter(name, shape, rng)
        for name, shape in shapes(hidden=hidden, heads=heads, layers=layers).items()
    }
