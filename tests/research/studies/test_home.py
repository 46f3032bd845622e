"""Runs packed into parts of limited size and unpacked: what travels between two machines."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest

from georoutenet.errors import InputError
from research.studies import home


def made_up(work: Path, name: str, size: int, *, note: bool) -> Path:
    folder = work / name
    (folder / "checkpoint-000000005").mkdir(parents=True)
    for part in ("weights", "momentum"):
        (folder / "checkpoint-000000005" / f"{part}.safetensors").write_bytes(bytes(size))
    (folder / "best.safetensors").write_bytes(bytes(size))
    (folder / "metrics.csv").write_text("step\n")
    if note:
        home.write_note(folder, {"step": 5, "evaluated": True})
    return folder


def test_parts_are_small_and_the_most_needed_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(home, "squeeze", bytes)
    monkeypatch.setattr(home, "stretch", bytes)
    monkeypatch.setattr(home, "PART", 40_000)
    monkeypatch.setattr(home, "ALL", 150_000)
    work = tmp_path / "work"
    made_up(work, "done", 30_000, note=True)
    made_up(work, "begun", 30_000, note=False)
    files = home.needed(work, ["done", "begun", "to-do"], weights=True)
    parts, left = home.pack(work, tmp_path / "out", files)
    assert [path.relative_to(work).as_posix() for path in left] == []
    assert all(part.stat().st_size <= 40_000 for part in parts)
    assert len(parts) == 4
    assert home.unpack(tmp_path / "out", tmp_path / "there", tmp_path / "kept") == ["done", "begun"]
    assert (tmp_path / "kept" / "done" / "best.safetensors").stat().st_size == 30_000
    assert len(home.checkpoints(tmp_path / "there" / "begun")) == 1
    assert not home.checkpoints(tmp_path / "there" / "done")
    # What came home once is not sent again; without room, weights of finished runs are the first to stay.
    again = home.needed(work, ["done", "begun"], weights=True)
    assert work / "done" / "best.safetensors" in again
    home.pack(work, tmp_path / "out2", again)
    home.unpack(tmp_path / "out2", tmp_path / "there2", tmp_path / "kept2")
    assert not (tmp_path / "kept2" / "done" / "best.safetensors").exists()
    (work / home.PACKED).unlink()
    monkeypatch.setattr(home, "ALL", 110_000)
    _, left = home.pack(work, tmp_path / "out3", again)
    assert left == [work / "done" / "best.safetensors"]
    assert work / "done" / "best.safetensors" not in home.needed(work, ["done"], weights=False)


@pytest.mark.parametrize("count", [0, 1, 7, 4096])
def test_squeezed_bytes_come_back(count: int) -> None:
    data = np.random.default_rng(count).standard_normal(count, dtype=np.float32).tobytes() + b"odd"
    assert home.stretch(home.squeeze(data)) == data
    if count > 1000:
        assert len(home.squeeze(data)) < 0.93 * len(data)


def test_fewer_parts_than_before_leave_none_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(home, "squeeze", bytes)
    monkeypatch.setattr(home, "stretch", bytes)
    monkeypatch.setattr(home, "PART", 20_000)
    work, out = tmp_path / "work", tmp_path / "out"
    folder = made_up(work, "begun", 30_000, note=False)
    home.pack(work, out, home.needed(work, ["begun"], weights=True))
    many = len(list(out.iterdir()))
    home.pack(work, out, [folder / "metrics.csv"])
    assert len(list(out.iterdir())) == 1 < many
    assert home.unpack(out, tmp_path / "there", tmp_path / "kept") == ["begun"]


def test_a_missing_part_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(home, "squeeze", bytes)
    monkeypatch.setattr(home, "PART", 20_000)
    work = tmp_path / "work"
    made_up(work, "begun", 30_000, note=False)
    parts, _ = home.pack(work, tmp_path / "out", home.needed(work, ["begun"], weights=True))
    parts[-1].unlink()
    with pytest.raises(InputError, match="a part is missing"):
        home.unpack(tmp_path / "out", tmp_path / "there", tmp_path / "kept")
    with pytest.raises(InputError, match=r"holds no studies\.tar"):
        home.unpack(tmp_path / "nowhere", tmp_path / "there", tmp_path / "kept")


def packed_by_hand(out: Path, name: str, content: bytes) -> None:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        entry = tarfile.TarInfo(name)
        entry.size = len(content)
        tar.addfile(entry, io.BytesIO(content))
    out.mkdir()
    (out / "studies.tar.01-of-01").write_bytes(data.getvalue())


@pytest.mark.parametrize("name", ["../x/y", "/tmp/x/y", "alone", "a/../../b"])
def test_what_is_packed_stays_in_the_folder(name: str, tmp_path: Path) -> None:
    packed_by_hand(tmp_path / "out", name, b"x")
    with pytest.raises(InputError, match="is no file of a run"):
        home.unpack(tmp_path / "out", tmp_path / "there", tmp_path / "kept")


@pytest.mark.parametrize("cut", [0, 4])
def test_what_is_squeezed_unpacks_to_no_more_than_travels(
    cut: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    squeezed = home.squeeze(bytes(1000))
    packed_by_hand(tmp_path / "out", "a/b.safetensors.squeezed", squeezed[: len(squeezed) - cut])
    monkeypatch.setattr(home, "UNPACKED", 2000 if cut else 999)
    with pytest.raises(InputError, match="cannot be unpacked: not whole, or more than"):
        home.unpack(tmp_path / "out", tmp_path / "there", tmp_path / "kept")


def test_a_note_that_is_too_deep_is_none(tmp_path: Path) -> None:
    packed_by_hand(tmp_path / "out", "a/done.json", b"[" * 100_000)
    assert home.unpack(tmp_path / "out", tmp_path / "there", tmp_path / "kept") == ["a"]
