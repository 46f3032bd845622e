"""What a file may cost: bytes unpacked, headers parsed, blank lines searched."""

from __future__ import annotations

import gzip
import io
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from georoutenet.errors import InputError
from georoutenet.evaluate.results import read_results
from georoutenet.io import files, npy
from georoutenet.io import unpack as unpack_module
from georoutenet.io.files import read_instance, read_tour
from georoutenet.io.unpack import BrokenGzip, TooLarge, read_bounded, unpack
from georoutenet.train.curve import read_curve

ROWS = b"x,y\n" + b"1,2\n" * 2**18  # one MiB


class Counting(io.BytesIO):
    """A stream that knows how much was asked of it."""

    taken = 0

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(size)
        self.taken += len(data)
        return data


def test_unpacking_stops_at_the_limit() -> None:
    """Of a bomb, no more is unpacked than was allowed, and one piece."""
    bomb = gzip.compress(bytes(64 * 2**20))
    out: list[int] = []
    with pytest.raises(TooLarge, match="more than 1,048,576 bytes"):
        out.extend(map(len, unpack(io.BytesIO(bomb), 2**20)))
    assert sum(out) <= 2**20
    assert b"".join(unpack(io.BytesIO(gzip.compress(ROWS)), len(ROWS))) == ROWS


def test_many_members_count_together() -> None:
    members = gzip.compress(b"1,2\n" * 1000) * 10
    assert len(b"".join(unpack(io.BytesIO(members), 40_000))) == 40_000
    with pytest.raises(TooLarge):
        list(unpack(io.BytesIO(members), 39_999))


def test_reading_stops_at_the_limit() -> None:
    stream = Counting(ROWS)
    with pytest.raises(TooLarge):
        read_bounded(stream, 1000)
    assert stream.taken == 1001
    assert read_bounded(Counting(ROWS), len(ROWS)) == ROWS
    with pytest.raises(BrokenGzip):
        read_bounded(io.BytesIO(b"no gzip"), 1000, packed=True)


@pytest.mark.parametrize("name", ["a.csv.gz", "a.csv", "a.CSV.GZ"])
def test_bombs_in_files_are_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(ROWS))
    with pytest.raises(InputError, match=r"a\.(csv|CSV).*: holds more than 1,000 bytes; max_bytes"):
        read_instance(path, max_bytes=1000)
    assert read_instance(path, max_bytes=len(ROWS)).n == 2**18
    tour = tmp_path / "a.tour.gz"
    tour.write_bytes(gzip.compress(b"TOUR_SECTION\n1\n-1\n" + b"\n" * 1000))
    with pytest.raises(InputError, match="holds more than 1,000 bytes"):
        read_tour(tour, 1, max_bytes=1000)
    assert read_tour(tour, 1).tolist() == [0]


def test_standard_input_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    for data in (ROWS, gzip.compress(ROWS)):
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data)))
        with pytest.raises(InputError, match="standard input: holds more than 1,000 bytes"):
            read_instance("-", max_bytes=1000)


@pytest.mark.parametrize("limit", [0, -1, "many", 2.5, None])
def test_limits_are_whole_numbers(tmp_path: Path, limit: Any) -> None:
    (tmp_path / "a.npy").write_bytes(b"")
    for read in (
        lambda: read_instance(tmp_path / "a.npy", max_bytes=limit),
        lambda: read_tour("a.csv", 3, max_bytes=limit),
    ):
        with pytest.raises(InputError, match="max_bytes must be a whole number of at least 1"):
            read()


# ---- NumPy files


def header(text: str, version: int = 1) -> bytes:
    return b"\x93NUMPY" + bytes([version, 0]) + len(text).to_bytes(2 * version, "little") + text.encode()


@pytest.mark.skipif(os.name == "nt", reason="needs sparse files")
@pytest.mark.parametrize(
    ("shape", "matrix", "message"),
    [
        ((2**38, 2), False, "holds more than 268,435,456 bytes; max_bytes"),
        ((2**19, 2**19), True, "a matrix may have at most 10,000 cities, got 524,288"),
        ((2**39,), False, r"expected an array of numbers of shape \(n, 2\)"),
    ],
)
def test_huge_sparse_files_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], matrix: bool, message: str
) -> None:
    path = tmp_path / "huge.npy"
    start = header(f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}\n")
    path.write_bytes(start)
    try:
        os.truncate(path, len(start) + 8 * int(np.prod(shape, dtype=object)))
    except OSError:
        pytest.skip("the file system has no files of this size")
    taken: list[int] = []
    read = npy.read_npy

    def counted(stream: Any, *arguments: Any, **options: Any) -> Any:
        class Stream:
            def read(self, size: int) -> bytes:
                data = bytes(stream.read(size))
                taken.append(len(data))
                return data

            def tell(self) -> int:
                return int(stream.tell())

        return read(Stream(), *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(files, "read_npy", counted)
    with pytest.raises(InputError, match=message):
        read_instance(path, matrix=matrix)
    assert sum(taken) == len(start)


@pytest.mark.parametrize(
    "text",
    [
        " " * 9000 + "\n",
        "",
        "{" * 900,
        "(" * 900 + ")" * 900,
        "{'descr': '<f8', 'fortran_order': False, 'shape': (1, 2)" + " 'x'," * 900,
        "{'descr': '<f8', 'fortran_order': 0, 'shape': (1, 2)}",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (True, 2)}",
        "{'descr': '<f8', 'fortran_order': False, 'shape': [1, 2]}",
        "{'descr': 'what', 'fortran_order': False, 'shape': (1, 2)}",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (-1, 2)}",
        "{'descr': '<f8', 'shape': (1, 2)}",
        "[1, 2]",
        "__import__('os')",
    ],
)
def test_odd_headers_are_refused_without_numpy_s_parser(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    for name in ("read_array_header_1_0", "read_array_header_2_0"):
        monkeypatch.delattr(np.lib.format, name)  # seconds for the blank one
    for version in (1, 2):
        (tmp_path / "a.npy").write_bytes(header(text, version) + bytes(16))
        with pytest.raises(InputError, match=r"a\.npy: not a NumPy \.npy file"):
            read_instance(tmp_path / "a.npy")


@pytest.mark.parametrize(
    "text",
    [
        "{'descr': '<f8', 'fortran_order': False, 'shape': (1, 2), }          \n",
        "{'descr': '<f8', 'fortran_order': True, 'shape': (1L, 2L), }\n",
        '{"shape": (1, 2), "fortran_order": False, "descr": "<f8"}' + " " * 9000,
    ],
)
def test_headers_of_other_writers_are_read(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.npy").write_bytes(header(text) + np.array([3.0, 4.0]).tobytes())
    assert read_instance(tmp_path / "a.npy").coordinates.tolist() == [[3.0, 4.0]]


# ---- what standard input looks like


@pytest.mark.parametrize("blanks", ["\n" * 50, " \n" * 50, "\r\n" * 50, "\t \x0b\x0c\n" * 50])
def test_the_search_for_a_keyword_takes_each_line_once(blanks: str) -> None:
    """A match that began on an earlier line would mean that from every line all that follow are searched."""
    pattern = files._LOOKS_LIKE_TSPLIB
    for keyword in ("NAME : x", "  type:TSP", "\tNODE_COORD_SECTION"):
        found = pattern.search(f"{blanks}{keyword}\n")
        assert found is not None
        assert "\n" not in found[0]
        assert found.start() == len(blanks)
    assert pattern.search(f"{blanks}1,2\n{blanks}NAME\n:") is None


def test_blank_lines_before_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"\n" * 100_000 + b"1,2\n3,4\n")))
    assert read_instance("-").n == 2


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", ROWS[:2005]),
        ("a.csv.gz", gzip.compress(ROWS[:2005])),
        ("a.txt", b"0 0\n" * 501),
        ("a.csv", b"x,y" + b"," * 2000),
        ("a.json", b"[" + b"[0,0]," * 500 + b"[0,0]]"),
        ("a.geojson", b"[" + b"{}," * 1000 + b"{}]"),
    ],
)
def test_values_are_counted_before_they_are_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: bytes
) -> None:
    """A table of short values takes 120 times its bytes: 250 kB of gzip would fill 30 GB."""
    path = tmp_path / name
    path.write_bytes(text)
    monkeypatch.setattr(unpack_module, "MAX_VALUES", 1000)
    monkeypatch.setattr("georoutenet.io.files.parse_instance", lambda *given, **more: pytest.fail("parsed"))
    with pytest.raises(InputError, match=r"a\..*: holds more than 1,000 values; max_bytes"):
        read_instance(path, max_bytes=16_000)


def test_lists_of_tours_and_results_are_counted_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpack_module, "MAX_VALUES", 1000)
    path = tmp_path / "a.csv"
    path.write_bytes(b"city\n" + b"0\n" * 1001)
    for read in (
        lambda: read_tour(path, 3, max_bytes=5000),
        lambda: read_results(path),
        lambda: read_curve(path),
    ):
        with pytest.raises(InputError, match=r"a\.csv: holds more than 1,000 values"):
            read()
    (tmp_path / "a.json").write_bytes(b"[" + b"0," * 1001 + b"0]")
    with pytest.raises(InputError, match=r"a\.json: holds more than 1,000 values"):
        read_tour(tmp_path / "a.json", 3, max_bytes=10_000)
