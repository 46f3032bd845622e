"""``research/pack.py``: CSV files of a model into one packed file and back."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from made_up import random_set, tsplib_set

from georoutenet.evaluate.packed import SHARED, Packed, write_packed
from georoutenet.evaluate.references import load_references
from georoutenet.evaluate.results import Results, format_results, read_results, write_results
from research import pack


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    monkeypatch.setattr(sys, "argv", ["pack.py", *map(str, arguments)])
    pack.main()


@pytest.fixture
def evaluated(tmp_path: Path) -> Path:
    for name, results in (
        ("ring50-greedy.csv.gz", random_set("ring50")),
        ("tsplib36-greedy.csv", tsplib_set()),
    ):
        write_results(tmp_path / "csv" / name, results)
    return tmp_path / "csv"


def test_there_and_back(
    evaluated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    packed, again = tmp_path / "tiny.npz", tmp_path / "again"
    run(monkeypatch, packed, evaluated)
    run(monkeypatch, "--unpack", packed, again)
    assert "2 cells" in capsys.readouterr().out
    assert sorted(each.name for each in again.iterdir()) == ["ring50-greedy.csv.gz", "tsplib36-greedy.csv"]
    for path in again.iterdir():
        assert path.read_bytes() == (evaluated / path.name).read_bytes()


def test_cells_are_added_and_replaced(
    evaluated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed, more = tmp_path / "tiny.npz", tmp_path / "more"
    run(monkeypatch, packed, evaluated)
    new = read_results(evaluated / "ring50-greedy.csv.gz")
    changed = Results(new.header, [row._replace(length=row.length + 1) for row in new.rows])
    write_results(more / "ring50-greedy.csv", changed)
    run(monkeypatch, packed, more)
    assert Packed(packed).names == ["ring50-greedy", "tsplib36-greedy"]
    assert format_results(Packed(packed)["ring50-greedy"]) == format_results(changed)
    run(monkeypatch, "--replace", packed, more)
    assert Packed(packed).names == ["ring50-greedy"]


def test_shorter_references_reach_every_packed_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Made-up rows have the reference 1; lengths and published optima stay."""
    write_results(tmp_path / "ring50.csv", random_set("ring50"))  # rounds lengths to nine decimals
    before = {"ring50-greedy": read_results(tmp_path / "ring50.csv"), "tsplib36-greedy": tsplib_set()}
    for file in ("a", "b"):
        write_packed(tmp_path / f"{file}.npz", before, share_tables=True)
    tables = len(Packed(tmp_path / SHARED).index["tables"])
    run(monkeypatch, "--references", tmp_path)
    assert "a.npz: 1000 rows" in capsys.readouterr().out
    assert len(Packed(tmp_path / SHARED).index["tables"]) == tables
    lengths = load_references("ring50").lengths
    for file in ("a", "b"):
        after = Packed(tmp_path / f"{file}.npz")
        ring = after["ring50-greedy"]
        assert ring.references == pytest.approx(lengths, abs=1e-9)
        assert ring.lengths.tolist() == pytest.approx(before["ring50-greedy"].lengths.tolist(), abs=1e-9)
        assert format_results(after["tsplib36-greedy"]) == format_results(tsplib_set())


def test_results_of_other_weights_and_wrong_names_are_refused(
    evaluated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed, other = tmp_path / "tiny.npz", tmp_path / "other"
    run(monkeypatch, packed, evaluated)
    before = packed.read_bytes()
    write_results(other / "grid50-greedy.csv", random_set("grid50", sha256="cd"))
    with pytest.raises(SystemExit, match="results of 2 files of weights"):
        run(monkeypatch, packed, other)
    (tmp_path / "empty").mkdir()
    with pytest.raises(SystemExit, match="no results in"):
        run(monkeypatch, packed, tmp_path / "empty")
    with pytest.raises(SystemExit, match="2"):
        run(monkeypatch, tmp_path / "tiny.csv", evaluated)
    assert packed.read_bytes() == before
