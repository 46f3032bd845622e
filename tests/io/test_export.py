from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from georoutenet.errors import InputError
from georoutenet.io.export import cut_at_antimeridian, format_geojson, format_gpx, latitude_longitude
from georoutenet.io.files import read_instance, write_tour
from georoutenet.problem.instance import Instance


def test_tsplib_s_degrees_and_minutes_become_degrees() -> None:
    cities = Instance([[16.30, -96.30], [20.15, 94.00]], rule="GEO")
    degrees = latitude_longitude(cities)
    assert degrees is not None
    np.testing.assert_allclose(degrees, [[16.5, -96.5], [20.25, 94.0]])
    line = json.loads(format_geojson(np.array([1, 0]), cities))["features"][0]
    assert line["geometry"]["type"] == "MultiLineString"  # 169.5 degrees across the antimeridian
    there, back, home = line["geometry"]["coordinates"]
    height = 20.25 - 3.75 * 86 / 169.5
    np.testing.assert_allclose(there, [[94, 20.25], [180, height]])
    np.testing.assert_allclose(back, [[-180, height], [-96.5, 16.5], [-180, height]])
    np.testing.assert_allclose(home, [[180, height], [94, 20.25]])


def test_an_open_path_does_not_return() -> None:
    cities = Instance(np.eye(3, 2), latlon=[[0, 0], [0, 1], [1, 1]])
    content = json.loads(format_geojson(np.array([2, 0, 1]), cities, closed=False))
    assert content["type"] == "FeatureCollection"
    line = content["features"][0]
    assert line["geometry"]["coordinates"] == [[1, 1], [0, 0], [1, 0]]
    assert line["properties"]["closed"] is False
    assert [point["properties"]["city"] for point in content["features"][1:]] == [2, 0, 1]


def test_one_city_is_still_a_line_of_two_places() -> None:
    line = json.loads(format_geojson(np.array([0]), Instance([[0, 0]], latlon=[[5, 6]]), closed=False))
    assert line["features"][0]["geometry"]["coordinates"] == [[6, 5], [6, 5]]


def test_cities_in_the_plane_have_no_place_on_a_map() -> None:
    with pytest.raises(InputError, match="needs latitudes and longitudes"):
        format_geojson(np.array([0, 1]), Instance([[0, 0], [1, 1]]))


def test_lines_are_cut_at_the_antimeridian() -> None:
    fiji = np.array([[178.0, -18.0], [-178.0, -16.0], [-179.0, -17.0], [179.0, -19.0]])
    parts = cut_at_antimeridian(fiji)
    assert parts == [
        [[178.0, -18.0], [180.0, -17.0]],
        [[-180.0, -17.0], [-178.0, -16.0], [-179.0, -17.0], [-180.0, -18.0]],
        [[180.0, -18.0], [179.0, -19.0]],
    ]


@pytest.mark.parametrize("seed", range(5))
def test_no_part_crosses_and_none_is_lost(seed: int) -> None:
    random = np.random.default_rng(seed)
    line = np.column_stack(
        [random.choice([-180.0, -179.5, -90.0, 0.0, 90.0, 179.0, 180.0], 40), random.random(40)]
    )
    parts = cut_at_antimeridian(line)
    for part in parts:
        assert len(part) >= 2
        assert (np.abs(np.diff([x for x, _ in part])) <= 180.0).all()
    flat = [place for part in parts for place in part]
    kept = iter(flat)
    assert all(place in kept for place in line.tolist())  # in this order


def test_a_line_that_stays_on_one_side_is_one_line() -> None:
    assert cut_at_antimeridian(np.array([[-90.0, 0.0], [90.0, 1.0]])) == [[[-90.0, 0.0], [90.0, 1.0]]]


def test_longitudes_beyond_180_degrees_are_brought_back() -> None:
    cities = Instance(np.eye(2), latlon=[[0, 170], [0, 190]])
    content = json.loads(format_geojson(np.array([0, 1]), cities, closed=False))
    assert content["features"][2]["geometry"]["coordinates"] == [-170.0, 0.0]
    assert content["features"][0]["geometry"]["coordinates"] == [
        [[170.0, 0.0], [180.0, 0.0]],
        [[-180.0, 0.0], [-170.0, 0.0]],
    ]


def test_points_have_the_columns_as_properties() -> None:
    cities = Instance(
        np.eye(2), latlon=[[0, 1], [2, 3]], columns={"name": ["a", "b"], "lon": ["x", "y"], "n": [1, np.nan]}
    )
    content = json.loads(format_geojson(np.array([1, 0]), cities))
    found = [point["properties"] for point in content["features"][1:]]
    assert found == [
        {"position": 0, "city": 1, "name": "b", "given_lon": "y", "n": None},
        {"position": 1, "city": 0, "name": "a", "given_lon": "x", "n": 1},
    ]


def test_gpx() -> None:
    cities = Instance(
        np.eye(3, 2),
        name="a & b",
        latlon=[[1, 2], [3, 190], [5, 6]],
        columns={"id": ["A<", "B\0", "C"], "note": ["x", "", None]},
        id_column="id",
    )
    space = "{http://www.topografix.com/GPX/1/1}"
    for closed in (True, False):
        root = ElementTree.fromstring(format_gpx(np.array([2, 0, 1]), cities, closed=closed))
        assert (root.tag, root.get("version")) == (f"{space}gpx", "1.1")
        assert root.findtext(f"{space}rte/{space}name") == "a & b"
        points = root.findall(f"{space}rte/{space}rtept")
        places = [(float(point.get("lat", "")), float(point.get("lon", ""))) for point in points]
        assert places == [(5, 6), (1, 2), (3, -170)] + [(5, 6)] * closed
        assert [point.findtext(f"{space}name") for point in points][:3] == ["C", "A<", "B"]
        assert [point.findtext(f"{space}desc") for point in points][:3] == [None, "note: x", None]
    with pytest.raises(InputError, match="GPX needs latitudes and longitudes"):
        format_gpx(np.array([0]), Instance([[0, 0]]))


@pytest.mark.parametrize("extension", [".csv", ".tour", ".json", ".geojson", ".gpx"])
def test_what_utf8_cannot_hold_is_written_out(extension: str, tmp_path: Path) -> None:
    """JSON can hold half of a pair of surrogates: the tour is not lost for it."""
    (tmp_path / "a.json").write_text(
        '[{"lat": 1, "lon": 2, "note": "\\ud800"}, {"lat": 3, "lon": 4, "note": "b"}]'
    )
    instance = read_instance(tmp_path / "a.json").replaced(name="\ud800")
    write_tour(tmp_path / f"tour{extension}", [1, 0], instance)
    assert (tmp_path / f"tour{extension}").read_text(encoding="utf-8")
