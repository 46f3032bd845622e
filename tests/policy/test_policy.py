"""What must hold of any policy: equivariance, batches, sparse scores, gradients, clear errors."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from emulated import emulate_gpu

from georoutenet.errors import InputError
from georoutenet.model.config import PolicyConfig
from georoutenet.model.geometry import Neighborhood, neighborhood
from georoutenet.model.georoutenet import GeoRouteNet, NodeStates
from georoutenet.policy import Policy

ENCODERS = ["georoutenet", "nar4tsp"]


@pytest.fixture(params=["georoutenet square", "georoutenet density", "georoutenet reach", "nar4tsp square"])
def policy(request: pytest.FixtureRequest) -> Policy:
    torch.manual_seed(1)
    encoder, unit = request.param.split()
    units = {"unit": "density", "reach": 0.3} if unit == "reach" else {"unit": unit}
    config = PolicyConfig.from_dict({"encoder": encoder, **units, "hidden": 16, "heads": 4, "layers": 3})
    policy = Policy(config).double().eval()
    with torch.no_grad():  # away from the initial zeros and ones
        for parameter in policy.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    policy.collect_statistics(torch.rand(16, 20, 2))
    return policy


@torch.no_grad()
def test_relabeling_cities_permutes_the_scores(policy: Policy) -> None:
    coords = torch.rand(1, 30, 2, dtype=torch.float64)
    order = torch.randperm(30)
    scores, relabeled = policy(coords), policy(coords[:, order])
    torch.testing.assert_close(relabeled.start, scores.start[:, order])
    torch.testing.assert_close(relabeled.logits, scores.logits[:, order][:, :, order])


@torch.no_grad()
def test_a_batch_equals_its_members(policy: Policy) -> None:
    coords = torch.rand(5, 17, 2, dtype=torch.float64)
    batch = policy(coords)
    for b in range(5):
        alone = policy(coords[b : b + 1])
        torch.testing.assert_close(alone.logits, batch[b].logits)
        torch.testing.assert_close(alone.start, batch[b].start)


@torch.no_grad()
@pytest.mark.parametrize("n", [2, 5, 12, 40])
def test_sparse_equals_dense_on_its_pairs(policy: Policy, n: int) -> None:
    coords = torch.rand(3, n, 2, dtype=torch.float64)
    dense = policy(coords)
    for candidates in (1, 4, 32, n + 5):
        sparse = policy(coords, candidates=candidates)
        assert sparse.neighbors.shape == (3, n, min(candidates, n - 1))
        torch.testing.assert_close(sparse.logits, dense.logits.gather(2, sparse.neighbors))
        torch.testing.assert_close(sparse.start, dense.start)
    b, i, j = (torch.randint(0, high, (50,)) for high in (3, n, n))
    torch.testing.assert_close(sparse.pair_logits(b, i, j), dense.logits[b, i, j])
    one = sparse[2]
    torch.testing.assert_close(one.pair_logits(torch.zeros_like(b), i, j), dense.logits[2, i, j])


@torch.no_grad()
def test_wide_neighborhoods_are_held_a_few_at_a_time(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cities at one place all tie: one such instance made all others of its batch as wide, in gigabytes."""
    coords = torch.rand(6, 30, 2, dtype=torch.float64)
    coords[3, :25] = coords[3, :1]
    whole, sparse = policy(coords), policy(coords, candidates=5)
    held: list[tuple[int, int]] = []
    nodes = policy.encoder.nodes

    def seen(some: torch.Tensor, near: Neighborhood, *others: object) -> NodeStates:
        held.append((near.index.numel(), len(some)))
        return nodes(some, near, *others)

    monkeypatch.setattr(policy.encoder, "nodes", seen)
    monkeypatch.setattr("georoutenet.policy.policy.NEIGHBORS_AT_A_TIME", 2 * 30 * 30)
    for alone in (policy(coords).logits - whole.logits, policy(coords, candidates=5).logits - sparse.logits):
        assert alone.abs().max() < 1e-12
    assert len(held) == 6  # two at a time, twice
    assert sorted(held)[0][0] < 2 * 30 * 20  # as narrow as their own
    torch.testing.assert_close(policy(coords).start, whole.start)


@torch.no_grad()
def test_blocks_change_nothing(policy: Policy) -> None:
    coords = torch.rand(2, 23, 2, dtype=torch.float64)
    whole = policy(coords)
    policy.pairs_per_block = 1
    pieces = policy(coords)
    torch.testing.assert_close(pieces.logits, whole.logits)
    torch.testing.assert_close(pieces.start, whole.start)


@torch.no_grad()
def test_one_city(policy: Policy) -> None:
    coords = torch.rand(2, 1, 2, dtype=torch.float64)
    assert policy(coords).logits.shape == (2, 1, 1)
    assert policy(coords, candidates=3).logits.shape == (2, 1, 0)
    torch.testing.assert_close(policy(coords).start, torch.zeros(2, 1, dtype=torch.float64))


@pytest.mark.parametrize("encoder", ENCODERS)
def test_gradients_agree_with_finite_differences(encoder: str) -> None:
    torch.manual_seed(2)
    policy = Policy(PolicyConfig(encoder=encoder, hidden=4, heads=2, layers=2, neighbors=3, rbf=3)).double()
    coords = torch.rand(2, 6, 2, dtype=torch.float64)
    weight = torch.randn(2, 6, 6, dtype=torch.float64)

    def value() -> torch.Tensor:
        start, logits = policy.dense(coords)
        return (logits * weight).sum() + (start * weight[:, 0]).sum()

    value().backward()
    for name, parameter in policy.named_parameters():
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        flat = parameter.data.view(-1)
        for entry in torch.randperm(flat.numel())[:2].tolist():
            step = 1e-6
            kept = flat[entry].item()
            with torch.no_grad():
                flat[entry] = kept + step
                above = value()
                flat[entry] = kept - step
                below = value()
                flat[entry] = kept
            expected = (above - below).item() / (2 * step)
            assert gradient.view(-1)[entry].item() == pytest.approx(expected, rel=2e-4, abs=2e-7), name


def test_static_width_changes_nothing_without_ties() -> None:
    torch.manual_seed(3)
    policy = Policy(PolicyConfig(hidden=16, heads=4, layers=2))
    coords = torch.rand(3, 30, 2)
    for left, right in zip(policy.dense(coords), policy.dense(coords, width=14), strict=True):
        torch.testing.assert_close(left, right)


@pytest.mark.parametrize("encoder", ENCODERS)
def test_compiled_equals_eager(encoder: str) -> None:
    torch.manual_seed(5)
    policy = Policy(PolicyConfig(encoder=encoder, hidden=16, heads=4, layers=2))
    coords = torch.rand(2, 15, 2)
    compiled = torch.compile(policy.dense, backend="eager", fullgraph=True)
    for left, right in zip(policy.dense(coords, width=11), compiled(coords, width=11), strict=True):
        torch.testing.assert_close(left, right)


def test_training_mode_of_nar4tsp_uses_the_batch() -> None:
    torch.manual_seed(4)
    policy = Policy(PolicyConfig(encoder="nar4tsp", hidden=8, heads=2, layers=2))
    coords = torch.rand(3, 7, 2)
    with pytest.raises(InputError, match="no frozen statistics"):
        policy.eval()(coords)
    policy.train()
    with torch.no_grad():
        together, alone = policy(coords), policy(coords[:1])
    assert not torch.allclose(together.logits[:1], alone.logits)
    policy.eval()
    policy.statistics = "batch"
    with torch.no_grad():
        torch.testing.assert_close(policy(coords).logits, together.logits)
        with pytest.raises(InputError, match="frozen"):
            policy(coords, candidates=3)


def test_kernels_read_weights_in_float32_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    emulate_gpu(monkeypatch, hopper=True)
    policy = Policy(PolicyConfig(layers=1))
    assert not policy.is_fused()
    policy.compute_dtype = torch.bfloat16
    assert policy.is_fused()
    assert policy.form(torch.rand(1, 20, 2), 11) == "cuda hopper"
    policy.fused = False
    assert policy.form(torch.rand(1, 20, 2), 11) == "all pairs"
    policy.fused = True
    for dtype in (torch.bfloat16, torch.float64):
        assert not policy.to(dtype).is_fused()


def test_settings_are_arguments() -> None:
    policy = Policy(
        PolicyConfig(encoder="nar4tsp", hidden=8, heads=2, layers=1),
        compute_dtype=torch.bfloat16,
        statistics="batch",
        fused=False,
        recompute=2,
    ).eval()
    assert (policy.compute_dtype, policy.fused, policy.recompute) == (torch.bfloat16, False, 2)
    with torch.no_grad():
        assert policy(torch.rand(2, 5, 2)).logits.shape == (2, 5, 5)


@torch.no_grad()
def test_bad_input_is_refused(policy: Policy) -> None:
    with pytest.raises(InputError, match=r"\(B, n, 2\)"):
        policy(torch.rand(5, 2))
    with pytest.raises(InputError, match=r"\(B, n, 2\)"):
        policy(torch.zeros(1, 0, 2))
    with pytest.raises(InputError, match="floating point"):
        policy(torch.zeros(1, 3, 2, dtype=torch.long))
    with pytest.raises(InputError, match="finite"):
        policy(torch.full((1, 3, 2), torch.nan))
    with pytest.raises(InputError, match="at least 1"):
        policy(torch.rand(1, 3, 2), candidates=0)
    policy.statistics = "running"
    with pytest.raises(InputError, match="frozen, batch"):
        policy(torch.rand(1, 3, 2))


@pytest.mark.parametrize(
    "settings",
    [
        {"encoder": "gcn"},
        {"hidden": 0},
        {"heads": 3},
        {"layers": 1.5},
        {"neighbors": -1},
        {"rbf": 1},
        {"unit": "mile"},
        {"unit": "density", "encoder": "nar4tsp"},
        {"reach": -1.0},
        {"reach": float("nan")},
        {"reach": "far"},
        {"reach": 1.0, "encoder": "nar4tsp"},
    ],
)
def test_bad_configurations_are_refused(settings: dict) -> None:
    with pytest.raises(InputError, match=next(iter(settings))):
        PolicyConfig(**settings)


@torch.no_grad()
def test_the_unit_of_density_scales_distances_alone() -> None:
    """At 50 cities it is the paper's; at 200 the edges look as those of the instance twice as wide."""
    torch.manual_seed(3)
    square = Policy(PolicyConfig(hidden=16, heads=4, layers=2)).double().eval()
    density = Policy(PolicyConfig(hidden=16, heads=4, layers=2, unit="density")).double().eval()
    density.load_state_dict(square.state_dict())
    coords = torch.rand(2, 50, 2, dtype=torch.float64)
    torch.testing.assert_close(density(coords).logits, square(coords).logits)
    coords = torch.rand(2, 200, 2, dtype=torch.float64)
    assert not torch.allclose(density(coords).logits, square(coords).logits)
    torch.testing.assert_close(
        density._nodes(coords, density._near(density._scaled(coords))).start,
        _start_of_wider(square, coords, 2.0),
    )


@torch.no_grad()
def test_beyond_reach_all_distances_are_alike() -> None:
    torch.manual_seed(4)
    config = {"hidden": 16, "heads": 4, "layers": 2}
    plain = Policy(PolicyConfig.from_dict(config)).double().eval()
    near = Policy(PolicyConfig.from_dict({**config, "reach": 0.5})).double().eval()
    near.load_state_dict(plain.state_dict())
    coords = 0.3 * torch.rand(1, 30, 2, dtype=torch.float64)  # all within reach
    torch.testing.assert_close(near(coords).logits, plain(coords).logits)
    wide = torch.rand(1, 30, 2, dtype=torch.float64)
    seen = near._distances(wide.unsqueeze(2), wide.unsqueeze(1))
    assert seen.max() == 0.5
    assert not torch.allclose(near(wide).logits, plain(wide).logits)


def _start_of_wider(policy: Policy, coords: torch.Tensor, factor: float) -> torch.Tensor:
    """The start distribution with node features of ``coords`` and distances of ``factor * coords``."""
    encoder = policy.encoder
    assert isinstance(encoder, GeoRouteNet)
    near = neighborhood(factor * coords, policy.config.neighbors)
    return encoder.nodes(coords, near, torch.float64, [slice(0, coords.shape[1])]).start


def test_unknown_settings_are_named() -> None:
    with pytest.raises(InputError, match="'depth'; allowed: encoder, hidden"):
        PolicyConfig.from_dict({"depth": 3})


def test_a_policy_needs_neither_compiler_nor_triton() -> None:
    """They take a second to import, and what a solver needs comes without."""
    code = "import sys, georoutenet.policy.policy; print({'triton', 'torch._dynamo'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
