"""The weights of the paper's 2x2: kept in the history of the repository, not in its tree.

    python -m research.weights              # all that sha256.json lists, to research/weights
    python -m research.weights --to FOLDER

takes each file from the commits that held it and checks its SHA-256 against ``sha256.json`` before it is
written. It needs a full clone: after ``git clone --depth 1``, first ``git fetch --unshallow``.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path

from georoutenet.errors import InputError
from georoutenet.io.atomic import atomic_write

HERE = Path(__file__).parent


def listed(folder: Path = HERE) -> dict[str, str]:
    """The names of the files and their SHA-256."""
    return dict(json.loads((folder / "sha256.json").read_text()))


def restore(to: Path, folder: Path = HERE) -> list[Path]:
    """Write the listed files of ``folder`` into ``to``, as some commit held them."""
    return [_restore(name, digest, to, folder) for name, digest in listed(folder).items()]


def _restore(name: str, digest: str, to: Path, folder: Path) -> Path:
    path = to / name
    if path.exists() and _digest(path.read_bytes()) == digest:
        return path
    for commit in _git(folder, "log", "--all", "--format=%H", "--", name).decode().split():
        try:
            data = _git(folder, "show", f"{commit}:./{name}")
        except InputError:  # this commit removed it
            continue
        if _digest(data) == digest:
            to.mkdir(parents=True, exist_ok=True)
            with atomic_write(path, "wb") as out:
                out.write(data)
            return path
    raise InputError(
        f"no commit of this clone holds {name} with SHA-256 {digest[:12]}...; "
        "a full clone does: git fetch --unshallow"
    )


def _git(folder: Path, *arguments: str) -> bytes:
    try:
        done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, check=True)
    except FileNotFoundError:
        raise InputError("git is needed to read the history of the repository") from None
    except subprocess.CalledProcessError as error:
        raise InputError(f"git {arguments[0]}: {error.stderr.decode(errors='replace').strip()}") from None
    return done.stdout


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
