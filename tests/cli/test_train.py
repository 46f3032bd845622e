from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

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


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "georoutenet", "train", *map(str, arguments)]


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command(*arguments), env=environment, capture_output=True, text=True, timeout=200)


def test_train_and_resume(recipe: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    done = run(recipe, "--out", out, "--device", "cpu")
    assert done.returncode == 0, done.stderr
    assert "parameters" in done.stderr
    assert "instances/s" in done.stderr
    assert "finished at step 12" in done.stderr
    names = {path.name for path in out.iterdir()}
    assert {"best.safetensors", "last.safetensors", "metrics.csv", "checkpoint-000000012"} <= names
    other = run(recipe, "--out", out, "--set", "batch=8")
    assert other.returncode == 1
    assert "batch: 4 there, 8 here" in other.stderr


def test_an_unknown_setting_is_an_error(recipe: Path, tmp_path: Path) -> None:
    done = run(recipe, "--out", tmp_path / "run", "--set", "learning_rat=1")
    assert done.returncode == 1
    assert "did you mean 'learning_rate'?" in done.stderr
    assert not (tmp_path / "run").exists()


def test_sigterm_leaves_a_checkpoint(recipe: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = subprocess.Popen(
        command(
            recipe, "--out", out, "--device", "cpu", "--set", "steps=1000000", "--set", "epoch_steps=1000000"
        ),
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 100
    metrics = out / "metrics.csv"
    while time.monotonic() < deadline and not (
        metrics.exists() and len(metrics.read_text().splitlines()) > 2
    ):
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=100)
    assert process.returncode == 128 + signal.SIGTERM, said
    assert "the same command goes on" in said
    (folder,) = out.glob("checkpoint-*")
    assert (folder / "header.json").is_file()


def test_max_seconds_stops(recipe: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    done = run(recipe, "--out", out, "--device", "cpu", "--set", "steps=1000000", "--max-seconds", 2)
    assert done.returncode == 0, done.stderr
    assert "stopped" in done.stderr
