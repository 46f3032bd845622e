"""One process that writes into a folder: who holds it is written in its lock file."""

from __future__ import annotations

import json
import os
import socket
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from georoutenet.errors import InputError
from georoutenet.io.locks import lock
from georoutenet.io.strict_json import parse_json

NAME = ".lock"


class FolderLock:
    """A folder for this object alone, from `acquire` to `release` or the end of the process.

    The operating system locks the file, so what a killed process leaves does not block. Where it has no such
    locks the file itself is the lock, and one of a process of this machine that is gone is taken over.
    """

    def __init__(self, folder: Path, *, does: str = "trains", other: str = "--out") -> None:
        self.path = folder / NAME
        self.does, self.other = does, other
        """For the error: what the holder does there, and what else can be chosen."""
        self.descriptor: int | None = None
        self.holder: dict[str, Any] = {}

    def acquire(self) -> None:
        """Take the folder, which is made if need be; an `InputError` says who holds it."""
        if self.descriptor is not None:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            while self.descriptor is None:
                self._try()
        except OSError as error:
            raise InputError(f"{self.path.parent}: cannot write: {error.strerror or error}") from None

    def _try(self) -> None:
        """One attempt, to be repeated while it neither takes the lock nor raises."""
        made = True
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            made = False
            if self.path.is_symlink():  # it would be overwritten, whatever it leads to
                raise InputError(f"{self.path} is a link, and no lock; remove it") from None
            try:
                descriptor = os.open(self.path, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
            except FileNotFoundError:
                return
        try:
            locked = lock(descriptor, wait=False)
            if locked is False:
                raise self._held()
            if not self._is_there(descriptor):  # the one who had it has removed it
                return
            if locked is None and not made:
                if self._is_alive():
                    raise self._held(f"; if that process is gone, remove {self.path}")
                self.path.unlink()
                return
            since = datetime.now(UTC).isoformat(" ", "seconds")
            self.holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": since}
            os.ftruncate(descriptor, 0)
            os.write(descriptor, json.dumps(self.holder).encode())
            self.descriptor = descriptor
        finally:
            if self.descriptor is None:
                os.close(descriptor)

    def release(self) -> None:
        """Let others have the folder."""
        if self.descriptor is None:
            return
        descriptor, self.descriptor = self.descriptor, None
        with suppress(OSError):
            if self.holder["pid"] == os.getpid() and self._is_there(descriptor):  # not in a fork
                self.path.unlink()
        os.close(descriptor)

    __del__ = release

    def _is_there(self, descriptor: int) -> bool:
        """Whether the file of that name is still the one that was opened."""
        try:
            return os.path.samestat(os.fstat(descriptor), os.stat(self.path))
        except FileNotFoundError:
            return False

    def _other(self) -> dict[str, Any]:
        """Who wrote the file, as far as it can be read."""
        with suppress(OSError, InputError):
            holder = parse_json(self.path.read_bytes())
            if isinstance(holder, dict):
                return holder
        return {}

    def _is_alive(self) -> bool:
        """Whether the process in the file may still be there; only of this machine's can that be known."""
        holder = self._other()
        pid = holder.get("pid")
        if holder.get("host") != socket.gethostname() or not isinstance(pid, int) or not 0 < pid < 1 << 31:
            return True
        if os.name != "posix":  # elsewhere asking could end it
            return True
        try:
            os.kill(pid, 0)
        except OSError as error:
            return not isinstance(error, ProcessLookupError)
        return True

    def _held(self, advice: str = "") -> InputError:
        holder = self._other()
        pid, host, since = (holder.get(key, "unknown") for key in ("pid", "host", "since"))
        mine = pid == os.getpid() and host == socket.gethostname()
        who = "this process" if mine else f"process {pid!r} on {host!r} since {since!r}"
        return InputError(
            f"{self.path.parent} is in use: {who} {self.does} there. "
            f"Wait for it, or use another {self.other}{advice}"
        )
