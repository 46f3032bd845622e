"""The fast encoders against the literal ones, equation by equation and end to end."""

from __future__ import annotations

import literal_georoutenet as literal
import literal_nar4tsp
import numpy as np
import pytest
import torch

from georoutenet.model.config import PolicyConfig
from georoutenet.model.georoutenet import RadialBasis, node_features
from georoutenet.policy import Policy

SMALL = {"hidden": 16, "heads": 4, "layers": 3}


def grid(side: int) -> np.ndarray:
    """Multiples of 1/8: all ties are exact in any precision."""
    return np.stack(np.meshgrid(np.arange(side), np.arange(side)), -1).reshape(-1, 2) / 8.0


def load(
    encoder: str, weights: dict[str, np.ndarray], statistics: dict[str, np.ndarray] | None = None, **sizes
):
    policy = Policy(PolicyConfig(encoder=encoder, **sizes)).double().eval()
    tensors = {name: torch.as_tensor(value) for name, value in (weights | (statistics or {})).items()}
    missing, unknown = policy.encoder.load_state_dict(tensors, strict=False)
    assert not unknown
    last = f"layers.{policy.config.layers - 1}.start"
    allowed = [".mean", ".variance"] if encoder == "nar4tsp" and statistics is None else []
    assert all(name.startswith(last) or name.endswith(tuple(allowed)) for name in missing)
    return policy


CASES = [
    *[
        (f"uniform {n}", np.random.default_rng(n).random((n, 2)), SMALL)
        for n in (1, 2, 3, 5, 11, 12, 50, 101)
    ],
    ("full size", np.random.default_rng(0).random((12, 2)), {"hidden": 128, "heads": 8, "layers": 6}),
    ("grid", grid(5), SMALL),
    ("coincident", np.repeat(np.random.default_rng(1).random((4, 2)), 4, axis=0), SMALL),
    ("one place", np.full((13, 2), 0.25), SMALL),
]


@pytest.mark.parametrize(("name", "coords", "sizes"), CASES, ids=[case[0] for case in CASES])
def test_georoutenet_equals_the_literal_version(name: str, coords: np.ndarray, sizes: dict[str, int]) -> None:
    weights = literal.random_weights(**sizes, rng=np.random.default_rng(7))
    policy = load("georoutenet", weights, **sizes)
    start, logits = literal.scores(
        coords, weights, heads=sizes["heads"], layers=sizes["layers"], neighbors=10
    )
    for enabled in (False, True):  # blocks of rows without gradients, everything at once with them
        policy.pairs_per_block = 60
        with torch.set_grad_enabled(enabled):
            scores = policy(torch.from_numpy(coords)[None])
        np.testing.assert_allclose(scores.start[0].exp().detach(), start, rtol=0, atol=1e-10)
        np.testing.assert_allclose(scores.logits[0].detach(), logits, rtol=1e-10, atol=1e-10)


NAR_CASES = [case for case in CASES if case[0] not in ("uniform 101", "uniform 11")]


@pytest.mark.parametrize(("name", "coords", "sizes"), NAR_CASES, ids=[case[0] for case in NAR_CASES])
@pytest.mark.parametrize("statistics", ["batch", "frozen"])
def test_nar4tsp_equals_the_literal_version(
    name: str, coords: np.ndarray, sizes: dict[str, int], statistics: str
) -> None:
    rng = np.random.default_rng(3)
    weights = literal_nar4tsp.random_weights(**sizes, rng=rng)
    batch = coords[None] if name == "uniform 50" else np.stack([coords, coords[::-1] * 0.5])
    frozen = None
    if statistics == "frozen":
        frozen = literal_nar4tsp.random_statistics(hidden=sizes["hidden"], layers=sizes["layers"], rng=rng)
    settings = {"heads": sizes["heads"], "layers": sizes["layers"], "neighbors": 10}
    start, logits = literal_nar4tsp.scores(batch, weights, **settings, statistics=frozen)
    policy = load("nar4tsp", weights, frozen, **sizes)
    policy.statistics = statistics
    policy.pairs_per_block = 60
    with torch.no_grad():
        scores = policy(torch.from_numpy(batch.copy()))
    if name == "one place" and statistics == "batch":
        # The variance over identical cities is nothing but rounding; only a common value can be asked for.
        assert torch.isfinite(scores.logits).all()
        return
    np.testing.assert_allclose(scores.start.exp(), start, rtol=0, atol=1e-10)
    np.testing.assert_allclose(scores.logits, logits, rtol=1e-9, atol=1e-9)


def test_collected_statistics_are_those_of_the_batch() -> None:
    sizes = {"hidden": 8, "heads": 2, "layers": 2}
    rng = np.random.default_rng(5)
    weights = literal_nar4tsp.random_weights(**sizes, rng=rng)
    batch = rng.random((4, 9, 2))
    record: dict[str, np.ndarray] = {}
    start, logits = literal_nar4tsp.scores(batch, weights, heads=2, layers=2, neighbors=10, record=record)
    policy = load("nar4tsp", weights, **sizes)
    policy.collect_statistics(torch.from_numpy(batch))
    state = policy.encoder.state_dict()
    for name, value in record.items():
        np.testing.assert_allclose(state[name], value, atol=1e-10)
    with torch.no_grad():
        scores = policy(torch.from_numpy(batch))  # the same batch, frozen: the same scores
    np.testing.assert_allclose(scores.logits, logits, atol=1e-9)
    np.testing.assert_allclose(scores.start.exp(), start, atol=1e-10)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-4), (torch.bfloat16, 0.12)])
def test_lower_precision_stays_near_the_literal_version(dtype: torch.dtype, tolerance: float) -> None:
    """Relative to the spread of the logits; default initialization, full size, n = 50."""
    torch.manual_seed(0)
    policy = Policy().eval()
    coords = torch.rand(2, 50, 2)
    with torch.no_grad():
        exact = policy.double()(coords.double())
        policy.float().compute_dtype = dtype
        scores = policy(coords)
    assert scores.logits.dtype == torch.float32
    assert (scores.logits - exact.logits).abs().max() < tolerance * exact.logits.std()
    assert (scores.start - exact.start).abs().max() < tolerance


def test_initial_radial_basis() -> None:
    basis = RadialBasis(16)
    a, rho = literal.rbf_initialization(16)
    np.testing.assert_allclose(basis.centers.detach(), a, rtol=1e-4)
    np.testing.assert_allclose(basis.log_bandwidth.detach(), rho, rtol=1e-6)
    basis.log_bandwidth.data.fill_(-50.0)  # the floor of the bandwidth
    assert torch.isfinite(basis(torch.tensor([0.0, 0.5]))).all()


def test_node_features_by_hand() -> None:
    features = node_features(torch.tensor([[[0.0, 0.0], [1.0, 0.0], [0.5, 0.75]]]))
    expected = [[0, 0, -0.5, -0.25], [1, 0, 0.5, -0.25], [0.5, 0.75, 0, 0.5]]
    np.testing.assert_allclose(features[0, :, :4], expected, atol=1e-7)
    np.testing.assert_allclose(features[0, :, 4], [0.3125**0.5, 0.3125**0.5, 0.5], atol=1e-7)


@pytest.mark.parametrize(("encoder", "count"), [("georoutenet", 2_024_344), ("nar4tsp", 912_417)])
def test_parameter_count(encoder: str, count: int) -> None:
    assert Policy(PolicyConfig(encoder=encoder)).parameter_count() == count
