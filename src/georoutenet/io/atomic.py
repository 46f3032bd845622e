"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from georoutenet.errors import InputError
from georoutenet.io.locks import lock

_swept: set[Path] = set()


@contextmanager
def atomic_write(path: str | os.PathLike[str], mode: str = "w") -> Iterator[IO[Any]]:
    """Open ``path`` for writing (``"w"``: UTF-8 text, ``"wb"``: bytes); others see the old file or the new.

    The data goes to a temporary name in the same folder, is flushed to the disk, and takes the final name
    only when the block ends without an exception; otherwise the temporary file is removed. Missing parent
    folders are created. A link is followed, and a pipe or device (``/dev/stdout``) is written directly.
    What killed processes left in the folder is removed on the first write of a process there.
    """
    if mode not in ("w", "wb"):
        raise InputError(f"unknown mode {mode!r}; allowed: 'w', 'wb'")
    # Half of a pair of surrogates, which JSON can hold and UTF-8 cannot, is written out, as in \ud800.
    text = {} if mode == "wb" else {"encoding": "utf-8", "newline": "\n", "errors": "backslashreplace"}
    if os.path.isdir(path):
        raise InputError(f"{path}: cannot write: is a folder")
    if os.path.exists(path) and not os.path.isfile(path):
        with open(path, mode, **text) as file:  # type: ignore[call-overload]
            yield file
        return

    with ExitStack() as held:
        try:
            target = Path(os.path.realpath(path))
            target.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError):
                os.stat(target)  # a name the file system cannot hold fails here, before the work
            if target.parent not in _swept:
                _swept.add(target.parent)
                sweep(target.parent)
            temporary, descriptor = _create(target, held)
        except (OSError, ValueError) as error:
            raise InputError(f"{path}: cannot write: {getattr(error, 'strerror', None) or error}") from None
        try:
            with os.fdopen(descriptor, mode, **text) as file:  # type: ignore[call-overload]
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise


def _create(target: Path, held: ExitStack) -> tuple[Path, int]:
    """A new temporary file, locked until ``held`` ends so that no other process sweeps it."""
    while True:
        temporary = target.with_name(f".{target.name[:100]}.{secrets.token_hex(6)}.tmp")
        # Not tempfile: its files are private (0600), and the umask should decide as for any other file.
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        if not lock(descriptor, wait=True):
            return temporary, descriptor
        if temporary.exists():
            held.callback(os.close, os.dup(descriptor))
            return temporary, descriptor
        os.close(descriptor)  # swept between its making and its lock


def sweep(folder: Path) -> None:
    """Remove the temporary files of killed processes: those in the folder that nobody has locked."""
    names: list[str] = []
    with suppress(OSError):  # a folder that may be written to but not listed
        names = os.listdir(folder)
    for name in names:
        if not re.fullmatch(r"\..*\.[0-9a-f]{12}\.tmp", name, re.DOTALL):
            continue
        with suppress(OSError), ExitStack() as held:
            path = folder / name
            descriptor = os.open(path, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
            held.callback(os.close, descriptor)
            if lock(descriptor, wait=False):
                path.unlink()
