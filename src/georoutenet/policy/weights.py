"""Weights files: ``.safetensors`` with configuration, card and digest in the header.

Nothing is ever unpickled. A file is read, not mapped, and nothing is allocated for it before its header was
compared with the model that its configuration describes. The digest is the SHA-256 of the whole file with
the digest's own 64 digits as zeros; files of 0.1 have none, so damage to their numbers is not noticed.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from georoutenet.errors import InputError
from georoutenet.io.atomic import atomic_write
from georoutenet.io.packaged import find_weights
from georoutenet.io.strict_json import parse_json
from georoutenet.model.config import PolicyConfig
from georoutenet.policy.policy import Policy
from georoutenet.unbroken import unbroken

FORMAT = "georoutenet-weights"
VERSION = 1

KEYS = {"format", "version", "config", "card", "sha256"}
BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}  # per number, of the dtypes that weights may have
HEADER_LIMIT = 4 << 20
UNKNOWN = "0" * 64  # in place of the digest while it is computed


def save_weights(path: str | Path, policy: Policy, card: dict[str, Any] | None = None) -> None:
    """Write a policy's weights, configuration and card (recipe, commit, seeds, data, metrics: any JSON)."""
    tensors = {name: value.detach().cpu().contiguous() for name, value in policy.encoder.state_dict().items()}
    for name, _ in policy.encoder.named_parameters():
        if not bool(torch.isfinite(tensors[name]).all()):
            raise InputError(f"refusing to write {path}: {name} holds values that are not finite")
    header = {
        "format": FORMAT,
        "version": str(VERSION),
        "config": json.dumps(policy.config.to_dict()),
        "card": json.dumps(card or {}),
        "sha256": UNKNOWN,
    }
    data = save(tensors, metadata=header)
    if (length := int.from_bytes(data[:8], "little")) > HEADER_LIMIT:
        raise InputError(f"refusing to write {path}: a header of {length:,} bytes, at most {HEADER_LIMIT:,}")
    with atomic_write(path, "wb") as file:
        file.write(data.replace(_entry(UNKNOWN), _entry(hashlib.sha256(data).hexdigest()), 1))


def digest(name_or_path: str | Path) -> str:
    """SHA-256 of a weights file, card included: what results name it by."""
    path = find_weights(name_or_path)
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None


def read_card(name_or_path: str | Path) -> tuple[PolicyConfig, dict[str, Any]]:
    """Configuration and card of a weights file, which is checked as on loading."""
    policy, card, _ = _read(find_weights(name_or_path))
    return policy.config, card


def load_policy(name_or_path: str | Path, device: torch.device | str = "cpu") -> Policy:
    """A policy in evaluation mode from packaged weights (by name) or a file (by path)."""
    path = find_weights(name_or_path)
    policy, _, data = unbroken(lambda: _read(path))  # torch imports more of itself here
    try:
        tensors = load(data)
    except SafetensorError as error:
        raise _damaged(path, error) from None
    policy.to_empty(device="cpu")
    policy.encoder.load_state_dict(tensors)
    for name, parameter in policy.encoder.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            raise InputError(f"{path}: {name} holds values that are not finite")
    return policy.to(device).eval()


def _read(path: Path) -> tuple[Policy, dict[str, Any], bytes]:
    """The policy that the file describes, without memory for its tensors, the card, and the file's bytes."""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            prefix = file.read(8)
            length = int.from_bytes(prefix, "little")
            if len(prefix) < 8 or length > size - 8:
                raise _damaged(path, "it ends before its header does")
            if length > HEADER_LIMIT:
                raise _damaged(path, f"a header of {length:,} bytes, at most {HEADER_LIMIT:,}")
            header = file.read(length)
            policy, card, stored, expected = _described(path, header)
            if expected != size - 8 - length:
                raise _damaged(path, f"{size - 8 - length:,} bytes of tensors instead of {expected:,}")
            data = prefix + header + file.read(expected)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
    if len(data) < size:
        raise _damaged(path, "it became shorter while it was read")
    if stored is not None:
        blank = data.replace(_entry(stored), _entry(UNKNOWN), 1)
        if hashlib.sha256(blank).hexdigest() != stored:
            raise _damaged(path, "its digest is not that of its contents; train, copy or install it again")
    return policy, card, data


def _described(path: Path, header: bytes) -> tuple[Policy, dict[str, Any], str | None, int]:
    """What a header says: the policy (on the meta device), the card, the digest and the bytes of tensors."""
    try:
        table = parse_json(header)
    except InputError as error:
        raise _damaged(path, error) from None
    metadata = table.pop("__metadata__", None) if isinstance(table, dict) else None
    if not isinstance(metadata, dict) or metadata.get("format") != FORMAT:
        raise InputError(f"{path} is not a GeoRouteNet weights file")
    if not all(isinstance(value, str) for value in metadata.values()):
        raise _damaged(path, "header entries must be text")
    if not re.fullmatch("[1-9][0-9]{0,8}", version := metadata.get("version", "")):
        raise _damaged(path, f"weights format {version!r}, which is no version")
    if int(version) > VERSION:
        newest = f"this version of georoutenet reads up to {VERSION}, please update it"
        raise InputError(f"{path} has weights format {version}; {newest}")
    if unknown := sorted(metadata.keys() - KEYS):
        raise _damaged(path, f"unknown header entry {unknown[0]!r}; allowed: {', '.join(sorted(KEYS))}")
    try:
        config, card = (parse_json(metadata.get(key, "{}")) for key in ("config", "card"))
    except InputError as error:
        raise _damaged(path, error) from None
    if not isinstance(card, dict):
        raise _damaged(path, "the card must be a table")
    if not re.fullmatch("[0-9a-f]{64}", metadata.get("sha256", UNKNOWN)):
        raise _damaged(path, "the digest must be 64 hexadecimal digits")
    try:
        with torch.device("meta"):  # shapes without memory
            policy = Policy(PolicyConfig.from_dict(config))
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    expected = _compare(path, table, policy.encoder.state_dict())
    return policy, card, metadata.get("sha256"), expected


def _compare(path: Path, table: dict[str, Any], expected: dict[str, Tensor]) -> int:
    """Refuse tensors that the model does not have; the bytes that all of them take."""
    other = f"{path}: weights of another architecture:"
    missing, unknown = sorted(expected.keys() - table.keys()), sorted(table.keys() - expected.keys())
    if missing or unknown:
        what = f"lacks {missing[0]!r}" if missing else f"holds {unknown[0]!r}, which the model does not have"
        raise InputError(f"{other} the file {what}")
    total = 0
    for name, tensor in expected.items():
        entry = table[name] if isinstance(table[name], dict) else {}
        dtype, shape = entry.get("dtype"), entry.get("shape")
        if not isinstance(dtype, str) or dtype not in BYTES:
            raise InputError(f"{path}: {name} holds numbers of type {dtype!r}; allowed: {', '.join(BYTES)}")
        if shape != list(tensor.shape):
            given = tuple(shape) if isinstance(shape, list) else shape
            raise InputError(f"{other} {name} has shape {given} instead of {tuple(tensor.shape)}")
        total += BYTES[dtype] * math.prod(tensor.shape)
    return total


def _entry(digits: str) -> bytes:
    """The digest as it stands in the header; no other text there has quotes that are not escaped."""
    return f'"sha256":"{digits}"'.encode()


def _damaged(path: Path, error: object) -> InputError:
    return InputError(f"{path} is damaged or not a weights file: {error}")
