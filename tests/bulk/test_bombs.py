"""Inputs and folders of bulk runs that are far more than they seem: refused before they cost anything."""

from __future__ import annotations

import gzip
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from georoutenet.bulk.inputs import Rows, find_input
from georoutenet.bulk.manifest import NAME, read_manifest
from georoutenet.errors import InputError

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a test needs no gigabytes."""
    for module in ("rows", "arrays", "arrow", "long_csv", "parquet"):
        monkeypatch.setattr(f"georoutenet.bulk.{module}.MOST_CITIES", 1_000)


def header(shape: tuple[int, ...], kind: str = "|i1") -> bytes:
    text = repr({"descr": kind, "fortran_order": False, "shape": shape}).encode()
    return b"\x93NUMPY\1\0" + len(text).to_bytes(2, "little") + text


def archive(path: Path, packing: int, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", packing) as file:
        for name, data in members.items():
            file.writestr(f"{name}.npy", data)
    return path


def test_instances_without_cities_take_no_bytes(tmp_path: Path) -> None:
    (tmp_path / "in.npy").write_bytes(header((10**15, 0, 2)))
    with pytest.raises(InputError, match="instances of 1 to 1,000 cities"):
        find_input(tmp_path / "in.npy")


def test_a_header_that_says_too_many_instances(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("georoutenet.bulk.inputs.MOST_INSTANCES", 3)
    np.save(tmp_path / "in.npy", np.zeros((4, 5, 2)))
    with pytest.raises(InputError, match="4 instances; allowed: 3"):
        find_input(tmp_path / "in.npy")


def test_arrays_that_unpack_to_large_instances(tmp_path: Path) -> None:
    large = archive(
        tmp_path / "a.npz", zipfile.ZIP_DEFLATED, coordinates=header((1, 1_001, 2)) + bytes(2_002)
    )
    with pytest.raises(InputError, match="instances of 1 to 1,000 cities"):
        find_input(large)
    fits = archive(tmp_path / "b.npz", zipfile.ZIP_DEFLATED, coordinates=header((1, 1_000, 2)) + bytes(2_000))
    assert find_input(fits).instances == 1


@pytest.mark.parametrize("packing", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_packing_of_which_python_unpacks_all_at_once(packing: int, tmp_path: Path) -> None:
    file = archive(tmp_path / "in.npz", packing, coordinates=header((2, 1, 2)) + bytes(4))
    with pytest.raises(InputError, match=r"packed otherwise than by np\.savez"):
        find_input(file)


def test_ids_longer_than_any_memory(tmp_path: Path) -> None:
    ids = header((1,), "<U400000000")
    file = archive(
        tmp_path / "in.npz", zipfile.ZIP_DEFLATED, coordinates=header((1, 1, 2)) + bytes(2), id=ids
    )
    with pytest.raises(InputError, match="texts of at most 65,536 bytes"):
        find_input(file)


def errors(path: Path) -> list[tuple[Any, str, int]]:
    found = find_input(path)
    return [(row.id, row.error, row.n) for row in Rows(found).read(0, found.instances)]


def test_one_instance_that_never_ends(tmp_path: Path) -> None:
    """Lines, or rows of Parquet, that all have one id: what is beyond the limit is not kept."""
    lines = b"id,x,y\n" + b"a,0,0\n" * 5_000 + b"b,0,0\nb,1,1\n"
    (tmp_path / "in.csv.gz").write_bytes(gzip.compress(lines))
    expected = [("a", "more than 1,000 cities", 1_001), ("b", "", 2)]
    assert errors(tmp_path / "in.csv.gz") == expected
    zeros = [0.0] * 5_002
    pq.write_table(
        pa.table({"id": ["a"] * 5_000 + ["b"] * 2, "x": zeros, "y": zeros}), tmp_path / "in.parquet"
    )
    assert errors(tmp_path / "in.parquet") == expected


def test_lists_that_unpack_to_large_instances(tmp_path: Path) -> None:
    """The footer says so before anything is decoded."""
    zeros = [[0.0] * 1_001]
    pq.write_table(pa.table({"id": [1], "x": zeros, "y": zeros}), tmp_path / "in.parquet")
    with pytest.raises(InputError, match="instances of more than 1,000 cities"):
        find_input(tmp_path / "in.parquet")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names here")
def test_a_pipe_in_a_folder_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,x,y\n1,2,3\n")
    os.mkfifo(tmp_path / "b.csv")
    with pytest.raises(InputError, match=r"b\.csv: not a regular file"):
        find_input(tmp_path)


@pytest.mark.parametrize(
    "shards",
    [{"9" * 5_000: {}}, {"0": {"ended by the clock": 10**4_299}}, {"0": {"ended by the clock": "1"}}],
)
def test_a_manifest_with_numbers_that_cannot_be_written(shards: dict[str, Any], tmp_path: Path) -> None:
    content = {"fingerprint": "", "made_of": {}, "runs": [], "shards": shards}
    (tmp_path / NAME).write_text(json.dumps(content))
    with pytest.raises(InputError, match="not the manifest of a bulk run"):
        read_manifest(tmp_path)
