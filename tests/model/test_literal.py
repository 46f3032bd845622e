"""The literal versions themselves, on cases small enough to work out by hand."""

from __future__ import annotations

from math import e as euler
from math import exp, log, sqrt

import literal_georoutenet as georoutenet
import literal_nar4tsp as nar4tsp
import numpy as np
import pytest
import torch

SMALL = {"hidden": 4, "heads": 2, "layers": 3}
RUN = {"heads": 2, "layers": 3, "neighbors": 2}
SQUARE = np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20)


@pytest.fixture
def weights(rng: np.random.Generator) -> georoutenet.Weights:
    return georoutenet.random_weights(**SMALL, rng=rng)


@pytest.fixture
def nar_weights(rng: np.random.Generator) -> nar4tsp.Weights:
    return nar4tsp.random_weights(**SMALL, rng=rng)


def vectors(rng: np.random.Generator, n: int, d: int = 4) -> list[np.ndarray]:
    return list(rng.normal(size=(n, d)))


# Elementary functions, against torch's own


def test_elementary_functions_match_torch(rng: np.random.Generator, weights: georoutenet.Weights) -> None:
    x = 3.0 * rng.normal(size=4)
    t = torch.from_numpy(x)
    functional = torch.nn.functional
    np.testing.assert_allclose(georoutenet.silu(x), functional.silu(t), rtol=1e-12)
    np.testing.assert_allclose([georoutenet.softplus(v) for v in x], functional.softplus(t), rtol=1e-12)
    np.testing.assert_allclose(georoutenet.softmax(list(x)), functional.softmax(t, 0), rtol=1e-12)
    scale, shift = (torch.from_numpy(weights[f"layers.0.norm1.{part}"]) for part in ("weight", "bias"))
    np.testing.assert_allclose(
        georoutenet.layer_norm(x, weights, "layers.0.norm1"),
        functional.layer_norm(t, (4,), scale, shift, eps=1e-5),
        rtol=1e-12,
    )


def test_layer_norm_has_the_biased_variance() -> None:
    plain = {"norm.weight": np.array([2.0, 2.0]), "norm.bias": np.array([0.5, 0.5])}
    expected = 2.0 * np.array([-1.0, 1.0]) / sqrt(1.0 + 1e-5) + 0.5
    np.testing.assert_allclose(georoutenet.layer_norm(np.array([1.0, 3.0]), plain, "norm"), expected)


def test_start_attention_is_torchs_multi_head_attention(
    rng: np.random.Generator, weights: georoutenet.Weights
) -> None:
    attention = torch.nn.MultiheadAttention(4, 2, batch_first=True, dtype=torch.float64)
    at = "layers.1.start_attention"
    joined = {
        part: torch.from_numpy(
            np.concatenate([weights[f"{at}.{name}.{part}"] for name in ("query", "key", "value")])
        )
        for part in ("weight", "bias")
    }
    attention.load_state_dict(
        {
            "in_proj_weight": joined["weight"],
            "in_proj_bias": joined["bias"],
            "out_proj.weight": torch.from_numpy(weights[f"{at}.output.weight"]),
            "out_proj.bias": torch.from_numpy(weights[f"{at}.output.bias"]),
        }
    )
    s, h = rng.normal(size=4), vectors(rng, 5)
    nodes = torch.from_numpy(np.array(h))[None]
    with torch.no_grad():
        read, alpha = attention(torch.from_numpy(s)[None, None], nodes, nodes, average_attn_weights=True)
    np.testing.assert_allclose(
        georoutenet.start_attention(s, h, weights, layer=1, heads=2), read[0, 0], rtol=1e-10
    )
    averaged = georoutenet.head_average(georoutenet.start_attention_weights(s, h, weights, layer=1, heads=2))
    np.testing.assert_allclose(averaged, alpha[0, 0], rtol=1e-10)


# Geometry


def test_node_features_by_hand() -> None:
    features = georoutenet.node_features(np.array([[0.0, 0.0], [6.0, 0.0], [0.0, 12.0]]))
    expected = [
        [0, 0, -2, -4, sqrt(20)],
        [6, 0, 4, -4, sqrt(32)],
        [0, 12, -2, 8, sqrt(68)],
    ]
    np.testing.assert_allclose(features, expected)


BOTH = pytest.mark.parametrize("module", [georoutenet, nar4tsp])


@BOTH
def test_ties_at_the_boundary_are_kept(module) -> None:
    # Node 0 has two nodes at distance 1 and one at distance 2; node 3 has a single nearest.
    d = georoutenet.distance(np.array([[0.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [2.0, 0.0]]))
    assert module.neighborhood(d, 0, 1) == [0, 1, 2]
    assert module.neighborhood(d, 0, 2) == [0, 1, 2]
    assert module.neighborhood(d, 3, 1) == [1, 3]


@BOTH
def test_neighborhoods_are_directed(module) -> None:
    d = georoutenet.distance(np.array([[0.0, 0.0], [1.0, 0.0], [3.0, 0.0]]))
    assert [module.neighborhood(d, i, 1) for i in range(3)] == [[0, 1], [0, 1], [1, 2]]


@BOTH
@pytest.mark.parametrize("neighbors", [3, 4, 10])
def test_few_nodes_are_all_neighbors(module, neighbors: int) -> None:
    d = georoutenet.distance(np.array([[0.0, 0.0], [0.1, 0.0], [0.5, 0.0], [1.0, 0.3]]))
    assert all(module.neighborhood(d, i, neighbors) == [0, 1, 2, 3] for i in range(4))
    assert module.neighborhood(d, 0, 2) == [0, 1, 2]
    assert module.neighborhood(np.zeros((1, 1)), 0, neighbors) == [0]


@BOTH
def test_coincident_points_are_tied_neighbors(module) -> None:
    d = georoutenet.distance(np.array([[0.5, 0.5], [0.5, 0.5], [0.5, 0.5], [0.9, 0.1]]))
    assert module.neighborhood(d, 1, 1) == [0, 1, 2]
    assert module.neighborhood(d, 3, 1) == [0, 1, 2, 3]


def test_the_two_definitions_of_the_neighborhood_agree(rng: np.random.Generator) -> None:
    for n in (2, 7, 25):
        d = georoutenet.distance(rng.integers(0, 4, size=(n, 2)) / 4)  # a coarse grid: many ties
        for k in (1, 3, 10):
            for i in range(n):
                assert georoutenet.neighborhood(d, i, k) == nar4tsp.neighborhood(d, i, k)


def test_rbf_initialization() -> None:
    a, rho = georoutenet.rbf_initialization()
    centers, bandwidth = georoutenet.rbf_parameterization(
        {"rbf.centers": a, "rbf.log_bandwidth": np.array(rho)}
    )
    grid = [sqrt(2) * k / 15 for k in range(16)]
    np.testing.assert_allclose(centers[1:-1], grid[1:-1], rtol=1e-12)
    np.testing.assert_allclose(centers[[0, -1]], [sqrt(2) * 1e-4, sqrt(2) * (1 - 1e-4)], rtol=1e-9)
    assert bandwidth == pytest.approx(sqrt(2) / 15)


def test_rbf_centers_are_sorted_and_the_bandwidth_bounded_below() -> None:
    parameters = {"rbf.centers": np.array([1.0, -1.0, 0.0]), "rbf.log_bandwidth": np.array(-50.0)}
    centers, bandwidth = georoutenet.rbf_parameterization(parameters)
    np.testing.assert_allclose(centers, sqrt(2) / (1 + np.exp([1.0, 0.0, -1.0])))
    assert bandwidth == 1e-3


def test_rbf_by_hand() -> None:
    np.testing.assert_allclose(
        georoutenet.rbf(0.5, np.array([0.5, 0.3, 0.9]), 0.2), [1.0, exp(-1), exp(-4)], rtol=1e-12
    )


def test_edge_embedding_by_hand() -> None:
    one = {
        "rbf.centers": np.array([0.0]),  # mu = sqrt(2) / 2
        "rbf.log_bandwidth": np.array(0.0),  # sigma = 1
        "edge_input.0.weight": np.array([[2.0]]),
        "edge_input.0.bias": np.array([-1.0]),
        "edge_input.2.weight": np.array([[3.0]]),
        "edge_input.2.bias": np.array([0.25]),
    }
    # At the center phi = 1, so the inner layer gives SiLU(1) = e / (1 + e).
    np.testing.assert_allclose(georoutenet.edge_embedding(sqrt(2) / 2, one), 3 * euler / (1 + euler) + 0.25)


# One GeoRouteNet layer


def identity_layer() -> georoutenet.Weights:
    """Two features, one head: identity projections, no bias, a distance coefficient of one."""
    layer = {f"layers.0.{name}.weight": np.eye(2) for name in ("query", "key", "value", "output")}
    layer |= {f"layers.0.{name}.bias": np.zeros(2) for name in ("query", "key", "value")}
    layer["layers.0.edge_bias.weight"] = np.array([[10.0, 0.0]])
    layer["layers.0.edge_value.weight"] = np.array([[0.0, 1.0], [0.0, 0.0]])
    layer["layers.0.distance"] = np.array(log(euler - 1))  # softplus gives 1
    return layer


def test_attention_logit_by_hand() -> None:
    logit = georoutenet.attention_logit(
        np.array([1.0, 2.0]),
        np.array([3.0, 4.0]),
        np.array([0.5, 7.0]),
        0.75,
        identity_layer(),
        layer=0,
        head=0,
        heads=1,
    )
    assert logit == pytest.approx(11 / sqrt(2) + 5 - 0.75)


def test_attention_weights_and_message_by_hand() -> None:
    # Equal products and edge biases: only the distances (0 and log 3) tell the two neighbors apart.
    h = [np.array([0.0, 0.0]), np.array([4.0, 8.0]), np.array([99.0, 99.0])]
    e = [[np.array([0.0, 0.0]), np.array([0.0, 12.0]), np.array([5.0, 5.0])]]
    d = np.array([[0.0, log(3), 0.1]])
    layer = identity_layer()
    alpha = georoutenet.attention_weights(0, h, e, d, [0, 1], layer, layer=0, head=0, heads=1)
    np.testing.assert_allclose(alpha, [0.75, 0.25])
    g = georoutenet.node_message(0, h, e, d, [0, 1], layer, layer=0, heads=1)
    np.testing.assert_allclose(g, [0.25 * (4 + 12), 0.25 * 8])


def test_softmax_rows_sum_to_one(rng: np.random.Generator, weights: georoutenet.Weights) -> None:
    coords = rng.random((6, 2))
    d, h = georoutenet.distance(coords), vectors(rng, 6)
    e = [vectors(rng, 6) for _ in range(6)]
    for i in range(6):
        for head in range(2):
            options = {"layer": 1, "head": head, "heads": 2}
            members = georoutenet.neighborhood(d, i, 3)
            alpha = georoutenet.attention_weights(i, h, e, d, members, weights, **options)
            assert len(alpha) == 4
            assert sum(alpha) == pytest.approx(1.0)
            assert max(alpha) > 0.3  # random weights keep the softmax away from uniform
        beta = georoutenet.residual_attention(h[i], vectors(rng, 3), weights, layer=2)
        assert sum(beta) == pytest.approx(1.0)


def test_residual_by_hand() -> None:
    layer = {
        "layers.1.residual_query.weight": np.eye(2),
        "layers.1.residual_key.weight": np.array([[0.0, 1.0], [0.0, 0.0]]),
        "layers.1.norm1.weight": np.ones(2),
        "layers.1.norm1.bias": np.zeros(2),
    }
    g = np.array([sqrt(2), 5.0])
    history = [np.array([8.0, 0.0]), np.array([0.0, log(3)])]
    beta = georoutenet.residual_attention(g, history, layer, layer=1)
    np.testing.assert_allclose(beta, [0.25, 0.75])  # logits 0 and log 3
    mixed = g + np.array([2.0, 0.75 * log(3)])  # the values are the states themselves, unprojected
    half = (mixed[1] - mixed[0]) / 2
    expected = np.array([-half, half]) / sqrt(half**2 + 1e-5)
    np.testing.assert_allclose(georoutenet.residual_mix(g, history, layer, layer=1), expected)
    assert georoutenet.residual_attention(g, history[:1], layer, layer=1) == [1.0]


def test_swiglu_by_hand() -> None:
    layer = {
        "layers.0.ffn_gate.weight": np.array([[1.0], [0.0]]),
        "layers.0.ffn_gate.bias": np.array([0.0, 1.0]),
        "layers.0.ffn_value.weight": np.array([[2.0], [0.0]]),
        "layers.0.ffn_value.bias": np.array([1.0, 5.0]),
        "layers.0.ffn_output.weight": np.array([[1.0, 10.0]]),
        "layers.0.ffn_output.bias": np.array([0.5]),
    }
    gate = euler / (1 + euler)  # SiLU(1), in both inner features when x = 1
    np.testing.assert_allclose(georoutenet.swiglu(np.ones(1), layer, layer=0), gate * (3 + 10 * 5) + 0.5)


def test_edge_proposal_tells_source_from_target() -> None:
    layer = {
        "layers.0.edge_update.weight": np.array([[1.0]]),
        "layers.0.edge_update.bias": np.array([0.125]),
        "layers.0.source.weight": np.array([[10.0]]),
        "layers.0.target.weight": np.array([[100.0]]),
    }
    e_ij, h_i, h_j = np.array([0.5]), np.array([2.0]), np.array([3.0])
    assert georoutenet.edge_proposal(e_ij, h_i, h_j, layer, layer=0) == pytest.approx(320.625)


def test_edge_head_by_hand() -> None:
    head = {
        "edge_head.0.weight": np.eye(2),
        "edge_head.0.bias": np.array([0.0, 1.0]),
        "edge_head.2.weight": np.array([[2.0, 7.0]]),
        "edge_head.2.bias": np.array([-0.5]),
    }
    assert georoutenet.edge_head(np.array([3.0, -4.0]), head) == pytest.approx(5.5)


# GeoRouteNet as a whole


@pytest.mark.parametrize("n", [1, 2, 3, 9])
def test_georoutenet_scores(n: int, rng: np.random.Generator, weights: georoutenet.Weights) -> None:
    start, logits = georoutenet.scores(rng.random((n, 2)), weights, **RUN)
    assert start.shape == (n,)
    assert logits.shape == (n, n)
    assert start.sum() == pytest.approx(1.0)
    assert np.isfinite(logits).all()


@BOTH
def test_scores_follow_the_order_of_the_nodes(module, rng: np.random.Generator) -> None:
    weights = module.random_weights(**SMALL, rng=rng)
    coords, order = rng.random((7, 2)), rng.permutation(7)

    def run(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if module is georoutenet:
            return module.scores(points, weights, **RUN)
        start, logits = module.scores(points[None], weights, **RUN)
        return start[0], logits[0]

    start, logits = run(coords)
    moved_start, moved_logits = run(coords[order])
    np.testing.assert_allclose(moved_start, start[order], rtol=1e-9)
    np.testing.assert_allclose(moved_logits, logits[np.ix_(order, order)], rtol=1e-9, atol=1e-12)
    assert not np.allclose(logits, logits.T, rtol=1e-3)  # directed


def test_coincident_points_score_alike(weights: georoutenet.Weights) -> None:
    start, logits = georoutenet.scores(np.full((4, 2), 0.3), weights, **RUN)
    np.testing.assert_allclose(start, 0.25)
    np.testing.assert_allclose(logits, logits[0, 0])


@BOTH
def test_every_parameter_but_the_named_ones_changes_the_scores(module, rng: np.random.Generator) -> None:
    """Guards against a function that forgets a weight; the exceptions cancel by arithmetic or are unread."""
    weights = module.random_weights(**SMALL, rng=rng)
    coords = rng.random((5, 2)) if module is georoutenet else rng.random((3, 4, 2))
    before = module.scores(coords, weights, **RUN)
    unchanged = set()
    for name in weights:
        changed = dict(weights)
        changed[name] = weights[name] + 0.5 * rng.normal(size=weights[name].shape)
        after = module.scores(coords, changed, **RUN)
        if all(np.allclose(x, y, rtol=1e-9, atol=1e-12) for x, y in zip(before, after, strict=True)):
            unchanged.add(name)
    # A key's bias adds the same number to every logit of a softmax.
    expected = {f"layers.{layer}.start_attention.key.bias" for layer in range(3)}
    if module is georoutenet:
        # With a history of one state there is nothing to weigh.
        expected |= {f"layers.{layer}.key.bias" for layer in range(3)}
        expected |= {"layers.0.residual_query.weight", "layers.0.residual_key.weight"}
    else:
        unread = ("start_attention.value", "start_attention.output", "start_norm")
        expected |= {f"layers.2.{name}.{part}" for name in unread for part in ("weight", "bias")}
        # A shift common to the whole batch is taken off by the norm that follows.
        expected |= {
            f"layers.{layer}.start_attention.{name}.bias" for layer in (0, 1) for name in ("value", "output")
        }
    assert unchanged == expected


def count(shapes: dict[str, tuple[int, ...]]) -> int:
    return sum(int(np.prod(shape)) for shape in shapes.values())


def test_parameter_counts() -> None:
    published = {"hidden": 128, "heads": 8, "layers": 6}
    assert count(nar4tsp.shapes(**published)) == 912_417
    lean = count(georoutenet.shapes(**published))
    unread = 2 * (128 * 128 + 128)  # value and output of the last start attention
    assert lean == 1_991_320
    assert lean + unread == 2_024_344  # 2.024 M, as the paper counts


# NAR4TSP


def test_nar4tsp_attention_logit_by_hand() -> None:
    layer = {
        "layers.0.node.weight": np.eye(4),
        "layers.0.edge.weight": 2 * np.eye(4),
        "layers.0.attention": np.array([1.0, 0.0, 10.0, 0.0, 100.0, -1.0]),
    }
    h_i, h_j, e_ij = np.array([1.0, 2, 3, 4]), np.array([5.0, 6, 7, 8]), np.array([0.5, 1, -1, 1])
    options = {"layer": 0, "heads": 2}
    assert nar4tsp.attention_logit(h_i, h_j, e_ij, layer, head=0, **options) == pytest.approx(
        1 + 50 + 100 - 2
    )
    negative = 3 + 70 - 200 - 2  # the second head, with the same vector
    assert nar4tsp.attention_logit(h_i, h_j, e_ij, layer, head=1, **options) == pytest.approx(0.2 * negative)


def test_nar4tsp_message_reads_masked_node_values_only() -> None:
    layer = {
        "layers.0.node.weight": np.eye(2),
        "layers.0.edge.weight": np.eye(2),
        "layers.0.attention": np.array([0.0, 0.0, 0.0, 0.0, 1.0, 0.0]),
    }
    h = [np.array([1.0, 0.0]), np.array([0.0, 4.0]), np.array([50.0, 50.0])]
    e = [[np.array([0.0, 9.0]), np.array([log(3), 9.0]), np.array([9.0, 9.0])]]
    np.testing.assert_allclose(
        nar4tsp.node_message(0, h, e, [0, 1], layer, layer=0, heads=1), [0.25, 3.0], rtol=1e-12
    )


def test_batch_norm_by_hand_and_against_torch(rng: np.random.Generator) -> None:
    plain = {"norm.weight": np.array([2.0]), "norm.bias": np.array([1.0])}
    normed = nar4tsp.batch_norm([np.array([0.0]), np.array([4.0])], plain, "norm")
    np.testing.assert_allclose(np.ravel(normed), 1 + 2 * np.array([-2.0, 2.0]) / sqrt(4 + 1e-5))
    x, scale, shift = rng.normal(size=(9, 3)), rng.random(3), rng.random(3)
    ours = nar4tsp.batch_norm(list(x), {"norm.weight": scale, "norm.bias": shift}, "norm")
    theirs = torch.nn.functional.batch_norm(
        torch.from_numpy(x), None, None, torch.from_numpy(scale), torch.from_numpy(shift), training=True
    )
    np.testing.assert_allclose(np.array(ours), theirs, rtol=1e-10)


def test_batch_norms_see_the_whole_batch(
    rng: np.random.Generator, nar_weights: nar4tsp.Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    original = nar4tsp.batch_norm

    def spy(states, weights, name, **options):
        seen.append((name, len(states)))
        return original(states, weights, name, **options)

    monkeypatch.setattr(nar4tsp, "batch_norm", spy)
    batch, n = 3, 5
    nar4tsp.scores(rng.random((batch, n, 2)), nar_weights, **RUN)
    sizes = [("node_norm", batch * n), ("edge_norm", batch * n * n), ("start_norm", batch)]
    expected = [(f"layers.{layer}.{name}", size) for layer in range(3) for name, size in sizes]
    assert seen == expected[:-1]  # the last layer reads its weights and updates no start symbol
    seen.clear()
    nar4tsp.scores(rng.random((1, n, 2)), nar_weights, **RUN)
    assert not [name for name, _ in seen if name.endswith("start_norm")]


def test_statistics_of_the_batch_given_back_change_nothing(
    rng: np.random.Generator, nar_weights: nar4tsp.Weights
) -> None:
    coords = rng.random((3, 5, 2))
    record: nar4tsp.Statistics = {}
    start, logits = nar4tsp.scores(coords, nar_weights, **RUN, record=record)
    assert set(record) == set(nar4tsp.random_statistics(hidden=4, layers=3, rng=rng))
    again_start, again_logits = nar4tsp.scores(coords, nar_weights, **RUN, statistics=record)
    np.testing.assert_allclose(again_start, start, rtol=1e-12)
    np.testing.assert_allclose(again_logits, logits, rtol=1e-12)
    # Frozen, an instance does not depend on its neighbors in the batch, and one alone is not special.
    alone_start, alone_logits = nar4tsp.scores(coords[1:2], nar_weights, **RUN, statistics=record)
    np.testing.assert_allclose(alone_start[0], start[1], rtol=1e-12)
    np.testing.assert_allclose(alone_logits[0], logits[1], rtol=1e-12)


def test_single_instance_skips_the_start_norm(rng: np.random.Generator, nar_weights: nar4tsp.Weights) -> None:
    coords = rng.random((1, 5, 2))
    start, logits = nar4tsp.scores(coords, nar_weights, **RUN)
    changed = {k: v * 3 + 1 if ".start_norm." in k else v for k, v in nar_weights.items()}
    same_start, same_logits = nar4tsp.scores(coords, changed, **RUN)
    np.testing.assert_array_equal(same_start, start)
    np.testing.assert_array_equal(same_logits, logits)
    twice_start, twice_logits = nar4tsp.scores(np.repeat(coords, 2, axis=0), nar_weights, **RUN)
    np.testing.assert_allclose(twice_logits[0], logits[0], rtol=1e-9)
    assert not np.allclose(twice_start[0], start[0], rtol=1e-3)
    np.testing.assert_allclose(twice_start.sum(axis=1), 1.0)


def test_coincident_nodes_of_nar4tsp_start_alike(nar_weights: nar4tsp.Weights) -> None:
    start, logits = nar4tsp.scores(np.stack([SQUARE, np.full((4, 2), 0.5)]), nar_weights, **RUN)
    np.testing.assert_allclose(start[1], 0.25)
    np.testing.assert_allclose(logits[1], logits[1, 0, 0])
    assert np.isfinite(logits).all()
