"""What a matrix of distances has to be."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from georoutenet.errors import InputError
from georoutenet.problem.arrays import Numbers, given_array

Float = NDArray[np.float64]

LARGEST_MATRIX = 10_000
"""Cities of a matrix at most: it then takes 0.8 GB."""
ASYMMETRY = 1e-9
"""By how much of the largest distance the two directions of a pair may differ through rounding."""
_ROWS = 512  # compared at a time


def checked_matrix(values: Numbers) -> tuple[Float, bool]:
    """A read-only float64 copy of a distance matrix ``(n, n)``, and whether it holds integers by its dtype.

    Distances must be finite, >= 0 and symmetric: integers exactly, floats up to ``ASYMMETRY``, where the mean
    of both directions is taken. The diagonal is ignored, whatever it holds, and becomes zero.
    """
    matrix, whole = directed_matrix(values)
    largest, row, column = _most_asymmetric(matrix)
    if largest > (0.0 if whole else ASYMMETRY * matrix.max()):
        there, back = (int(d) if whole else float(d) for d in (matrix[row, column], matrix[column, row]))
        raise InputError(
            f"the matrix is asymmetric: from city {row} to city {column} it is {there}, back {back}. Give "
            "the mean of both directions, (matrix + matrix.T) / 2, or use georoutenet.Asymmetric(matrix)"
        )
    if largest > 0.0:
        matrix = (matrix + matrix.T) / 2.0
    matrix.setflags(write=False)
    return matrix, whole


def directed_matrix(values: Numbers) -> tuple[Float, bool]:
    """``checked_matrix``, writable, for distances that may differ by direction."""
    given = given_array(values, "a matrix", "(n, n)")
    if given.size == 0:
        raise InputError("an instance needs at least one city, got none")
    if given.ndim != 2 or given.shape[0] != given.shape[1]:
        raise InputError(f"a matrix must have shape (n, n), got {given.shape}")
    n = len(given)
    if n > LARGEST_MATRIX:
        raise InputError(f"a matrix may have at most {LARGEST_MATRIX:,} cities, got {n:,}")
    if given.dtype.kind not in "iuf":
        raise InputError(f"a matrix must hold numbers: {_first_other(given)}")
    matrix = np.array(given, dtype=np.float64, order="C")
    np.fill_diagonal(matrix, 0.0)
    for rows in range(0, n, _ROWS):
        block = matrix[rows : rows + _ROWS]
        wrong = ~(np.isfinite(block) & (block >= 0.0))
        if wrong.any():
            i, j = (int(k) for k in np.unravel_index(np.argmax(wrong), wrong.shape))
            raise InputError(
                f"distances must be finite and >= 0: from city {rows + i} to city {j} it is {block[i, j]}"
            )
    whole = given.dtype.kind in "iu"
    total = float(matrix.max()) * n
    # Above 2^53 a float no longer holds every integer.
    if not (total < 2.0**53 if whole else np.isfinite(total)):
        raise InputError(f"distances up to {matrix.max():g} are too large: a tour length would overflow")
    return matrix, whole


def _first_other(given: NDArray[np.generic]) -> str:
    """The first entry that is not a number; a routing service writes null where it found no way."""
    for (row, column), value in np.ndenumerate(given):
        if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.number):
            return f"from city {row} to city {column} it is {value!r}"
        if isinstance(value, int) and abs(value) >= 2**63:
            return f"from city {row} to city {column} it is {value}, beyond 64 bits"
    return f"got {given.dtype}"


def _most_asymmetric(matrix: Float) -> tuple[float, int, int]:
    """The largest difference between the two directions of a pair, and the pair."""
    found = (0.0, 0, 0)
    for rows in range(0, len(matrix), _ROWS):
        apart = np.abs(matrix[rows : rows + _ROWS] - matrix[:, rows : rows + _ROWS].T)
        i, j = (int(k) for k in np.unravel_index(np.argmax(apart), apart.shape))
        if apart[i, j] > found[0]:
            found = (float(apart[i, j]), rows + i, j)
    return found
