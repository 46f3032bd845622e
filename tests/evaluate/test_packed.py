from __future__ import annotations

import io
import json
import math
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from georoutenet.errors import InputError
from georoutenet.evaluate import packed
from georoutenet.evaluate.packed import SHARED, Packed, read_any, write_packed
from georoutenet.evaluate.results import Results, Row, format_results, parse_results, write_results

HEADER = {"weights": "tiny", "sha256": "ab", "set": "test20", "note": 'größer: nothing, "quoted"'}
NUMBER = st.integers(0, 10**14).map(lambda k: k / 10**9)
UNKNOWN = st.one_of(NUMBER, st.just(math.nan))


def some(*lengths: float, **more: str) -> Results:
    rows = [Row(f"test20-{k}", 20, length, 4.0, 0.25, 0.125, 0.0) for k, length in enumerate(lengths)]
    return Results({**HEADER, **more}, rows)


def opened(cells: dict[str, Results], folder: Path) -> Packed:
    write_packed(folder / "tiny.npz", cells)
    return Packed(folder / "tiny.npz")


@given(
    rows=st.lists(st.tuples(st.integers(1, 10**5), NUMBER, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN), max_size=20)
)
def test_every_number_comes_back_to_the_bit(
    rows: list[tuple[int, float, float, float, float, float]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    before = Results(HEADER, [Row(f"city {k}", *row) for k, row in enumerate(rows)])
    after = opened({"a": before}, tmp_path_factory.mktemp("packed"))["a"]
    assert list(map(repr, after.rows)) == list(map(repr, before.rows))
    assert list(after.header.items()) == list(before.header.items())


def test_what_a_file_holds_is_what_its_cell_holds(tmp_path: Path) -> None:
    text = format_results(some(4.1, 4.123456789, 3.999999999))
    cell = opened({"test20-greedy": parse_results(text, "")}, tmp_path)["test20-greedy"]
    assert format_results(cell) == text


def test_cells_share_what_they_have_in_common(tmp_path: Path) -> None:
    cells = {"b": some(4.1, 4.2), "a": some(4.3, 4.4), "first": some(4.1), "none": some()}
    packed = opened(cells, tmp_path)
    assert packed.names == ["a", "b", "first", "none"]
    for name, results in cells.items():
        assert packed[name].rows == results.rows
    with zipfile.ZipFile(packed.path) as archive:
        assert sum(name.endswith("/reference.npy") for name in archive.namelist()) == 3
    write_packed(tmp_path / "again.npz", dict(sorted(cells.items())))
    assert (tmp_path / "again.npz").read_bytes() == packed.path.read_bytes()


def test_files_share_their_tables(tmp_path: Path) -> None:
    models = {"one": {"a": some(4.1, 4.2)}, "two": {"a": some(4.5, 4.6), "first": some(4.1)}}
    for name, cells in models.items():
        write_packed(tmp_path / f"{name}.npz", cells, share_tables=True)
    shared = (tmp_path / SHARED).read_bytes()
    write_packed(tmp_path / "one.npz", models["one"], share_tables=True)
    assert (tmp_path / SHARED).read_bytes() == shared
    assert Packed(tmp_path / SHARED).results() == {}
    assert len(Packed(tmp_path / SHARED).members()) == 4  # two tables
    for name, cells in models.items():
        packed = Packed(tmp_path / f"{name}.npz")
        assert not any(member.endswith("/reference") for member in packed.members())
        for cell, results in cells.items():
            assert packed[cell].rows == results.rows
    write_packed(tmp_path / "other" / "three.npz", {"b": some(9.0)}, share_tables=True)
    (tmp_path / SHARED).write_bytes((tmp_path / "other" / SHARED).read_bytes())
    with pytest.raises(InputError, match=r"^\S*references.npz lacks .* of .*one.npz"):
        Packed(tmp_path / "one.npz")["a"]
    (tmp_path / SHARED).unlink()
    with pytest.raises(InputError, match=r"^\S*one.npz needs references.npz beside it"):
        Packed(tmp_path / "one.npz")["a"]


def test_numbers_that_would_not_come_back_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "tiny.npz"
    for length in (4.0 + 1e-12, math.inf, math.nan, 1e9):
        with pytest.raises(InputError, match="at most 9 decimals"):
            write_packed(path, {"a": some(length)})
    with pytest.raises(InputError, match="must be >= 0"):
        write_packed(path, {"a": Results(HEADER, [Row("x", 5, 1.0, 1.0, -1.0)])})
    with pytest.raises(InputError, match="tables that packed files share"):
        write_packed(tmp_path / SHARED, {"a": some(1.0)})
    for name in ("", "a/b", "a:b"):
        with pytest.raises(InputError, match="cannot be called"):
            write_packed(path, {name: some(1.0)})
    assert not path.exists()


def test_a_cell_is_named_after_its_file(tmp_path: Path) -> None:
    packed = opened({"test20-greedy": some(4.5)}, tmp_path)
    assert read_any(f"{packed.path}:test20-greedy").rows == some(4.5).rows
    write_results(tmp_path / "one.csv", some(4.25))
    assert read_any(tmp_path / "one.csv").rows == some(4.25).rows
    with pytest.raises(InputError, match=r"name one, as .*tiny.npz:CELL, of test20-greedy"):
        read_any(packed.path)
    with pytest.raises(InputError, match="no cell 'val50'; it has: test20-greedy"):
        read_any(f"{packed.path}:val50")
    with pytest.raises(InputError, match="cannot read"):
        read_any(tmp_path / "none.npz:a")


def test_damaged_and_foreign_files_are_told(tmp_path: Path) -> None:
    path = tmp_path / "tiny.npz"
    write_packed(path, {"a": some(4.1, 4.2)})
    good = path.read_bytes()
    for bad in (b"", b"nonsense", good[: len(good) // 2]):
        path.write_bytes(bad)
        with pytest.raises(InputError, match="not a file of packed results"):
            Packed(path)
    np.savez(path, index=np.array([{"format": "a pickle"}], dtype=object))
    with pytest.raises(InputError, match="not a file of packed results"):
        Packed(path)
    other = np.frombuffer(json.dumps({"format": "packed 2"}).encode(), dtype=np.uint8)
    np.savez(path, index=other)
    with pytest.raises(InputError, match="its format is 'packed 2'"):
        Packed(path)
    with np.load(io.BytesIO(good)) as stored:
        members = dict(stored)
    for wrong in (members["a/length"][:, :1], members["a/length"].astype(float)):
        np.savez(path, **{**members, "a/length": wrong})
        with pytest.raises(InputError, match="is damaged: expected bytes of 2 numbers"):
            Packed(path)["a"]
    del members["a/seconds"]
    np.savez(path, **members)
    with pytest.raises(InputError, match="is damaged"):
        Packed(path)["a"]


def test_a_small_file_does_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Members are bounded as they say and as they are, and a count is believed only when it is there."""
    path = tmp_path / "tiny.npz"
    write_packed(path, {"a": some(4.1, 4.2)})
    with np.load(path) as stored:
        members = dict(stored)
    index = json.loads(members["index"].tobytes())
    (table,) = index["tables"].values()
    table["count"] = 10**12
    text = json.dumps(index).encode()
    np.savez(path, **{**members, "index": np.frombuffer(text, dtype=np.uint8)})
    with pytest.raises(InputError, match="is damaged: expected bytes of 1000000000000 numbers"):
        Packed(path)["a"]
    np.savez_compressed(path, **members, bomb=np.zeros(100_000, dtype=np.uint8))
    monkeypatch.setattr(packed, "MAX_BYTES", 50_000)
    with pytest.raises(InputError, match=r"tiny\.npz: holds more than 50,000 bytes"):
        Packed(path)


@pytest.mark.parametrize("index", ["[]", "null", "[" * 100_000, '{"format": "georoutenet-packed 1"}'])
def test_an_index_of_another_shape_is_told(tmp_path: Path, index: str) -> None:
    np.savez(tmp_path / "tiny.npz", index=np.frombuffer(index.encode(), dtype=np.uint8))
    with pytest.raises(InputError, match="not a file of packed results"):
        Packed(tmp_path / "tiny.npz")


def test_results_say_what_they_are_of(tmp_path: Path) -> None:
    write_results(tmp_path / "a.csv", Results({"weights": "x"}, []))
    with pytest.raises(InputError, match=r"a\.csv: its header does not say which set"):
        read_any(tmp_path / "a.csv")
