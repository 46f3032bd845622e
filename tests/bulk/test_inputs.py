"""Rows by ranges, whatever the file: what comes out is what was written."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from made import FORMS, Cities, random_cities, wide, write_form

from georoutenet.bulk import long_csv, parquet, reader
from georoutenet.bulk.inputs import Rows, find_input
from georoutenet.bulk.rows import LONGEST_ID, Row
from georoutenet.errors import InputError, MissingDependencyError
from georoutenet.io.files import write_instance
from georoutenet.problem.instance import DistanceRule, Instance


def plain(row: Row) -> tuple[Any, list[list[float]]]:
    assert not row.error
    assert row.instance is not None
    assert row.n == row.instance.n
    return row.id, row.instance.coordinates.tolist()


def rows_of(path: Path, **options: Any) -> list[Row]:
    found = find_input(path, **options)
    return list(Rows(found).read(0, found.instances))


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches and strides that a few rows fill more than once."""
    for module in (reader, parquet, long_csv):
        monkeypatch.setattr(module, "STRIDE", 4)
    monkeypatch.setattr(parquet, "BATCH", 3)
    monkeypatch.setattr(parquet, "LONG_BATCH", 5)


@pytest.mark.parametrize("form", FORMS)
def test_any_range_in_any_order(form: str, tmp_path: Path, small_pieces: None) -> None:
    cities = random_cities(40)
    text = form in ("csv", "csv.gz", "points")
    ids: list[Any] = [f"é{k}" if text else 10**12 + 7 * k for k in range(len(cities))]
    found = find_input(write_form(form, tmp_path, ids, cities))
    assert found.instances == len(cities)
    assert found.cities == sum(map(len, cities))
    assert found.columns.text_ids == text
    rows, source = Rows(found), random.Random(0)
    expected = list(zip(ids, cities, strict=True))
    assert [plain(row) for row in rows.read(0, 40)] == expected
    for _ in range(60):
        first = source.randrange(41)
        stop = source.randrange(first, 41)
        assert [plain(row) for row in rows.read(first, stop)] == expected[first:stop]
    rows.close()


@pytest.mark.parametrize("name", ["in.npy", "in.npz", "packed.npz"])
def test_arrays(name: str, tmp_path: Path) -> None:
    array = np.random.default_rng(0).random((9, 5, 2))
    path = tmp_path / name
    if name == "in.npy":
        np.save(path, array.astype(np.float32))
    elif name == "in.npz":
        np.savez(path, array)
    else:
        np.savez_compressed(
            path, coordinates=array, id=np.array([f"n{k}" for k in range(9)]), more=np.ones(2)
        )
    found = find_input(path)
    assert (found.instances, found.cities) == (9, 45)
    rows = Rows(found)
    given = array.astype(np.float32).astype(float) if name == "in.npy" else array
    ids = [f"n{k}" for k in range(9)] if name == "packed.npz" else list(range(9))
    for first, stop in ((0, 9), (5, 8), (2, 3), (8, 9)):
        expected = list(zip(ids[first:stop], given[first:stop].tolist(), strict=True))
        assert [plain(row) for row in rows.read(first, stop)] == expected


def test_numbers_go_on_from_file_to_file(tmp_path: Path) -> None:
    for name, count in (("a.npy", 3), ("b.npy", 2)):
        np.save(tmp_path / name, np.random.default_rng(0).random((count, 4, 2)))
    assert [row.id for row in rows_of(tmp_path)] == [0, 1, 2, 3, 4]


def test_a_folder_of_tsplib_files(tmp_path: Path) -> None:
    square = [[0, 0], [0, 10], [10, 10], [10, 0]]
    (tmp_path / "b").mkdir()
    for name in ("b/a", "a"):
        write_instance(tmp_path / f"{name}.tsp", Instance(square, name="other", rule="CEIL_2D"))
    (tmp_path / "c.tsp").write_text("DIMENSION : none\n")
    (tmp_path / "README.txt").write_text("not read")
    a, b, c = rows_of(tmp_path)
    assert [row.id for row in (a, b, c)] == ["a.tsp", "b/a.tsp", "c.tsp"]
    assert a.instance is not None
    assert a.instance.rule is DistanceRule.CEIL_2D
    assert c.error == "c.tsp:1: EDGE_WEIGHT_TYPE is missing"


def test_degrees_are_great_circles(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("id,lat,lon\n1,52.5,13.4\n1,48.1,11.6\n2,91,0\n")
    good, bad = rows_of(tmp_path / "in.csv")
    assert good.instance is not None
    assert good.instance.rule is DistanceRule.GREAT_CIRCLE
    assert "row 0 (counting from 0) is (91.0, 0.0)" in bad.error
    pq.write_table(pa.table({"points": [[{"lat": 52.5, "lon": 13.4}]]}), tmp_path / "in.parquet")
    (row,) = rows_of(tmp_path / "in.parquet")
    assert row.instance is not None
    assert row.instance.rule is DistanceRule.GREAT_CIRCLE


# -- rows that cannot be solved ----------------------------------------------------------------------------


def errors(table: pa.Table, tmp_path: Path, **options: Any) -> list[tuple[Any, str]]:
    pq.write_table(table, tmp_path / "in.parquet")
    return [(row.id, row.error) for row in rows_of(tmp_path / "in.parquet", **options)]


def test_bad_rows_of_lists(tmp_path: Path) -> None:
    kind = pa.list_(pa.float64())
    x = pa.array([[0.1, 0.2], [], None, [1.0, None], [float("nan")], [1.0, 2.0, 3.0], [float("inf")]], kind)
    y = pa.array([[0.3, 0.4], [], [1.0], [1.0, 2.0], [1.0], [1.0, 2.0], [0.0]], kind)
    ids = pa.array([None, 1, 2, 3, 4, 5, 6], pa.uint8())
    found = errors(pa.table({"id": ids, "x": x, "y": y}), tmp_path)
    assert found == [
        (None, "no id: it is null"),
        (1, "an instance needs at least one city, got none"),
        (2, "no cities: they are null"),
        (3, "coordinates must be finite: row 1 (counting from 0) is (nan, 2.0)"),
        (4, "coordinates must be finite: row 0 (counting from 0) is (nan, 1.0)"),
        (5, "x has 3 numbers, y has 2"),
        (6, "coordinates must be finite: row 0 (counting from 0) is (inf, 0.0)"),
    ]


def test_bad_rows_of_points(tmp_path: Path) -> None:
    points = [[[0, 1], [2, 3]], [[0, 1], [2]], [[0, 1, 2]], [None], None, [[0, None]]]
    found = [error for _, error in errors(pa.table({"points": points}), tmp_path)]
    two = "each point must have two numbers"
    nan = "coordinates must be finite: row 0 (counting from 0) is (0.0, nan)"
    assert found == ["", two, two, "one of the points is null", "no cities: they are null", nan]


def test_ids_that_are_no_text(tmp_path: Path) -> None:
    raw = pa.array([b"good", b"caf\xe9", None], pa.binary())
    broken = pa.Array.from_buffers(
        pa.string(), 3, raw.buffers()
    )  # what some writers put into columns of text
    for ids in (raw, broken):
        table = pa.table({"id": ids, "x": [[0.0]] * 3, "y": [[0.0]] * 3})
        assert errors(table, tmp_path) == [
            ("good", ""),
            ("caf\\xe9", "the id is not UTF-8: b'caf\\xe9'"),
            (None, "no id: it is null"),
        ]


@pytest.mark.parametrize("form", ["wide", "long", "csv", "npz", "tsp"])
def test_ids_that_are_too_long(form: str, tmp_path: Path) -> None:
    """One such id would make each of its shard as wide in NumPy's arrays."""
    ids, cities = ["a" * LONGEST_ID, "ab" * LONGEST_ID], random_cities(2, least=3, most=3)
    if form == "npz":
        np.savez(path := tmp_path / "in.npz", id=np.array(ids), coordinates=np.array(cities))
    elif form == "tsp":
        for id, place in zip(ids, ("", "b" * 200), strict=True):
            (tmp_path / place).mkdir(exist_ok=True)
            name = f"{id[: LONGEST_ID - 100]}.tsp"
            write_instance(tmp_path / place / name, Instance(cities[0], rule="EUC_2D"))
        path = tmp_path
    else:
        path = write_form(form, tmp_path, ids, cities)
    short, long = rows_of(path)
    assert (short.error, long.id, long.instance) == ("", None, None)
    assert re.fullmatch(r"the id '[ab/]{40}'\.\.\. has \d+ characters; allowed: 256", long.error)


def test_ids_of_other_types(tmp_path: Path) -> None:
    x = [[0.0]] * 2
    for ids, expected in (
        (pa.array(["a", "b"]).dictionary_encode(), ["a", "b"]),
        (pa.array([2**64 - 1, 0], pa.uint64()), [str(2**64 - 1), "0"]),
        (pa.array([b"ab", b"cd"], pa.binary(2)), ["ab", "cd"]),
    ):
        assert [id for id, _ in errors(pa.table({"id": ids, "x": x, "y": x}), tmp_path)] == expected
    for ids in (pa.array([0.5, 1.5]), pa.array([[1], [2]])):
        with pytest.raises(InputError, match="ids are whole numbers or text, the column 'id' is"):
            errors(pa.table({"id": ids, "x": x, "y": x}), tmp_path)


def test_bad_lines(tmp_path: Path) -> None:
    lines = [
        *(
            b"a,0,0",
            b"a,1,one",
            b"b,0",
            b'"q,0,0',
            b"caf\xe9,1,1",
            b",2,2",
            b"c,nan,0",
            b'"d,e",3,4',
            b"a,5,5",
        ),
    ]
    (tmp_path / "in.csv").write_bytes(b"id,x,y\n" + b"\n".join(lines))
    found = rows_of(tmp_path / "in.csv")
    assert [(row.id, row.error) for row in found] == [
        ("a", "line 3: expected a number, got 'one'"),
        ("b", "line 4: expected 3 columns, got 2"),
        (None, "line 5: quotes that do not fit together; a field cannot hold a line break"),
        ("caf\\xe9", "the id is not UTF-8: b'caf\\xe9'"),
        (None, "no id: it is empty"),
        ("c", "coordinates must be finite: row 0 (counting from 0) is (nan, 0.0)"),
        ("d,e", ""),
        ("a", ""),
    ]


# -- files that cannot be read -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            pa.table({"id": [1], "x": [[0.0]]}),
            "must name x,y or lat,lon .* or a list of points or coordinates",
        ),
        (pa.table({"x": [0.0], "y": [1.0]}), "one row per city needs a column of ids"),
        (pa.table({"id": [1], "x": [[0.0]], "y": [0.0]}), "got x: list<.*>, y: double"),
        (pa.table({"id": [1], "x": [["a"]], "y": [["b"]]}), "got x: list<.*string>"),
        (
            pa.table({"id": [1], "points": [[[["a"]]]]}),
            "points are a list of pairs .* is list<.*list<.*list<",
        ),
        (pa.table({"id": [1], "points": [[{"x": 1.0}]]}), "points are a list of pairs"),
        (pa.table({"id": [1], "points": [0.5]}), "points are a list of pairs .* is double"),
        (pa.table({"points": [[[0, 1]]], "coordinates": [[[0, 1]]]}), "may both be the points"),
    ],
)
def test_columns_that_are_refused(table: pa.Table, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        errors(table, tmp_path)


def test_another_column_of_ids(tmp_path: Path) -> None:
    table = wide([1, 2], [[[0.0, 1.0]], [[1.0, 2.0]]]).append_column("Zone", pa.array(["p", "q"]))
    assert [id for id, _ in errors(table, tmp_path, id_column="zone")] == ["p", "q"]
    with pytest.raises(InputError, match="no column 'town' of ids; columns: id, x, y, Zone"):
        errors(table, tmp_path, id_column="town")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("in.parquet", b"", "not a Parquet file"),
        ("in.parquet", b"PAR1 and more", "not a Parquet file"),
        ("in.csv", b"", "must name the columns id, x, y; it is empty"),
        ("in.csv", b"id,a,b\n1,2,3\n", "must name x,y or lat,lon"),
        ("in.csv", b"x,y\n2,3\n", "no column 'id' .* columns: x, y"),
        ("in.csv", "id,x,y\n".encode("utf-16"), "UTF-16 text; allowed: UTF-8"),
        ("in.csv", b"id,x,y\n" + b"1" * (1 << 20), "line 2 has more than 1,048,576 bytes"),
        ("in.csv.gz", b"id,x,y\n", "cannot read"),
        ("in.csv.gz", b"\x1f\x8b\x08\0\0\0\0\0\0\x03" + b"\xff" * 20, "cannot read"),
        ("in.npy", b"\x93NUMPY", "not a NumPy array"),
        ("in.npz", b"PK", "cannot read"),
        ("in.txt", b"1 2", "no input; allowed: a file, or a folder"),
    ],
)
def test_files_that_are_refused(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message):
        find_input(tmp_path / name)


def test_arrays_that_are_refused(tmp_path: Path) -> None:
    for array, message in (
        (np.zeros((3, 2)), r"expected numbers of shape \(B, n, 2\), got float64 \(3, 2\)"),
        (np.zeros((3, 2, 2), dtype=complex), "got complex128"),
        (np.asfortranarray(np.zeros((3, 4, 2))), "Fortran's order"),
        (np.array([[["a", "b"]]]), "expected numbers"),
    ):
        np.save(tmp_path / "in.npy", array)
        with pytest.raises(InputError, match=message):
            find_input(tmp_path / "in.npy")
    np.save(tmp_path / "in.npy", np.array([[[object(), 1]]], dtype=object), allow_pickle=True)
    with pytest.raises(InputError):
        find_input(tmp_path / "in.npy")
    np.save(tmp_path / "in.npy", np.zeros((3, 4, 2)))
    data = (tmp_path / "in.npy").read_bytes()
    (tmp_path / "in.npy").write_bytes(data[:-1])
    with pytest.raises(InputError, match="truncated"):
        find_input(tmp_path / "in.npy")
    np.savez(tmp_path / "in.npz", a=np.zeros((3, 4, 2)), b=np.zeros((3, 4, 2)))
    with pytest.raises(InputError, match=r"no array 'coordinates' .* arrays: 'a', 'b'"):
        find_input(tmp_path / "in.npz")


def test_folders_that_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no such file or folder"):
        find_input(tmp_path / "none")
    with pytest.raises(InputError, match="no files to solve in it"):
        find_input(tmp_path)
    cities: Cities = [[[0.0, 1.0]]]
    pq.write_table(wide([1], cities), tmp_path / "a.parquet")
    pq.write_table(wide(["text"], cities), tmp_path / "b.parquet")
    with pytest.raises(
        InputError, match=r"b.parquet: other columns than a.parquet: id: string.* and not id: int64"
    ):
        find_input(tmp_path)
    (tmp_path / "c.csv").write_text("id,x,y\n")
    with pytest.raises(InputError, match="csv, parquet at once"):
        find_input(tmp_path)


def test_a_table_without_rows_has_no_instances(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("id,x,y\n")
    assert rows_of(tmp_path / "in.csv") == []
    pq.write_table(wide(pa.array([], pa.int64()), []), tmp_path / "in.parquet")
    assert rows_of(tmp_path / "in.parquet") == []


def test_the_hash_is_of_names_and_contents(tmp_path: Path) -> None:
    array = np.zeros((2, 3, 2))
    np.save(tmp_path / "a.npy", array)
    first = find_input(tmp_path).sha256
    np.save(tmp_path / "a.npy", array)
    assert find_input(tmp_path).sha256 == first
    array[1, 2, 0] = 1e-9
    np.save(tmp_path / "a.npy", array)
    changed = find_input(tmp_path).sha256
    (tmp_path / "a.npy").rename(tmp_path / "b.npy")
    assert len({first, changed, find_input(tmp_path).sha256}) == 3


def test_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(wide([1], [[[0.0, 1.0]]]), tmp_path / "a.parquet")
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(MissingDependencyError, match="pip install pyarrow"):
        find_input(tmp_path)
