"""Columns of Arrow tables as rows: one instance per row (wide), or one city per row (long)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from georoutenet.bulk.rows import MOST_CITIES, Row, make_row
from georoutenet.errors import InputError, MissingDependencyError
from georoutenet.io.columns import find_coordinates

POINTS = ("points", "coordinates")
"""What a column of points may be called."""
INSTALL = "pip install pyarrow"


def pyarrow(why: str) -> Any:
    """The package pyarrow, or an error with the line that installs it."""
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.parquet
    except ImportError:
        raise MissingDependencyError(f"{why} needs PyArrow: {INSTALL}") from None
    return pyarrow


def opened(path: Path) -> Any:
    """A file as Arrow reads it. A path given to Arrow itself may be taken for an address, or be no UTF-8."""
    return pyarrow(f"{path}: Parquet").OSFile(os.fsencode(path))


@dataclass(frozen=True)
class Columns:
    """Which columns hold what."""

    long: bool = False
    """One row per city, grouped by id, or one row per instance."""
    id: str | None = None
    """None: rows are numbered."""
    text_ids: bool = False
    first: str = ""
    second: str = ""
    """Names of x and y, or of lat and lon."""
    points: str | None = None
    """In place of the two."""
    geographic: bool = False

    @property
    def names(self) -> list[str]:
        """All columns that are read."""
        places = [self.first, self.second] if self.points is None else [self.points]
        return [*([] if self.id is None else [self.id]), *places]


def id_name(names: Iterable[str], id_column: str | None, where: str) -> str | None:
    """The column of ids: the one that was named, or else ``id``, if there is one."""
    given = list(names)
    wanted = [name for name in given if name == id_column]
    wanted = wanted or [name for name in given if name.strip().lower() == (id_column or "id").lower()]
    if len(wanted) > 1 or (id_column is not None and not wanted):
        found = "two columns" if wanted else "no column"
        raise InputError(
            f"{where}: {found} {(id_column or 'id')!r} of ids; columns: {', '.join(given)[:200]}"
        )
    return wanted[0] if wanted else None


def find_columns(schema: Any, id_column: str | None, where: str) -> Columns:
    """The columns of an Arrow schema: lists of x and y, or of points, or numbers x and y grouped by id."""
    arrow = pyarrow(where)
    name = id_name(schema.names, id_column, where)
    text_ids = False
    if name is not None:
        kind = _plain(schema.field(name).type)
        whole = arrow.types.is_integer(kind) and not arrow.types.is_uint64(kind)
        text_ids = not whole
        if not (arrow.types.is_integer(kind) or _is_text(kind)):
            raise InputError(f"{where}: ids are whole numbers or text, the column {name!r} is {kind}")
    others = [each for each in schema.names if each != name]
    points = [each for each in others if each.strip().lower() in POINTS]
    pair = {each.strip().lower() for each in others} & {"x", "y", "lat", "lon", "latitude", "longitude"}
    if points and not pair:
        if len(points) > 1:
            raise InputError(f"{where}: {' and '.join(map(repr, points))} may both be the points; give one")
        return Columns(
            id=name, text_ids=text_ids, points=points[0], geographic=_are_degrees(schema, points[0], where)
        )
    try:
        (first, second), geographic, _ = find_coordinates(others, where)
    except InputError as error:
        raise InputError(f"{error}, or a list of {' or '.join(POINTS)}") from None
    places = [schema.field(others[k]) for k in (first, second)]
    kinds = [each.type for each in places]
    if all(_is_number(kind) for kind in kinds):
        if name is None:
            raise InputError(
                f"{where}: one row per city needs a column of ids that says which cities belong together: "
                f"'id', or another named by id_column (--id-column); columns: {', '.join(schema.names)[:200]}"
            )
        long = True
    elif all(_is_list(kind) and _is_number(kind.value_type) for kind in kinds):
        long = False
    else:
        given = ", ".join(f"{each.name}: {each.type}" for each in places)
        raise InputError(
            f"{where}: coordinates are numbers, or lists of numbers in both columns; got {given}"
        )
    return Columns(long, name, text_ids, places[0].name, places[1].name, None, geographic)


def _plain(kind: Any) -> Any:
    arrow = pyarrow("a table")
    return kind.value_type if arrow.types.is_dictionary(kind) else kind


def _is_text(kind: Any) -> bool:
    types = pyarrow("a table").types
    text = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    views = [getattr(types, name) for name in ("is_string_view", "is_binary_view") if hasattr(types, name)]
    return any(test(kind) for test in (*text, *views, types.is_fixed_size_binary))


def _is_number(kind: Any) -> bool:
    types = pyarrow("a table").types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind))


def _is_list(kind: Any) -> bool:
    types = pyarrow("a table").types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _are_degrees(schema: Any, name: str, where: str) -> bool:
    """Whether a column of points holds lat and lon; an error where it holds no points."""
    types, kind = pyarrow(where).types, schema.field(name).type
    inner = kind.value_type if _is_list(kind) else None
    if inner is not None and _is_list(inner) and _is_number(inner.value_type):
        return False
    if inner is not None and types.is_struct(inner):
        fields = [inner.field(k) for k in range(inner.num_fields)]
        for pair in (("x", "y"), ("lat", "lon")):
            if {each.name for each in fields if _is_number(each.type)} >= set(pair):
                return pair[0] == "lat"
    raise InputError(
        f"{where}: points are a list of pairs of numbers, or of structs with x and y or lat and lon; "
        f"the column {name!r} is {kind}"
    )


# -- values ------------------------------------------------------------------------------------------------


def _ids(array: Any, columns: Columns) -> Any:
    """Ids as int64 or bytes: text may be no UTF-8, which only bytes can say."""
    arrow = pyarrow("a table")
    kind = _plain(array.type)
    if kind != array.type:
        array = array.cast(kind)
    if not columns.text_ids:
        return array.cast(arrow.int64())
    if arrow.types.is_integer(kind):
        array = array.cast(arrow.string())
    return array.cast(arrow.large_binary())


def wide_rows(batch: Any, columns: Columns, base: int = 0) -> Iterator[Row]:
    """The rows of a record batch with one instance each; ``base`` is the number of the first."""
    arrow = pyarrow("a table")
    ids = None if columns.id is None else _ids(batch.column(columns.id), columns).to_pylist()
    read: Iterator[tuple[NDArray[Any] | None, str]]
    if columns.points is not None:
        array = batch.column(columns.points)
        read = (_points(array[k], columns) for k in range(len(batch)))
    else:
        kind = arrow.large_list(arrow.float64())
        x, y = (batch.column(name).cast(kind) for name in (columns.first, columns.second))
        read = _lists(x, y, columns)
    for k, (coordinates, error) in enumerate(read):
        id = base + k if ids is None else ids[k]
        yield make_row(id, coordinates, geographic=columns.geographic, error=error)


def _lists(first: Any, second: Any, columns: Columns) -> Iterator[tuple[NDArray[Any] | None, str]]:
    values = [each.values.to_numpy(zero_copy_only=False) for each in (first, second)]
    starts = [each.offsets.to_numpy() for each in (first, second)]
    missing = [each.is_null().to_numpy(zero_copy_only=False) for each in (first, second)]
    for k in range(len(first)):
        if missing[0][k] or missing[1][k]:
            yield None, ""
            continue
        x, y = (each[s[k] : s[k + 1]] for each, s in zip(values, starts, strict=True))
        if len(x) != len(y):
            names = columns.first, columns.second
            yield None, f"{names[0]} has {len(x):,} numbers, {names[1]} has {len(y):,}"
        else:
            yield np.column_stack((x, y)), ""


def _points(value: Any, columns: Columns) -> tuple[NDArray[Any] | None, str]:
    arrow = pyarrow("a table")
    if not value.is_valid:
        return None, ""
    inner, names = value.values, ("lat", "lon") if columns.geographic else ("x", "y")
    if inner.null_count:
        return None, "one of the points is null"
    if arrow.types.is_struct(inner.type):
        pair = [arrow.compute.struct_field(inner, name) for name in names]
        return np.column_stack([_floats(each) for each in pair]), ""
    if (
        len(inner)
        and not arrow.compute.all(arrow.compute.equal(arrow.compute.list_value_length(inner), 2)).as_py()
    ):
        return None, "each point must have two numbers"
    return _floats(inner.flatten()).reshape(-1, 2), ""


def _floats(array: Any) -> NDArray[np.float64]:
    """Numbers as floats; null becomes NaN, which is refused as such."""
    floats: NDArray[np.float64] = array.cast("float64").to_numpy(zero_copy_only=False)
    return floats


def changes(ids: Any) -> NDArray[np.bool_]:
    """Where another id stands than one before; the first counts as such."""
    compute = pyarrow("a table").compute
    if len(ids) == 0:
        return np.zeros(0, dtype=bool)
    after, before = ids[1:], ids[:-1]
    differs = compute.fill_null(compute.not_equal(after, before), True)
    both = compute.and_(after.is_null(), before.is_null())
    found = compute.and_not(differs, both).to_numpy(zero_copy_only=False)
    return np.concatenate(([True], found))


def long_rows(batches: Iterable[Any], columns: Columns) -> Iterator[Row]:
    """The instances of record batches with one city each: cities with the same id that stand together."""
    pending: tuple[Any, list[NDArray[Any]]] | None = None
    there = 0
    for batch in batches:
        ids = _ids(batch.column(columns.id), columns)
        pairs = np.column_stack([_floats(batch.column(name)) for name in (columns.first, columns.second)])
        starts = np.flatnonzero(changes(ids))
        for start, stop in zip(starts, [*starts[1:], len(ids)], strict=True):
            id = ids[int(start)].as_py()
            if pending is not None and (start > 0 or pending[0] != id):
                yield _long_row(pending, columns)
                pending = None
            if pending is None:
                pending, there = (id, []), 0
            pending[1].append(pairs[start : min(stop, start + MOST_CITIES + 1 - there)])
            there += len(pending[1][-1])  # one more than there may be, at most
    if pending is not None:
        yield _long_row(pending, columns)


def _long_row(pending: tuple[Any, list[NDArray[Any]]], columns: Columns) -> Row:
    return make_row(pending[0], np.concatenate(pending[1]), geographic=columns.geographic)


def group_starts(ids: Any, columns: Columns, before: Any) -> tuple[NDArray[np.intp], Any]:
    """Positions in a batch's column of ids where an instance begins, and the batch's last id.

    ``before`` is the last id of the batch before, as a list with one entry; None where there was none.
    """
    array = _ids(ids, columns)
    if len(array) == 0:
        return np.zeros(0, dtype=np.intp), before
    begins = changes(array)
    begins[0] = before is None or before[0] != array[0].as_py()
    return np.flatnonzero(begins), [array[len(array) - 1].as_py()]
