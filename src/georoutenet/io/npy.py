"""NumPy's ``.npy`` files. Not by ``np.load``, which allocates what a broken header asks for."""

from __future__ import annotations

import ast
import math
import re
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from georoutenet.errors import InputError
from georoutenet.io.unpack import TooLarge
from georoutenet.problem.matrix import LARGEST_MATRIX

MAGIC = b"\x93NUMPY"
_LONGEST_HEADER = 1_000  # characters without the blanks that fill it up; plain arrays need about 60
_LONGEST_PADDED = 1 << 16


def read_npy(stream: IO[bytes], size: int, *, matrix: bool, max_bytes: int | None) -> NDArray[Any]:
    """The array ``(n, 2)``, or ``(n, n)`` with ``matrix``, in a stream of ``size`` bytes.

    Nothing after the header is read before the header agrees with the size of the file and with what may be
    read: ``max_bytes`` of coordinates, or the largest matrix. So a huge sparse file costs nothing.
    """
    try:
        shape, fortran, dtype = read_header(stream)
    except Exception as error:  # NumPy's and Python's parsers fail in many ways on foreign text
        raise InputError(f"not a NumPy .npy file: {str(error)[:200]}") from None
    square = len(shape) == 2 and shape[0] == shape[1]
    if dtype.kind not in "iuf" or len(shape) != 2 or not (square if matrix else shape[1] == 2):
        expected = "(n, n)" if matrix else "(n, 2)"
        hint = "; distances are read with matrix=True (--matrix)" if square and not matrix else ""
        raise InputError(f"expected an array of numbers of shape {expected}, got {dtype} {shape}{hint}")
    length, there = math.prod(shape) * dtype.itemsize, size - stream.tell()
    if length != there:
        raise InputError(f"truncated: {there} bytes for an array {dtype} {shape}")
    if matrix and shape[0] > LARGEST_MATRIX:
        raise InputError(f"a matrix may have at most {LARGEST_MATRIX:,} cities, got {shape[0]:,}")
    if not matrix and max_bytes is not None and length > max_bytes:
        raise TooLarge(max_bytes)
    body = stream.read(length)
    if len(body) != length:
        raise InputError("truncated while it was read")
    return np.frombuffer(body, dtype=dtype).reshape(shape, order="F" if fortran else "C")


def read_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, order and type of the array. NumPy's own reader takes seconds for a header of blanks."""
    start = stream.read(8)
    if start[:6] != MAGIC or start[6:] not in (b"\1\0", b"\2\0"):
        raise ValueError(f"it starts with {start!r}")
    digits = 2 if start[6] == 1 else 4
    length = int.from_bytes(stream.read(digits), "little")
    if length > _LONGEST_PADDED:
        raise ValueError(f"a header of {length:,} bytes")
    padded = stream.read(length)
    text = padded.decode("latin-1").strip(" \n\0")
    if len(padded) < length or not text or len(text) > _LONGEST_HEADER:
        raise ValueError(f"a header of {len(text):,} characters")
    text = re.sub(r"(?<=\d)L(?=[,) ])", "", text)  # whole numbers as Python 2 wrote them
    content = ast.literal_eval(text)
    if not isinstance(content, dict) or content.keys() != {"descr", "fortran_order", "shape"}:
        raise ValueError(f"the header {text[:80]!r}")
    shape, fortran = content["shape"], content["fortran_order"]
    if not isinstance(shape, tuple) or not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError(f"the shape {str(shape)[:80]}")
    if type(fortran) is not bool:
        raise ValueError(f"fortran_order {str(fortran)[:80]}")
    return shape, fortran, np.dtype(content["descr"])
