"""Fetching TSPLIB from its public distribution, each file checked by its SHA-256."""

from __future__ import annotations

import csv
import hashlib
import io
import os
import threading
from collections.abc import Callable, Mapping
from http.client import HTTPException
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import urlopen

from georoutenet.errors import GeoRouteNetError, InputError
from georoutenet.io.atomic import atomic_write
from georoutenet.io.unpack import BrokenGzip, TooLarge, unpack

TSPLIB_ADDRESS = "https://comopt.ifi.uni-heidelberg.de/software/TSPLIB95/tsp/"
_LARGEST_FILE = 16 * 2**20  # bytes, packed and unpacked; a mirror that sends more sends something else


class DownloadError(GeoRouteNetError):
    """Files that could not be fetched, or arrived with other contents than published."""


def tsplib_checksums() -> dict[str, str]:
    """File name to SHA-256 (hex) of the 85 coordinate instances up to rl5934 and their optimal tours."""
    text = files("georoutenet.io").joinpath("tsplib_sha256.csv").read_text(encoding="utf-8")
    return {row["file"]: row["sha256"] for row in csv.DictReader(text.splitlines())}


def _holds(path: Path, expected: str) -> bool:
    """Whether a file is there with the contents of that SHA-256."""
    if not path.is_file():
        return False
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == expected


def download_tsplib(
    folder: str | os.PathLike[str],
    *,
    address: str | None = None,
    checksums: Mapping[str, str] | None = None,
    progress: Callable[[int, int, str], None] | None = None,
    timeout: float = 30.0,
    deadline: float = 120.0,
) -> list[Path]:
    """Fetch ``<address>/<file>.gz`` for every file of the table, unpack into ``folder``; return new files.

    Files already there with the right contents are not fetched again, so an interrupted download resumes.
    ``address`` is, in this order, the argument, ``$GEOROUTENET_TSPLIB_ADDRESS`` or TSPLIB's home.
    ``progress(done, total, file)`` is called after each file. Wrong contents are not kept: they are reported
    once the other files are done. A server may be silent for ``timeout`` seconds, and each file must be there
    after ``deadline`` seconds, however slowly it drips.
    """
    folder = Path(folder)
    address = (address or os.environ.get("GEOROUTENET_TSPLIB_ADDRESS") or TSPLIB_ADDRESS).rstrip("/") + "/"
    if not address.startswith(("http://", "https://")):
        raise InputError(f"the address of a TSPLIB mirror starts with http:// or https://, got {address!r}")
    checksums = tsplib_checksums() if checksums is None else checksums
    fetched: list[Path] = []
    problems: list[str] = []
    for done, (name, expected) in enumerate(checksums.items(), 1):
        path = folder / name
        if not _holds(path, expected):
            try:
                data = _Fetch(f"{address}{quote(name)}.gz", expected, timeout).within(deadline)
            except _WrongContents as error:
                problems.append(f"{name}: {error}")
            except (OSError, HTTPException, ValueError) as error:
                # Stop at the first: without network every file would wait for its own timeout.
                reason = getattr(error, "reason", None) or error
                raise DownloadError(
                    f"cannot fetch {address}{name}.gz: {reason}; another mirror can be named in "
                    "GEOROUTENET_TSPLIB_ADDRESS, files you have in GEOROUTENET_TSPLIB"
                ) from None
            else:
                with atomic_write(path, "wb") as file:
                    file.write(data)
                fetched.append(path)
        if progress is not None:
            progress(done, len(checksums), name)
    if problems:
        raise DownloadError(
            f"{len(problems)} of {len(checksums)} files not fetched: " + "; ".join(problems[:5])
        )
    return fetched


class _WrongContents(Exception):
    pass


class _Fetch:
    """One file, fetched in a thread: the timeout of a socket never ends a server that drips."""

    def __init__(self, url: str, expected: str, timeout: float) -> None:
        self.url, self.expected, self.timeout = url, expected, timeout
        self.given_up = False
        self.received = 0
        self.outcome: bytes | Exception | None = None

    def within(self, seconds: float) -> bytes:
        """The contents, or the error that came instead, or ``TimeoutError``."""
        thread = threading.Thread(target=self._run, daemon=True)
        thread.start()
        try:
            thread.join(seconds)
        finally:
            self.given_up = True
        if self.outcome is None:
            raise TimeoutError(f"not complete after {seconds:g} s")
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome

    def _run(self) -> None:
        try:
            self.outcome = self._fetch()
        except HTTPError as error:
            self.outcome = _WrongContents(f"the server answered {error.code} {error.reason}")
        except (BrokenGzip, _WrongContents) as error:
            self.outcome = _WrongContents(str(error))
        except TooLarge:
            self.outcome = _WrongContents(f"more than {_LARGEST_FILE:,} bytes")
        except Exception as error:
            self.outcome = error

    def _fetch(self) -> bytes:
        """Unpacked and hashed as the bytes arrive."""
        digest, pieces = hashlib.sha256(), []
        with urlopen(self.url, timeout=self.timeout) as response:
            for piece in unpack(io.BufferedReader(_Pieces(response.read1, self._count)), _LARGEST_FILE):
                digest.update(piece)
                pieces.append(piece)
        if digest.hexdigest() != self.expected:
            raise _WrongContents(f"other contents than published (SHA-256 {digest.hexdigest()[:12]}...)")
        return b"".join(pieces)

    def _count(self, size: int) -> None:
        self.received += size
        if self.received > _LARGEST_FILE:
            raise TooLarge(_LARGEST_FILE)
        if self.given_up:
            raise TimeoutError


class _Pieces(io.RawIOBase):
    """A response as a stream that hands on what is there, and tells how much it was."""

    def __init__(self, read: Callable[[int], bytes], count: Callable[[int], None]) -> None:
        self._read, self._count = read, count

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        piece = self._read(len(buffer))
        self._count(len(piece))
        buffer[: len(piece)] = piece
        return len(piece)
