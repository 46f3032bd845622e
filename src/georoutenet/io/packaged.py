"""Where weights files are; it takes no torch to find them."""

from __future__ import annotations

import os
from pathlib import Path

from georoutenet.errors import InputError, path_name

PACKAGED = Path(__file__).parent.parent / "weights"


def packaged_weights() -> dict[str, Path]:
    """The weights that come with the package, by name."""
    names = sorted(name for name in os.listdir(PACKAGED) if name.endswith(".safetensors"))
    return {name.removesuffix(".safetensors"): PACKAGED / name for name in names}


def find_weights(name_or_path: str | Path) -> Path:
    """The file of packaged weights of that name, or the path itself."""
    packaged, name = packaged_weights(), path_name(name_or_path)
    if name in packaged:
        return packaged[name]
    if not os.path.isfile(name_or_path):
        names = ", ".join(packaged) or "none"
        folder = Path(name_or_path).parent
        beside = sorted(path.name for path in folder.glob("*.safetensors")) if folder.is_dir() else []
        hint = f"; in that folder: {', '.join(beside[:5])}" if beside else ""
        raise InputError(f"no weights {name!r}: neither a file nor packaged (packaged: {names}){hint}")
    return Path(name_or_path)
