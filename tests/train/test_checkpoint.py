from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from georoutenet.train import checkpoint as module
from georoutenet.train.checkpoint import (
    Checkpoint,
    CheckpointError,
    load_checkpoint,
    random_states,
    remove_checkpoints,
    restore_random_states,
    save_checkpoint,
)


def example(step: int) -> Checkpoint:
    generator = torch.Generator().manual_seed(step)
    groups = {
        group: {"a": torch.rand(3, 4, generator=generator), "b": torch.rand((), generator=generator)}
        for group in ("weights", "momentum")
    }
    return Checkpoint(step, 1.5 * step, 8 * step, {"batch": 8}, groups, random_states())


def assert_same(one: Checkpoint | None, other: Checkpoint) -> None:
    assert one is not None
    assert (one.step, one.seconds, one.instances) == (other.step, other.seconds, other.instances)
    assert one.recipe == other.recipe
    for group, tensors in other.groups.items():
        for name, tensor in tensors.items():
            assert torch.equal(one.groups[group][name], tensor)


def folders(out: Path) -> list[str]:
    return sorted(path.name for path in out.iterdir())


def test_newest_is_read_and_two_are_kept(tmp_path: Path) -> None:
    assert load_checkpoint(tmp_path) is None
    for step in (5, 90, 1000):
        save_checkpoint(tmp_path, example(step))
    assert folders(tmp_path) == ["checkpoint-000000090", "checkpoint-000001000"]
    assert_same(load_checkpoint(tmp_path), example(1000))
    remove_checkpoints(tmp_path)
    assert load_checkpoint(tmp_path) is None


@pytest.mark.parametrize("file", ["weights.safetensors", "momentum.safetensors", "header.json"])
@pytest.mark.parametrize("damage", ["truncated", "changed", "missing"])
def test_a_damaged_checkpoint_is_refused_and_the_previous_is_left(
    tmp_path: Path, file: str, damage: str
) -> None:
    save_checkpoint(tmp_path, example(1))
    newest = save_checkpoint(tmp_path, example(2))
    data = (newest / file).read_bytes()
    if damage == "missing":
        (newest / file).unlink()
    elif damage == "truncated":
        (newest / file).write_bytes(data[: len(data) // 2])
    else:
        (newest / file).write_bytes(b"\x00" + data[1:-1] + b"\x00")
    with pytest.raises(CheckpointError, match=r"checkpoint-000000002 is damaged.*checkpoint-000000001"):
        load_checkpoint(tmp_path)
    for path in newest.iterdir():
        path.unlink()
    newest.rmdir()
    assert_same(load_checkpoint(tmp_path), example(1))


def test_another_format_is_refused(tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path, example(1))
    header = json.loads((folder / "header.json").read_text())
    (folder / "header.json").write_text(json.dumps({**header, "format": "other-9"}))
    with pytest.raises(CheckpointError, match="other-9"):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_a_full_disk_leaves_the_previous_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    save_checkpoint(tmp_path, example(1))
    written, write = 0, module._write

    def full_disk(path: Path, data: bytes) -> None:
        nonlocal written
        if written == failing:
            write(path, data[:10])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written += 1
        write(path, data)

    monkeypatch.setattr(module, "_write", full_disk)
    with pytest.raises(CheckpointError, match=r"No space left.*checkpoint-000000001, is untouched"):
        save_checkpoint(tmp_path, example(2))
    assert folders(tmp_path) == ["checkpoint-000000001"]
    assert_same(load_checkpoint(tmp_path), example(1))


def test_leftovers_of_a_killed_writer_are_ignored_and_cleared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_checkpoint(tmp_path, example(1))

    class Killed(BaseException):
        pass

    def killed(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(module.os, "rename", killed)
        with pytest.raises(Killed):
            save_checkpoint(tmp_path, example(2))
    assert len(folders(tmp_path)) == 2
    assert_same(load_checkpoint(tmp_path), example(1))
    save_checkpoint(tmp_path, example(3))
    assert folders(tmp_path) == ["checkpoint-000000001", "checkpoint-000000003"]


def test_random_states_come_back() -> None:
    states = random_states()
    expected = torch.rand(5)
    torch.rand(3)
    restore_random_states(states)
    assert torch.equal(torch.rand(5), expected)
