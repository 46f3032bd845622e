"""Weights files: what comes back, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from georoutenet.errors import InputError
from georoutenet.model.config import PolicyConfig
from georoutenet.policy import Policy, weights
from georoutenet.policy.weights import find_weights, load_policy, packaged_weights, read_card, save_weights

CONFIG = PolicyConfig(hidden=8, heads=2, layers=2)


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Policy, Path]:
    policy = Policy(CONFIG).eval()
    path = tmp_path / "model.safetensors"
    save_weights(path, policy, {"description": "a test", "seed": 7})
    return policy, path


def test_round_trip(saved: tuple[Policy, Path]) -> None:
    policy, path = saved
    loaded = load_policy(path)
    assert loaded.config == CONFIG
    assert not loaded.training
    coords = torch.rand(2, 6, 2)
    with torch.no_grad():
        assert torch.equal(loaded(coords).logits, policy(coords).logits)
    config, card = read_card(path)
    assert config == CONFIG
    assert card == {"description": "a test", "seed": 7}


def test_frozen_statistics_are_stored(tmp_path: Path) -> None:
    policy = Policy(PolicyConfig(encoder="nar4tsp", hidden=8, heads=2, layers=2)).eval()
    policy.collect_statistics(torch.rand(8, 10, 2))
    save_weights(tmp_path / "nar.safetensors", policy)
    coords = torch.rand(2, 6, 2)
    with torch.no_grad():
        assert torch.equal(load_policy(tmp_path / "nar.safetensors")(coords).logits, policy(coords).logits)


def rewrite(path: Path, **header: str) -> None:
    tensors = load_file(path)
    standard = {
        "format": weights.FORMAT,
        "version": "1",
        "config": json.dumps(CONFIG.to_dict()),
        "card": "{}",
    }
    save_file(tensors, path, metadata=standard | header)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"format": "pt"}, "not a GeoRouteNet weights file"),
        ({"version": "2"}, "please update"),
        ({"version": "two"}, "damaged"),
        ({"config": "{"}, "damaged"),
        ({"config": '{"depth": 3}'}, "unknown policy setting 'depth'"),
        ({"config": json.dumps(PolicyConfig(encoder="nar4tsp").to_dict())}, "another architecture"),
        (
            {"config": json.dumps(PolicyConfig(hidden=16, heads=2, layers=2).to_dict())},
            "another architecture",
        ),
    ],
)
def test_headers_of_other_files(saved: tuple[Policy, Path], header: dict[str, str], message: str) -> None:
    _, path = saved
    rewrite(path, **header)
    with pytest.raises(InputError, match=message) as caught:
        load_policy(path)
    assert str(path) in str(caught.value)


def test_damaged_files(saved: tuple[Policy, Path]) -> None:
    _, path = saved
    whole = path.read_bytes()
    for damaged in (
        b"",
        whole[:4],
        whole[: len(whole) // 2],
        b"PK" + whole[2:],
        whole[:8] + b"x" + whole[9:],
    ):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match="damaged"):
            load_policy(path)


def test_a_pickle_is_not_opened(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    torch.save({"a": torch.zeros(1)}, path)
    with pytest.raises(InputError, match="damaged or not a weights file"):
        load_policy(path)


def test_values_that_are_not_finite(saved: tuple[Policy, Path]) -> None:
    policy, path = saved
    before = path.read_bytes()
    with torch.no_grad():
        policy.encoder.node_input.bias[0] = torch.nan
    with pytest.raises(InputError, match=r"node_input\.bias"):
        save_weights(path, policy)
    assert path.read_bytes() == before
    tensors = load_file(path)
    tensors["node_input.bias"][0] = torch.inf
    save_file(tensors, path)
    rewrite(path)
    with pytest.raises(InputError, match="not finite"):
        load_policy(path)


def test_packaged_names(tmp_path: Path, saved: tuple[Policy, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "PACKAGED", tmp_path)
    assert packaged_weights() == {"model": saved[1]}
    assert find_weights("model") == saved[1]
    with pytest.raises(InputError, match=r"packaged: model"):
        load_policy("georoutenet-51")


def test_every_packaged_file_loads() -> None:
    for name in packaged_weights():
        _, card = read_card(name)
        assert card["description"]
        load_policy(name)
