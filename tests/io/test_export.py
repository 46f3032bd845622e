from __future__ import annotations

import json

import numpy as np
import pytest

from georoutenet.errors import InputError
from georoutenet.io.export import cut_at_antimeridian, format_geojson, latitude_longitude
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
