"""Reference tours: the best known tour of every instance of a data set, its length, and whether it is proven.

One ``.npz`` file per data set lies in the package's folder ``references``: ``tours (count, n)`` in canonical
form as uint8 or uint16, ``lengths`` float64, ``proven`` bool, and ``info``, a JSON list of the passes that
made it (solver, settings, instances, seconds, date).
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
from georoutenet.evaluate.solvers import Concorde
from georoutenet.io.atomic import atomic_write
from georoutenet.io.datasets import Dataset, dataset
from georoutenet.problem.generate import Coordinates
from georoutenet.problem.tour import canonical, is_permutation, tour_lengths

PACKAGED = Path(__file__).resolve().parent.parent / "references"

ROUNDING = 1e-9
"""Two sums of the same edges in another order differ by less than this."""


@dataclass(frozen=True, eq=False)
class References:
    """Best known tours of the data set ``name``.

    A tour is ``proven`` when no other is shorter by more than ``proof_margin(n)``, which is what rounding
    each distance can hide from the exact solver.
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


def proof_margin(n: int) -> float:
    """How much shorter than a proven tour another may be in the unit square: n edges, 1/SPAN each."""
    return n / Concorde.SPAN


def has_references(name: str, folder: Path = PACKAGED) -> bool:
    return reference_file(name, folder).exists()


def reference_file(name: str, folder: Path = PACKAGED) -> Path:
    return Path(folder) / f"{name}.npz"


def load_references(name: str, folder: Path = PACKAGED) -> References:
    """The references of a data set, checked for shape, and 64 spread tours checked city by city."""
    data = _random(name)
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


def save_references(references: References, folder: Path = PACKAGED) -> Path:
    """Check every tour, then write ``folder/name.npz`` in one step."""
    data = _random(references.name)
    references.check(data.coordinates)
    smallest = np.uint8 if references.n <= 256 else np.uint16 if references.n <= 65_536 else np.int64
    path = reference_file(references.name, folder)
    with atomic_write(path, "wb") as file:
        np.savez_compressed(
            file,
            tours=np.stack([canonical(tour.astype(np.int64)) for tour in references.tours]).astype(smallest),
            lengths=references.lengths,
            proven=references.proven,
            info=np.array(json.dumps(references.info)),
        )
    return path


def improve(
    references: References,
    rows: NDArray[np.int64],
    tours: NDArray[np.integer[Any]],
    proven: NDArray[np.bool_],
) -> References:
    """The references with ``tours`` of the instances ``rows`` wherever those are shorter; never worse.

    A proof holds for the shorter of the two tours, because both lie within its margin; if the old tour beats
    a proven one by more, one of the solvers is wrong, and that is an error.
    """
    coordinates = _random(references.name).coordinates[rows]
    measured = tour_lengths(coordinates, tours)
    old = references.lengths[rows]
    contradiction = proven & (old < measured - proof_margin(references.n) - ROUNDING)
    contradiction |= references.proven[rows] & (measured < old - proof_margin(references.n) - ROUNDING)
    if contradiction.any():
        at = np.argmax(contradiction)
        raise GeoRouteNetError(
            f"{references.name}, instance {rows[at]}: a tour of length {min(old[at], measured[at])} "
            f"contradicts the proof that {max(old[at], measured[at])} is optimal"
        )
    shorter = measured < old - ROUNDING
    result = References(
        references.name,
        references.tours.copy(),
        references.lengths.copy(),
        references.proven.copy(),
        list(references.info),
    )
    result.tours[rows[shorter]] = tours[shorter]
    result.lengths[rows[shorter]] = measured[shorter]
    result.proven[rows] |= proven
    return result


def _random(name: str) -> Dataset:
    data = dataset(name)
    if not data.is_random:
        raise InputError(f"{name} has published optima instead of reference tours")
    return data
