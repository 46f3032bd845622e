"""Reference tours: the best known tour of every instance of a data set, its length, and whether it is proven.

One ``.npz`` file per data set lies in the package's folder ``references``: ``tours (count, n)`` in canonical
form as uint8 or uint16, ``lengths`` float64, ``proven`` bool, and ``info``, a JSON list of the passes that
made it (solver, settings, instances, seconds, date). ``research.references`` makes them.
"""

from __future__ import annotations

import io
import json
import zipfile
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from georoutenet.errors import GeoRouteNetError, InputError
from georoutenet.io.datasets import Dataset, dataset
from georoutenet.problem.generate import Coordinates
from georoutenet.problem.tour import is_permutation, tour_lengths

PACKAGED = Path(__file__).resolve().parent.parent / "references"

ROUNDING = 1e-9
"""Two sums of the same edges in another order differ by less than this."""


@dataclass(frozen=True, eq=False)
class References:
    """Best known tours of the data set ``name``.

    A tour is ``proven`` when no other is shorter by more than rounding each distance can hide from the
    exact solver (``proof_margin`` in ``research.references.keep``).
    """

    name: str
    tours: NDArray[np.integer[Any]]
    lengths: NDArray[np.float64]
    proven: NDArray[np.bool_]
    info: list[dict[str, Any]] = field(default_factory=list)

    @property
    def count(self) -> int:
        return len(self.lengths)

    @property
    def n(self) -> int:
        return self.tours.shape[1]

    @property
    def mean(self) -> float:
        return float(self.lengths.mean())

    def check(self, coordinates: Coordinates, *, rows: NDArray[np.int64] | None = None) -> None:
        """Raise unless the tours (of ``rows`` only, where given) are permutations of the stored lengths."""
        count, n = coordinates.shape[:2]
        shapes = (self.tours.shape, self.lengths.shape, self.proven.shape)
        if shapes != ((count, n), (count,), (count,)):
            raise GeoRouteNetError(
                f"references of {self.name} have the shapes {shapes} for {count} instances of {n}"
            )
        rows = np.arange(count) if rows is None else rows
        for row in rows:
            if not is_permutation(self.tours[row], n):
                raise GeoRouteNetError(
                    f"references of {self.name}: tour {row} is not a permutation of {n} cities"
                )
        measured = tour_lengths(coordinates[rows], self.tours[rows])
        wrong = ~(np.abs(measured - self.lengths[rows]) <= ROUNDING)
        if wrong.any():
            row = rows[np.argmax(wrong)]
            raise GeoRouteNetError(
                f"references of {self.name}: tour {row} has the length {measured[np.argmax(wrong)]}, "
                f"not the stored {self.lengths[row]}"
            )


def has_references(name: str, folder: Path = PACKAGED) -> bool:
    return reference_file(name, folder).exists()


def reference_file(name: str, folder: Path = PACKAGED) -> Path:
    return Path(folder) / f"{name}.npz"


def load_references(name: str, folder: Path = PACKAGED) -> References:
    """The references of a data set, checked for shape, and 64 spread tours checked city by city."""
    data = random_set(name)
    path = reference_file(name, folder)
    if not path.exists():
        raise InputError(
            f"no references for {name} in {folder}; make them with: georoutenet reference {name}"
        )
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as stored:
            loaded = References(
                name,
                stored["tours"],
                stored["lengths"].astype(np.float64),
                stored["proven"].astype(np.bool_),
                json.loads(str(stored["info"])),
            )
    except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise GeoRouteNetError(f"{path} is not a reference file: {error}") from None
    loaded.check(data.coordinates, rows=np.unique(np.linspace(0, data.count - 1, 64).astype(np.int64)))
    return loaded


def random_set(name: str) -> Dataset:
    """The data set of that name; one with published optima is an error."""
    data = dataset(name)
    if not data.is_random:
        raise InputError(f"{name} has published optima instead of reference tours")
    return data
