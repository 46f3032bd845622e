"""Bulk runs that go on: only the same run does, in a folder whose shards are whole or done again."""

from __future__ import annotations

import errno
import os
import shutil
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from made import contents, random_cities, read_folder, write_form

import georoutenet as grn
from georoutenet.bulk import api, settings
from georoutenet.bulk.inputs import Rows
from georoutenet.bulk.manifest import read_manifest
from georoutenet.errors import GeoRouteNetError, InputError


def test_what_is_missing_is_done_again(tmp_path: Path, source: Path, here: None) -> None:
    out = tmp_path / "out"
    grn.solve_bulk(source, out, shard_rows=4)
    before = contents(out)
    (out / "part-000001.parquet").unlink()
    (out / "part-000003.parquet").write_bytes(before["part-000003.parquet"][:-20])
    shutil.copy(out / "part-000000.parquet", out / "part-000004.parquet")
    times = {name: (out / name).stat().st_mtime_ns for name in ("part-000000.parquet", "part-000002.parquet")}
    result = grn.solve_bulk(source, out, shard_rows=4)
    assert result.solved_now == 12
    assert contents(out) == before
    assert times == {name: (out / name).stat().st_mtime_ns for name in times}
    assert [run["instances"] for run in read_manifest(out)["runs"]] == [21, 12]


def test_a_shard_with_damage_in_its_errors_is_done_again(tmp_path: Path, source: Path, here: None) -> None:
    out = tmp_path / "out"
    grn.solve_bulk(source, out, shard_rows=4, format="npz")
    before = contents(out)
    part = out / "part-000001.npz"
    with zipfile.ZipFile(part) as archive:
        place = archive.getinfo("error.npy").header_offset
    part.write_bytes(before[part.name][:place] + b"?" + before[part.name][place + 1 :])
    assert grn.solve_bulk(source, out, shard_rows=4, format="npz").solved_now == 4
    assert contents(out) == before


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="file names are Unicode there")
def test_names_of_any_bytes(tmp_path: Path, source: Path, here: None) -> None:
    path, out = tmp_path / "\udcff.parquet", tmp_path / "s3:\udcff"
    shutil.copy(source, path)
    assert grn.solve_bulk(path, out, format="parquet").errors == 0
    assert grn.solve_bulk(path, out, format="parquet").solved_now == 0


@pytest.mark.parametrize("format", ["parquet", "npz"])
def test_shards_repeat_byte_for_byte(tmp_path: Path, source: Path, format: str, here: None) -> None:
    for name in ("one", "two"):
        grn.solve_bulk(source, tmp_path / name, shard_rows=8, format=format, lower_bound=True)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    assert len(contents(tmp_path / "one")) == 3


def test_tours_do_not_depend_on_the_shard(tmp_path: Path, source: Path, here: None) -> None:
    for rows in (1, 7, 100):
        grn.solve_bulk(source, tmp_path / str(rows), shard_rows=rows)
    one, *others = (read_folder(tmp_path / name) for name in ("1", "7", "100"))
    assert others == [one, one]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 1}, "the option seed was 0, now it is 1"),
        ({"max_seconds": 5}, "the option max_seconds was None, now it is 5"),
        ({"shard_rows": 5}, "rows per shard was 4, now it is 5"),
        ({"format": "npz"}, "shard format was 'parquet', now it is 'npz'"),
        ({"lower_bound": True}, "lower bound was False, now it is True"),
        ({"weights": "georoutenet-50"}, "the weights have changed since"),
    ],
)
def test_another_run_is_refused(
    change: dict[str, Any], message: str, tmp_path: Path, source: Path, here: None
) -> None:
    out = tmp_path / "out"
    grn.solve_bulk(source, out, shard_rows=4)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    with pytest.raises(InputError, match=f"holds another run: {message}"):
        grn.solve_bulk(source, out, **{"shard_rows": 4, **change})
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_a_changed_input_is_refused(tmp_path: Path, source: Path, here: None) -> None:
    grn.solve_bulk(source, tmp_path / "out", shard_rows=4)
    cities = random_cities(21)
    cities[20][0][0] += 1e-6
    about = source.stat()
    write_form("wide", tmp_path, list(range(100, 121)), cities)
    os.utime(source, ns=(about.st_atime_ns, about.st_mtime_ns))
    with pytest.raises(InputError, match="the input has changed since"):
        grn.solve_bulk(source, tmp_path / "out", shard_rows=4)


def test_changed_code_is_refused(
    tmp_path: Path, source: Path, here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    grn.solve_bulk(source, tmp_path / "out", shard_rows=4)
    monkeypatch.setattr("georoutenet.bulk.manifest.code_hash", lambda: "other")
    with pytest.raises(InputError, match="the package's code has changed since"):
        grn.solve_bulk(source, tmp_path / "out", shard_rows=4)


def test_the_hash_of_the_code_knows_all_that_tours_depend_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "georoutenet"
    shutil.copytree(settings.ROOT, package, ignore=shutil.ignore_patterns("__pycache__", "*.npz", "*.safe*"))
    own = settings.code_hash()
    monkeypatch.setattr(settings, "ROOT", package)
    assert settings.code_hash() == own
    hashes = {own}
    parts = ("bulk/shards.py", "crossover.py", "stop.py", "kernels/cuda/source/search.cu")
    for name in parts:
        with open(package / name, "a") as file:
            file.write("\n")
        hashes.add(settings.code_hash())
    assert len(hashes) == 1 + len(parts)
    with open(package / "web/app.py", "a") as file:
        file.write("\n")
    assert settings.code_hash() in hashes


def test_an_input_that_changes_meanwhile_stops_the_run(
    tmp_path: Path, source: Path, here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Rows.read

    def slowly(self: Rows, first: int, stop: int) -> Any:
        if first == 8:
            os.utime(source)
        return read(self, first, stop)

    monkeypatch.setattr(Rows, "read", slowly)
    with pytest.raises(
        GeoRouteNetError, match=r"part-000002.parquet: .*in.parquet: changed while it was being solved"
    ):
        grn.solve_bulk(source, tmp_path / "out", shard_rows=4)
    assert sorted(contents(tmp_path / "out")) == ["part-000000.parquet", "part-000001.parquet"]


def test_moving_input_and_output_changes_nothing(tmp_path: Path, source: Path, here: None) -> None:
    grn.solve_bulk(source, tmp_path / "out", shard_rows=4)
    (tmp_path / "else").mkdir()
    moved = shutil.copy(source, tmp_path / "else")
    os.rename(tmp_path / "out", tmp_path / "else" / "out")
    assert grn.solve_bulk(moved, tmp_path / "else" / "out", shard_rows=4, workers=1).solved_now == 0


def test_a_folder_with_strange_parts_or_a_broken_manifest(tmp_path: Path, source: Path, here: None) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "part-000007.npz").touch()
    with pytest.raises(InputError, match=r"has part-000007.npz but no _manifest.json"):
        grn.solve_bulk(source, out)
    for text, message in (
        ("{", "not JSON"),
        ("[]", "not the manifest of a bulk run"),
        ('{"runs": 1}', "not the"),
        *(
            (f'{{"fingerprint": "", "made_of": {{}}, "runs": [], "shards": {{{shard}}}}}', "not the manifest")
            for shard in ('"0": null', '"x": {}', '"²": {}', '"0": {"ended by the clock": "1"}')
        ),
    ):
        (out / "_manifest.json").write_text(text)
        with pytest.raises(InputError, match=f"_manifest.json: {message}"):
            grn.solve_bulk(source, out)


def test_one_run_at_a_time(tmp_path: Path, source: Path, here: None) -> None:
    with (
        api._held(tmp_path / "out"),
        pytest.raises(InputError, match=r"in use: .* writes shards there\. Wait"),
    ):
        grn.solve_bulk(source, tmp_path / "out")


def test_a_full_disk_stops_the_run_and_the_next_one_goes_on(
    tmp_path: Path, source: Path, here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, fsync = tmp_path / "out", os.fsync

    def full(descriptor: int) -> None:
        if "part-000002" in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(
            GeoRouteNetError, match=r"part-000002.parquet: .*No space left on device; the same command"
        ):
            grn.solve_bulk(source, out, shard_rows=4)
    assert sorted(path.name for path in out.iterdir()) == [
        "_manifest.json",
        "part-000000.parquet",
        "part-000001.parquet",
    ]
    grn.solve_bulk(source, out, shard_rows=4)
    grn.solve_bulk(source, tmp_path / "undisturbed", shard_rows=4)
    assert contents(out) == contents(tmp_path / "undisturbed")


def test_a_shard_that_fails_does_not_stop_the_others(
    tmp_path: Path, source: Path, here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Rows.read

    def broken(self: Rows, first: int, stop: int) -> Any:
        if first == 8:
            raise RuntimeError("a page cannot be decoded")
        return read(self, first, stop)

    with monkeypatch.context() as patch:
        patch.setattr(Rows, "read", broken)
        result = grn.solve_bulk(source, tmp_path / "out", shard_rows=4)
    assert result.failed == {2: "RuntimeError: a page cannot be decoded"}
    assert not result.complete
    assert grn.solve_bulk(source, tmp_path / "out", shard_rows=4).solved_now == 4
