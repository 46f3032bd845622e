"""SIGKILL at any moment: what was written is whole, and what was interrupted goes on to the same end."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from georoutenet.io.files import write_tour
from georoutenet.problem.instance import DistanceRule, Instance
from research.torture import Outcome, tally

KIND = "kills"

RECIPE = {
    "name": "killed", "n": 6, "batch": 4, "candidates": 3, "learning_rate": 1e-3, "steps": 24,
    "epoch_steps": 8, "log_every": 1, "checkpoint_every": 3, "averaging": 0.9, "validation": "uniform",
    "validation_size": 8,
    "policy": {"hidden": 8, "heads": 2, "layers": 2, "neighbors": 3, "rbf": 4},
}  # fmt: skip


def _child(work: Callable[[], None]) -> int:
    """Do something in a forked process; its id."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return pid


def _killed(work: Callable[[], None], seconds: float) -> bool:
    """Whether a process had to be killed after so many seconds; one that fails by itself is a finding."""
    pid = _child(work)
    time.sleep(seconds)
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    assert status in (0, signal.SIGKILL), status
    tally["kills"] += status == signal.SIGKILL
    return status == signal.SIGKILL


def _train(out: Path) -> None:
    import torch

    from georoutenet.train.log import Silent
    from georoutenet.train.recipe import recipe_from_dict
    from georoutenet.train.trainer import Trainer

    torch.set_num_threads(1)
    assert (
        Trainer(recipe_from_dict(RECIPE), out, device=torch.device("cpu"), reporter=Silent()).run().finished
    )


def _left_by(out: Path) -> str:
    """A digest of the weights and of every loss on the way there."""
    from safetensors.numpy import load_file

    parts = []
    for name in ("last", "best"):
        tensors = load_file(out / f"{name}.safetensors")
        parts += [key.encode() + tensors[key].tobytes() for key in sorted(tensors)]
    with open(out / "metrics.csv", newline="") as file:
        parts += [repr([(row["step"], row["loss"]) for row in csv.DictReader(file)]).encode()]
    return hashlib.sha256(b"".join(parts)).hexdigest()


def attack_training(source: random.Random, folder: Path) -> Outcome:
    """A training run that is killed again and again ends with the same bits as one that is not."""
    import georoutenet.train.trainer  # noqa: F401  (once, not in each child)

    whole = folder / "whole"
    if not whole.exists():
        began = time.monotonic()
        os.waitpid(_child(lambda: _train(whole)), 0)
        (whole / "seconds").write_text(str(time.monotonic() - began))
    seconds = float((whole / "seconds").read_text())
    out = folder / f"run-{source.randrange(2**64)}"
    kills = sum(
        _killed(lambda: _train(out), source.uniform(0.02, 0.6 * seconds)) for _ in range(source.randint(2, 6))
    )
    _, status = os.waitpid(_child(lambda: _train(out)), 0)
    assert status == 0, status
    assert _left_by(out) == _left_by(whole)
    assert not list(out.rglob("*.tmp"))
    return "went on to the same bits" if kills else "not killed"


def attack_writing(source: random.Random, folder: Path) -> Outcome:
    """A file that is written again and again is always whole, and nothing is left beside it."""
    instance = Instance(np.arange(200.0).reshape(100, 2) / 10, rule=DistanceRule.GREAT_CIRCLE)
    own = folder / f"run-{source.randrange(2**64)}"
    own.mkdir()
    path = own / f"tour{source.choice(['.tour', '.csv', '.json', '.geojson', '.gpx'])}"
    tours = [np.arange(100), np.arange(100)[::-1]]
    versions = []
    for tour in tours:
        write_tour(folder / path.name, tour, instance)
        versions.append((folder / path.name).read_bytes())

    def write() -> None:
        while True:
            for tour in tours:
                write_tour(path, tour, instance)

    assert _killed(write, source.uniform(0.0, 0.05))
    there = path.exists()
    assert not there or path.read_bytes() in versions
    write_tour(path, tours[0], instance)
    assert [each.name for each in own.iterdir()] == [path.name]
    if path.suffix == ".json":
        json.loads(path.read_text())
    return "whole" if there else "not there yet"


def _bulk(path: Path, out: Path) -> subprocess.Popen[bytes]:
    """The command as the first of a group of processes of its own."""
    options = ["--format", "npz", "--shard-rows", "20", "--workers", "2"]
    return subprocess.Popen(
        [sys.executable, "-m", "georoutenet", "bulk", path, out, *options],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def _ended(process: subprocess.Popen[bytes]) -> None:
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors.decode()


def attack_bulk_kills(source: random.Random, folder: Path) -> Outcome:
    """A bulk run whose processes are all killed, again and again, ends with the bytes of a quiet one."""
    path, whole = folder / "cities.csv", folder / "whole-bulk"
    if not (whole / "seconds").exists():
        numbers = np.random.default_rng(0).random((2000, 2)).tolist()
        lines = [f"{k // 10},{x},{y}" for k, (x, y) in enumerate(numbers)]
        path.write_text("\n".join(["id,x,y", *lines]))
        _ended(_bulk(path, folder / "warm"))  # what is compiled is kept on disk
        began = time.monotonic()
        _ended(_bulk(path, whole))
        (whole / "seconds").write_text(str(time.monotonic() - began))
    seconds = float((whole / "seconds").read_text())
    good = {part.name: part.read_bytes() for part in whole.glob("part-*")}
    assert len(good) == 10
    out = folder / f"bulk-{source.randrange(2**64)}"
    kills = 0
    for _ in range(source.randint(2, 5)):
        process = _bulk(path, out)
        time.sleep(source.uniform(0.1, 0.9) * seconds)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=60)
        assert process.returncode in (0, -signal.SIGKILL), process.returncode
        kills += process.returncode == -signal.SIGKILL
        there = {part.name: part.read_bytes() for part in out.glob("part-*")}
        assert there.items() <= good.items(), "a shard that is not whole, or another one"
        for name in sorted(there)[::2]:
            (out / name).unlink()  # so that something is left to do
    tally["kills"] += kills
    _ended(_bulk(path, out))
    assert {part.name: part.read_bytes() for part in out.glob("part-*")} == good
    assert {each.name for each in out.iterdir()} == {*good, "_manifest.json"}
    shutil.rmtree(out)
    return "went on to the same bytes" if kills else "not killed"
