from __future__ import annotations

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

from georoutenet.cli import app
from georoutenet.errors import InputError
from georoutenet.evaluate.results import read_results
from georoutenet.model.config import PolicyConfig
from georoutenet.model.policy import Policy
from georoutenet.model.weights import save_weights


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    torch.set_num_threads(1)
    torch.manual_seed(5)
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "tiny.safetensors"
    save_weights(path, Policy(PolicyConfig(hidden=8, heads=2, layers=1, neighbors=3, rbf=4)))
    return path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_evaluate_says_what_it_found(weights: Path) -> None:
    done = run("evaluate", weights, "--set", "test20", "--limit", 5, "--device", "cpu", "--batch", 2)
    assert done.exit_code == 0, done.output
    results = read_results("results/tiny/test20-greedy-first-5.csv")
    assert len(results) == 5
    assert "tiny on test20: greedy" in done.stdout
    assert "5 of the 10000 in the set" in done.stdout
    assert f"mean gap    {results.gaps.mean():.4f} %, 95 % interval" in done.stdout
    assert "bootstrap, 2,000 resamples, seed 0" in done.stdout
    assert f"mean length {results.lengths.mean():.6f}" in done.stdout
    assert "instances/s" in done.stdout
    assert "network" in done.stdout
    assert "peak memory" not in done.stdout  # a CPU has none of its own


def test_evaluate_with_all_options(weights: Path) -> None:
    options = (
        "--set test20 --limit 2 --decoder beam --beam-width 12 --views 3 --batch 2 --device cpu --seed 4"
    )
    done = run(
        "evaluate", weights, *options.split(), "--precision", "bfloat16", "--out", "x/y.csv.gz", "--fresh"
    )
    assert done.exit_code == 0, done.output
    header = read_results("x/y.csv.gz").header
    said = [header[key] for key in ("decoder", "width", "views", "seed", "precision", "batch")]
    assert said == ["beam", "12", "3", "4", "bfloat16", "2"]
    assert "beam, width 12, 3 views" in done.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--set val51", "unknown data set 'val51'"),
        ("--set test20 --decoder best", "unknown decoder 'best'"),
        ("--set test20 --device abacus", "unknown device"),
    ],
)
def test_evaluate_refuses(weights: Path, options: str, message: str) -> None:
    done = run("evaluate", weights, *options.split())
    assert isinstance(done.exception, InputError)
    assert message in str(done.exception)
    assert not Path("results").exists()


def test_evaluate_writes_results_only(weights: Path) -> None:
    done = run("evaluate", weights, "--set", "test20", "--out", "notes.txt")
    assert done.exit_code == 2
    assert ".csv.gz" in done.output
