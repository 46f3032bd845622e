"""Bulk runs: the tours of ``solve_many``, whole shards, and only the same run goes on in a folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
from made import FORMS, contents, random_cities, read_folder, solved, wide, write_form

import georoutenet as grn
from georoutenet.bulk import api, local, settings, shards
from georoutenet.bulk.manifest import read_manifest
from georoutenet.bulk.rows import Row
from georoutenet.bulk.shards import read_shard
from georoutenet.bulk.solver import CHUNK, CHUNK_CITIES, chunks
from georoutenet.errors import GeoRouteNetError, InputError, MissingDependencyError
from georoutenet.solver.options import SolveOptions


def test_the_local_engine_gives_what_solve_many_gives(tmp_path: Path, source: Path) -> None:
    seen: list[tuple[int, int]] = []
    out = tmp_path / "out"
    result = grn.solve_bulk(
        source, out, shard_rows=4, workers=2, seed=3, lower_bound=True, report=lambda *at: seen.append(at)
    )
    assert (result.instances, result.shards, result.solved_now, result.errors) == (21, 6, 21, 0)
    assert result.complete
    assert (seen[0], seen[-1]) == ((0, 21), (21, 21))
    found = read_folder(out)
    tours, lengths = solved(random_cities(21), seed=3)
    assert found["id"] == list(range(100, 121))
    assert (found["tour"], found["length"]) == (tours, lengths)
    assert found["n"] == list(map(len, tours))
    assert found["error"] == [None] * 21
    bounds = zip(found["lower_bound"], lengths, strict=True)
    assert all(bound is None or bound <= length for bound, length in bounds)
    assert any(found["lower_bound"])
    assert sorted(path.name for path in out.iterdir()) == [
        "_manifest.json",
        *(f"part-{k:06}.parquet" for k in range(6)),
    ]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("format", ["parquet", "npz"])
def test_every_form_gives_the_same(form: str, format: str, tmp_path: Path, here: None) -> None:
    cities = random_cities(12, least=4)
    ids: list[Any] = [f"n{k}" if form.startswith("csv") else k for k in range(12)]
    out = tmp_path / "out"
    grn.solve_bulk(write_form(form, tmp_path, ids, cities), out, shard_rows=5, format=format)
    found = read_folder(out)
    assert found["id"] == ids
    assert (found["tour"], found["length"]) == solved(cities)
    assert found["method"] == ["greedy edge"] * 12
    assert "lower_bound" not in found


def test_readers_of_folders_find_the_shards_alone(tmp_path: Path, source: Path, here: None) -> None:
    grn.solve_bulk(source, tmp_path / "out", shard_rows=4)
    table = pyarrow.dataset.dataset(tmp_path / "out").to_table()
    assert table.column("id").to_pylist() == list(range(100, 121))
    assert str(table.schema.field("tour").type) == "list<element: int32>"


def test_errors_are_rows(tmp_path: Path, here: None) -> None:
    cities = random_cities(6)
    table = wide([7, 8, 7, 8, None, 7], cities)
    table = table.set_column(
        1, "x", pa.array([[], *table.column("x").to_pylist()[1:]], pa.list_(pa.float64()))
    )
    pq.write_table(table, tmp_path / "in.parquet")
    for format in ("parquet", "npz"):
        out = tmp_path / format
        result = grn.solve_bulk(tmp_path / "in.parquet", out, shard_rows=4, format=format)
        assert (result.errors, result.complete) == (4, True)
        found = read_folder(out)
        # The second shard begins anew: an id is looked for within a shard.
        again = "the id {} was there before, in the same shard"
        differ = f"x has 0 numbers, y has {len(cities[0])}"
        assert found["error"] == [differ, None, again.format(7), again.format(8), "no id: it is null", None]
        assert [tour is None for tour in found["tour"]] == [True, False, True, True, True, False]
        assert [length is None for length in found["length"]] == [True, False, True, True, True, False]
        assert found["id"] == [7, 8, 7, 8, None, 7]
        assert found["n"] == [0, *(len(one) for one in cities[1:])]
        assert grn.solve_bulk(tmp_path / "in.parquet", out, shard_rows=4, format=format).errors == 4
        manifest = read_manifest(out)
        assert [entry["errors"] for entry in manifest["shards"].values()] == [3, 1]


@pytest.mark.parametrize("ids", [[0, None], ["", None]])
@pytest.mark.parametrize("format", ["parquet", "npz"])
def test_no_id_is_neither_zero_nor_empty(format: str, ids: list[Any], tmp_path: Path, here: None) -> None:
    pq.write_table(wide(ids, random_cities(2)), tmp_path / "in.parquet")
    grn.solve_bulk(tmp_path / "in.parquet", tmp_path / "out", format=format)
    found = read_folder(tmp_path / "out")
    assert (found["id"], found["error"]) == (ids, [None, "no id: it is null"])


def test_one_long_id_makes_no_shard_large(tmp_path: Path, here: None) -> None:
    ids = ["a" * 100_000, *map(str, range(99))]
    source = write_form("csv", tmp_path, ids, random_cities(100, most=2))
    assert grn.solve_bulk(source, tmp_path / "out", shard_rows=100, format="npz").errors == 1
    with np.load(tmp_path / "out" / "part-000000.npz") as arrays:
        assert arrays["id"].nbytes <= 100 * 256 * 4
        assert arrays["error"].nbytes <= 100 * 256 * 4
    assert read_folder(tmp_path / "out")["id"] == [None, *ids[1:]]


def test_options_that_do_not_fit_an_instance_are_its_errors(tmp_path: Path, here: None) -> None:
    source = write_form("wide", tmp_path, [1, 2], [[[0.0, 0.0]], random_cities(1, least=6)[0]])
    result = grn.solve_bulk(source, tmp_path / "out", start=4)
    assert result.errors == 1
    found = read_folder(tmp_path / "out")
    assert "4" in found["error"][0]
    assert found["tour"][1][0] == 4


def test_one_huge_instance_among_small_ones(tmp_path: Path, here: None) -> None:
    huge = np.random.default_rng(0).random((200_000, 2)).round(6).tolist()
    cities = [*random_cities(3), huge, *random_cities(3)]
    source = write_form("wide", tmp_path, list(range(7)), cities)
    grn.solve_bulk(source, tmp_path / "out", first="curve", improve=False)
    found = read_folder(tmp_path / "out")
    assert found["n"][3] == 200_000
    assert sorted(found["tour"][3]) == list(range(200_000))
    assert found["tour"][:3] == solved(cities[:3], first="curve", improve=False)[0]


def test_chunks_depend_on_the_rows_alone() -> None:
    sizes = [1] * (CHUNK + 3) + [CHUNK_CITIES, 2 * CHUNK_CITIES, 1, CHUNK_CITIES - 1, 1]
    found = list(chunks(Row(k, n=n) for k, n in enumerate(sizes)))
    assert [row.id for chunk in found for row in chunk] == list(range(len(sizes)))
    assert [len(chunk) for chunk in found] == [CHUNK, 3, 1, 1, 2, 1]


# -- workers -----------------------------------------------------------------------------------------------


def test_a_worker_that_dies_is_replaced(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deaths = {0: 1, 2: 9}

    class Dying(local._Worker):
        def start(self, shard: int) -> None:
            if deaths.get(shard, 0):
                deaths[shard] -= 1
                self.process.kill()
            super().start(shard)

    monkeypatch.setattr(local, "_Worker", Dying)
    monkeypatch.setattr(local, "ATTEMPTS", 2)
    at: list[int] = []
    options: dict[str, Any] = {"first": "curve", "improve": False}
    result = grn.solve_bulk(
        source, tmp_path / "out", shard_rows=7, workers=1, report=lambda done, _: at.append(done), **options
    )
    assert result.failed == {2: "2 workers died over it, the last with status -9"}
    assert (result.solved_now, at[-1], deaths) == (14, 14, {0: 0, 2: 7})
    assert sorted(contents(tmp_path / "out")) == ["part-000000.parquet", "part-000001.parquet"]
    assert read_folder(tmp_path / "out")["tour"] == solved(random_cities(21)[:14], **options)[0]


def test_a_worker_that_cannot_start(tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", shutil.which("false"))
    with pytest.raises(GeoRouteNetError, match="a worker could not start: it ended with status 1"):
        grn.solve_bulk(source, tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["_manifest.json"]


def test_each_gpu_has_workers(tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = []

    class Counted:
        def __init__(self, start: str, number: int, messages: Any) -> None:
            content = json.loads(start)
            started.append((content["device"], content["threads"]))
            messages.put((self, {"ready": 1}))

        def start(self, shard: int) -> None:
            raise KeyboardInterrupt

        def end(self) -> None:
            pass

    monkeypatch.setattr(settings, "_device", lambda name: "cuda")
    monkeypatch.setattr(local, "available_cores", lambda: 36)
    monkeypatch.setattr(local, "_Worker", Counted)
    monkeypatch.setattr(local, "count_gpus", lambda: 4)
    with pytest.raises(KeyboardInterrupt):
        grn.solve_bulk(source, tmp_path / "out", shard_rows=1)
    assert local.PROCESSES_PER_GPU == 3
    assert started == [(f"cuda:{k % 4}", 3) for k in range(12)]
    started.clear()
    with pytest.raises(KeyboardInterrupt):
        grn.solve_bulk(source, tmp_path / "out", shard_rows=1, device="cuda:2")
    assert started == [("cuda:2", 12)] * 3
    with pytest.raises(InputError, match="Ray chooses the GPUs itself; give device='cuda', not 'cuda:2'"):
        grn.solve_bulk(source, tmp_path / "out", engine="ray", device="cuda:2")


# -- options -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "stop",
    [
        None,
        grn.MaxIterations(5),
        grn.AnyOf(grn.NoImprovement(7), grn.MaxIterations(9)),
        grn.AnyOf(grn.MaxTime(1.5), grn.AnyOf(grn.Gap(0.5))),
    ],
)
def test_options_as_json(stop: Any) -> None:
    options = SolveOptions(
        stop=stop, seed=4, decoder=grn.Decoding("beam", width=8), closed=False, device="cpu"
    )
    text = json.dumps(settings.to_json(options))
    back = SolveOptions(**settings.keywords(json.loads(text), device=None, threads=3))
    assert (back.stop, back.seed, back.closed, back.workers) == (stop, 4, False, 3)
    assert back.decoding == options.decoding
    timed = stop is not None and "MaxTime" in repr(stop)
    assert bool(settings.bounded_by_time(options)) == timed


def test_the_manifest_says_whether_shards_repeat(tmp_path: Path, source: Path, here: None) -> None:
    for name, options, why in (
        ("a", {}, None),
        ("b", {"stop": grn.MaxIterations(3)}, None),
        ("c", {"max_seconds": 0.5}, "max_seconds = 0.5 ends searches by the clock"),
        ("d", {"stop": grn.Gap(1)}, "stop = Gap(percent=1) ends searches by the clock"),
    ):
        grn.solve_bulk(source, tmp_path / name, **options)  # type: ignore[arg-type]
        manifest = read_manifest(tmp_path / name)
        assert (manifest["repeats"], manifest.get("why not")) == (why is None, why)


def test_a_search_that_the_clock_ended_is_counted(
    tmp_path: Path, source: Path, here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "georoutenet.bulk.solver.BulkSolver._by_clock", lambda self, result: result.instance.n == 5
    )
    grn.solve_bulk(source, tmp_path / "out", shard_rows=4)
    count = sum(len(one) == 5 for one in random_cities(21))
    assert count > 0
    manifest = read_manifest(tmp_path / "out")
    assert manifest["repeats"] is False
    assert manifest["why not"].startswith(f"the clock ended the search of {count} instances")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "spark"}, "unknown engine 'spark'; allowed: local, ray"),
        ({"address": "auto"}, "address is of the engine ray, not of local"),
        ({"format": "csv"}, "unknown format 'csv'; allowed: parquet, npz"),
        ({"shard_rows": 0}, "shard_rows must be a whole number of at least 1, got 0"),
        ({"start": "home"}, "a city is named by its position in a bulk run, got 'home'"),
        ({"progress": print}, "progress is of single instances"),
        ({"nonsense": 1}, "solve_bulk has no option 'nonsense'"),
        ({"weights": lambda cities: cities}, "needs weights by name or as a file"),
        ({"stop": type("Own", (), {"budget": None})()}, "a bulk run stops by MaxTime, MaxIterations"),
    ],
)
def test_options_that_are_refused(
    options: dict[str, Any], message: str, tmp_path: Path, source: Path
) -> None:
    with pytest.raises(InputError, match=message):
        grn.solve_bulk(source, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_places_that_are_refused(tmp_path: Path, source: Path) -> None:
    for out in (tmp_path, tmp_path / "deep" / "out"):
        with pytest.raises(InputError, match="shards go into a folder outside of the input"):
            grn.solve_bulk(tmp_path, out)
    with pytest.raises(InputError, match="is a file; shards go into a folder"):
        grn.solve_bulk(source, source)


def test_without_pyarrow_shards_are_of_numpy(
    tmp_path: Path, here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_form("csv", tmp_path, ["a", "b"], random_cities(2))
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    grn.solve_bulk(source, tmp_path / "out")
    assert read_shard(tmp_path / "out" / "part-000000.npz")["id"] == ["a", "b"]
    with pytest.raises(MissingDependencyError, match=r"the format parquet .* needs PyArrow"):
        grn.solve_bulk(source, tmp_path / "other", format="parquet")


def test_no_instances(tmp_path: Path, here: None) -> None:
    (tmp_path / "in.csv").write_text("id,x,y\n")
    result = grn.solve_bulk(tmp_path / "in.csv", tmp_path / "out")
    assert (result.instances, result.shards, result.complete) == (0, 0, True)


def test_rows_of_a_shard_where_nothing_is_said() -> None:
    rows = {
        count: api._shard_rows(count, "cpu") for count in (0, 1, 2_000, 64_000, 10**6, 10**7, 10**9, 10**10)
    }
    assert list(rows.values()) == [20, 20, 32, 1000, 1000, 1000, 100_000, 100_000]
    assert [api._shard_rows(count, "cuda") for count in (1, 10**5, 10**6)] == [1000, 6250, 50_000]


def test_names_of_many_shards_sort_as_numbers(tmp_path: Path, source: Path) -> None:
    job = api.make_plan(source, tmp_path / "out", SolveOptions(), shard_rows=1).job
    many = shards.Job(**{**vars(job), "input": type(job.input)(**{**vars(job.input), "counts": [3 * 10**6]})})
    names = [many.path(k).name for k in (0, 5, 999_999, 2_999_999)]
    assert names == sorted(names)
    assert names[0] == "part-0000000.parquet"
