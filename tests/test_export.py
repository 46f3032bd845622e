from __future__ import annotations

import json

import numpy as np
import pytest

from georoutenet.errors import InputError
from georoutenet.export import format_geojson, latitude_longitude
from georoutenet.instance import Instance


def test_tsplib_s_degrees_and_minutes_become_degrees() -> None:
    cities = Instance([[16.30, -96.30], [20.15, 94.00]], rule="GEO")
    degrees = latitude_longitude(cities)
    assert degrees is not None
    np.testing.assert_allclose(degrees, [[16.5, -96.5], [20.25, 94.0]])
    line = json.loads(format_geojson(np.array([1, 0]), cities))["features"][0]
    np.testing.assert_allclose(line["geometry"]["coordinates"], [[94, 20.25], [-96.5, 16.5], [94, 20.25]])


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
