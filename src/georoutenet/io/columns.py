"""Tables of cities, whatever they come from: which columns are coordinates, which ids, what else is kept."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from georoutenet.errors import InputError, warn
from georoutenet.problem.globe import RANGES, are_degrees
from georoutenet.problem.instance import DistanceRule, Instance

_COORDINATES = {
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
OWN = ("position", "city", "x", "y", "lat", "lon")
"""Columns of the files that are written here. A caller's column of such a name gets the prefix ``given_``."""
_PREFIX = "given_"
_IDS = (r"id", r".*[_ -]id", r"name")
"""What a column of ids is called, the first that is there."""

MOST_CELLS = 10_000_000
"""Of a table of places that have other properties each."""
Columns = Mapping[str, Sequence[Any]]


def find_coordinates(names: Sequence[str], where: str) -> tuple[list[int], bool, list[int]]:
    """Positions of the two columns of coordinates, whether they are degrees, and positions of the others.

    A table that has both kinds is read by its latitudes and longitudes; a warning says so unless it is one
    that was written here.
    """
    lower = [name.strip().lower() for name in names]
    known = [_COORDINATES.get(name) for name in lower]
    pairs = [pair for pair in (("lat", "lon"), ("x", "y")) if all(known.count(name) == 1 for name in pair)]
    if not pairs:
        given = ", ".join(names)[:80]
        raise InputError(f"{where}: the header must name {_ALLOWED} exactly once, got {given!r}")
    if len(pairs) == 2 and not {"position", "city"} <= set(lower):
        _warn("the table has lat,lon and x,y: x and y are ignored")
    if "z" in lower:
        _warn("the column z is ignored: distances are those between the other two coordinates")
    used = {known.index(name) for pair in pairs for name in pair}
    others = [k for k in range(len(names)) if k not in used]
    return [known.index(name) for name in pairs[0]], pairs[0] == ("lat", "lon"), others


def _warn(text: str) -> None:
    warn(text)


def named_columns(names: Sequence[str], values: Sequence[Sequence[Any]]) -> Columns:
    """Columns, each under a name of its own; nameless empty ones are left out."""
    found: dict[str, Sequence[Any]] = {}
    counts: dict[str, int] = {}  # where to go on: to begin anew each time would take quadratic time
    for k, (name, column) in enumerate(zip(names, values, strict=True), 1):
        if not name.strip() and not any(column):
            continue
        plain = unused = name.strip() or f"column_{k}"
        while unused in found:
            counts[plain] = counts.get(plain, 1) + 1
            unused = f"{plain}_{counts[plain]}"
        found[unused] = column
    return found


def columns_of(rows: Sequence[Mapping[str, Any]], source: str) -> tuple[list[str], list[list[Any]]]:
    """Names and values of the columns of rows that may each have other names; None where one has not.

    Many rows with names of their own would make a table of far more cells than they have entries.
    """
    names = list(dict.fromkeys(name for row in rows for name in row))
    if len(names) * len(rows) > max(MOST_CELLS, 2 * sum(map(len, rows))):
        raise InputError(
            f"{source}: {len(rows):,} places with {len(names):,} names of properties; allowed are "
            f"{MOST_CELLS:,} cells of a table"
        )
    return names, [[row.get(name) for row in rows] for name in names]


def numbers_where_exact(column: Sequence[str]) -> list[Any]:
    """The fields of a column as numbers if all of them are written as Python writes them, else as they are.

    So ``12`` becomes a number, ``007`` and ``3,50`` stay what they are. Empty fields become None.
    """
    for kind in (int, float):
        try:
            numbers = [kind(field) if field else None for field in column]
        except ValueError:
            continue
        if any(column) and all(
            repr(number) == field or not field for number, field in zip(numbers, column, strict=True)
        ):
            return numbers
    return list(column)


def to_instance(
    pairs: Sequence[tuple[float, float]],
    *,
    geographic: bool,
    source: str,
    where: Callable[[int], str],
    name: str,
    columns: Columns,
    id_column: str | None = None,
    rule: DistanceRule | None = None,
    decimal_commas: bool = False,
) -> Instance:
    """The instance of a table: pairs ``x, y`` or ``lat, lon``, what else it holds, and which of it are ids.

    ``geographic`` pairs are degrees, whose rule is GREAT_CIRCLE whatever ``rule`` says.
    ``where`` says for errors where a row stands. Without ``id_column`` a column called ``id``, ``..._id`` or
    ``name`` is taken, in this order, if it tells all cities apart.
    """
    coordinates = np.array(pairs, dtype=np.float64).reshape(-1, 2)
    finite = np.isfinite(coordinates).all(axis=1)
    if not finite.all():
        k = int(np.argmin(finite))
        raise InputError(f"{where(k)}: coordinates must be finite, got {pairs[k][0]}, {pairs[k][1]}")
    if geographic:
        rule = DistanceRule.GREAT_CIRCLE
        inside = are_degrees(coordinates)
        if not inside.all():
            k = int(np.argmin(inside))
            raise InputError(f"{where(k)}: {RANGES}, got {pairs[k][0]}, {pairs[k][1]}")
    kept = _without_own(columns)
    ids = _find_ids(kept) if id_column is None else _named(id_column, kept, source)
    try:
        return Instance(
            coordinates, name=name, rule=rule, columns=kept, id_column=ids, decimal_commas=decimal_commas
        )
    except InputError as error:
        raise InputError(f"{source}: {error}") from None


def _without_own(columns: Columns) -> Columns:
    """Without the numbers of a tour that was written here, which are those of another order."""
    position, city = columns.get("position"), columns.get("city")
    if position is None or city is None or not all(type(value) is int for value in (*position, *city)):
        return columns
    order = list(range(len(position)))
    if list(position) != order or sorted(city) != order:
        return columns
    kept = {name: values for name, values in columns.items() if name not in ("position", "city")}
    return {
        name.removeprefix(_PREFIX) if name.removeprefix(_PREFIX).lower() in OWN else name: values
        for name, values in kept.items()
    }


def _find_ids(columns: Columns) -> str | None:
    for pattern in _IDS:
        for name, values in columns.items():
            texts = [text for text in (str(value) for value in values if value is not None) if text]
            if re.fullmatch(pattern, name, re.I) and len(set(texts)) == len(values):
                return name
    return None


def _named(id_column: str, columns: Columns, source: str) -> str:
    wanted = [name for name in columns if name == id_column] or [
        name for name in columns if name.lower() == id_column.strip().lower()
    ]
    if len(wanted) != 1:
        known = ", ".join(columns) or "none beside the coordinates"
        raise InputError(f"{source}: there is no column {id_column!r} of ids; columns: {known}")
    return wanted[0]


def written_columns(
    instance: Instance, cities: Sequence[int], *, degrees: Any = None
) -> dict[str, list[Any]]:
    """What files of a tour say of its cities, in visiting order: number, place and the caller's columns.

    ``degrees`` are latitudes and longitudes to give instead of the place as it is.
    """
    order = list(cities)
    written: dict[str, list[Any]] = {"position": list(range(len(order))), "city": order}
    if degrees is None:
        if instance.has_coordinates and instance.rule is not DistanceRule.GREAT_CIRCLE:
            written["x"], written["y"] = instance.coordinates[order].T.tolist()
        degrees = instance.latlon
    if degrees is not None:
        written["lat"], written["lon"] = degrees[order].T.tolist()
    for name, values in instance.columns.items():
        written[written_name(name)] = [plain_value(values[city]) for city in order]
    return written


def written_name(name: str) -> str:
    """What a caller's column is called beside those that are written here."""
    return _PREFIX + name if name.lower() in OWN else name


def plain_value(value: Any) -> Any:
    """A value of a column as JSON can hold it: NaN and the like become None, other objects their text."""
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, np.generic):
        return plain_value(value.item()) if not isinstance(value.item(), np.generic) else str(value)
    if isinstance(value, float):
        return value if np.isfinite(value) else (None if value != value else str(value))
    try:
        missing = bool(value != value)
    except (TypeError, ValueError):  # pandas.NA has no truth value
        missing = type(value).__name__ == "NAType"
    return None if missing else str(value)
