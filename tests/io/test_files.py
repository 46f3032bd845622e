from __future__ import annotations

import gzip
import io
import json
import math
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import georoutenet
from georoutenet.errors import InputError
from georoutenet.io.files import read_instance, read_tour, write_instance, write_tour
from georoutenet.io.table import parse_table
from georoutenet.problem.instance import DistanceRule, Instance
from georoutenet.problem.tour import tour_length

POINTS = [[0.0, 1.0], [2.5, -3.0], [1000.0, 0.5]]
TSP = (
    "NAME: p\nTYPE: TSP\nDIMENSION: 3\nEDGE_WEIGHT_TYPE: CEIL_2D\nNODE_COORD_SECTION\n"
    "1 0 1\n2 2.5 -3\n3 1e3 .5\nEOF\n"
)


def npy(array: object, *, pickle: bool = False) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=pickle)  # type: ignore[arg-type]
    return stream.getvalue()


def huge_npy() -> bytes:
    """A header that promises 16 TB, and one row."""
    stream = io.BytesIO()
    header = {"descr": "<f8", "fortran_order": False, "shape": (10**12, 2)}
    np.lib.format.write_array_header_1_0(stream, header)
    return stream.getvalue() + b"\0" * 16


# ---- tables


@pytest.mark.parametrize(
    "text",
    [
        "0,1\n2.5,-3\n1e3,.5\n",
        "0,1\n2.5,-3\n1e3,.5",
        "0, 1\r\n 2.5 , -3\r\n1e3,.5\r\n",
        "0;1\n2.5;-3\n1e3;.5\n",
        "0 1\n\n2.5\t-3\n  1e3   .5  \n",
        "# cities\n0,1\n# one\n2.5,-3\n   # two\n1e3,.5\n",
        "x,y\n0,1\n2.5,-3\n1e3,.5\n",
        "Y;X\n1;0\n-3;2.5\n.5;1e3\n",
        "x y\n0 1\n2.5 -3\n1e3 .5\n",
        'name,x,id,y\n"Rome, Italy",0,7,1\nKöln,2.5,,-3\n"say ""hi""",1e3,x,.5\n',
        '"x","y"\n"0","1"\n"2.5","-3"\n"1e3",".5"\n',
    ],
)
def test_ways_to_write_the_same_table(text: str) -> None:
    instance = parse_table(text)
    assert instance.coordinates.tolist() == POINTS
    assert instance.rule is DistanceRule.EUCLIDEAN
    assert instance.latlon is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "t: no cities"),
        ("# only a comment\n\n", "t: no cities"),
        ("x,y\n", "t: no cities: there is nothing below the header"),
        ("0,1\n2\n", "t:2: expected 2 columns, got 1"),
        ("0,1\n2,3,4\n", "t:2: expected 2 columns, got 3; a header naming x and y"),
        ("Berlin,1,2\n", "t:1: expected 2 columns, got 3; a header"),
        ("x,y\n1,2\n1,2,3\n", "t:3: expected 2 columns, got 3"),
        ("name,x,y\nRome,1\n", "t:2: expected 3 columns, got 2"),
        ("0,1\n# c\n\n2,abc\n", "t:4: expected a number, got 'abc'"),
        ("0,1\n2,1_0\n", "t:2: expected a number, got '1_0'"),
        ("0,1\n2,\n", "t:2: expected a number, got ''"),
        ('0,1\n"2,5",3\n', "t:2: expected a number, got '2,5'; decimals are written with a point"),
        ("0;1\n1.234,5;3\n", "t:2: expected a number, got '1.234,5'; thousands are not separated"),
        ("0;1.5\n2;3\n2,5;3\n", "t:3: decimals are written with a comma or with a point, not both"),
        ("0,1\nnan,2\n", "t:2: coordinates must be finite, got nan"),
        ("0,1\n2,1e999\n", "t:2: coordinates must be finite"),
        ("a,b\n1,2\n", "t:1: the header must name x,y or lat,lon"),
        ("x,lat\n1,2\n", "t:1: the header must name"),
        ("x,x,y\n1,2,3\n", "t:1: the header must name"),
        ("x,y,x,lat\n1,2,3,4\n", "t:1: the header must name .* exactly once"),
        ('name,x,y\n"open,1,2\n', "t:2: unexpected end of data"),
        ("lat,lon\n1,2\n91,0\n", r"t:3: latitude must be in -90\.\.90 .* got 91\.0, 0\.0"),
        ("lon,lat\n361,0\n", r"t:2: .*longitude in -180\.\.360, got 0\.0, 361\.0"),
        ("-1.7e308,0\n1.7e308,0\n", "t: coordinates are too far apart"),
    ],
)
def test_broken_tables_name_the_line(text: str, message: str) -> None:
    with pytest.raises(InputError, match=f"^{message}"):
        parse_table(text, "t")


# ---- latitudes and longitudes


def great_circle(a: tuple[float, float], b: tuple[float, float]) -> float:
    (lat_a, lon_a), (lat_b, lon_b) = (tuple(map(math.radians, p)) for p in (a, b))
    h = math.sin((lat_a - lat_b) / 2) ** 2
    h += math.cos(lat_a) * math.cos(lat_b) * math.sin((lon_a - lon_b) / 2) ** 2
    return 2 * 6371.0088 * math.asin(math.sqrt(h))


@pytest.mark.parametrize("header", ["lat,lon", "latitude,longitude", "LAT,LNG"])
def test_latlon_is_measured_on_the_globe(header: str) -> None:
    cities = [(52.52, 13.405), (52.39, 13.06), (-33.87, 151.21), (64.15, -21.94)]
    instance = parse_table("\n".join([header, *(f"{lat},{lon}" for lat, lon in cities)]))
    assert instance.rule is DistanceRule.GREAT_CIRCLE
    assert instance.coordinates.tolist() == [list(city) for city in cities]
    assert instance.latlon is instance.coordinates
    for i, a in enumerate(cities):
        for j, b in enumerate(cities):
            assert instance.distance(i, j) == pytest.approx(great_circle(a, b), rel=1e-12)
    swapped = parse_table("\n".join(["lon,name,lat", *(f"{lon},?,{lat}" for lat, lon in cities)]))
    np.testing.assert_array_equal(swapped.coordinates, instance.coordinates)


# ---- read_instance


@pytest.mark.parametrize(
    ("name", "data", "rule"),
    [
        ("p.tsp", TSP.encode(), DistanceRule.CEIL_2D),
        ("p.TSP", TSP.encode(), DistanceRule.CEIL_2D),
        ("p.csv", b"0,1\n2.5,-3\n1e3,.5\n", DistanceRule.EUCLIDEAN),
        ("p.txt", b"0 1\n2.5 -3\n1e3 .5\n", DistanceRule.EUCLIDEAN),
        ("p.csv", b"\xef\xbb\xbfx,y\n0,1\n2.5,-3\n1e3,.5\n", DistanceRule.EUCLIDEAN),
        ("p.npy", npy(np.array(POINTS)), DistanceRule.EUCLIDEAN),
        ("p.npy", npy(np.array(POINTS, dtype=np.float32)), DistanceRule.EUCLIDEAN),
        ("p.npy", npy(np.array(POINTS, dtype=">f8", order="F")), DistanceRule.EUCLIDEAN),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_read_instance_by_extension(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, data: bytes, rule: DistanceRule, packed: bool
) -> None:
    content = gzip.compress(data) if packed else data
    path = tmp_path / (name + ".gz" if packed else name)
    path.write_bytes(content)
    for instance in [read_instance(path), read_instance(str(path)), georoutenet.read_instance(path)]:
        assert instance.coordinates.tolist() == POINTS
        assert (instance.name, instance.rule) == ("p", rule)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(content)))
    piped = read_instance("-")
    assert piped.coordinates.tolist() == POINTS
    assert piped.rule is rule


def test_standard_input_with_a_name_column_is_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"name,x,y\na,0,1\n")))
    assert read_instance(Path("-")).n == 1


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        (
            "a.xyz",
            b"1,2",
            r"allowed: \.tsp, \.csv, \.tsv, \.txt, \.npy, \.json, \.geojson \(each may",
        ),
        ("a", b"1,2", "unknown extension"),
        ("a.gz", b"1,2", "unknown extension"),
        ("a.csv", b"", "empty"),
        ("a.tsp", b" \n\n", "empty"),
        ("a.csv.gz", gzip.compress(b"", mtime=0), "empty"),
        ("a.csv.gz", b"1,2\n", "broken gzip"),
        ("a.csv.gz", gzip.compress(b"1,2\n" * 99, mtime=0)[:-9], "broken gzip"),
        ("a.csv.gz", gzip.compress(b"1,2\n" * 99, mtime=0)[:12] + b"\xff" * 30, "broken gzip"),
        ("a.csv", b"1,2\n3,\x81\n", r"a\.csv:2: not text in UTF-8 or Windows-1252"),
        ("a.json", b'[{"x": 1, "y": 2, "name": "\xe4"}]', "not UTF-8"),
        ("a.tsp", TSP.replace("2.5", "\xe4").encode("latin-1"), r"a\.tsp:7: expected a number"),
        ("a.npy", b"1,2\n", "not a NumPy"),
        ("a.npy", npy(np.array(POINTS))[:20], "not a NumPy"),
        ("a.npy", npy(np.array(POINTS))[:-1], "truncated"),
        ("a.npy", npy(np.array(POINTS)) + b"x", "truncated"),
        ("a.npy", huge_npy(), "truncated: 16 bytes for an array float64 .1000000000000, 2"),
        ("a.npy", npy(np.array([{}]), pickle=True), r"got object"),
        ("a.npy", npy(np.array(["a"])), "array of numbers"),
        ("a.npy", npy(np.zeros((2, 3))), r"got float64 \(2, 3\)"),
        ("a.npy", npy(np.zeros((0, 2))), "at least one city"),
        ("a.npy", npy(np.array([[0, math.nan]])), "row 0"),
    ],
)
def test_unreadable_files(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(InputError, match=message) as caught:
        read_instance(path)
    assert str(path) in str(caught.value)


def test_missing_folder_and_unreadable(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        read_instance(tmp_path / "none.tsp")
    (tmp_path / "folder.tsp").mkdir()
    with pytest.raises(InputError, match="directory"):
        read_instance(tmp_path / "folder.tsp")
    with pytest.raises(InputError, match="cannot read"):
        read_instance("nul\0byte.tsp")
    (tmp_path / "secret.tsp").write_text(TSP)
    (tmp_path / "secret.tsp").chmod(0)
    if not os.access(tmp_path / "secret.tsp", os.R_OK):  # the superuser may read everything
        with pytest.raises(InputError, match="Permission denied"):
            read_instance(tmp_path / "secret.tsp")


def test_comments_in_other_encodings_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "a.tsp"
    path.write_bytes(b"COMMENT: Gr\xf6tschel\n" + TSP.encode())
    assert read_instance(path).n == 3


def test_no_half_read_optimum(tmp_path: Path) -> None:
    (tmp_path / "a.tsp").write_text(TSP.replace("NAME: p", "NAME: eil51"))
    assert read_instance(tmp_path / "a.tsp").optimum is None


def test_above_65535_cities(tmp_path: Path) -> None:
    n = 70_000
    points = np.arange(2.0 * n).reshape(n, 2)
    instance = Instance(points, name="many", rule=DistanceRule.EUC_2D)
    write_instance(tmp_path / "many.tsp", instance)
    assert np.array_equal(read_instance(tmp_path / "many.tsp").coordinates, points)
    tour = np.random.default_rng(0).permutation(n)
    for extension in ("tour", "csv", "json"):
        write_tour(tmp_path / f"many.{extension}", tour, instance)
        assert np.array_equal(read_tour(tmp_path / f"many.{extension}", n), tour)


# ---- tours

instances = st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6)), min_size=1, max_size=12).flatmap(
    lambda points: st.tuples(
        st.just(points),
        st.permutations(range(len(points))),
        st.sampled_from(
            [rule for rule in DistanceRule if rule not in (DistanceRule.EXPLICIT, DistanceRule.GREAT_CIRCLE)]
        ),
        st.text(max_size=8),
    )
)


@settings(deadline=None)
@given(instances)
def test_round_trips(tmp_path_factory: pytest.TempPathFactory, case: tuple) -> None:
    points, tour, rule, name = case
    folder = tmp_path_factory.mktemp("round")
    instance = Instance(points, name=name, rule=rule)
    for file in ["a.tour", "a.opt.tour", "a.csv", "a.json", "a.JSON"]:
        write_tour(folder / file, tour, instance)
        again = read_tour(folder / file, len(tour))
        assert again.dtype == np.int64
        assert again.tolist() == tour
    write_instance(folder / "cities.csv", instance)
    np.testing.assert_array_equal(read_instance(folder / "cities.csv").coordinates, instance.coordinates)
    # The tour's own table lists the cities in visiting order.
    visited = read_instance(folder / "a.csv").coordinates
    np.testing.assert_array_equal(visited, instance.coordinates[tour])


def test_what_is_written(tmp_path: Path) -> None:
    instance = Instance([[0, 0], [3, 4], [3, 0]], name="tri\nangle", rule=DistanceRule.EUC_2D)
    write_tour(tmp_path / "a.tour", [2, 0, 1], instance)
    assert (tmp_path / "a.tour").read_text() == (
        "NAME : tri angle.tour\nCOMMENT : length 12 (EUC_2D)\nTYPE : TOUR\nDIMENSION : 3\n"
        "TOUR_SECTION\n3\n1\n2\n-1\nEOF\n"
    )
    write_tour(tmp_path / "a.json", [2, 0, 1], instance, closed=False)
    assert json.loads((tmp_path / "a.json").read_text()) == {
        "name": "tri\nangle",
        "n": 3,
        "rule": "EUC_2D",
        "length": 8,
        "closed": False,
        "tour": [2, 0, 1],
        "visits": [
            {"position": 0, "city": 2, "x": 3.0, "y": 0.0},
            {"position": 1, "city": 0, "x": 0.0, "y": 0.0},
            {"position": 2, "city": 1, "x": 3.0, "y": 4.0},
        ],
    }
    write_tour(tmp_path / "a.csv", [2, 0, 1], instance)
    assert (tmp_path / "a.csv").read_text() == "position,city,x,y\n0,2,3.0,0.0\n1,0,0.0,0.0\n2,1,3.0,4.0\n"


def test_latlon_is_written_and_read_back(tmp_path: Path) -> None:
    instance = parse_table("lat,lon\n52.5,13.4\n52.4,13.1\n")
    write_tour(tmp_path / "t.csv", [1, 0], instance)
    lines = (tmp_path / "t.csv").read_text().splitlines()
    assert lines[0] == "position,city,lat,lon"
    assert lines[1] == "0,1,52.4,13.1"
    write_instance(tmp_path / "c.csv", instance)
    again = read_instance(tmp_path / "c.csv")
    np.testing.assert_array_equal(again.coordinates, instance.coordinates)
    assert tour_length(again, read_tour(tmp_path / "t.csv", 2)) == tour_length(instance, [0, 1])


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.tour", "TOUR_SECTION\n1\n2\n-1\n", "2 entries for 3 cities"),
        ("a.tour", "TOUR_SECTION\n1\n2\n2\n-1\n", ":4: city 2 appears twice"),
        ("a.csv", "city\n0\n1\n", "2 entries for 3 cities"),
        ("a.csv", "city\n0\n1\n1\n", "city 1 2 times"),
        ("a.csv", "city\n0\n1\n3\n", "city 3"),
        ("a.csv", "city\n0\n1.5\n2\n", ":3: expected a city's number, got '1.5'"),
        ("a.csv", "position,city\n0\n", ":2: expected a city's number, got ''"),
        ("a.csv", "place\n0\n1\n2\n", ":1: the header must name the column city"),
        ("a.json", "[0, 1]", "2 entries for 3 cities"),
        ("a.json", '{"tour": [0, 1, 1]}', "city 1 2 times"),
        ("a.json", '{"route": [0, 1, 2]}', "object with such a list as 'tour'"),
        ("a.json", "[0, true, 2]", "list of city numbers"),
        ("a.json", "[0, 1.0, 2]", "list of city numbers"),
        ("a.json", "[0, 1, 1e999]", "list of city numbers"),
        ("a.json", "[0, 1, " + "9" * 30 + "]", "whole city numbers"),
        ("a.json", "[0, 1, " + "9" * 5000 + "]", "not JSON"),
        ("a.json", "[0, 1,", "not JSON"),
        ("a.json", "[" * 200_000, "not JSON"),
        ("a.txt", "0 1 2", r"unknown extension for a tour; allowed: \.tour, \.csv, \.json"),
        ("a.json", "", "empty"),
    ],
)
def test_unreadable_tours(tmp_path: Path, name: str, text: str, message: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        read_tour(path, 3)
    assert str(path) in str(caught.value)


def test_gzipped_tours_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.opt.tour.gz").write_bytes(gzip.compress(b"TOUR_SECTION\n3 1 2 -1"))
    assert read_tour(tmp_path / "a.opt.tour.gz", 3).tolist() == [2, 0, 1]


def test_nothing_is_written_for_bad_arguments(tmp_path: Path) -> None:
    instance = Instance([[0, 0], [1, 1]])
    with pytest.raises(InputError, match="2 times"):
        write_tour(tmp_path / "a.tour", [0, 0], instance)
    with pytest.raises(InputError, match=r"allowed: \.tour, \.csv, \.json, \.geojson, \.gpx$"):
        write_tour(tmp_path / "a.tour.gz", [0, 1], instance)
    with pytest.raises(InputError, match=r"allowed: \.tsp, \.csv$"):
        write_instance(tmp_path / "a.npy", instance)
    with pytest.raises(InputError, match="give a scale"):
        write_instance(tmp_path / "a.tsp", instance)
    assert list(tmp_path.iterdir()) == []
