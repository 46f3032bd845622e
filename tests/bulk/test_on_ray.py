"""The engine ``ray`` on a Ray of this machine. ``make test-ray`` installs it and keeps the log."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from killing import finish, start
from made import contents, random_cities, read_folder, solved, wide, write_form

import georoutenet as grn
from georoutenet.errors import GeoRouteNetError, MissingDependencyError

OPTIONS = ("--shard-rows", "10", "--workers", "2")


def test_without_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_form("wide", tmp_path, [1], random_cities(1))
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'ray\[data\]' pyarrow"):
        grn.solve_bulk(source, tmp_path / "out", engine="ray")
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    pytest.importorskip("ray", reason="Ray is not installed; make test-ray installs it")
    from georoutenet.bulk.on_ray import import_ray

    ray = import_ray()
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield ray
    ray.shutdown()


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    cities = random_cities(400, least=40, most=60)
    return write_form("wide", tmp_path_factory.mktemp("in"), list(range(400)), cities)


def test_smoke(ray: Any, tmp_path: Path) -> None:
    """A run begun on one engine is finished on the other, and ends as if there had been one."""
    source = write_form("wide", tmp_path, list(range(60)), random_cities(60))
    at: list[int] = []
    options: dict[str, Any] = {"shard_rows": 7, "workers": 2, "lower_bound": True}
    grn.solve_bulk(source, tmp_path / "local", **options)
    result = grn.solve_bulk(
        source, tmp_path / "ray", engine="ray", report=lambda done, _: at.append(done), **options
    )
    assert (result.complete, result.solved_now, at[0], at[-1]) == (True, 60, 0, 60)
    whole = contents(tmp_path / "local")
    assert contents(tmp_path / "ray") == whole
    for folder, engine in (("local", "ray"), ("ray", "local")):
        for name in sorted(whole)[::2]:
            (tmp_path / folder / name).unlink()
        assert grn.solve_bulk(source, tmp_path / folder, engine=engine, **options).solved_now == 32
        assert contents(tmp_path / folder) == whole


def test_errors_and_failures(ray: Any, tmp_path: Path) -> None:
    cities = random_cities(30)
    cities[3] = []
    source = write_form("wide", tmp_path, list(range(30)), cities)
    result = grn.solve_bulk(source, tmp_path / "out", engine="ray", workers=2, shard_rows=10)
    assert (result.errors, result.complete) == (1, True)
    assert read_folder(tmp_path / "out")["error"][3] == "an instance needs at least one city, got none"
    (tmp_path / "out" / "part-000001.parquet").unlink()
    (tmp_path / "out" / "part-000001.parquet").mkdir()
    result = grn.solve_bulk(source, tmp_path / "out", engine="ray", workers=2, shard_rows=10)
    assert list(result.failed) == [1]
    assert "is a folder" in result.failed[1]


def test_a_worker_of_another_version_ends_the_run_in_one_line(
    ray: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_form("wide", tmp_path, [1, 2], random_cities(2))
    monkeypatch.setattr("georoutenet.bulk.on_ray.code_hash", lambda: "another")
    with pytest.raises(GeoRouteNetError, match=r"Ray gave up: .*this node has another version"):
        grn.solve_bulk(source, tmp_path / "out", engine="ray", workers=1)


def test_the_solver_in_a_pipeline_of_ones_own(ray: Any) -> None:
    from georoutenet.bulk import BulkSolver

    cities = random_cities(40, least=3)
    dataset = ray.data.from_arrow(wide(list(range(40)), cities)).repartition(4)
    for batch_format in ("numpy", "pyarrow", "pandas"):
        answers = dataset.map_batches(
            BulkSolver,
            fn_constructor_kwargs={"seed": 1},
            batch_size=16,
            batch_format=batch_format,
            compute=ray.data.ActorPoolStrategy(size=1),  # of two CPUs: the other one cuts the table
        )
        rows = sorted(answers.take_all(), key=lambda row: row["id"])
        assert [row["id"] for row in rows] == list(range(40))
        assert [list(row["tour"]) for row in rows] == solved(cities, seed=1)[0]


DEADLY = """
import os, sys
if any("default_worker" in word for word in sys.orig_argv):
    import georoutenet.bulk.engine as engine
    usual = engine.attempt
    def attempt(job, rows, solver, shard, *more):
        if shard == 1:
            os.write(os.open(os.environ["DEATHS"], os.O_CREAT | os.O_APPEND | os.O_WRONLY), b"x")
            os._exit(1)
        return usual(job, rows, solver, shard, *more)
    engine.attempt = attempt
"""


def test_a_shard_that_kills_its_workers_is_given_up(ray: Any, source: Path, tmp_path: Path) -> None:
    """Not tried for ever: the others are solved, and that one is named."""
    (tmp_path / "sitecustomize.py").write_text(DEADLY)
    paths = os.pathsep.join(filter(None, [str(tmp_path), *sys.path]))
    deaths = tmp_path / "deaths"
    options = ("--engine", "ray", "--workers", "2", "--shard-rows", "100")
    process = start(source, tmp_path / "out", *options, PYTHONPATH=paths, DEATHS=str(deaths))
    printed, _ = process.communicate(timeout=300)
    assert process.returncode == 1, printed
    assert "part-000001.parquet: 12 workers died over it" in printed
    assert deaths.read_bytes() == 12 * b"x"
    assert sorted(contents(tmp_path / "out")) == [f"part-00000{k}.parquet" for k in (0, 2, 3)]


def test_killed_workers_are_replaced(ray: Any, source: Path, tmp_path: Path) -> None:
    """Ten workers of Ray are killed, one at a time, while they work."""
    finish(source, tmp_path / "undisturbed", *OPTIONS)
    mark = f"mark-{uuid.uuid4().hex}"
    process = start(source, tmp_path / "out", *OPTIONS, "--engine", "ray", GEOROUTENET_TEST=mark)
    draw, killed = random.Random(0), set[int]()
    while len(killed) < 10 and process.poll() is None:
        workers = [pid for pid in marked(mark, b"ray::MapWorker") if pid not in killed]
        if workers and contents(tmp_path / "out"):
            pid = draw.choice(workers)
            os.kill(pid, signal.SIGKILL)
            killed.add(pid)
        time.sleep(draw.uniform(0.0, 1.0))
    printed, _ = process.communicate(timeout=600)
    assert process.returncode == 0, printed
    assert len(killed) == 10, f"the run ended after {len(killed)} kills"
    assert contents(tmp_path / "out") == contents(tmp_path / "undisturbed")


def marked(mark: str, title: bytes) -> list[int]:
    """Processes that have inherited a mark and carry a title."""
    found = []
    for place in Path("/proc").iterdir():
        try:
            if (
                mark.encode() in (place / "environ").read_bytes()
                and title in (place / "cmdline").read_bytes()
            ):
                found.append(int(place.name))
        except (OSError, ValueError):
            continue
    return found
