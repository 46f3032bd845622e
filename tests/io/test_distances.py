"""Files of distances: tables, arrays, answers of routing services."""

from __future__ import annotations

import gzip
import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from georoutenet.errors import InputError
from georoutenet.io.distances import parse_matrix_json, parse_matrix_table
from georoutenet.io.files import read_instance, write_instance, write_tour
from georoutenet.problem.instance import DistanceRule, Instance

MATRIX = [[0, 10, 25], [10, 0, 30], [25, 30, 0]]
SOURCES = [{"location": [13.4, 52.5], "name": "a"}, {"location": [13.1, 52.4]}, {"location": [12.5, 52.4]}]
TABLE = "0,10,25\n10,0,30\n25,30,0\n"


def npy(array: object) -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.asarray(array))
    return stream.getvalue()


@pytest.mark.parametrize(
    "text",
    [
        TABLE,
        TABLE.replace(",", ";"),
        TABLE.replace(",", " \t "),
        "# minutes\n" + TABLE + "\n",
        "a,b,c\n" + TABLE,
        ",a,b,c\na,0,10,25\nb,10,0,30\nc,25,30,0\n",
        ",0,1,2\n0,0,10,25\n1,10,0,30\n2,25,30,0\n",  # as pandas writes it
        '"",Rome,"Köln, old"\n"Rome",0,10\n"Köln, old",10,0\n',
        "Rome,0,10,25\nOslo,10,0,30\nBonn,25,30,0\n",
    ],
)
def test_ways_to_write_the_same_table(text: str) -> None:
    instance = parse_matrix_table(text)
    n = instance.n
    assert instance.distance_matrix().tolist() == [row[:n] for row in MATRIX[:n]]
    assert instance.rule is DistanceRule.EXPLICIT
    assert instance.is_integer
    assert not instance.has_coordinates


def test_two_rows_of_two_numbers_are_what_the_caller_says(tmp_path: Path) -> None:
    path = tmp_path / "two.csv"
    path.write_text("0,7\n7,0\n")
    assert read_instance(path).coordinates.tolist() == [[0, 7], [7, 0]]
    assert read_instance(path, matrix=True).distance(0, 1) == 7


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "t: no cities: the file has no rows"),
        ("a\n", "t: no distances: there is nothing below the header"),
        ("a,b\n", "t:1: expected a number, got 'b'"),
        ("0,1\n", "t:1: expected 1 columns for 1 rows, got 2"),
        ("0,1,2\n3,4,5\n", "t:1: expected 2 columns for 2 rows, got 3"),
        ("0,1,2\n1,0\n2,1,0\n", "t:2: expected 3 columns for 3 rows, got 2"),
        ("0,1\n1,0\n2,1\n", "t:1: expected 3 columns for 3 rows, got 2"),
        ("a,b\n0,1\nx,0\n", "t:3: expected a number, got 'x'"),
        ("0,1\n1,0,5\n", "t:2: expected 2 columns for 2 rows, got 3"),
        ("0,1\n2,0\n", "t: the matrix is asymmetric: from city 0 to city 1 it is 1, back 2"),
        ("0,nan\nnan,0\n", "t: distances must be finite"),
        ("0,-4\n-4,0\n", r"t: distances must be finite and >= 0: from city 0 to city 1 it is -4"),
    ],
)
def test_broken_tables(text: str, message: str) -> None:
    with pytest.raises(InputError, match=f"^{message}"):
        parse_matrix_table(text, "t")


def test_a_number_with_a_point_makes_floats() -> None:
    assert not parse_matrix_table(TABLE.replace("30", "30.0")).is_integer
    assert not parse_matrix_table(TABLE.replace("30", "3e1")).is_integer
    assert parse_matrix_table(TABLE.replace("30", "+30")).is_integer


# ---- JSON


@pytest.mark.parametrize("key", ["durations", "distances"])
def test_answers_of_a_routing_service(key: str) -> None:
    answer = {"code": "Ok", key: MATRIX, "sources": SOURCES, "destinations": SOURCES}
    instance = parse_matrix_json(json.dumps(answer), name="trip")
    assert instance.name == "trip"
    assert instance.distance_matrix().tolist() == MATRIX
    assert instance.latlon is not None
    assert instance.latlon.tolist() == [[52.5, 13.4], [52.4, 13.1], [52.4, 12.5]]
    assert instance.has_coordinates
    assert instance.unit is None  # minutes or meters, but not kilometers
    for sources in (None, [], "?", [{"name": "a"}] * 3, [None] * 3):
        plain = parse_matrix_json(json.dumps({key: MATRIX, "sources": sources} if sources else {key: MATRIX}))
        assert not plain.has_coordinates
    assert parse_matrix_json(json.dumps(MATRIX)).distance_matrix().tolist() == MATRIX


def test_places_all_over_the_world_give_no_warning_about_lengths() -> None:
    sources = [{"location": place} for place in ([0, 0], [90, 80], [-170, -60])]
    instance = parse_matrix_json(json.dumps({"durations": MATRIX, "sources": sources}))
    assert instance.distance(0, 1) == 10


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "t: not JSON"),
        ("[" * 100_000, "t: not JSON"),
        ("{}", "t: expected one of the tables distances and durations, got neither"),
        (json.dumps({"durations": MATRIX, "distances": MATRIX}), r"t: .*got both: .*Instance\(matrix="),
        ('{"durations": 5}', "t: expected a list of lists"),
        ("5", "t: expected a list of lists"),
        ("[]", "t: an instance needs at least one city"),
        ("[1, 2]", r"t: a matrix must have shape \(n, n\), got \(2,\)"),
        ("[[0, 1], [1]]", "t: a matrix must be an array of numbers"),
        ("[[0, null], [1, 0]]", "t: a matrix must hold numbers: from city 0 to city 1 it is None"),
        ('[[0, "a"], ["a", 0]]', "t: a matrix must hold numbers"),
        ("[[true, true], [true, false]]", "t: a matrix must hold numbers"),
        ("[[0, 5], [6, 0]]", "t: the matrix is asymmetric"),
        ("[[0, Infinity], [Infinity, 0]]", "t: distances must be finite"),
        (
            json.dumps({"durations": MATRIX, "sources": SOURCES[:2]}),
            "t: coordinates have 2 rows for 3 cities",
        ),
        (
            json.dumps({"durations": MATRIX, "sources": [{"location": [1]}] * 3}),
            "t: the location of a source",
        ),
        (json.dumps({"durations": MATRIX, "sources": [{"location": [52, 113]}] * 3}), "t: the location"),
        (
            json.dumps({"durations": MATRIX, "sources": [{"location": "x"}] * 3}),
            "t: the location of a source",
        ),
    ],
)
def test_broken_answers(content: str, message: str) -> None:
    with pytest.raises(InputError, match=f"^{message}"):
        parse_matrix_json(content, "t")


# ---- files


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("m.csv", TABLE.encode()),
        ("m.txt", TABLE.replace(",", " ").encode()),
        ("m.npy", npy(MATRIX)),
        ("m.npy", npy(np.asfortranarray(MATRIX, dtype=">i4"))),
        ("m.json", json.dumps({"durations": MATRIX}).encode()),
        (
            "m.tsp",
            b"NAME: m\nDIMENSION: 3\nEDGE_WEIGHT_TYPE: EXPLICIT\nEDGE_WEIGHT_FORMAT: UPPER_ROW\n"
            b"EDGE_WEIGHT_SECTION\n10 25 30\n",
        ),
    ],
)
def test_files_and_standard_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, data: bytes, packed: bool
) -> None:
    data = gzip.compress(data) if packed else data
    path = tmp_path / (name + ".gz" if packed else name)
    path.write_bytes(data)
    instance = read_instance(path, matrix=True)
    assert (instance.name, instance.distance_matrix().tolist()) == ("m", MATRIX)
    assert instance.is_integer
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data)))
    assert read_instance("-", matrix=True).distance_matrix().tolist() == MATRIX


@pytest.mark.parametrize(
    ("name", "data", "matrix", "message"),
    [
        ("m.npy", npy(MATRIX), False, r"\(3, 3\); distances are read with matrix=True \(--matrix\)"),
        ("m.npy", npy(np.ones((3, 2))), True, r"of shape \(n, n\), got float64 \(3, 2\)"),
        ("m.npy", npy(np.ones(3)), True, r"got float64 \(3,\)"),
        ("m.npy", npy(MATRIX)[:-1], True, "truncated"),
        ("m.npy", npy([[0, 1], [2, 0]]), True, "asymmetric"),
        ("m.csv", TABLE.encode(), False, r"got 3; .*, and distances are read with matrix=True \(--matrix\)"),
        ("m.json", b"[[0]]", False, "distances are read with matrix=True"),
        ("m.json", b"\xff", True, "not UTF-8"),
    ],
)
def test_unreadable_files(tmp_path: Path, name: str, data: bytes, matrix: bool, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(InputError, match=message) as caught:
        read_instance(path, matrix=matrix)
    assert str(path) in str(caught.value)


@settings(deadline=None)
@given(
    st.integers(1, 6).flatmap(
        lambda n: st.one_of(
            arrays(np.int64, (n, n), elements=st.integers(0, 10**12)),
            arrays(np.float64, (n, n), elements=st.floats(0, 1e300)),
        )
    )
)
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, values: np.ndarray) -> None:
    matrix = np.minimum(values, values.T)
    instance = Instance(matrix=matrix)
    path = tmp_path_factory.mktemp("round") / "m.csv"
    write_instance(path, instance)
    again = read_instance(path, matrix=True)
    assert again.is_integer == instance.is_integer
    np.testing.assert_array_equal(again.distance_matrix(), instance.distance_matrix())
    write_instance(path.with_suffix(".tsp"), instance)
    again = read_instance(path.with_suffix(".tsp"))
    np.testing.assert_array_equal(again.distance_matrix(), instance.distance_matrix())


def test_tours_are_written_with_what_is_known(tmp_path: Path) -> None:
    write_tour(tmp_path / "t.csv", [2, 0, 1], Instance(matrix=MATRIX))
    assert (tmp_path / "t.csv").read_text() == "position,city\n0,2\n1,0\n2,1\n"
    write_tour(tmp_path / "t.json", [2, 0, 1], Instance(matrix=MATRIX))
    written = json.loads((tmp_path / "t.json").read_text())
    assert (written["rule"], written["length"], written["tour"]) == ("EXPLICIT", 65, [2, 0, 1])
    write_tour(tmp_path / "t.tour", [2, 0, 1], Instance(matrix=MATRIX))
    assert "length 65 (EXPLICIT)" in (tmp_path / "t.tour").read_text()
    with pytest.raises(InputError, match="GeoJSON needs latitudes and longitudes"):
        write_tour(tmp_path / "t.geojson", [2, 0, 1], Instance(np.eye(3, 2), matrix=MATRIX))
    answer = parse_matrix_json(json.dumps({"durations": MATRIX, "sources": SOURCES}))
    write_tour(tmp_path / "t.geojson", [2, 0, 1], answer)
    line = json.loads((tmp_path / "t.geojson").read_text())["features"][0]
    assert line["properties"]["length"] == 65
    assert "length_km" not in line["properties"]
