"""Bounded reading: a small file that unpacks to a huge one ends in an error, not in a full memory."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from typing import IO

from georoutenet.errors import InputError

MAX_BYTES = 256 * 2**20
"""How many bytes a file may hold, unpacked, unless the caller allows more. Parsed, they take 10 to 40 times
as much memory."""
_CHUNK = 1 << 18


class BrokenGzip(InputError):
    """Bytes that are not a whole gzip file."""


class TooLarge(InputError):
    """More bytes, counted after unpacking, than the reader was allowed to take."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(f"holds more than {max_bytes:,} bytes; max_bytes (--max-bytes) allows more")


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
