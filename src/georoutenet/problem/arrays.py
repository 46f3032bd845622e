"""What a caller gives as numbers, as an array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from georoutenet.errors import InputError

Numbers = ArrayLike | Sequence[object]
"""What is read as an array; rows of whole numbers beside fractions are a list of objects to type checkers."""


def given_array(values: Numbers, what: str, shape: str) -> NDArray[Any]:
    """``values`` as an array of whatever type they have; what NumPy would refuse, or take without its mask,
    is named here."""
    expected = f"{what} must be an array of numbers of shape {shape}"
    if np.ma.isMaskedArray(values):
        raise InputError(f"{expected}, got a masked array: fill in or leave out what is masked")
    if getattr(values, "requires_grad", False) is True:
        raise InputError(f"{expected}, got a tensor that requires grad: give tensor.detach()")
    if getattr(values, "is_cuda", False) is True:
        raise InputError(f"{expected}, got a tensor on a GPU: give tensor.cpu()")
    rows = values if isinstance(values, (list, tuple)) else []
    lengths = [_length(row) for row in rows]
    for row, length in enumerate(lengths):
        if length != lengths[0]:
            given = ["is a number" if each is None else f"has {each} values" for each in (lengths[0], length)]
            raise InputError(f"{expected}: row 0 {given[0]}, row {row} {given[1]}")
    try:
        return np.asarray(values)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise InputError(f"{expected}: {error}") from None


def _length(row: object) -> int | None:
    """Entries of a row; None for a single number, also one in an array or a tensor without dimensions."""
    try:
        return len(row)  # type: ignore[arg-type]
    except TypeError:
        return None


def refuse_other_than_numbers(values: Numbers, given: NDArray[Any], what: str) -> None:
    """Booleans, also among numbers of a list, complex numbers and dates: NumPy would make numbers of them."""
    if given.dtype.kind in "bcmM":
        raise InputError(f"{what} must be numbers, got {given.dtype}")
    listed = values if isinstance(values, (list, tuple)) else ()
    rows = np.atleast_1d(given) if given.dtype.kind == "O" else listed
    for row, entries in enumerate(rows):
        if isinstance(entries, np.ndarray):
            entries = entries.ravel()  # also of no dimension, over which one cannot go
        kinds = set(map(type, entries)) if isinstance(entries, (list, tuple, np.ndarray)) else {type(entries)}
        if kinds & {bool, np.bool_}:
            raise InputError(f"{what} must be numbers, got a boolean in row {row} (counting from 0)")
