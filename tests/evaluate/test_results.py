from __future__ import annotations

import gzip
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from georoutenet.errors import InputError
from georoutenet.evaluate.results import (
    COLUMNS,
    PartialResults,
    Results,
    Row,
    format_results,
    parse_results,
    read_results,
    rounded,
    write_results,
)
from georoutenet.io import unpack

HEADER = {"weights": "tiny", "set": "val50", "width": "", "date": "2026-01-01"}
ROWS = [
    Row("val50-0", 50, 5.5, 5.0, 0.25, 0.125, 0.0625),
    Row("val50-1", 50, 6.123456789123, math.nan),
    Row("a, b", 3, 426.0, 426.0, 0.5),
]


@pytest.mark.parametrize("name", ["results.csv", "results.csv.gz"])
def test_what_is_written_is_read(tmp_path: Path, name: str) -> None:
    path = tmp_path / "folder" / name
    write_results(path, Results(HEADER, ROWS))
    read = read_results(path)
    assert read.header == HEADER
    assert [row.instance for row in read.rows] == ["val50-0", "val50-1", "a, b"]
    assert read.lengths.tolist() == [5.5, 6.123456789, 426.0]
    np.testing.assert_array_equal(read.references, [5.0, math.nan, 426.0])
    np.testing.assert_allclose(read.gaps, [10.0, math.nan, 0.0])
    np.testing.assert_array_equal(read.seconds, [0.25, math.nan, 0.5])
    np.testing.assert_array_equal(read.network_seconds, [0.125, math.nan, math.nan])
    np.testing.assert_array_equal(read.improve_seconds, [0.0625, 0.0, 0.0])
    assert [each.name for each in path.parent.iterdir()] == [name]


def test_the_file_is_plain_text() -> None:
    lines = format_results(Results({"set": "x"}, ROWS)).splitlines()
    assert lines[:3] == [
        "# georoutenet-results 1",
        "# set: x",
        "instance,n,length,reference,gap,seconds,network_seconds,improve_seconds",
    ]
    assert lines[3] == "val50-0,50,5.5,5,10,0.25,0.125,0.0625"
    assert lines[4] == "val50-1,50,6.123456789,,,,,0"


def test_files_without_local_search_are_read() -> None:
    columns = "instance,n,length,reference,gap,seconds,network_seconds"
    text = f"# georoutenet-results 1\n{columns}\na,5,2,1,100,0.5,0.25\n"
    read = parse_results(text, "old")
    assert read.rows == [Row("a", 5, 2.0, 1.0, 0.5, 0.25, 0.0)]
    with pytest.raises(InputError, match="line 3: expected 7 columns, got 8"):
        parse_results(text.replace("0.25", "0.25,0"), "old")


def test_the_same_results_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.csv.gz", "b.csv.gz"):
        write_results(tmp_path / name, Results(HEADER, ROWS))
    assert (tmp_path / "a.csv.gz").read_bytes() == (tmp_path / "b.csv.gz").read_bytes()


@given(
    st.lists(
        st.tuples(st.floats(0, 1e7), st.one_of(st.floats(1e-3, 1e7), st.just(math.nan))),
        min_size=1,
        max_size=9,
    )
)
def test_any_lengths_survive(lengths: list[tuple[float, float]]) -> None:
    rows = [Row(f"i{k}", 5, length, reference) for k, (length, reference) in enumerate(lengths)]
    read = parse_results(format_results(Results({}, rows)), "text")
    np.testing.assert_array_equal(read.lengths, [rounded(length) for length, _ in lengths])
    np.testing.assert_array_equal(read.references, [rounded(reference) for _, reference in lengths])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("# georoutenet-results 1", "# other", "not a file of results"),
        ("# set: val50", "# nothing", "line 3: expected '# key: value'"),
        ("instance,n,length", "instance,length,n", "line 6: expected the columns"),
        (",5.5,5,10,", ",5.5,5,11,", "line 7: the gap is 10.000000 %, not 11"),
        (",5.5,5,10,", ",5.5,5,,", "line 7: the gap is 10.000000 %, not empty"),
        (",5.5,5,10,", ",-5.5,5,10,", "a length is a finite number"),
        (",5.5,5,10,", ",x,5,10,", "line 7: could not convert"),
        (",5.5,5,10,", ",5.5,5,", "expected 8 columns, got 7"),
        ("val50-1,", "val50-0,", "line 8: val50-0 is there twice"),
    ],
)
def test_damage_is_an_error_that_names_the_line(old: str, new: str, message: str) -> None:
    text = format_results(Results(HEADER, ROWS))
    assert old in text
    with pytest.raises(InputError, match=message):
        parse_results(text.replace(old, new, 1), "text")


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        read_results(tmp_path / "none.csv")
    (tmp_path / "cut.csv.gz").write_bytes(gzip.compress(b"# georoutenet-results 1\n" * 100)[:30])
    with pytest.raises(InputError, match=r"cut\.csv\.gz: broken gzip data"):
        read_results(tmp_path / "cut.csv.gz")
    (tmp_path / "latin.csv").write_bytes(b"# georoutenet-results 1\n\xe4")
    with pytest.raises(InputError, match=r"latin\.csv: cannot read: .*utf-8"):
        read_results(tmp_path / "latin.csv")


def test_unpacking_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "bomb.csv.gz"
    path.write_bytes(gzip.compress(b"# georoutenet-results 1\n" + b"# a: b\n" * 1000))
    assert len(path.read_bytes()) < 1000
    monkeypatch.setattr(unpack, "MAX_BYTES", 1000)
    with pytest.raises(InputError, match=r"bomb\.csv\.gz: holds more than 1,000 bytes"):
        read_results(path)


def test_a_field_beyond_reason_is_refused() -> None:
    text = f"# georoutenet-results 1\n{','.join(COLUMNS)}\n{'x' * 200_000}\n"
    with pytest.raises(InputError, match=r"a\.csv: field larger"):
        parse_results(text, "a.csv")


def test_a_header_line_holds_no_second_line() -> None:
    with pytest.raises(InputError, match="header line"):
        format_results(Results({"set": "a\nb"}, []))


def test_a_partial_file_is_taken_up(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    begun = PartialResults(path, HEADER)
    begun.keep(0)
    begun.append(ROWS[:2])
    with open(begun.partial, "a") as file:
        file.write("val50-2,50,7.1")  # killed while writing a line
    again = PartialResults(path, {**HEADER, "date": "2026-02-02"})
    assert [row.instance for row in again.rows] == ["val50-0", "val50-1"]
    again.keep(1)
    again.append(ROWS[2:])
    done = again.finish(memory="12")
    assert not again.partial.exists()
    assert done.header == {**HEADER, "memory": "12"}  # with the date of the beginning
    assert read_results(path).rows[0] == ROWS[0]
    assert [row.instance for row in read_results(path).rows] == ["val50-0", "a, b"]


def test_a_partial_file_of_other_settings_is_refused(tmp_path: Path) -> None:
    begun = PartialResults(tmp_path / "r.csv", HEADER)
    begun.keep(0)
    begun.append(ROWS)
    with pytest.raises(InputError, match=r"weights: tiny there, other here.*--fresh"):
        PartialResults(tmp_path / "r.csv", {**HEADER, "weights": "other"})
    assert PartialResults(tmp_path / "r.csv", {**HEADER, "weights": "other"}, fresh=True).rows == []
    begun.partial.write_text("nonsense")
    with pytest.raises(InputError, match="--fresh"):
        PartialResults(tmp_path / "r.csv", HEADER)
