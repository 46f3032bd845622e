"""Runs packed into few files of limited size, and unpacked where they are kept.

Runs may train on one machine and be kept on another, and what goes from one to the other is a handful of
files of limited size. So the newest checkpoints of unfinished runs are packed, the weights of runs that are
not evaluated yet, and weights, metrics and results of finished ones, the most needed first. Unpacked, runs
that are done move out of the folder that travels, and leave a note there.
"""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import tarfile
import zlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from georoutenet.errors import InputError
from georoutenet.io.atomic import atomic_write

PART, ALL = 15 << 20, 60 << 20
"""Bytes of a file, and of all of them, at most: four files."""
UNPACKED = 4 * ALL
"""Bytes of one file after it was stretched, at most."""
CARRY = Path("carry")
"""In the checkout: what travels with it and is not tracked."""
PARTS = "studies.tar.*"
SQUEEZED = ".squeezed"
DONE, FAILED, PACKED = "done.json", "failed.txt", "packed.json"
RESULTS = "results"
"""In the folder of runs: what was evaluated, a folder for each run."""


def read_note(run: Path) -> dict[str, Any]:
    """What ``done.json`` of a run says; empty where it is not finished."""
    with suppress(OSError, ValueError, RecursionError):
        note = json.loads((run / DONE).read_text(encoding="utf-8"))
        return note if isinstance(note, dict) else {}
    return {}


def write_note(run: Path, note: dict[str, Any]) -> None:
    with atomic_write(run / DONE) as file:
        file.write(json.dumps(note, indent=1) + "\n")


def checkpoints(run: Path) -> list[Path]:
    """The checkpoints of a run, oldest first."""
    return sorted(path for path in run.glob("checkpoint-*") if path.is_dir())


def needed(work: Path, runs: Sequence[str], *, weights: bool) -> list[Path]:
    """The files of these runs that others need, the most needed first."""
    small: list[Path] = []
    states: list[Path] = []
    best: list[Path] = []
    finished: list[Path] = []
    for name in runs:
        run = work / name
        small += [run / each for each in (DONE, FAILED, "recipe.toml", "metrics.csv", "validation.csv")]
        small += sorted((work / RESULTS / name).glob("*"))
        note = read_note(run)
        if not note:
            best.append(run / "best.safetensors")
            for newest in checkpoints(run)[-1:]:
                states += sorted(newest.iterdir())
        elif not note.get("evaluated"):  # nothing else is left of its training
            states.append(run / "best.safetensors")
        if note and weights:
            finished += [run / "best.safetensors", run / "last.safetensors"]
    return [path for path in dict.fromkeys((*small, *states, *best, *finished)) if path.is_file()]


def pack(
    work: Path, home: Path, files: Iterable[Path], *, again: bool = False, room: int | None = None
) -> tuple[list[Path], list[Path]]:
    """Pack files of ``work`` into parts in ``home``; which parts, and which files found no room.

    Weights of evaluated runs that an earlier call packed are packed ``again`` only if asked for.
    Without ``room``, in bytes, there is that of `ALL`.
    """
    before = set() if again else set(_read_list(work / PACKED))
    room = ALL if room is None else room
    text, kept, left, total = io.BytesIO(), [], [], 0
    with tarfile.open(fileobj=text, mode="w") as tar:
        for path in files:
            name = path.relative_to(work).as_posix()
            if name in before:
                continue
            data = path.read_bytes()
            entry = tarfile.TarInfo(name)
            if path.suffix == ".safetensors":
                entry.name, data = name + SQUEEZED, squeeze(data)
            entry.size = len(data)
            if total + entry.size + 2048 > room:
                left.append(path)
                continue
            total += entry.size + 2048
            tar.addfile(entry, io.BytesIO(data))
            if path.suffix == ".safetensors" and read_note(path.parent).get("evaluated"):
                kept.append(name)
    for old in home.glob(PARTS):
        old.unlink()
    data, parts = text.getvalue(), []
    firsts = range(0, len(data), PART)
    for number, first in enumerate(firsts, start=1):
        parts.append(home / PARTS.replace("*", f"{number:02d}-of-{len(firsts):02d}"))
        with atomic_write(parts[-1], "wb") as file:
            file.write(data[first : first + PART])
    with atomic_write(work / PACKED) as file:
        file.write(json.dumps(sorted(before | set(kept))))
    return parts, left


def squeeze(data: bytes) -> bytes:
    """Float32 numbers in 86 % of their bytes: all first bytes, all second ones, and so on, then zlib."""
    body = len(data) // 4 * 4
    planes = np.frombuffer(data[:body], np.uint8).reshape(-1, 4).T
    return zlib.compress(planes.tobytes() + data[body:], 1)


def stretch(squeezed: bytes) -> bytes:
    """The bytes that `squeeze` was given; an error where they are more than may travel at all."""
    unpacked = zlib.decompressobj()
    data = unpacked.decompress(squeezed, UNPACKED)
    if unpacked.unconsumed_tail or not unpacked.eof:
        raise zlib.error(f"not whole, or more than {UNPACKED:,} bytes")
    body = len(data) // 4 * 4
    return np.frombuffer(data[:body], np.uint8).reshape(4, -1).T.tobytes() + data[body:]


def _read_list(path: Path) -> list[str]:
    with suppress(OSError, ValueError):
        return [str(each) for each in json.loads(path.read_text(encoding="utf-8"))]
    return []


def unpack(home: Path, work: Path, kept: Path) -> list[str]:
    """Put what was packed into ``work``; what is finished and evaluated goes on to ``kept``. The names of
    runs that came."""
    parts = sorted(home.glob(PARTS))
    if not parts:
        raise InputError(f"{home} holds no {PARTS}")
    if not all(part.name.endswith(f"-of-{len(parts):02d}") for part in parts):
        raise InputError(
            f"{home} holds {', '.join(part.name for part in parts)}: a part is missing, or too many"
        )
    packed = io.BytesIO(b"".join(part.read_bytes() for part in parts))
    came: dict[str, None] = {}
    try:
        with tarfile.open(fileobj=packed, mode="r:") as tar:
            for entry in tar:
                path = PurePosixPath(entry.name)
                inside = not path.is_absolute() and ".." not in path.parts and len(path.parts) > 1
                if not entry.isfile() or entry.issparse() or not inside:
                    raise InputError(f"{home}: {entry.name!r} is no file of a run")
                content = tar.extractfile(entry)
                assert content is not None
                data = content.read()
                if path.suffix == SQUEEZED:
                    path, data = path.with_suffix(""), stretch(data)
                with atomic_write(work / path, "wb") as file:
                    file.write(data)
                came[path.parts[1] if path.parts[0] == RESULTS else path.parts[0]] = None
    except (tarfile.TarError, zlib.error, EOFError) as error:
        raise InputError(f"{home} cannot be unpacked: {error}") from None
    for name in came:
        _settle(work, kept, name)
    return list(came)


def _settle(work: Path, kept: Path, name: str) -> None:
    """Only the newest checkpoint of a run stays, and of one that is done the note alone."""
    run, note = work / name, read_note(work / name)
    for old in checkpoints(run)[: None if note else -1]:
        shutil.rmtree(old)
    if not note.get("evaluated"):
        return
    for path in (*run.iterdir(), *(work / RESULTS / name).glob("*")):
        if path.is_file() and path.name != DONE:
            folder = kept / RESULTS / name if path.parent.parent.name == RESULTS else kept / name
            folder.mkdir(parents=True, exist_ok=True)
            path.replace(folder / path.name)
    with suppress(OSError):
        (work / RESULTS / name).rmdir()
    (kept / name).mkdir(parents=True, exist_ok=True)
    shutil.copy(run / DONE, kept / name / DONE)


def checkout(besides: Path) -> int:
    """Bytes of the checkout as it travels, `CARRY` included, without the folder ``besides``."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = ""
    with suppress(OSError, subprocess.CalledProcessError):  # no checkout: nothing travels with the folder
        listed = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    paths = {Path(name) for name in listed.split("\0") if name} | set(CARRY.rglob("*"))
    files = [
        path for path in paths if path.is_file() and not path.resolve().is_relative_to(besides.resolve())
    ]
    return sum(path.stat().st_size for path in files)


def size_of(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
