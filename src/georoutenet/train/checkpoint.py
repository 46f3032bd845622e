"""Checkpoints that are whole or not there at all.

A checkpoint is a folder ``checkpoint-<step>`` with one ``.safetensors`` file for each group of tensors and a
``header.json`` that holds the step, the recipe, the random states and a hash of every file. It is written
under a temporary name, flushed to the disk and renamed, so a process killed at any moment leaves either the
old newest checkpoint or the new one. The last two are kept. Nothing is ever unpickled.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import secrets
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from georoutenet.errors import GeoRouteNetError

FORMAT = "georoutenet-checkpoint-1"
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
        state = torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
        if name == "cpu":
            torch.set_rng_state(state)
        elif torch.cuda.is_available():
            torch.cuda.set_rng_state(state)


def _folders(out: Path) -> list[Path]:
    """The complete checkpoints of a run, oldest first."""
    found = [p for p in out.glob("checkpoint-*") if p.is_dir() and p.name.split("-")[-1].isdigit()]
    return sorted(found, key=lambda p: int(p.name.split("-")[-1]))


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
        header = {
            "format": FORMAT,
            "step": checkpoint.step,
            "seconds": checkpoint.seconds,
            "instances": checkpoint.instances,
            "recipe": checkpoint.recipe,
            "random_states": checkpoint.random_states,
            "sha256": hashes,
        }
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
        shutil.rmtree(old, ignore_errors=True)
    for stray in out.glob(".checkpoint-*.tmp"):  # left by a process that was killed while writing
        shutil.rmtree(stray, ignore_errors=True)
    return target


def load_checkpoint(out: Path) -> Checkpoint | None:
    """The newest checkpoint of a run, fully verified; None where there is none."""
    folders = _folders(out)
    if not folders:
        return None
    folder = folders[-1]
    try:
        header = json.loads((folder / "header.json").read_text(encoding="utf-8"))
        if header["format"] != FORMAT:
            raise ValueError(f"format {header['format']!r}, this version reads {FORMAT!r}")
        groups: Groups = {}
        for group, expected in header["sha256"].items():
            data = (folder / f"{group}.safetensors").read_bytes()
            if hashlib.sha256(data).hexdigest() != expected:
                raise ValueError(f"{group}.safetensors is not the file that was written")
            groups[group] = load(data)
        return Checkpoint(
            int(header["step"]),
            float(header["seconds"]),
            int(header["instances"]),
            header["recipe"],
            groups,
            header["random_states"],
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
        before = f"resume from {folders[-2].name}" if len(folders) > 1 else "start again"
        raise CheckpointError(
            f"{folder} is damaged: {error}. Remove that folder to {before}; nothing was changed"
        ) from error


def remove_checkpoints(out: Path) -> None:
    """Forget the checkpoints of a run."""
    for folder in _folders(out):
        shutil.rmtree(folder)
