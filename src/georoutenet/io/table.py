"""Cities as a table of numbers: the text of ``.csv`` and ``.txt`` files."""

from __future__ import annotations

import csv
from collections.abc import Iterator

import numpy as np

from georoutenet.errors import InputError
from georoutenet.io.geographic import project
from georoutenet.problem.instance import Instance

_COLUMNS = {
    "x": "x",
    "y": "y",
    "lat": "lat",
    "latitude": "lat",
    "lon": "lon",
    "lng": "lon",
    "long": "lon",
    "longitude": "lon",
}
_ALLOWED = "x,y or lat,lon (also latitude, longitude, lng, long)"


def split_rows(text: str, source: str) -> Iterator[tuple[int, list[str]]]:
    """Line number and fields of each row; the first row decides the separator: ``;``, ``,`` or blanks."""
    lines = [(k, line) for k, line in enumerate(text.splitlines(), 1) if line.strip()]
    lines = [(k, line) for k, line in lines if not line.lstrip().startswith("#")]
    if not lines:
        raise InputError(f"{source}: no cities: the file has no rows")
    first = lines[0][1]
    delimiter = ";" if ";" in first else "," if "," in first else None
    for k, line in lines:
        if delimiter is None:
            yield k, line.split()
        elif '"' in line:
            try:
                # strict: a quote that is never closed is an error, not a field with a quote in it
                yield (
                    k,
                    [field.strip() for field in next(csv.reader([line], delimiter=delimiter, strict=True))],
                )
            except csv.Error as error:
                raise InputError(f"{source}:{k}: {error}") from None
        else:
            yield k, [field.strip() for field in line.split(delimiter)]


def parse_number(field: str) -> float | None:
    try:
        return float(field) if field.isascii() and "_" not in field else None
    except ValueError:
        return None


def _header(fields: list[str], where: str) -> tuple[list[int], bool]:
    """Positions of the two coordinate columns and whether they are latitude and longitude."""
    known = [_COLUMNS.get(field.lower()) for field in fields]
    pairs = [pair for pair in (("x", "y"), ("lat", "lon")) if all(known.count(name) == 1 for name in pair)]
    if len(pairs) != 1:
        raise InputError(
            f"{where}: the header must name {_ALLOWED} exactly once, got {', '.join(fields)[:80]!r}"
        )
    return [known.index(name) for name in pairs[0]], pairs[0] == ("lat", "lon")


def parse_table(text: str, source: str = "text", *, name: str = "instance") -> Instance:
    """Cities from rows ``x,y``, separated by commas, semicolons or blanks; ``#`` starts a comment line.

    A header names the columns: ``x``/``y``, or ``lat``/``lon`` in degrees, which are projected to local
    kilometers (``georoutenet.io.geographic.project``). With a header, other columns are skipped.
    ``source`` is named in errors.
    """
    rows = split_rows(text, source)
    line, fields = next(rows)
    columns, geographic, width = [0, 1], False, 2
    values: list[tuple[float, float]] = []
    lines: list[int] = []
    if all(parse_number(field) is None for field in fields):
        columns, geographic = _header(fields, f"{source}:{line}")
        width = len(fields)
    else:
        values.append(_city(fields, columns, width, f"{source}:{line}"))
        lines.append(line)
    for line, fields in rows:
        values.append(_city(fields, columns, width, f"{source}:{line}"))
        lines.append(line)
    if not values:
        raise InputError(f"{source}: no cities: there is nothing below the header")
    coordinates = np.array(values)
    finite = np.isfinite(coordinates).all(axis=1)
    if not finite.all():
        k = int(np.argmin(finite))
        raise InputError(
            f"{source}:{lines[k]}: coordinates must be finite, got {values[k][0]}, {values[k][1]}"
        )
    latlon = None
    if geographic:
        latitude, longitude = coordinates.T
        inside = (np.abs(latitude) <= 90) & (longitude >= -180) & (longitude <= 360)
        if not inside.all():
            k = int(np.argmin(inside))
            raise InputError(
                f"{source}:{lines[k]}: latitude must be in -90..90 and longitude in -180..360, "
                f"got {values[k][0]}, {values[k][1]}"
            )
        latlon, coordinates = coordinates, project(coordinates)
    try:
        return Instance(coordinates, name=name, latlon=latlon)
    except InputError as error:
        raise InputError(f"{source}: {error}") from None


def _city(fields: list[str], columns: list[int], width: int, where: str) -> tuple[float, float]:
    if len(fields) != width:
        hint = "; a header naming x and y is needed to skip other columns" if width == 2 < len(fields) else ""
        hint += ", and distances are read with matrix=True (--matrix)" if hint else ""
        raise InputError(f"{where}: expected {width} columns, got {len(fields)}{hint}")
    first, second = (parse_number(fields[column]) for column in columns)
    if first is None or second is None:
        wrong = fields[columns[0] if first is None else columns[1]]
        hint = "; decimals are written with a point" if "," in wrong else ""
        raise InputError(f"{where}: expected a number, got {wrong[:40]!r}{hint}")
    return first, second
