"""Files that hold distances instead of cities: tables, NumPy arrays, answers of routing services."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from georoutenet.errors import InputError
from georoutenet.io.table import parse_number, split_rows
from georoutenet.problem.globe import project
from georoutenet.problem.instance import Instance

_TABLES = ("distances", "durations")


def parse_matrix_table(text: str, source: str = "text", *, name: str = "instance") -> Instance:
    """Distances from ``n`` rows of ``n`` numbers, separated by commas, semicolons or blanks.

    A first row of names, a first column of names, or both are skipped: the shape of the table says which it
    has, and at least one of the names, with both the one in the corner, must not be a number. ``#`` starts a
    comment line. Distances are integers unless one is written with a point or an exponent. ``source`` is
    named in errors.
    """
    lines = list(split_rows(text, source))
    height, width = len(lines), len(lines[-1][1])
    if height == width and parse_number(lines[0][1][0]) is None:
        top, left = 1, 1
    elif height == width + 1 and any(parse_number(field) is None for field in lines[0][1]):
        top, left = 1, 0
    elif width == height + 1 and any(parse_number(fields[0]) is None for _, fields in lines):
        top, left = 0, 1
    else:
        top, left = 0, 0
    if len(lines) == top:
        raise InputError(f"{source}: no distances: there is nothing below the header")
    expected = height - top + left
    for line, fields in lines[top:]:
        if len(fields) != expected:
            raise InputError(
                f"{source}:{line}: expected {expected} columns for {height - top} rows, got {len(fields)}"
            )
    matrix = [
        [_distance(field, f"{source}:{line}") for field in fields[left:]] for line, fields in lines[top:]
    ]
    return matrix_instance(matrix, source, name)


def _distance(field: str, where: str) -> int | float:
    value = parse_number(field)
    if value is None:
        raise InputError(f"{where}: expected a number, got {field[:40]!r}")
    return int(field) if field.lstrip("+-").isdigit() and len(field) < 19 else value


def parse_matrix_json(text: str, source: str = "text", *, name: str = "instance") -> Instance:
    """Distances from a list of lists, or from the answer of a routing service in the form of OSRM's tables.

    Such an answer is an object with the list of lists ``durations`` or ``distances`` and, where it names
    them, the places as ``sources``, each with its ``location``: longitude and latitude in degrees.
    """
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{source}: not JSON: {error}") from None
    latlon = None
    if isinstance(content, dict):
        tables = [key for key in _TABLES if content.get(key) is not None]
        if len(tables) != 1:
            raise InputError(
                f"{source}: expected one of the tables {' and '.join(_TABLES)}, got "
                f"{'both: take one and pass it as Instance(matrix=...)' if tables else 'neither'}"
            )
        latlon = _places(content.get("sources"), source)
        content = content[tables[0]]
    if not isinstance(content, list):
        raise InputError(f"{source}: expected a list of lists of numbers, or an object that holds one")
    return matrix_instance(content, source, name, latlon)


def _places(sources: object, source: str) -> NDArray[np.float64] | None:
    """Latitudes and longitudes ``(n, 2)`` of ``[{"location": [longitude, latitude]}, ...]``."""
    if not isinstance(sources, list) or not all(
        isinstance(each, dict) and each.get("location") is not None for each in sources
    ):
        return None
    try:
        places = np.array([each["location"] for each in sources], dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        places = np.empty(0)
    pairs = places.ndim == 2 and places.shape[1] == 2
    if not pairs or not (np.abs(places) <= [360.0, 90.0]).all():
        raise InputError(f"{source}: the location of a source must be its longitude and latitude in degrees")
    return places[:, ::-1]


def matrix_instance(
    matrix: Any, source: str, name: str, latlon: NDArray[np.float64] | None = None
) -> Instance:
    """The instance of a matrix from a file, with a map to draw where the places are known."""
    coordinates = None if latlon is None else project(latlon)
    try:
        return Instance(coordinates, name=name, latlon=latlon, matrix=matrix)
    except InputError as error:
        raise InputError(f"{source}: {error}") from None
