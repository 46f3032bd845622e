"""Reference tours on disk: written after every tour was checked, replaced only by shorter ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from georoutenet.errors import GeoRouteNetError
from georoutenet.evaluate.references import PACKAGED, ROUNDING, References, random_set, reference_file
from georoutenet.io.atomic import atomic_write
from georoutenet.problem.tour import canonical, tour_lengths
from research.references.solvers import Concorde


def proof_margin(n: int) -> float:
    """How much shorter than a proven tour another may be in the unit square: n edges, 1/SPAN each."""
    return n / Concorde.SPAN


def unknown(name: str) -> References:
    """Nothing known of a set: infinitely long, so that any tour is better."""
    data = random_set(name)
    assert data.n is not None
    return References(
        name,
        np.tile(np.arange(data.n), (data.count, 1)),
        np.full(data.count, np.inf),
        np.zeros(data.count, dtype=np.bool_),
    )


def save_references(references: References, folder: Path = PACKAGED) -> Path:
    """Check every tour, then write ``folder/name.npz`` in one step."""
    data = random_set(references.name)
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
    coordinates = random_set(references.name).coordinates[rows]
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
