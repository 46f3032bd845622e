"""NumPy's arrays ``(B, n, 2)`` as rows: ``.npy``, or ``.npz`` with ``coordinates`` and, if wanted, ``id``."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from georoutenet.bulk.arrow import Columns
from georoutenet.bulk.reader import Scan
from georoutenet.bulk.rows import MOST_CITIES, Row, make_row
from georoutenet.errors import InputError
from georoutenet.io.npy import read_header

BYTES = 4 << 20
"""Read at a time, about."""
COORDINATES, ID = "coordinates", "id"
ID_BYTES = 1 << 16
"""What an id may take in the file, as long as the longest of them."""
UNPACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""NumPy's ways to pack an array. Of others Python unpacks far more than was asked for."""


class _Array:
    """One array in a file, read in pieces."""

    def __init__(self, stream: IO[bytes], where: str) -> None:
        self.stream, self.where = stream, where
        try:
            self.shape, fortran, self.dtype = read_header(stream)
        except Exception as error:  # NumPy's and Python's parsers fail in many ways on foreign text
            raise InputError(f"{where}: not a NumPy array: {str(error)[:200]}") from None
        if fortran and len(self.shape) > 1:
            raise InputError(f"{where}: in Fortran's order; np.ascontiguousarray(...) makes it readable here")
        self.begin = stream.tell()
        self.each = math.prod(self.shape[1:]) * self.dtype.itemsize

    def rows(self, first: int, stop: int) -> NDArray[Any]:
        self.stream.seek(self.begin + first * self.each)
        length = (stop - first) * self.each
        data = self.stream.read(length)
        if len(data) != length:
            raise InputError(f"{self.where}: truncated: rows {first:,} to {stop:,} are missing")
        return np.frombuffer(data, dtype=self.dtype).reshape(stop - first, *self.shape[1:])


class _Arrays:
    """The arrays of a ``.npy`` or ``.npz`` file; only headers have been read."""

    def __init__(self, path: Path) -> None:
        self.archive: zipfile.ZipFile | None = None
        self.id: _Array | None = None
        where = str(path)
        try:
            if path.suffix.lower() == ".npy":
                size = path.stat().st_size
                self.coordinates = _Array(open(path, "rb"), where)  # noqa: SIM115
            else:
                self.archive = zipfile.ZipFile(path)
                members = {each.filename.removesuffix(".npy"): each for each in self.archive.infolist()}
                name = COORDINATES if COORDINATES in members or len(members) != 1 else next(iter(members))
                if name not in members:
                    given = ", ".join(map(repr, members))[:200] or "none"
                    raise InputError(f"{where}: no array {COORDINATES!r} (B, n, 2) in it; arrays: {given}")
                size = members[name].file_size
                self.coordinates = self._member(members[name], where)
                if ID in members:
                    self.id = self._member(members[ID], where)
        except (OSError, zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
            raise InputError(f"{where}: cannot read: {error}") from None
        array = self.coordinates
        if array.dtype.kind not in "iuf" or len(array.shape) != 3 or array.shape[2] != 2:
            raise InputError(f"{where}: expected numbers of shape (B, n, 2), got {array.dtype} {array.shape}")
        if array.begin + array.each * array.shape[0] != size:
            raise InputError(f"{where}: truncated: {size:,} bytes for an array {array.dtype} {array.shape}")
        if not 1 <= array.shape[1] <= MOST_CITIES:
            raise InputError(f"{where}: instances of 1 to {MOST_CITIES:,} cities, got {array.shape}")
        if self.id is not None and (
            self.id.dtype.kind not in "iuU"
            or self.id.shape != array.shape[:1]
            or self.id.dtype.itemsize > ID_BYTES
        ):
            raise InputError(
                f"{where}: ids are {array.shape[0]:,} numbers or texts of at most {ID_BYTES:,} bytes, "
                f"got {self.id.dtype} {self.id.shape}"
            )
        self.count = array.shape[0]

    def _member(self, member: zipfile.ZipInfo, where: str) -> _Array:
        assert self.archive is not None
        if member.compress_type not in UNPACKED:
            raise InputError(f"{where}: {member.filename}: packed otherwise than by np.savez_compressed")
        return _Array(self.archive.open(member), f"{where}: {member.filename}")

    def close(self) -> None:
        for each in (self.coordinates, self.id):
            if each is not None:
                each.stream.close()
        if self.archive is not None:
            self.archive.close()


def scan_array(path: Path, id_column: str | None) -> Scan:
    """Instances and their size, from the headers."""
    arrays = _Arrays(path)
    arrays.close()
    shape, dtype = arrays.coordinates.shape, arrays.coordinates.dtype
    text = arrays.id is not None and (arrays.id.dtype.kind == "U" or arrays.id.dtype == np.uint64)
    columns = Columns(id=None if arrays.id is None else ID, text_ids=text, points=COORDINATES)
    schema = [f"{COORDINATES}: {dtype} {shape}"]
    schema += [] if arrays.id is None else [f"{ID}: {arrays.id.dtype}"]
    return Scan(arrays.count, columns, schema, cities=shape[0] * shape[1])


class ArrayReader:
    """Instances of one file."""

    def __init__(self, path: Path, columns: Columns, index: list[list[int]], base: int) -> None:
        self.arrays, self.base, self.text = _Arrays(path), base, columns.text_ids

    def close(self) -> None:
        self.arrays.close()

    def read(self, first: int, stop: int) -> Iterator[Row]:
        """The instances from ``first`` to before ``stop``."""
        each = max(
            1, *(array.each for array in (self.arrays.coordinates, self.arrays.id) if array is not None)
        )
        step = max(1, BYTES // each)
        for at in range(first, stop, step):
            end = min(stop, at + step)
            ids: list[Any] = list(range(self.base + at, self.base + end))
            if self.arrays.id is not None:
                ids = self.arrays.id.rows(at, end).tolist()
                ids = list(map(str, ids)) if self.text else ids
            for id, coordinates in zip(ids, self.arrays.coordinates.rows(at, end), strict=True):
                yield make_row(id, coordinates)
