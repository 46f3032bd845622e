"""Data frames as instances and tours as data frames.

Frames are known by what they can do: pandas, polars and GeoPandas need not be installed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard

import numpy as np

from georoutenet.errors import InputError, MissingDependencyError, warn
from georoutenet.io.columns import find_coordinates, named_columns, to_instance, written_columns, written_name
from georoutenet.problem.instance import Instance
from georoutenet.problem.tour import Tour
from georoutenet.unbroken import import_whole

if TYPE_CHECKING:
    import pandas

_SOURCE = "data frame"


class Frame(Protocol):
    """A data frame: columns by name."""

    @property
    def columns(self) -> Iterable[Any]: ...

    def __getitem__(self, name: Any, /) -> Any: ...

    def __len__(self) -> int: ...


def is_frame(given: object) -> TypeGuard[Frame]:
    """Whether something is a data frame, or a series of GeoPandas."""
    ways = all(hasattr(type(given), way) for way in ("__getitem__", "__len__"))
    return _geometry(given) is not None or (ways and hasattr(given, "columns"))


def frame_instance(frame: Frame, *, name: str = "instance", id_column: str | None = None) -> Instance:
    """The instance of a data frame with the columns ``x``, ``y`` or ``lat``, ``lon``, or of points.

    Columns are found as in tables (``georoutenet.io.columns``), and the others become
    ``Instance.columns``. An index that is not just 0, 1, ... holds the ids.

    Points are those of a GeoDataFrame or a GeoSeries. Its reference system says what they are: degrees, or
    places in the plane; without one they are refused.
    """
    geometry = _geometry(frame)
    hidden = getattr(geometry, "name", None)
    given = [each for each in getattr(frame, "columns", ()) if geometry is None or each != hidden]
    names = [str(each) for each in given]
    index = _index(frame)
    labels = list(range(len(frame))) if index is None else index
    if geometry is None:
        coordinates, geographic, others = find_coordinates(names, _SOURCE)
        first, second = (_numbers(frame[given[k]], names[k]) for k in coordinates)
    else:
        first, second, geographic = _points(geometry)
        others = list(range(len(given)))
    if not len(first):
        raise InputError(f"{_SOURCE}: no cities: it has no rows")
    columns = dict(named_columns([names[k] for k in others], [_values(frame[given[k]]) for k in others]))
    if index is not None:
        own = _unused(str(getattr(getattr(frame, "index", None), "name", None) or "id"), columns)
        columns = {own: index, **columns}
        id_column = own if id_column is None else id_column
    return to_instance(
        list(zip(first.tolist(), second.tolist(), strict=True)),
        geographic=geographic,
        source=_SOURCE,
        where=lambda k: f"{_SOURCE}: row {labels[k]!r}",
        name=name,
        columns=columns,
        id_column=id_column,
    )


def _values(column: Any) -> list[Any]:
    """The entries of a column as Python's own."""
    for way in ("to_list", "tolist"):
        if hasattr(column, way):
            return list(getattr(column, way)())
    return list(column)


def _numbers(column: Any, name: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    values = _values(column)
    for value in values:
        if isinstance(value, (bool, np.bool_, str)):
            raise InputError(f"{_SOURCE}: the column {name!r} must hold numbers, got {value!r:.40}")
    try:
        return np.array([np.nan if value is None else float(value) for value in values], dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{_SOURCE}: the column {name!r} must hold numbers: {error}") from None


def _index(frame: Any) -> list[Any] | None:
    """The labels of the rows, unless there are none (polars) or they only count."""
    index = getattr(frame, "index", None)
    if index is None or callable(index):
        return None
    labels = _values(index)
    return None if labels == list(range(len(labels))) else labels


def _unused(name: str, columns: dict[str, Any]) -> str:
    while name in columns:
        name = f"{name}_index"
    return name


def _geometry(frame: object) -> Any:
    """The points of a GeoDataFrame or a GeoSeries, which have a reference system, given or not."""
    try:
        geometry = getattr(frame, "geometry", None)
    except (AttributeError, KeyError):
        return None
    return geometry if hasattr(geometry, "crs") and hasattr(type(geometry), "x") else None


def _points(geometry: Any) -> tuple[Any, Any, bool]:
    """First and second coordinates as ``to_instance`` wants them, and whether they are degrees."""
    crs = geometry.crs
    if crs is None:
        raise InputError(
            f"{_SOURCE}: the points have no reference system, so they may be degrees or places in the plane: "
            "say which, for example df.set_crs(4326) for longitudes and latitudes"
        )
    try:
        x, y = _numbers(geometry.x, "geometry"), _numbers(geometry.y, "geometry")
    except ValueError as error:
        raise InputError(f"{_SOURCE}: the geometry must be points: {error}") from None
    if crs.is_geographic:
        return y, x, True
    if not crs.is_projected:
        raise InputError(f"{_SOURCE}: the reference system must be in degrees or in the plane, got {crs}")
    if "Mercator" in str(getattr(crs, "name", "")) and "Pseudo" in str(getattr(crs, "name", "")):
        warn("Web Mercator stretches distances away from the equator; df.to_crs(4326) gives kilometers")
    return x, y, False


def to_frame(tour: Tour, instance: Instance) -> pandas.DataFrame:
    """The cities in visiting order as a pandas data frame, indexed by their ids where they have some."""
    try:
        import_whole("pandas")
        import pandas
    except ImportError:
        raise MissingDependencyError("a data frame needs pandas: pip install pandas") from None
    order = tour.tolist()
    written = written_columns(instance, order)
    ids = None
    try:
        if instance.ids is not None and instance.id_column is not None:
            del written[written_name(instance.id_column)]
            ids = pandas.Index(
                [instance.ids[city] for city in order], name=instance.id_column, tupleize_cols=False
            )
        return pandas.DataFrame(written, index=ids)
    except UnicodeError as error:  # half of a pair of surrogates, which JSON can hold
        raise InputError(f"the columns cannot be a data frame: {error}") from None
