"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from georoutenet.errors import InputError


@contextmanager
def atomic_write(path: str | os.PathLike[str], mode: str = "w") -> Iterator[IO[Any]]:
    """Open ``path`` for writing (``"w"``: UTF-8 text, ``"wb"``: bytes); others see the old file or the new.

    The data goes to a temporary name in the same folder, is flushed to the disk, and takes the final name
    only when the block ends without an exception; otherwise the temporary file is removed. Missing parent
    folders are created. A link is followed, and a pipe or device (``/dev/stdout``) is written directly.
    """
    if mode not in ("w", "wb"):
        raise InputError(f"unknown mode {mode!r}; allowed: 'w', 'wb'")
    text = {} if mode == "wb" else {"encoding": "utf-8", "newline": "\n"}
    if os.path.isdir(path):
        raise InputError(f"{path}: cannot write: is a folder")
    if os.path.exists(path) and not os.path.isfile(path):
        with open(path, mode, **text) as file:  # type: ignore[call-overload]
            yield file
        return

    try:
        target = Path(os.path.realpath(path))
        temporary = target.with_name(f".{target.name[:100]}.{secrets.token_hex(6)}.tmp")
        with suppress(FileNotFoundError):
            os.stat(target)  # a name the file system cannot hold fails here, before the work, not at the end
        target.parent.mkdir(parents=True, exist_ok=True)
        # Not tempfile: its files are private (0600), and the umask should decide as for any other file.
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
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
