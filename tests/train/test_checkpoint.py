from __future__ import annotations

import errno
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from georoutenet.train import checkpoint as module
from georoutenet.train.checkpoint import (
    Checkpoint,
    CheckpointError,
    check_groups,
    load_checkpoint,
    random_states,
    remove_checkpoints,
    restore_random_states,
    save_checkpoint,
    sweep_checkpoints,
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


def edit_header(folder: Path, change: Callable[[dict[str, Any]], Any], *, hashed: bool) -> None:
    """Change the header as a person, or with a new hash as a forger."""
    header = json.loads((folder / "header.json").read_text())
    header = change(header) or header
    if hashed:
        header["header_sha256"] = module._header_hash(header)
    (folder / "header.json").write_text(json.dumps(header))


@pytest.mark.parametrize(
    "change",
    [
        {"step": 17},
        {"step": -1},
        {"seconds": 1e9},
        {"instances": 0},
        {"recipe": {"batch": 9}},
        {"random_states": {}},
    ],
)
def test_an_edited_header_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    """A run that resumed from another step or recipe would be another run."""
    folder = save_checkpoint(tmp_path, example(16))
    edit_header(folder, lambda header: header.update(change), hashed=False)
    with pytest.raises(CheckpointError, match="header is not the one that was written"):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize(
    "change",
    [
        {"step": 17},
        {"step": -1},
        {"step": 16.0},
        {"step": True},
        {"step": None},
        {"seconds": float("nan")},
        {"seconds": float("inf")},
        {"instances": 2**70},
        {"instances": "128"},
        {"recipe": None},
        {"recipe": [1]},
        {"random_states": "none"},
        {"sha256": ["weights"]},
        {"sha256": {"../secret": "0" * 64}},
        {"sha256": {"weights": 7}},
        {"sha256": {"nothing": "0" * 64}},
        {"other": 1},
    ],
)
def test_headers_that_make_no_sense_are_refused(tmp_path: Path, change: dict[str, Any], old: bool) -> None:
    """Whatever is in it, and however it got a hash: an error that says which folder, never a traceback."""
    folder = save_checkpoint(tmp_path, example(16))

    def forge(header: dict[str, Any]) -> None:
        if old:
            header["format"] = module.OLD_FORMAT
            del header["header_sha256"]
        header.update(change)

    edit_header(folder, forge, hashed=not old)
    with pytest.raises(CheckpointError, match="checkpoint-000000016 is damaged"):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize("text", ["", "7", "[]", "[" * 100_000, '{"format": 1, "format": 2}', "\x00\xff"])
def test_headers_that_are_no_table_are_refused(tmp_path: Path, text: str) -> None:
    folder = save_checkpoint(tmp_path, example(1))
    (folder / "header.json").write_text(text, encoding="latin-1")
    with pytest.raises(CheckpointError, match="is damaged"):
        load_checkpoint(tmp_path)


def test_every_damage_ends_in_our_error(tmp_path: Path) -> None:
    """Bytes changed, cut and added at random in any file: refused, or equal where the meaning is."""
    folder, chance = save_checkpoint(tmp_path, example(3)), random.Random(0)
    wholes = {path: path.read_bytes() for path in sorted(folder.iterdir())}
    refused = 0
    for number in range(300):
        path, whole = chance.choice(list(wholes.items()))
        data = bytearray(whole)
        at = chance.randrange(len(data))
        if number % 3 == 0:
            data[at] ^= 1 << chance.randrange(8)
        elif number % 3 == 1:
            del data[at : at + chance.randrange(1, 20)]
        else:
            data[at:at] = chance.randbytes(3)
        path.write_bytes(data)
        try:
            assert_same(load_checkpoint(tmp_path), example(3))
        except CheckpointError:
            refused += 1
        path.write_bytes(whole)
    assert refused > 250


def test_checkpoints_without_a_hash_of_the_header_are_read(tmp_path: Path) -> None:
    """As 0.1 wrote them: a run of days goes on."""
    folder = save_checkpoint(tmp_path, example(16))

    def as_before(header: dict[str, Any]) -> None:
        header["format"] = "georoutenet-checkpoint-1"
        del header["header_sha256"]

    edit_header(folder, as_before, hashed=False)
    assert_same(load_checkpoint(tmp_path), example(16))


def test_other_folders_are_no_checkpoints(tmp_path: Path) -> None:
    """Names that are nearly those of checkpoints, also with digits that are not decimal."""
    for name in ("checkpoint-old-7", "checkpoint-²", "checkpoint-", f"checkpoint-{'9' * 200}"):
        (tmp_path / name).mkdir()
    assert load_checkpoint(tmp_path) is None
    save_checkpoint(tmp_path, example(2))
    assert_same(load_checkpoint(tmp_path), example(2))


def test_tensors_of_another_run_are_refused() -> None:
    stored, other = example(1).groups, example(2).groups
    check_groups(stored, other)
    del other["momentum"]["a"]
    with pytest.raises(CheckpointError, match=r"momentum holds .* for 'a', the run needs nothing"):
        check_groups(stored, other)
    for wrong in (torch.zeros(3, 5), torch.zeros(3, 4, dtype=torch.float64)):
        with pytest.raises(CheckpointError, match="weights holds"):
            check_groups(stored, example(1).groups | {"weights": {**stored["weights"], "a": wrong}})


@pytest.mark.parametrize("state", ["", "%%%", "AAAA", 7, None])
def test_damaged_random_states_are_refused(state: Any) -> None:
    with pytest.raises(CheckpointError, match="random state 'cpu' is damaged"):
        restore_random_states({"cpu": state})


def test_removal_is_all_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process killed while it removes a checkpoint leaves nothing that looks like one."""
    save_checkpoint(tmp_path, example(1))
    monkeypatch.setattr(
        module.shutil, "rmtree", lambda *_, **__: None
    )  # killed before the first file is gone
    remove_checkpoints(tmp_path)
    monkeypatch.undo()
    assert load_checkpoint(tmp_path) is None
    assert len(folders(tmp_path)) == 1
    sweep_checkpoints(tmp_path)
    assert folders(tmp_path) == []


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
