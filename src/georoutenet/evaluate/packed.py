"""Many results in one file: a ``.npz`` archive for one model, with a cell for each set and decoder.

``results/georoutenet.npz:val50-beam-1000`` names a cell. The archive holds no pickles. Its member ``index``
is a JSON text: for each cell the header of its CSV file, unchanged, and its table; for each table what its
cells share, the names of the instances. Numbers have at most nine decimals in a CSV file, so they are whole
multiples of 1e-9 and are stored as such: division by 1e9 gives back the same float64. The members are

    TABLE/n            cities of each instance
    TABLE/reference    reference lengths; 0: unknown, otherwise one more than the multiple
    CELL/length        lengths less the reference and less the smallest such difference (``least``)
    CELL/seconds       the three columns of seconds, one after the other; 0: unknown, as above

each as the bytes of its numbers, first all lowest bytes, then all second ones: so they compress well. A table
is called after the hash of what it holds. Models that were measured against the same references share their
tables: those lie in ``references.npz`` beside the files, a packed file without cells.
"""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import os
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from georoutenet.errors import InputError
from georoutenet.evaluate.results import DECIMALS, Results, Row, read_results
from georoutenet.io.atomic import atomic_write
from georoutenet.io.unpack import MAX_BYTES, read_file

FORMAT = "georoutenet-packed 1"
SUFFIX = ".npz"
SHARED = "references.npz"
"""The file of tables that several packed files in a folder share."""
UNIT = 10**DECIMALS

Integers = NDArray[np.int64]
Members = dict[str, NDArray[np.uint8]]


def write_packed(
    path: str | os.PathLike[str], cells: Mapping[str, Results], *, share_tables: bool = False
) -> None:
    """Write a file whole or not at all; a number with more than nine decimals is an error.

    With ``share_tables`` the tables go to ``references.npz`` in the same folder, beside those already there.
    """
    if Path(path).name == SHARED:
        raise InputError(f"{path}: that name is for the tables that packed files share")
    index, members, tables = _pack(cells)
    if share_tables:
        shared = Path(path).with_name(SHARED)
        old = Packed(shared) if shared.exists() else None
        known = {} if old is None else old.index["tables"]
        if old is None or not index["tables"].keys() <= known.keys():
            kept = {} if old is None else old.members()
            every = {"format": FORMAT, "tables": {**known, **index["tables"]}, "cells": {}}
            _write(shared, every, {**kept, **tables})
    _write(path, index, members if share_tables else {**tables, **members})


def _pack(cells: Mapping[str, Results]) -> tuple[dict[str, Any], Members, Members]:
    """The index, the members of the cells, and those of the tables."""
    members: Members = {}
    of_tables: Members = {}
    tables: dict[str, dict[str, Any]] = {}
    index: dict[str, dict[str, Any]] = {}
    for name, results in sorted(cells.items()):
        if not name or "/" in name or ":" in name:
            raise InputError(f"a packed cell cannot be called {name!r}")
        names = [row.instance for row in results.rows]
        n = np.array([row.n for row in results.rows], dtype=np.int64)
        reference = _with_unknown(results.references, name)
        key = "\n".join(names).encode() + n.tobytes() + reference.tobytes()
        table = hashlib.sha256(key).hexdigest()[:16]
        if table not in tables:
            tables[table] = {"count": len(names), **_short(names)}
            of_tables[f"{table}/n"] = _planes(n)
            of_tables[f"{table}/reference"] = _planes(reference)
        excess = _multiples(results.lengths, name) - np.maximum(reference - 1, 0)
        least = int(excess.min(initial=0))
        seconds = (results.seconds, results.network_seconds, results.improve_seconds)
        index[name] = {"table": table, "least": least, "header": results.header}
        members[f"{name}/length"] = _planes(excess - least)
        members[f"{name}/seconds"] = _planes(np.concatenate([_with_unknown(each, name) for each in seconds]))
    return {"format": FORMAT, "tables": tables, "cells": index}, members, of_tables


def _write(path: str | os.PathLike[str], index: dict[str, Any], members: Members) -> None:
    """The same contents give the same bytes: no dates, and members in order."""
    text = json.dumps(index, ensure_ascii=False).encode()
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_LZMA) as archive:
        for name, array in [("index", np.frombuffer(text, dtype=np.uint8)), *sorted(members.items())]:
            data = io.BytesIO()
            np.lib.format.write_array(data, array, allow_pickle=False)
            archive.writestr(_member(name), data.getvalue())
    with atomic_write(path, "wb") as out:
        out.write(file.getvalue())


def _member(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(f"{name}.npy")
    info.compress_type = zipfile.ZIP_LZMA
    return info


class Packed:
    """A packed file: ``names`` of its cells, and ``packed[name]``, the results of one."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        try:
            with self._open() as stored:
                self.index = json.loads(stored["index"].tobytes().decode())
            if self.index["format"] != FORMAT:
                raise ValueError(f"its format is {self.index['format']!r}, not {FORMAT!r}")
            self.names: list[str] = list(self.index["cells"])
            for name in self.names:
                header = self.index["cells"][name]["header"].items()
                if not all(isinstance(text, str) for line in header for text in line):
                    raise ValueError(f"the header of {name} holds more than text")
        except InputError:
            raise
        except _DAMAGE as error:
            raise InputError(f"{path} is not a file of packed results: {error}") from None

    def _open(self) -> Any:
        """What the file holds, as far as it may: in all no more than any other file, unpacked."""
        data = read_file(self.path)
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if sum(member.file_size for member in archive.infolist()) > MAX_BYTES:
                raise InputError(f"{self.path}: holds more than {MAX_BYTES:,} bytes")
        return np.load(io.BytesIO(data), allow_pickle=False)

    def header(self, name: str) -> dict[str, str]:
        """The header of a cell."""
        if name not in self.index["cells"]:
            raise InputError(f"{self.path} has no cell {name!r}; it has: {', '.join(self.names)}")
        return dict(self.index["cells"][name]["header"])

    def __getitem__(self, name: str) -> Results:
        return self.results([name])[name]

    def members(self) -> Members:
        """All members but the index."""
        with self._open() as stored:
            return {name: stored[name] for name in stored.files if name != "index"}

    def results(self, names: Iterable[str] | None = None) -> dict[str, Results]:
        """These cells, or all."""
        headers = {name: self.header(name) for name in (self.names if names is None else names)}
        found = {}
        try:
            with self._open() as stored:
                tables = {name: self.index["cells"][name]["table"] for name in headers}
                columns = {f"{table}/{key}" for table in tables.values() for key in ("n", "reference")}
                shared = self._shared(columns - set(stored.files))
                for name, header in headers.items():
                    own = {key: stored[f"{name}/{key}"] for key in ("length", "seconds")}
                    for key in ("n", "reference"):
                        column = f"{tables[name]}/{key}"
                        own[key] = shared[column] if column in shared else stored[column]
                    found[name] = self._cell(name, header, own)
        except InputError:
            raise
        except _DAMAGE as error:
            raise InputError(f"{self.path} is damaged: {error}") from None
        return found

    def _shared(self, columns: set[str]) -> Members:
        """These members from the file beside this one."""
        if not columns:
            return {}
        path = self.path.with_name(SHARED)
        if not path.exists():
            raise InputError(f"{self.path} needs {SHARED} beside it, which holds its reference lengths")
        members = Packed(path).members()
        if not columns <= members.keys():
            raise InputError(f"{path} lacks {min(columns - members.keys())} of {self.path}")
        return {column: members[column] for column in columns}

    def _cell(self, name: str, header: dict[str, str], own: Members) -> Results:
        cell = self.index["cells"][name]
        table = self.index["tables"][cell["table"]]
        count = table["count"]
        reference = _numbers(own["reference"], count)  # the only one that says whether the count is true
        names = table.get("names") or [f"{table['prefix']}{k}" for k in range(count)]
        length = _numbers(own["length"], count) + cell["least"] + np.maximum(reference - 1, 0)
        seconds = _floats(_numbers(own["seconds"], 3 * count)).reshape(3, count)
        columns = (
            names,
            _numbers(own["n"], count).tolist(),
            (length / UNIT).tolist(),
            _floats(reference).tolist(),
            *seconds.tolist(),
        )
        return Results(header, [Row(*row) for row in zip(*columns, strict=True)])


_DAMAGE = (
    AttributeError, EOFError, KeyError, MemoryError, NotImplementedError, OverflowError, RecursionError,
    RuntimeError, TypeError, ValueError, lzma.LZMAError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip


def read_any(path: str | os.PathLike[str]) -> Results:
    """The results in a CSV file, or those that ``FILE.npz:CELL`` names."""
    file, _, name = str(path).partition(f"{SUFFIX}:")
    if not name and str(path).endswith(SUFFIX):
        names = ", ".join(Packed(path).names)
        raise InputError(f"{path} holds many results; name one, as {path}:CELL, of {names}")
    results = Packed(file + SUFFIX)[name] if name else read_results(path)
    for key in ("weights", "set"):
        if key not in results.header:
            raise InputError(f"{path}: its header does not say which {key}")
    return results


def cell_name(path: Path) -> str:
    """What a CSV file of results is called in a packed file: its own name without the ending."""
    return path.name.removesuffix(".gz").removesuffix(".csv")


def _short(names: list[str]) -> dict[str, Any]:
    """Names that are one word and the position are stored as that word."""
    prefix = names[0].removesuffix("0") if names else ""
    if all(name == f"{prefix}{position}" for position, name in enumerate(names)):
        return {"prefix": prefix}
    return {"names": names}


def _multiples(values: NDArray[np.float64], name: str) -> Integers:
    """The values in units of the last decimal; anything that would not come back the same is an error."""
    whole = np.rint(values * UNIT)
    if not (np.abs(whole) < 2**53).all() or not (whole / UNIT == values).all():
        raise InputError(f"{name}: only finite numbers with at most {DECIMALS} decimals can be packed")
    return whole.astype(np.int64)


def _with_unknown(values: NDArray[np.float64], name: str) -> Integers:
    unknown = np.isnan(values)
    whole = _multiples(np.where(unknown, 0.0, values), name)
    if (whole < 0).any():
        raise InputError(f"{name}: references and seconds must be >= 0")
    return np.where(unknown, 0, whole + 1)


def _floats(values: Integers) -> NDArray[np.float64]:
    return np.where(values == 0, np.nan, (values - 1) / UNIT)


def _planes(values: Integers) -> NDArray[np.uint8]:
    """Non-negative numbers byte by byte, lowest bytes first, without bytes that are zero in all of them."""
    width = (int(values.max(initial=0)).bit_length() + 7) // 8
    planes = values.astype("<i8").view(np.uint8).reshape(-1, 8)[:, :width]
    return np.ascontiguousarray(planes.T)


def _numbers(planes: NDArray[np.uint8], count: int) -> Integers:
    if planes.dtype != np.uint8 or planes.ndim != 2 or planes.shape[1] != count or len(planes) > 8:
        raise ValueError(f"expected bytes of {count} numbers, got {planes.dtype} of shape {planes.shape}")
    whole = np.zeros((count, 8), dtype=np.uint8)
    whole[:, : len(planes)] = planes.T
    return whole.view("<i8").reshape(count).astype(np.int64)
