from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from georoutenet.errors import GeoRouteNetWarning, InputError
from georoutenet.io.files import read_instance, write_tour
from georoutenet.io.geojson import parse_places_json
from georoutenet.problem.instance import DistanceRule, Instance


def collection(*features: Any, **more: Any) -> str:
    return json.dumps({"type": "FeatureCollection", "features": list(features), **more})


def point(longitude: float, latitude: float, **properties: Any) -> dict[str, Any]:
    geometry = {"type": "Point", "coordinates": [longitude, latitude]}
    return {"type": "Feature", "geometry": geometry, "properties": properties}


def test_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for content in ([[0, 1], [2, 3.5]], [{"X": 0, "y": 1}, {"X": 2, "y": 3.5}]):
        instance = parse_places_json(json.dumps(content))
        assert instance.coordinates.tolist() == [[0, 1], [2, 3.5]]
    text = json.dumps([{"lat": 1, "lng": 2, "name": "Ä"}, {"lng": 4, "lat": 3, "open": True}])
    (tmp_path / "p.json").write_text(text)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(text.encode())))
    for instance in (read_instance(tmp_path / "p.json", id_column="name"), read_instance("-")):
        assert instance.latlon is not None
        assert instance.latlon.tolist() == [[1, 2], [3, 4]]
        assert instance.columns == {"name": ("Ä", None), "open": (None, True)}


def test_geojson(tmp_path: Path) -> None:
    features = (point(11, 48, id="b", n=1), {**point(12, 49), "id": "a"}, point(12.5, 49))
    (tmp_path / "p.geojson").write_text(collection(*features))
    instance = read_instance(tmp_path / "p.geojson", id_column="id")
    assert instance.latlon is not None
    assert instance.latlon.tolist() == [[48, 11], [49, 12], [49, 12.5]]
    assert instance.columns == {"id": ("b", "a", None), "n": (1, None, None)}


def test_what_is_not_used_is_named() -> None:
    line = {"type": "Feature", "geometry": {"type": "LineString", "coordinates": []}, "properties": None}
    high = {"type": "Feature", "geometry": {"type": "Point", "coordinates": [1, 2, 300]}, "properties": {}}
    with pytest.warns(GeoRouteNetWarning, match="ignored: features that are LineString, heights"):
        assert parse_places_json(collection(point(1, 2), line, high)).n == 2


@pytest.mark.parametrize(
    "rule", [DistanceRule.EUCLIDEAN, DistanceRule.CEIL_2D, DistanceRule.GEO, DistanceRule.GREAT_CIRCLE]
)
def test_a_tour_is_read_under_its_rule(tmp_path: Path, rule: DistanceRule) -> None:
    instance = Instance([[0, 1], [2, 3], [4, 5.5]], name="three", rule=rule)
    write_tour(tmp_path / "t.json", [1, 2, 0], instance)
    again = read_instance(tmp_path / "t.json")
    assert (again.name, again.rule) == ("three", rule)
    assert again.coordinates.tolist() == [[2, 3], [4, 5.5], [0, 1]]
    assert again.columns == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1, 2", "t: not JSON"),
        ("[]", r"t: expected a list of \[x, y\]"),
        ('{"tour": [0, 1]}', r"t: expected a list of \[x, y\]"),
        ("[[1, 2], [3]]", "t: place 1 has 1 numbers, expected x and y"),
        ("[[0, 1, 2], [1, 0, 2], [1, 2, 0]]", "distances are read with matrix=True"),
        ('{"durations": [[0]]}', "distances is read with matrix=True"),
        (
            '{"rule": "GREAT_CIRCLE", "visits": [{"x": 1, "y": 2}]}',
            "t: the rule GREAT_CIRCLE needs .* lat and lon",
        ),
        ('[{"x": 1, "y": true}]', "t: place 0: expected a number, got True"),
        ('[{"x": 1, "y": 2}, {"x": 1}]', "t: place 1: expected a number, got None"),
        ('[{"x": 1, "y": "2"}]', "t: place 0: expected a number, got '2'"),
        ('[{"x": 1, "y": 1e999}]', "t: place 0: coordinates must be finite"),
        ("[[1, 1" + "0" * 400 + "]]", "t: place 0: coordinates must be finite"),
        ('[{"x": 1, "y": 2}, 7]', "t: place 1 is not an object"),
        ('[{"a": 1}]', "t: the header must name x,y or lat,lon"),
        (
            '{"rule": "EXPLICIT", "visits": []}',
            "a tour under a matrix, whose distances the file does not hold",
        ),
        ('{"rule": ["?"], "visits": []}', "unknown distance rule"),
        (collection(), "t: no cities: the GeoJSON has no features that are points"),
        (collection(7), "t: expected a GeoJSON feature, got 7"),
        (collection(point(0, 91)), "t: point 0: latitude must be in"),
        (
            collection(point(0, 1), crs={"properties": {"name": "urn:ogc:def:crs:EPSG::3857"}}),
            "GeoJSON is in",
        ),
    ],
)
def test_broken_files(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_places_json(text, "t")


def test_the_old_member_crs_may_say_degrees() -> None:
    crs = {"type": "name", "properties": {"name": "urn:ogc:def:crs:OGC:1.3:CRS84"}}
    assert parse_places_json(collection(point(0, 1), crs=crs)).n == 1


def test_places_with_names_of_their_own_do_not_make_a_huge_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """A megabyte of such places made 16 GB of empty cells."""
    places = [{"x": k, "y": 0, f"name{k}": 1} for k in range(100)]
    features = [point(k, 0, **{f"name{k}": 1}) for k in range(100)]
    assert len(parse_places_json(json.dumps(places)).columns) == 100
    monkeypatch.setattr("georoutenet.io.columns.MOST_CELLS", 9_999)
    for text, names in ((json.dumps(places), 102), (collection(*features), 100)):
        with pytest.raises(InputError, match=f"100 places with {names} names of properties"):
            parse_places_json(text)
    whole = [{"x": k, "y": 0, **{f"name{j}": 1 for j in range(200)}} for k in range(100)]
    assert len(parse_places_json(json.dumps(whole)).columns) == 200  # as large as the file says
