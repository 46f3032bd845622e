"""``georoutenet bulk`` from the command line."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from georoutenet.bulk.manifest import read_manifest
from georoutenet.cli import app
from georoutenet.errors import InputError

runner = CliRunner()
TABLE = "id,x,y\n" + "".join(f"{k // 6},{k * k % 7},{k % 5}\n" for k in range(60))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "in.csv").write_text(TABLE)
    return tmp_path / "in.csv"


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    from made import run_here

    monkeypatch.setattr("georoutenet.bulk.api.run_local", run_here)


def run(*arguments: object) -> tuple[int, str]:
    done = runner.invoke(app, ["bulk", *map(str, arguments)])
    if isinstance(done.exception, InputError):
        raise done.exception
    return done.exit_code, done.output


def test_a_run_and_the_same_command_again(source: Path, tmp_path: Path) -> None:
    status, printed = run(
        source, tmp_path / "out", "--shard-rows", 4, "--seed", 5, "--lower-bound", "--start", 2
    )
    assert status == 0
    assert "10 instances in 3 shards" in printed
    assert "10 solved now" in printed
    table = pq.read_table(tmp_path / "out")
    assert table.column_names == ["id", "n", "tour", "length", "lower_bound", "method", "error"]
    assert table.column("id").to_pylist() == [str(k) for k in range(10)]
    status, printed = run(
        source, tmp_path / "out", "--shard-rows", 4, "--seed", 5, "--lower-bound", "--start", 2
    )
    assert (status, "0 solved now" in printed) == (0, True)
    with pytest.raises(InputError, match="the option start was 2, now it is None"):
        run(source, tmp_path / "out", "--shard-rows", 4, "--seed", 5, "--lower-bound")


def test_rows_with_errors_give_status_1(source: Path, tmp_path: Path) -> None:
    source.write_text(TABLE + "last,1,\x1b[31m\n")
    for solved in (11, 0):  # there is still no tour when all is done
        status, printed = run(source, tmp_path / "out")
        assert status == 1
        assert f"{solved} solved now" in printed
        assert "1 row could not be solved: see the column error" in printed


def test_shards_that_fail_are_named_and_give_status_1(source: Path, tmp_path: Path) -> None:
    (tmp_path / "out" / "part-000001.parquet").mkdir(parents=True)
    (tmp_path / "out" / "_manifest.json").write_text("{}")
    with pytest.raises(InputError, match="not the manifest"):
        run(source, tmp_path / "out", "--shard-rows", 4)
    (tmp_path / "out" / "part-000001.parquet").rmdir()
    (tmp_path / "out" / "_manifest.json").unlink()
    run(source, tmp_path / "out", "--shard-rows", 4)
    (tmp_path / "out" / "part-000001.parquet").unlink()
    (tmp_path / "out" / "part-000001.parquet").mkdir()
    status, printed = run(source, tmp_path / "out", "--shard-rows", 4)
    assert status == 1
    assert "part-000001.parquet: " in printed
    assert "1 shard missing" in printed


def test_kicks_in_place_of_a_clock(source: Path, tmp_path: Path) -> None:
    assert run(source, tmp_path / "out", "--max-iterations", 7)[0] == 0
    manifest = read_manifest(tmp_path / "out")
    assert manifest["made_of"]["options"]["stop"] == {"MaxIterations": 7}
    assert manifest["repeats"] is True
    run(source, tmp_path / "both", "--max-iterations", 7, "--max-seconds", 2)
    manifest = read_manifest(tmp_path / "both")
    assert manifest["made_of"]["options"]["stop"] == {"AnyOf": [{"MaxTime": 2.0}, {"MaxIterations": 7}]}
    assert manifest["repeats"] is False


def test_a_dry_run_writes_nothing(source: Path, tmp_path: Path) -> None:
    status, printed = run(source, tmp_path / "out", "--dry-run", "--workers", 3, "--max-seconds", 0.1)
    assert status == 0
    assert not (tmp_path / "out").exists()
    for line in (
        "input    csv, 1 file,",
        "10 instances, 60 cities",
        "id: text",
        "output   1 shard of 20 instances, parquet",
        "a second run gives other bytes: max_seconds = 0.1 ends searches by the clock",
        "sample   4 instances of 6 to 6 cities, 0 with errors",
        "with 3 workers",
    ):
        assert line in printed


def test_a_dry_run_on_gpus_counts_each_once(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three processes share a GPU, where a few instances say nothing; here the CPU searches."""
    monkeypatch.setattr("georoutenet.bulk.settings._device", lambda name: "cuda")
    monkeypatch.setattr("georoutenet.solver.many_gpu.search_many", lambda instances, options: iter(()))
    monkeypatch.setattr("georoutenet.solver.stages.gpu_possible", lambda name: False)
    monkeypatch.setattr("georoutenet.bulk.local.count_gpus", lambda: 2)
    monkeypatch.setattr("georoutenet.bulk.estimate.time", SimpleNamespace(perf_counter=count().__next__))
    _, printed = run(source, tmp_path / "out", "--dry-run")
    assert "sample   10 instances of 6 to 6 cities" in printed  # not four of them
    assert "with 6 workers, 20.0 instances/s" in printed
    _, printed = run(source, tmp_path / "out", "--dry-run", "--device", "cuda:1")
    assert "with 3 workers, 10.0 instances/s" in printed


def test_a_dry_run_numbers_rows_without_ids(tmp_path: Path) -> None:
    pq.write_table(pa.table({"points": [[[0, 0], [1, 1]]]}), tmp_path / "in.parquet")
    _, printed = run(tmp_path / "in.parquet", tmp_path / "out", "--dry-run")
    assert "no column of ids: rows are numbered from 0" in printed
