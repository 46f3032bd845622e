"""``research/package.py``: trained weights go into the package with a card and their results."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from georoutenet.evaluate.packed import Packed
from georoutenet.evaluate.results import Results, Row, write_results
from georoutenet.io.packaged import packaged_weights
from georoutenet.model.config import PolicyConfig
from georoutenet.policy.policy import Policy
from georoutenet.policy.weights import digest, load_policy, read_card, save_weights
from research import package as module

CARD = {
    "recipe": {"budget_seconds": 60.0},
    "instances": 1_000,
    "training_seconds": 30.0,
    "commit": "abc",
    "seed": 1,
}


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    for name in ("PACKAGED", "RESULTS"):
        (tmp_path / name).mkdir()
        monkeypatch.setattr(module, name, tmp_path / name)
    return module


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    torch.manual_seed(3)
    path = tmp_path / "best.safetensors"
    save_weights(path, Policy(PolicyConfig(hidden=16, heads=2, layers=1, rbf=4)), CARD)
    return path


def evaluated(folder: Path, weights: Path, **other: str) -> None:
    header = {
        "weights": "best",
        "sha256": sha256(weights),
        "set": "test20",
        "decoder": "beam",
        "width": "100",
    }
    rows = [Row("test20-0", 20, 4.0, 4.0), Row("test20-1", 20, 4.2, 4.0)]
    folder.mkdir(exist_ok=True)
    write_results(folder / "test20-beam-100.csv.gz", Results({**header, **other}, rows))


def package(script: ModuleType, monkeypatch: pytest.MonkeyPatch, *arguments: Any) -> None:
    texts = ("--description", "d", "--training-data", "t", "--selection", "s")
    monkeypatch.setattr(sys, "argv", ["package.py", "tiny", *map(str, arguments), *texts])
    script.main()


def test_card_and_results_belong_to_the_packaged_file(
    script: ModuleType, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (script.RESULTS / "tiny.npz").write_text("of other weights")
    evaluated(tmp_path / "whole", trained)
    package(script, monkeypatch, "--weights", trained, "--results", tmp_path / "whole")

    made = script.PACKAGED / "tiny.safetensors"
    _, card = read_card(made)
    assert card["metrics"] == {
        "test20": {"beam-100": {"mean_length": 4.1, "gap_percent": 2.5, "instances": 2}}
    }
    assert (card["instances"], card["training_minutes"], card["description"]) == (1_000, 0.5, "d")
    for name, value in load_policy(trained).state_dict().items():
        assert torch.equal(value, load_policy(made).state_dict()[name])
    packed = Packed(script.RESULTS / "tiny.npz")
    assert packed.names == ["test20-beam-100"]
    header = packed.header("test20-beam-100")
    assert (header["weights"], header["sha256"], header["training_instances"]) == (
        "tiny",
        sha256(made),
        "1000",
    )
    assert sha256(trained) in header["note"]


@pytest.mark.parametrize("name", packaged_weights())
def test_results_are_those_of_the_packaged_weights(name: str) -> None:
    packed = Packed(module.RESULTS / f"{name}.npz")
    assert {packed.header(cell)["sha256"] for cell in packed.names} == {digest(name)}


def test_stages_add_up(
    script: ModuleType, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluated(tmp_path / "whole", trained)
    for _ in range(2):
        package(script, monkeypatch, "--weights", trained, "--results", tmp_path / "whole")
    _, card = read_card(script.PACKAGED / "tiny.safetensors")
    assert [stage["instances"] for stage in card["stages"]] == [1_000, 1_000]
    assert (card["instances"], card["training_minutes"]) == (2_000, 1.0)


def test_results_of_other_weights_are_refused(
    script: ModuleType, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluated(tmp_path / "whole", trained, sha256="0" * 64)
    with pytest.raises(SystemExit, match="is of other weights"):
        package(script, monkeypatch, "--weights", trained, "--results", tmp_path / "whole")
    assert not list(script.PACKAGED.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--weights", "{weights}", "--results", "{folder}/nowhere"], "no results in"),
        (["--weights", "{folder}/nothing", "--results", "{folder}/whole"], "no weights"),
    ],
)
def test_wrong_input_loses_nothing(
    script: ModuleType,
    trained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
) -> None:
    evaluated(tmp_path / "whole", trained)
    old = script.RESULTS / "tiny.npz"
    old.write_text("of other weights")
    given = [each.format(weights=trained, folder=tmp_path) for each in arguments]
    with pytest.raises(SystemExit, match=message):
        package(script, monkeypatch, *given)
    assert old.read_text() == "of other weights"
    assert not list(script.PACKAGED.iterdir())
