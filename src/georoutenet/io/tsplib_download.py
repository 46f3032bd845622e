"""Fetching TSPLIB from its public distribution, each file checked by its SHA-256."""

from __future__ import annotations

import csv
import gzip
import hashlib
import os
import zlib
from collections.abc import Callable, Mapping
from http.client import HTTPException
from importlib.resources import files
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import urlopen

from georoutenet.errors import GeoRouteNetError, InputError
from georoutenet.io.atomic import atomic_write

TSPLIB_ADDRESS = "http://comopt.ifi.uni-heidelberg.de/software/TSPLIB95/tsp/"
_LARGEST_FILE = 16 * 2**20  # bytes; a mirror that sends more sends something else


class DownloadError(GeoRouteNetError):
    """Files that could not be fetched, or arrived with other contents than published."""


def tsplib_checksums() -> dict[str, str]:
    """File name to SHA-256 (hex) of the 85 coordinate instances up to rl5934 and their optimal tours."""
    text = files("georoutenet.io").joinpath("tsplib_sha256.csv").read_text(encoding="utf-8")
    return {row["file"]: row["sha256"] for row in csv.DictReader(text.splitlines())}


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def download_tsplib(
    folder: str | os.PathLike[str],
    *,
    address: str | None = None,
    checksums: Mapping[str, str] | None = None,
    progress: Callable[[int, int, str], None] | None = None,
    timeout: float = 30.0,
) -> list[Path]:
    """Fetch ``<address>/<file>.gz`` for every file of the table, unpack into ``folder``; return new files.

    Files already there with the right contents are not fetched again, so an interrupted download resumes.
    ``address`` is, in this order, the argument, ``$GEOROUTENET_TSPLIB_ADDRESS`` or TSPLIB's home.
    ``progress(done, total, file)`` is called after each file. Wrong contents are not kept: they are reported
    once the other files are done.
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
        if not (path.is_file() and _sha256(path.read_bytes()) == expected):
            try:
                data = _fetch(f"{address}{quote(name)}.gz", expected, timeout)
            except _WrongContents as error:
                problems.append(f"{name}: {error}")
            except (OSError, HTTPException) as error:
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


def _fetch(url: str, expected: str, timeout: float) -> bytes:
    try:
        with urlopen(url, timeout=timeout) as response:
            packed = response.read(_LARGEST_FILE)
        data = gzip.decompress(packed)
    except HTTPError as error:
        raise _WrongContents(f"the server answered {error.code} {error.reason}") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise _WrongContents(f"broken gzip data: {error}") from None
    if _sha256(data) != expected:
        raise _WrongContents(f"other contents than published (SHA-256 {_sha256(data)[:12]}...)")
    return data
