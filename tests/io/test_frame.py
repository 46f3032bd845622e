from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
import pytest

import georoutenet as grn
from georoutenet.errors import GeoRouteNetWarning, InputError, MissingDependencyError
from georoutenet.io.frame import frame_instance, is_frame, to_frame
from georoutenet.solver.api import as_instance

ROWS = {"name": ["a", "b", "c"], "Lat": [48.0, 48.5, 48.25], "lon": [11.0, 11.5, 12.0]}


class Index(list[Any]):
    name: str | None = None


class Column:
    """A column that has what pandas and polars both have."""

    def __init__(self, values: list[Any]) -> None:
        self.values = values

    def to_list(self) -> list[Any]:
        return list(self.values)


class FrameLike:
    """What a data frame is here, without a library."""

    def __init__(self, rows: dict[Any, list[Any]], index: list[Any] | None = None, name: str | None = None):
        self.rows = rows
        if index is not None:
            self.index = Index(index)
            self.index.name = name

    @property
    def columns(self) -> list[Any]:
        return list(self.rows)

    def __getitem__(self, name: Any) -> Column:
        return Column(self.rows[name])

    def __len__(self) -> int:
        return len(next(iter(self.rows.values())))


class Crs:
    def __init__(self, kind: str, name: str = "some") -> None:
        self.is_geographic, self.is_projected, self.name = kind == "degrees", kind == "plane", name

    def __str__(self) -> str:
        return self.name


class Points:
    """A GeoSeries of one kind of geometry."""

    name = "shape"

    def __init__(self, crs: Crs | None, points: bool = True) -> None:
        self.crs, self.points = crs, points

    @property
    def geometry(self) -> Points:
        return self

    @property
    def x(self) -> Column:
        if not self.points:
            raise ValueError("x attribute access only provided for Point geometries")
        return Column([11.0, 11.5, 12.0])

    @property
    def y(self) -> Column:
        return Column([48.0, 48.5, 48.25])

    def __len__(self) -> int:
        return 3


class GeoFrameLike(FrameLike):
    def __init__(self, rows: dict[Any, list[Any]], crs: Crs | None, points: bool = True) -> None:
        super().__init__({**rows, "shape": ["POINT"] * 3})
        self.geometry = Points(crs, points)


def test_columns_are_found_by_name() -> None:
    instance = as_instance(FrameLike(ROWS))
    assert instance.latlon is not None
    assert instance.latlon.tolist() == [[48, 11], [48.5, 11.5], [48.25, 12]]
    assert instance.columns == {"name": ("a", "b", "c")}
    assert instance.ids == ("a", "b", "c")
    planar = as_instance(FrameLike({"x": [1, 2], 7: [3, 4], "Y": [5, 6]}))
    assert planar.coordinates.tolist() == [[1, 5], [2, 6]]
    assert planar.columns == {"7": (3, 4)}
    assert planar.latlon is None


def test_ids_come_from_the_index() -> None:
    instance = as_instance(FrameLike(ROWS, [10, 20, 30]))
    assert (instance.id_column, instance.ids) == ("id", (10, 20, 30))
    assert as_instance(FrameLike(ROWS, ["u", "v", "w"], "customer")).id_column == "customer"
    assert as_instance(FrameLike(ROWS, ["u", "v", "w"], "name")).id_column == "name_index"
    assert as_instance(FrameLike(ROWS, [0, 1, 2])).id_column == "name"  # an index that only counts
    assert frame_instance(FrameLike(ROWS, [10, 20, 30]), id_column="name").id_column == "name"


def test_solve_takes_a_frame_and_an_id() -> None:
    result = grn.solve(FrameLike(ROWS, [10, 20, 30]), start="20", improve=False)
    assert result.tour[0] == 1
    assert result.visits()[0]["name"] == "b"


def test_points_say_what_they_are() -> None:
    degrees = as_instance(GeoFrameLike({"n": [1, 2, 3]}, Crs("degrees")))
    assert degrees.latlon is not None
    assert degrees.latlon.tolist() == [[48, 11], [48.5, 11.5], [48.25, 12]]
    assert degrees.columns == {"n": (1, 2, 3)}
    plane = as_instance(GeoFrameLike({"n": [1, 2, 3]}, Crs("plane")))
    assert plane.coordinates.tolist() == [[11, 48], [11.5, 48.5], [12, 48.25]]
    assert plane.latlon is None
    assert as_instance(Points(Crs("degrees"))).unit == "km"  # type: ignore[arg-type]
    with pytest.warns(GeoRouteNetWarning, match="Web Mercator stretches"):
        as_instance(GeoFrameLike({}, Crs("plane", "WGS 84 / Pseudo-Mercator")))


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (FrameLike({"a": [1], "y": [2]}), "data frame: the header must name x,y or lat,lon"),
        (FrameLike({"x": [], "y": []}), "data frame: no cities: it has no rows"),
        (
            FrameLike({"x": [1, 2], "y": [1, math.nan]}, ["u", "v"]),
            "data frame: row 'v': coordinates must be",
        ),
        (FrameLike({"x": [1, 2], "y": [None, 2]}), "data frame: row 0: coordinates must be finite"),
        (FrameLike({"x": [1, 2], "y": [1, True]}), "the column 'y' must hold numbers, got True"),
        (FrameLike({"x": [1, 2], "y": [1, "2"]}), "the column 'y' must hold numbers, got '2'"),
        (FrameLike({"x": [1, 2], "y": [1, {}]}), "the column 'y' must hold numbers: "),
        (FrameLike({"lat": [95], "lon": [1]}), "data frame: row 0: latitude must be in"),
        (GeoFrameLike({}, None), "no reference system, so they may be degrees or places in the plane"),
        (GeoFrameLike({}, Crs("space")), "must be in degrees or in the plane, got some"),
        (GeoFrameLike({}, Crs("plane"), points=False), "the geometry must be points"),
    ],
)
def test_frames_that_cannot_be_used(frame: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        as_instance(frame)


def test_arrays_are_no_frames() -> None:
    assert not any(map(is_frame, (np.zeros((2, 2)), [[1, 2]], "x.csv", None)))


def test_without_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingDependencyError, match="pip install pandas"):
        to_frame(np.array([0]), grn.Instance([[0, 0]]))


def test_pandas_in_and_out() -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    frame = pandas.DataFrame(ROWS | {"n": [1, 2, None]}, index=pandas.Index([10, 20, 30], name="stop"))
    result = grn.solve(frame, start="30", improve=False)
    found = result.to_frame()
    assert found.index.equals(frame.iloc[result.tour].index)
    assert found.index.name == "stop"
    assert found["city"].tolist() == result.tour.tolist()
    assert found["name"].tolist() == frame["name"].iloc[result.tour].tolist()
    assert list(found) == ["position", "city", "lat", "lon", "name", "n"]
    assert grn.solve([[0, 0], [1, 1]]).to_frame()["city"].tolist() == [0, 1]


def test_an_index_of_several_levels() -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    index = pandas.MultiIndex.from_tuples([("a", 1), ("a", 2), ("b", 1)])
    result = grn.solve(pandas.DataFrame(ROWS, index=index), improve=False)
    assert result.to_frame().index.tolist() == [index[city] for city in result.tour]


def test_geopandas() -> None:
    geopandas = pytest.importorskip("geopandas", reason="GeoPandas is not installed")
    points = geopandas.points_from_xy(ROWS["lon"], ROWS["Lat"])
    frame = geopandas.GeoDataFrame({"name": ROWS["name"]}, geometry=points)
    with pytest.raises(InputError, match="no reference system"):
        as_instance(frame)
    instance = as_instance(frame.set_crs(4326))
    np.testing.assert_array_equal(instance.latlon, np.column_stack([ROWS["Lat"], ROWS["lon"]]))  # type: ignore
    assert instance.columns == {"name": ("a", "b", "c")}
    assert as_instance(frame.set_crs(4326).to_crs(32632)).latlon is None


def test_polars() -> None:
    polars = pytest.importorskip("polars", reason="polars is not installed")
    assert as_instance(polars.DataFrame(ROWS)).ids == ("a", "b", "c")
