from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner, Result

import georoutenet as grn
from georoutenet.cli import app
from georoutenet.errors import InputError

TINY = """
n = 6
batch = 4
steps = 12
epoch_steps = 6
log_every = 3
validation = "uniform"
validation_size = 8
[policy]
hidden = 8
heads = 2
layers = 1
neighbors = 3
rbf = 4
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    return path


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["train", *map(str, arguments)])


def test_train_and_resume(recipe: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    stopped = run(recipe, "--out", out, "--device", "cpu", "--max-seconds", 0)
    assert stopped.exit_code == 0, stopped.output
    assert "stopped" in stopped.stderr
    last = out / "last.safetensors"
    assert f"not validated yet, weights in {last}" in " ".join(stopped.stderr.split())
    cities = np.random.default_rng(0).random((9, 2))
    assert len(grn.solve(cities, weights=last, device="cpu", improve=False).tour) == 9
    done = run(recipe, "--out", out, "--device", "cpu")
    assert done.exit_code == 0, done.output
    assert "parameters" in done.stderr
    assert "instances/s" in done.stderr
    assert "finished at step 12" in done.stderr
    names = {path.name for path in out.iterdir()}
    assert {"best.safetensors", "last.safetensors", "metrics.csv", "checkpoint-000000012"} <= names
    again = run(recipe, "--out", out, "--device", "cpu")
    assert "resuming at step 12" in again.stderr
    other = run(recipe, "--out", out, "--device", "cpu", "--set", "batch=8")
    assert isinstance(other.exception, InputError)
    assert "batch: 4 there, 8 here" in str(other.exception)
    fresh = run(recipe, "--out", out, "--device", "cpu", "--set", "batch=8", "--fresh")
    assert fresh.exit_code == 0, fresh.output


def test_an_unknown_setting_is_an_error(recipe: Path, tmp_path: Path) -> None:
    done = run(recipe, "--out", tmp_path / "run", "--set", "learning_rat=1")
    assert isinstance(done.exception, InputError)
    assert "did you mean 'learning_rate'?" in str(done.exception)
    assert not (tmp_path / "run").exists()


def test_sigterm_leaves_a_checkpoint(recipe: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = [sys.executable, "-m", "georoutenet", "train"]
    endless = ["--set", "steps=1000000", "--set", "epoch_steps=1000000"]
    process = subprocess.Popen(
        [*command, str(recipe), "--out", str(out), "--device", "cpu", *endless],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        text=True,
    )
    metrics = out / "metrics.csv"
    while not (metrics.exists() and len(metrics.read_text().splitlines()) > 2):
        assert process.poll() is None, "no first steps"
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=100)
    assert process.returncode == 128 + signal.SIGTERM, said
    assert "the same command goes on" in said
    (folder,) = out.glob("checkpoint-*")
    assert (folder / "header.json").is_file()


def test_recipes_side_by_side(recipe: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    other.write_text(TINY)
    done = run(recipe, other, "--out", tmp_path / "runs", "--device", "cpu", "--set", "steps=6")
    assert done.exit_code == 0, done.output
    assert "tiny: finished at step 6" in done.stderr
    assert "other: finished at step 6" in done.stderr
    weights = [(tmp_path / "runs" / name / "last.safetensors").stat().st_size for name in ("tiny", "other")]
    assert weights[0] > 0
    assert weights[1] > 0
    twice = run(recipe, recipe, "--out", tmp_path / "runs")
    assert isinstance(twice.exception, InputError)
    assert "names of their own" in str(twice.exception)


def test_a_packaged_recipe_is_trained_by_name(tmp_path: Path) -> None:
    small = ["--set", "steps=2", "--set", "validation_size=4", "--set", "batch=2", "--set", "epoch_steps=2"]
    done = run("laptop", *small, "--out", tmp_path, "--device", "cpu")
    assert done.exit_code == 0, done.output
    assert "recipe laptop: 2 steps" in done.stderr
    assert (tmp_path / "best.safetensors").is_file()
