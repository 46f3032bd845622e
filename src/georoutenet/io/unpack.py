"""Bounded reading: a small file that unpacks to a huge one ends in an error, not in a full memory."""

from __future__ import annotations

import gzip
import io
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from georoutenet.errors import InputError

MAX_BYTES = 256 * 2**20
"""How many bytes a file may hold, unpacked, unless the caller allows more."""
MAX_VALUES = MAX_BYTES // 16
"""Values of tables and lists: parsed, each takes up to 250 bytes, however short it was in the file."""
_CHUNK = 1 << 18
_BETWEEN = b" \t\n\r\v\f\x1c\x1d\x1e,;"
_BETWEEN_JSON = b",[{"


class BrokenGzip(InputError):
    """Bytes that are not a whole gzip file."""


class TooLarge(InputError):
    """More bytes, counted after unpacking, than the reader was allowed to take."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(f"holds more than {max_bytes:,} bytes; max_bytes (--max-bytes) allows more")


def refuse_many(data: bytes, source: str, max_bytes: int = 0, *, json: bool = False) -> None:
    """An error where the text of a table, or of JSON, holds more values than the memory should.

    A table of ``0,0`` takes 120 times its own bytes. ``max_bytes`` above the usual allow more in proportion.
    """
    most = max(MAX_VALUES, max_bytes // 16)
    if len(data) <= most:
        return
    between = len(data) - len(data.translate(None, _BETWEEN_JSON if json else _BETWEEN))
    if between > most:
        raise InputError(f"{source}: holds more than {most:,} values; max_bytes (--max-bytes) allows more")


def is_gzip(data: bytes) -> bool:
    return data[:2] == b"\x1f\x8b"


def unpack(packed: IO[bytes], max_bytes: int) -> Iterator[bytes]:
    """The contents of a gzip stream piece by piece; an error before more than ``max_bytes`` are out."""
    total = 0
    try:
        with gzip.GzipFile(fileobj=packed) as stream:
            while piece := stream.read(_CHUNK):
                total += len(piece)
                if total > max_bytes:
                    raise TooLarge(max_bytes)
                yield piece
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise BrokenGzip(f"broken gzip data: {error}") from None


def read_bounded(stream: IO[bytes], max_bytes: int, *, packed: bool = False) -> bytes:
    """All bytes of a stream, unpacked where they are gzip data by their content or by ``packed``."""
    pieces, total = [], 0
    while piece := stream.read(min(_CHUNK, max_bytes + 1 - total)):
        pieces.append(piece)
        total += len(piece)
        if total > max_bytes:
            raise TooLarge(max_bytes)
    data = b"".join(pieces)
    return b"".join(unpack(io.BytesIO(data), max_bytes)) if packed or is_gzip(data) else data


def read_file(path: str | os.PathLike[str], max_bytes: int | None = None) -> bytes:
    """All bytes of a file, unpacked; ``MAX_BYTES`` at most unless another limit is given."""
    most = MAX_BYTES if max_bytes is None else max_bytes
    with reading(path), open(path, "rb") as file:
        return read_bounded(file, most, packed=os.fspath(path).lower().endswith(".gz"))


@contextmanager
def reading(source: str | os.PathLike[str]) -> Iterator[None]:
    """Errors of reading, as one that names what was read."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{source}: {error}") from None
    except (OSError, ValueError, MemoryError) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise InputError(f"{source}: cannot read: {reason}") from None
