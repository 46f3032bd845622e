"""What is to be solved: a file or a folder of files, counted and hashed, then read by ranges of rows."""

from __future__ import annotations

import bisect
import hashlib
import itertools
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from georoutenet.bulk.arrays import ArrayReader, scan_array
from georoutenet.bulk.arrow import Columns
from georoutenet.bulk.long_csv import CsvReader, scan_csv
from georoutenet.bulk.parquet import ParquetReader, scan_parquet
from georoutenet.bulk.reader import Reader, Scan
from georoutenet.bulk.rows import Row
from georoutenet.errors import InputError
from georoutenet.io.files import read_instance

EXTENSIONS = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".csv.gz": "csv",
    ".npy": "array",
    ".npz": "array",
    ".tsp": "tsp",
    ".tsp.gz": "tsp",
}
_SCANS: dict[str, Callable[[Path, str | None], Scan]] = {
    "parquet": scan_parquet,
    "csv": scan_csv,
    "array": scan_array,
}


MOST_INSTANCES = 10**10
"""Of a run: headers can say anything."""


class InputChanged(InputError):
    """A file is no longer what the run was begun with."""


class TspReader:
    """The instance of one TSPLIB file, called by the file's name."""

    def __init__(self, path: Path, name: str) -> None:
        self.path, self.name = path, os.fsencode(name).decode(errors="backslashreplace")

    def close(self) -> None:
        pass

    def read(self, first: int, stop: int) -> Iterator[Row]:
        try:
            instance = read_instance(self.path)
            yield Row(self.name, instance, n=instance.n)
        except InputError as error:
            yield Row(self.name, error=str(error).replace(str(self.path), self.name))


_READERS: dict[str, Callable[[Path, Columns, list[list[int]], int], Reader]] = {
    "parquet": ParquetReader,
    "csv": CsvReader,
    "array": ArrayReader,
}


@dataclass(frozen=True)
class Input:
    """Files of one kind with the same columns, in order; all that a worker needs to read rows of them."""

    kind: str
    folder: str
    names: list[str]
    counts: list[int]
    """Instances of each file."""
    indexes: list[list[list[int]]]
    columns: Columns
    schema: list[str]
    cities: int | None
    bytes: int
    sha256: str
    """Of all names and contents."""
    stats: list[list[int]]
    """Size and time of change of each file when it was hashed."""

    @property
    def instances(self) -> int:
        return sum(self.counts)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Input:
        return cls(**{**content, "columns": Columns(**content["columns"])})

    def path(self, file: int) -> Path:
        return Path(self.folder, self.names[file])

    def check(self, file: int) -> None:
        """Raise where a file is no longer what was hashed."""
        try:
            now = _stat(self.path(file))
        except OSError as error:
            raise InputError(f"{self.path(file)}: cannot read: {error.strerror or error}") from None
        if now != self.stats[file]:
            raise InputChanged(f"{self.path(file)}: changed while it was being solved; start again")


def find_input(path: str | os.PathLike[str], id_column: str | None = None) -> Input:
    """Find, scan and hash what is to be solved; everything is read once, in pieces."""
    given = Path(path)
    if given.is_dir():
        folder, names = given, _files(given)
    elif given.is_file():
        folder, names = given.parent, [given.name]
    else:
        raise InputError(f"{given}: there is no such file or folder")
    kinds = {_kind(name) for name in names}
    if len(kinds) != 1 or "" in kinds:
        what = f"{', '.join(sorted(kinds))} at once" if len(kinds) > 1 else "no input"
        allowed = ", ".join(EXTENSIONS)
        raise InputError(f"{given}: {what}; allowed: a file, or a folder of files of one kind: {allowed}")
    (kind,) = kinds
    if kind == "tsp" and id_column is not None:
        raise InputError(f"{given}: there is no column {id_column!r} of ids: .tsp files have no columns")
    if kind == "array" and id_column is not None:
        raise InputError(
            f"{given}: there is no column {id_column!r}: ids stand in the array 'id' of an .npz file"
        )
    digest, stats, scans = hashlib.sha256(), [], []
    for name in names:
        file = folder / name
        try:
            before = _stat(file)
            own = _hash(file)
            scans.append(_scan(kind, file, id_column))
            if _stat(file) != before:
                raise InputError(f"{file}: changed while it was being read; start again")
        except OSError as error:
            raise InputError(f"{file}: cannot read: {error.strerror or error}") from None
        stats.append(before)
        digest.update(os.fsencode(name) + b"\0" + own)
    for name, scan in zip(names, scans, strict=True):
        if scan.columns != scans[0].columns:
            raise InputError(
                f"{folder / name}: other columns than {names[0]}: {', '.join(scan.schema)} and not "
                f"{', '.join(scans[0].schema)}"
            )
    if (instances := sum(scan.count for scan in scans)) > MOST_INSTANCES:
        raise InputError(f"{given}: {instances:,} instances; allowed: {MOST_INSTANCES:,}")
    cities = [scan.cities for scan in scans]
    return Input(
        kind=kind,
        folder=str(folder),
        names=names,
        counts=[scan.count for scan in scans],
        indexes=[scan.index for scan in scans] if any(scan.index for scan in scans) else [],
        columns=scans[0].columns,
        schema=scans[0].schema,
        cities=None if None in cities else sum(each for each in cities if each is not None),
        bytes=sum(each[0] for each in stats),
        sha256=digest.hexdigest(),
        stats=stats,
    )


def _files(folder: Path) -> list[str]:
    """Names of the files in a folder and its folders, sorted; not those that begin with . or _."""
    found = []
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name[0] not in "._"]
        inside = os.path.relpath(place, folder)
        found += [os.path.normpath(os.path.join(inside, name)) for name in files if name[0] not in "._"]
    known = sorted(name for name in found if _kind(name))
    if not known:
        raise InputError(f"{folder}: no files to solve in it; allowed: {', '.join(EXTENSIONS)}")
    return known


def _kind(name: str) -> str:
    lower = name.lower()
    return next((kind for extension, kind in EXTENSIONS.items() if lower.endswith(extension)), "")


def _scan(kind: str, file: Path, id_column: str | None) -> Scan:
    if kind == "tsp":
        return Scan(1, Columns(id="file", text_ids=True), ["one file per instance, called by its name"])
    return _SCANS[kind](file, id_column)


def _stat(path: Path) -> list[int]:
    about = path.stat()
    if not stat.S_ISREG(about.st_mode):  # reading from a pipe may never end
        raise InputError(f"{path}: not a regular file")
    return [about.st_size, about.st_mtime_ns]


def _hash(path: Path) -> bytes:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


class Rows:
    """Rows of an input by ranges. The file read last stays open, so that ranges in order cost least."""

    def __init__(self, input: Input) -> None:
        self.input = input
        self.starts = [0, *itertools.accumulate(input.counts)]
        self.opened: tuple[int, Reader] | None = None

    def read(self, first: int, stop: int) -> Iterator[Row]:
        """The instances numbered from ``first`` to before ``stop``, over all files."""
        file = bisect.bisect_right(self.starts, first) - 1
        while first < stop:
            begin, end = self.starts[file], min(stop, self.starts[file + 1])
            if first < end:
                self.input.check(file)
                yield from self._open(file).read(first - begin, end - begin)
                self.input.check(file)
                first = end
            file += 1

    def _open(self, file: int) -> Reader:
        if self.opened is None or self.opened[0] != file:
            self.close()
            of = self.input
            if of.kind == "tsp":
                self.opened = file, TspReader(of.path(file), of.names[file])
            else:
                index = of.indexes[file] if of.indexes else []
                self.opened = file, _READERS[of.kind](of.path(file), of.columns, index, self.starts[file])
        return self.opened[1]

    def close(self) -> None:
        if self.opened is not None:
            self.opened[1].close()
            self.opened = None
