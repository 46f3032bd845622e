"""Weights files: ``.safetensors`` with configuration and card in the header. Nothing is ever unpickled."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from georoutenet.errors import InputError
from georoutenet.io.atomic import atomic_write
from georoutenet.model.config import PolicyConfig
from georoutenet.policy.policy import Policy

FORMAT = "georoutenet-weights"
VERSION = 1
PACKAGED = Path(__file__).parent.parent / "weights"


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
    }
    with atomic_write(path, "wb") as file:
        file.write(save(tensors, metadata=header))


def packaged_weights() -> dict[str, Path]:
    """The weights that come with the package, by name."""
    return {path.stem: path for path in sorted(PACKAGED.glob("*.safetensors"))}


def find_weights(name_or_path: str | Path) -> Path:
    """The file of packaged weights of that name, or the path itself."""
    packaged = packaged_weights()
    if str(name_or_path) in packaged:
        return packaged[str(name_or_path)]
    path = Path(name_or_path)
    if not path.is_file():
        names = ", ".join(packaged) or "none"
        raise InputError(f"no weights {str(name_or_path)!r}: neither a file nor packaged (packaged: {names})")
    return path


def digest(name_or_path: str | Path) -> str:
    """SHA-256 of a weights file, card included: what results name it by."""
    return hashlib.sha256(find_weights(name_or_path).read_bytes()).hexdigest()


def read_card(name_or_path: str | Path) -> tuple[PolicyConfig, dict[str, Any]]:
    """Configuration and card of a weights file, from its header alone."""
    return _read(find_weights(name_or_path), tensors=False)[:2]


def load_policy(name_or_path: str | Path, device: torch.device | str = "cpu") -> Policy:
    """A policy in evaluation mode from packaged weights (by name) or a file (by path)."""
    path = find_weights(name_or_path)
    config, _, tensors = _read(path, tensors=True)
    policy = Policy(config)
    expected = policy.encoder.state_dict()
    missing, unknown = sorted(expected.keys() - tensors.keys()), sorted(tensors.keys() - expected.keys())
    if missing or unknown:
        what = f"lacks {missing[0]!r}" if missing else f"holds {unknown[0]!r}, which the model does not have"
        raise InputError(f"{path}: weights of another architecture: the file {what}")
    for name, value in tensors.items():
        if value.shape != expected[name].shape:
            shapes = f"{tuple(value.shape)} instead of {tuple(expected[name].shape)}"
            raise InputError(f"{path}: weights of another architecture: {name} has shape {shapes}")
    policy.encoder.load_state_dict(tensors)
    for name, parameter in policy.encoder.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            raise InputError(f"{path}: {name} holds values that are not finite")
    return policy.to(device).eval()


def _read(path: Path, *, tensors: bool) -> tuple[PolicyConfig, dict[str, Any], dict[str, Tensor]]:
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            if header.get("format") != FORMAT:
                raise InputError(f"{path} is not a GeoRouteNet weights file")
            version = int(header["version"])
            if version > VERSION:
                newest = f"this version of georoutenet reads up to {VERSION}, please update it"
                raise InputError(f"{path} has weights format {version}; {newest}")
            config = PolicyConfig.from_dict(json.loads(header["config"]))
            card = json.loads(header.get("card", "{}"))
            values = {name: file.get_tensor(name) for name in file.keys()} if tensors else {}  # noqa: SIM118
    except InputError as error:
        if str(path) in str(error):
            raise
        raise InputError(f"{path}: {error}") from None
    except (SafetensorError, OSError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is damaged or not a weights file: {error}") from None
    return config, card, values
