"""Checkpoints that are whole or not there at all.

A checkpoint is a folder ``checkpoint-<step>`` with one ``.safetensors`` file for each group of tensors and a
``header.json`` that holds the step, the recipe, the random states, a hash of every file and one of the header
itself. It is written under a temporary name, flushed to the disk and renamed, so a process killed at any
moment leaves either the old newest checkpoint or the new one. The last two are kept. Nothing is ever
unpickled. All functions here expect to be the only ones at work in the folder (see `FolderLock`).
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import secrets
import shutil
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from georoutenet.errors import GeoRouteNetError
from georoutenet.io.strict_json import parse_json

FORMAT = "georoutenet-checkpoint-2"
OLD_FORMAT = "georoutenet-checkpoint-1"  # without a hash of the header
KEPT = 2

Groups = dict[str, dict[str, Tensor]]


class CheckpointError(GeoRouteNetError):
    """A checkpoint that could not be written or read; the message says what is left."""


@dataclass(frozen=True)
class Checkpoint:
    """Tensors by group and name, and what is needed to go on from them."""

    step: int
    seconds: float
    """Seconds of training so far, over all sessions of the run."""
    instances: int
    """Instances seen so far."""
    recipe: dict[str, Any]
    groups: Groups
    random_states: dict[str, str] = field(default_factory=dict)


def random_states() -> dict[str, str]:
    """The states of torch's generators, as text."""
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states["cuda"] = torch.cuda.get_rng_state()
    return {name: base64.b64encode(state.numpy().tobytes()).decode() for name, state in states.items()}


def restore_random_states(states: dict[str, str]) -> None:
    for name, text in states.items():
        try:
            state = torch.frombuffer(bytearray(base64.b64decode(text, validate=True)), dtype=torch.uint8)
            if name == "cpu":
                torch.set_rng_state(state)
            elif torch.cuda.is_available():
                torch.cuda.set_rng_state(state)
        except (RuntimeError, ValueError, TypeError) as error:
            raise CheckpointError(f"the checkpoint's random state {name!r} is damaged: {error}") from None


def _folders(out: Path) -> list[Path]:
    """The complete checkpoints of a run, oldest first."""
    found = [p for p in out.glob("checkpoint-*") if _step_of(p) is not None and p.is_dir()]
    return sorted(found, key=lambda p: _step_of(p) or 0)


def _step_of(folder: Path) -> int | None:
    match = re.fullmatch("checkpoint-([0-9]{1,18})", folder.name)
    return int(match[1]) if match else None


def _write(path: Path, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _flush_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def save_checkpoint(out: Path, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint into the run's folder and remove all but the last two."""
    target = out / f"checkpoint-{checkpoint.step:09d}"
    if target.exists():  # the state of a step does not change
        return target
    temporary = out / f".checkpoint-{secrets.token_hex(6)}.tmp"
    try:
        out.mkdir(parents=True, exist_ok=True)
        temporary.mkdir()
        hashes = {}
        for group, tensors in checkpoint.groups.items():
            data = save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
            _write(temporary / f"{group}.safetensors", data)
            hashes[group] = hashlib.sha256(data).hexdigest()
        header: dict[str, Any] = {
            "format": FORMAT,
            "step": checkpoint.step,
            "seconds": checkpoint.seconds,
            "instances": checkpoint.instances,
            "recipe": checkpoint.recipe,
            "random_states": checkpoint.random_states,
            "sha256": hashes,
        }
        header["header_sha256"] = _header_hash(header)
        _write(temporary / "header.json", json.dumps(header, indent=1).encode())
        _flush_folder(temporary)
        os.rename(temporary, target)
        _flush_folder(out)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        previous = _folders(out) if out.is_dir() else []
        left = f"the previous one, {previous[-1].name}, is untouched" if previous else "there was none before"
        raise CheckpointError(
            f"cannot write {target}: {error.strerror or error}; {left}. The same command resumes from it"
        ) from error
    for old in _folders(out)[:-KEPT]:
        with suppress(OSError):
            _remove(old)
    sweep_checkpoints(out)
    return target


def sweep_checkpoints(out: Path) -> None:
    """Remove what a process left that was killed while it wrote or removed a checkpoint."""
    for stray in out.glob(".checkpoint-*.tmp"):
        shutil.rmtree(stray, ignore_errors=True)


def load_checkpoint(out: Path) -> Checkpoint | None:
    """The newest checkpoint of a run, fully verified; None where there is none."""
    folders = _folders(out)
    if not folders:
        return None
    folder = folders[-1]
    try:
        return _load(folder)
    except (OSError, ValueError, SafetensorError) as error:
        before = f"resume from {folders[-2].name}" if len(folders) > 1 else "start again"
        raise CheckpointError(
            f"{folder} is damaged: {error}. Remove that folder to {before}; nothing was changed"
        ) from None


def _load(folder: Path) -> Checkpoint:
    header = _checked(parse_json((folder / "header.json").read_bytes()))
    if header["step"] != _step_of(folder):
        raise ValueError(f"the header is of step {header['step']}")
    groups: Groups = {}
    for group, expected in header["sha256"].items():
        if not re.fullmatch("[a-z_]{1,40}", group):  # it names a file
            raise ValueError(f"group {group!r} has no name that is ours")
        data = (folder / f"{group}.safetensors").read_bytes()
        if hashlib.sha256(data).hexdigest() != expected:
            raise ValueError(f"{group}.safetensors is not the file that was written")
        groups[group] = load(data)
    return Checkpoint(
        header["step"],
        float(header["seconds"]),
        header["instances"],
        header["recipe"],
        groups,
        header["random_states"],
    )


def _checked(header: Any) -> dict[str, Any]:
    """The header, with every entry there and of its type."""
    if not isinstance(header, dict):
        raise ValueError("the header is no table")
    if header.get("format") not in (FORMAT, OLD_FORMAT):
        raise ValueError(f"format {header.get('format')!r}, this version reads {FORMAT!r}")
    numbers, tables = ("step", "seconds", "instances"), ("recipe", "random_states", "sha256")
    hashed = header["format"] == FORMAT
    if header.keys() != {"format", *numbers, *tables, *(["header_sha256"] if hashed else [])}:
        raise ValueError("the header has other entries than those that are written")
    if hashed and header["header_sha256"] != _header_hash(header):
        raise ValueError("the header is not the one that was written")
    for name in numbers:
        value, kind = header[name], int | float if name == "seconds" else int
        if not isinstance(value, kind) or isinstance(value, bool) or not 0 <= value < 1 << 62:
            raise ValueError(f"{name} = {value!r} in the header")
    for name in tables:
        if not isinstance(header[name], dict):
            raise ValueError(f"{name} is no table in the header")
    return header


def _header_hash(header: dict[str, Any]) -> str:
    others = {name: value for name, value in header.items() if name != "header_sha256"}
    return hashlib.sha256(json.dumps(others, sort_keys=True).encode()).hexdigest()


def check_groups(stored: Groups, expected: Groups) -> None:
    """Refuse tensors that are not those of the run, before any of them is copied."""

    def described(groups: Groups) -> dict[tuple[str, str], tuple[torch.dtype, torch.Size]]:
        return {(g, name): (t.dtype, t.shape) for g, tensors in groups.items() for name, t in tensors.items()}

    found, needed = described(stored), described(expected)
    for key in sorted(found.keys() | needed.keys()):
        if found.get(key) != needed.get(key):
            given, asked = (str(each.get(key, "nothing")) for each in (found, needed))
            group, name = key
            raise CheckpointError(
                f"the checkpoint's {group} holds {given} for {name!r}, the run needs {asked}"
            )


def remove_checkpoints(out: Path) -> None:
    """Forget the checkpoints of a run."""
    for folder in _folders(out):
        _remove(folder)


def _remove(folder: Path) -> None:
    """Under another name first, so that half a checkpoint never looks like a whole one."""
    stray = folder.with_name(f".checkpoint-{secrets.token_hex(6)}.tmp")
    os.rename(folder, stray)
    shutil.rmtree(stray, ignore_errors=True)
