"""Runs that are killed, stopped, started twice or find damaged files: what is left, and how they go on."""

from __future__ import annotations

import dataclasses
import errno
import math
import os
import random
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from runs import Listening, assert_same_weights, rows, train
from tiny import tiny_recipe

from georoutenet.errors import InputError
from georoutenet.policy.weights import load_policy, read_card
from georoutenet.train.checkpoint import (
    CheckpointError,
    load_checkpoint,
    remove_checkpoints,
    save_checkpoint,
)
from georoutenet.train.log import Silent
from georoutenet.train.trainer import Trainer


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


KILLED = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from tiny import tiny_recipe
import torch
torch.set_num_threads(1)
from georoutenet.train import checkpoint
from georoutenet.train.log import Silent
from georoutenet.train.trainer import Trainer

out, where, when = Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
trainer = Trainer(tiny_recipe(["averaging=0.9", "log_every=1"]), out)

def die():
    os.kill(os.getpid(), signal.SIGKILL)

if where == "step":
    one_step = trainer._one_step
    def counted():
        one_step()
        if trainer.step == when:
            die()
    trainer._one_step = counted
elif where == "write":
    write, written = checkpoint._write, 0
    def counted(path, data):
        global written
        written += 1
        write(path, data[: len(data) // 2] if written == when else data)
        if written == when:
            die()
    checkpoint._write = counted
outcome = trainer.run()
print(outcome.step, outcome.finished)
"""


@pytest.mark.parametrize("where", ["step", "write"])
def test_a_killed_run_resumes_to_bit_equal_weights(tmp_path: Path, where: str) -> None:
    """SIGKILL at a random step, or in the middle of a random write of a checkpoint's files."""
    when = random.SystemRandom().randint(1, 23 if where == "step" else 20)
    recipe = tiny_recipe(["averaging=0.9", "log_every=1"])
    train(recipe, tmp_path / "whole")
    command = [sys.executable, "-c", KILLED, str(Path(__file__).parent), str(tmp_path / "killed")]
    killed = subprocess.run([*command, where, str(when)], capture_output=True, text=True, timeout=300)
    assert killed.returncode == -signal.SIGKILL, (when, killed.stderr)
    resumed = Trainer(recipe, tmp_path / "killed")
    assert resumed.step < 24, when
    assert resumed.run().finished
    assert_same_weights(tmp_path / "whole", tmp_path / "killed")
    assert [row["loss"] for row in rows(tmp_path / "whole")] == [
        row["loss"] for row in rows(tmp_path / "killed")
    ]


def assert_last_is_of_the_checkpoint(out: Path) -> None:
    stored = load_checkpoint(out)
    assert stored is not None
    path = out / "last.safetensors"
    assert read_card(path)[1]["step"] == stored.step
    for name, value in load_policy(path).named_parameters():
        assert torch.equal(stored.groups["weights"][name], value), name


@pytest.mark.parametrize("step", [10, 24])
def test_last_is_made_again_when_it_is_not_of_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """A kill or a full disk between a checkpoint and ``last``; after the final one, too, the next run says
    "finished" only with the weights of that checkpoint."""
    whole = train(tiny_recipe(), tmp_path / "whole")
    with monkeypatch.context() as patch:
        save = Trainer._save_weights

        def full_disk(trainer: Trainer, name: str) -> None:
            if name == "last" and trainer.step == step:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            save(trainer, name)

        patch.setattr(Trainer, "_save_weights", full_disk)
        with pytest.raises(CheckpointError, match="No space left"):
            train(tiny_recipe(), tmp_path / "run")
    assert read_card(tmp_path / "run" / "last.safetensors")[1]["step"] < step
    trainer = Trainer(tiny_recipe(), tmp_path / "run")
    assert trainer.step == step
    trainer.run(max_seconds=0.0)
    assert_last_is_of_the_checkpoint(tmp_path / "run")
    again = train(tiny_recipe(), tmp_path / "run")
    assert (again.finished, again.best, again.last) == (True, whole.best, whole.last)
    assert_last_is_of_the_checkpoint(tmp_path / "run")
    lengths = [
        read_card(tmp_path / run / "last.safetensors")[1]["validation_length"] for run in ("whole", "run")
    ]
    assert lengths[0] == lengths[1]


@pytest.mark.parametrize("damage", ["missing", "truncated", "flipped"])
def test_a_damaged_last_is_made_again_by_a_finished_run(tmp_path: Path, damage: str) -> None:
    train(tiny_recipe(), tmp_path)
    path = tmp_path / "last.safetensors"
    data = bytearray(path.read_bytes())
    path.unlink()
    if damage == "truncated":
        path.write_bytes(data[:5000])
    elif damage == "flipped":
        data[-9] ^= 1
        path.write_bytes(data)
    listening = Listening()
    assert train(tiny_recipe(), tmp_path, reporter=listening).finished
    assert_last_is_of_the_checkpoint(tmp_path)
    assert [line.split(":")[0] for line in listening.lines] == ["not used"] * (damage != "missing")


def test_a_damaged_best_is_neither_trusted_nor_fatal(tmp_path: Path) -> None:
    """Its length would keep every later validation from being written down."""
    train(tiny_recipe(["steps=16"]), tmp_path)
    path = tmp_path / "best.safetensors"
    path.write_bytes(path.read_bytes().replace(b"validation_length", b"validation_lengtj", 1))
    listening = Listening()
    trainer = Trainer(tiny_recipe(["steps=16"]), tmp_path, reporter=listening)
    assert trainer.best == math.inf
    assert "digest" in listening.lines[0]


def test_a_bad_byte_in_the_metrics_does_not_stop_a_run(tmp_path: Path) -> None:
    train(tiny_recipe(["steps=16"]), tmp_path)
    file, before = tmp_path / "metrics.csv", rows(tmp_path)
    data = file.read_bytes()
    at = data.index(b"\n8,") + 4
    file.write_bytes(data[:at] + b"\xff" + data[at + 1 :])
    listening = Listening()
    assert train(tiny_recipe(["steps=16"]), tmp_path, reporter=listening).finished
    assert rows(tmp_path) == [row for row in before if row["step"] != "8"]
    assert "damaged lines were removed: 4" in listening.lines[0]


def test_a_checkpoint_with_other_tensors_stops_the_command(tmp_path: Path) -> None:
    """However it came there: an error that names the tensor, and the next trainer may have the folder."""
    recipe = tiny_recipe(["steps=8"])
    train(recipe, tmp_path)
    stored = load_checkpoint(tmp_path)
    assert stored is not None
    for change, message in (
        ({"groups": {**stored.groups, "momentum": {}}}, "momentum holds nothing"),
        ({"random_states": {"cpu": "AAAA"}}, "random state 'cpu' is damaged"),
    ):
        remove_checkpoints(tmp_path)
        save_checkpoint(tmp_path, dataclasses.replace(stored, **change))  # type: ignore[arg-type]
        with pytest.raises(CheckpointError, match=message) as caught:
            Trainer(recipe, tmp_path)
        assert str(tmp_path) in str(caught.value)


def test_leftovers_of_a_killed_run_are_swept_by_the_next(tmp_path: Path) -> None:
    """Also by one that has nothing more to write."""
    train(tiny_recipe(["steps=8"]), tmp_path)
    whole = sorted(path.name for path in tmp_path.iterdir())
    assert whole == [
        "best.safetensors",
        "checkpoint-000000005",
        "checkpoint-000000008",
        "last.safetensors",
        "metrics.csv",
    ]
    (tmp_path / ".checkpoint-0123456789ab.tmp").mkdir()
    (tmp_path / ".checkpoint-0123456789ab.tmp" / "weights.safetensors").write_text("half")
    (tmp_path / ".last.safetensors.0123456789ab.tmp").write_text("half")
    (tmp_path / ".lock").write_text("half")
    done = subprocess.run([*COMMAND, tmp_path, "0"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == whole


TRAINING = """
import sys
sys.path.insert(0, sys.argv[1])
from tiny import tiny_recipe
import torch
torch.set_num_threads(1)
from georoutenet.train.trainer import Trainer

trainer = Trainer(tiny_recipe(["steps=8"]), sys.argv[2])
if sys.argv[3] == "1":
    print("ready", flush=True)
    sys.stdin.readline()
trainer.run()
"""


COMMAND = [sys.executable, "-c", TRAINING, Path(__file__).parent]


@pytest.mark.parametrize("fresh", [False, True])
def test_one_trainer_per_folder(tmp_path: Path, fresh: bool) -> None:
    """Two would overwrite each other's checkpoints; the second says who was first and touches nothing."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    first = subprocess.Popen([*COMMAND, tmp_path, "1"], **pipes)  # type: ignore[call-overload]
    try:
        assert first.stdout.readline() == "ready\n"
        before = sorted(path.name for path in tmp_path.iterdir())
        with pytest.raises(
            InputError, match=f"in use: process {first.pid} on '{socket.gethostname()}' since"
        ):
            Trainer(tiny_recipe(["steps=8"]), tmp_path, fresh=fresh)
        assert sorted(path.name for path in tmp_path.iterdir()) == before
        if fresh:
            first.kill()  # what it leaves does not block the next
        first.communicate("go\n", timeout=300)
    finally:
        first.kill()
        first.wait()
    assert load_checkpoint(tmp_path) is None or not fresh
    assert train(tiny_recipe(["steps=8"]), tmp_path).finished


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_run_with_a_checkpoint(tmp_path: Path, number: signal.Signals) -> None:
    class Signaling(Silent):
        def progress(self, step: int, share: float, text: str) -> None:
            if step == 12:
                os.kill(os.getpid(), number)

    handler = signal.getsignal(number)
    outcome = train(tiny_recipe(), tmp_path, reporter=Signaling())
    assert (outcome.step, outcome.finished, outcome.signal) == (12, False, number)
    assert signal.getsignal(number) is handler
    stored = load_checkpoint(tmp_path)
    assert stored is not None
    assert stored.step == 12
    assert train(tiny_recipe(), tmp_path).finished


def test_a_damaged_checkpoint_stops_the_command(tmp_path: Path) -> None:
    train(tiny_recipe(["steps=8"]), tmp_path)
    file = tmp_path / "checkpoint-000000008" / "momentum.safetensors"
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(CheckpointError, match="checkpoint-000000005"):
        Trainer(tiny_recipe(["steps=8"]), tmp_path)
    assert (tmp_path / "checkpoint-000000005").is_dir()


def test_a_full_disk_ends_the_run_with_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only checkpoints are written: the kept weights may be what no longer fits."""
    from georoutenet.train import trainer as module

    def full_disk(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(module, "save_weights", full_disk)
        with pytest.raises(CheckpointError, match="No space left on device"):
            train(tiny_recipe(), tmp_path)
    stored = load_checkpoint(tmp_path)
    assert stored is not None
    assert stored.step == 5
    assert train(tiny_recipe(), tmp_path).finished
