"""Bulk runs: whatever input and folder hold, rows are solved or have an error, or the run is refused."""

from __future__ import annotations

import io
import json
import os
import random
import re
import shutil
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from georoutenet.problem.tour import is_permutation
from research.torture import SNIPPETS, Outcome, mutated, mutated_bytes
from research.torture.files import _instance_text, _packed, _text

KIND = "inputs"


def _run_here(job: Any, shards: Iterable[int], workers: int, gpus: Any) -> Generator[Any, None, None]:
    """In place of the local engine: the same work in this process."""
    from georoutenet.bulk.engine import attempt, told
    from georoutenet.bulk.inputs import Rows
    from georoutenet.bulk.shards import make_solver

    rows, solver = Rows(job.input), make_solver(job)
    try:
        for shard in shards:
            yield told(attempt(job, rows, solver, shard))
    finally:
        rows.close()


def _solve(path: Path, out: Path, **options: Any) -> Any:
    from georoutenet.bulk import api

    with mock.patch.object(api, "run_local", _run_here):
        return api.solve_bulk(path, out, device="cpu", **options)


def _cities(source: random.Random) -> list[list[list[float]]]:
    """A few instances of a few cities, now and then none."""
    numbers = np.random.default_rng(source.randrange(2**32))
    count, size = source.choice([0, 1, 3, 6, 12]), source.choice([0, 1, 2, 5])
    scale = source.choice([1.0, 60.0, 60.0, 1e150, 1e300])
    return [
        (numbers.random((source.choice([size, source.randint(1, 6)]), 2)) * scale).round(3).tolist()
        for _ in range(count)
    ]


def _long_text(cities: list[list[list[float]]], source: random.Random) -> str:
    """Tables of one city a line."""
    ids: list[Any] = [source.choice([k, k, k, f"a{k}", 1, *SNIPPETS]) for k in range(len(cities))]
    names = source.choice(["id,x,y", "id,x,y", "ID,lat,lon", "name,x,y", "x,y,id", "id,x,y,note"])
    separator = source.choice([",", ",", ";", "\t"])
    lines = [names.replace(",", separator)]
    for id, one in zip(ids, cities, strict=True):
        for x, y in one:
            values = {"x": x, "y": y, "lat": x, "lon": y, "note": source.choice(SNIPPETS)}
            lines.append(separator.join(str(values.get(name, id)) for name in names.split(",")))
    return "\n".join([*lines, ""])


def _arrays(extension: str, cities: list[list[list[float]]], source: random.Random) -> bytes:
    n = min((len(one) for one in cities), default=source.randint(0, 5))
    array = np.array([one[:n] for one in cities]).reshape(len(cities), n, 2)
    with np.errstate(all="ignore"):
        array = array.astype(source.choice(["<f8", "<f8", ">f4", "<i2", "<f2", "<c16", "|S3", "?"]))
    if source.random() < 0.2 and array.size and array.dtype.kind == "f":
        array.flat[source.randrange(array.size)] = source.choice([np.nan, np.inf, -0.0])
    array = np.asfortranarray(array) if source.random() < 0.1 else array
    stream = io.BytesIO()
    if extension == ".npy":
        np.lib.format.write_array(stream, array)
        return stream.getvalue()
    ids: Any = source.choice(
        [np.arange(len(array)), np.arange(len(array)).astype("U3"), np.zeros(3), np.array("x"), array]
    )
    given: dict[str, Any] = {source.choice(["coordinates", "coordinates", "x", "points"]): array}
    if source.random() < 0.5:
        given["id"] = ids
    (np.savez if source.random() < 0.5 else np.savez_compressed)(stream, **given)
    return stream.getvalue()


def _parquet(cities: list[list[list[float]]], source: random.Random) -> bytes:
    """Tables in every form, with nulls, in odd types; a text table where PyArrow is not installed."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        return b"PAR1" + _text(_long_text(cities, source)) + b"PAR1"
    ids: list[Any] = [source.choice([k, k, k, k, None, 0]) for k in range(len(cities))]
    form = source.randrange(4)
    if form == 0:
        x, y = ([[city[axis] for city in one] for one in cities] for axis in (0, 1))
        if cities and source.random() < 0.3:
            odd: list[Any] = [None, [], [1.0], [None, 1.0]]
            x[source.randrange(len(x))] = source.choice(odd)
        kind = source.choice(
            [pa.float64(), pa.float64(), pa.float32(), pa.int64(), pa.string(), pa.float16()]
        )
        outer = source.choice([pa.list_, pa.large_list])
        columns = {"x": pa.array(x, outer(pa.float64())), "y": pa.array(y, outer(pa.float64()))}
        if source.random() < 0.3:
            columns["y"] = columns["y"].cast(outer(kind), safe=False)
    elif form == 1:
        odd = [None, [], [None], [[1.0]]]
        points: list[Any] = [source.choice(odd) if source.random() < 0.3 else one for one in cities]
        columns = {
            source.choice(["points", "coordinates"]): pa.array(points, pa.list_(pa.list_(pa.float64())))
        }
    elif form == 2:
        names = source.choice([("x", "y"), ("lat", "lon"), ("a", "b")])
        structs = [[dict(zip(names, city, strict=True)) for city in one] for one in cities]
        columns = {"points": pa.array(structs, pa.list_(pa.struct([(name, pa.float64()) for name in names])))}
    else:
        flat = [(id, *city) for id, one in zip(ids, cities, strict=True) for city in one]
        ids = [each[0] for each in flat]
        columns = {
            name: pa.array([each[k] for each in flat], pa.float64()) for k, name in ((1, "x"), (2, "y"))
        }
        if flat and source.random() < 0.2:
            columns["x"] = pa.array([source.choice([1.0, None]) for _ in flat], pa.float64())
    kind = source.choice([pa.int64(), pa.int64(), pa.int32(), pa.string(), pa.binary(), pa.float64()])
    texts = [None if id is None else str(id) for id in ids]
    columns["id"] = pa.array(ids if "int" in str(kind) or kind == pa.float64() else texts, kind)
    stream = io.BytesIO()
    pq.write_table(pa.table(columns), stream, row_group_size=source.choice([1, 3, 1000]))
    return stream.getvalue()


def _write(path: Path, source: random.Random) -> Path:
    """One file, or a folder with a few; damaged or not."""
    extension = source.choice(
        [".csv", ".csv", ".csv.gz", ".npy", ".npz", ".parquet", ".parquet", ".tsp", ".txt"]
    )
    files = [path / f"in{extension}"]
    if source.random() < 0.3:
        folder = path / "in"
        folder.mkdir()
        files = [folder / f"{name}{extension}" for name in source.sample(["a", "b", "_c", ".d", "\udcff"], 2)]
    for file in files:
        cities = _cities(source)
        if extension == ".tsp":
            data = _text(mutated(_instance_text(".tsp", False, source), source))
        elif extension in (".csv", ".csv.gz", ".txt"):
            text = _long_text(cities, source)
            data = _text(mutated(text, source) if source.random() < 0.6 else text)
            data = _packed(data, source) if extension == ".csv.gz" else data
        elif extension == ".parquet":
            data = _parquet(cities, source)
        else:
            data = _arrays(extension, cities, source)
        file.write_bytes(mutated_bytes(data, source) if source.random() < 0.3 else data)
    return files[0].parent if len(files) > 1 else files[0]


def _check(result: Any) -> int:
    """Every row of every shard has a tour or an error; the number of rows."""
    from georoutenet.bulk import read_shard

    assert not result.failed, result.failed
    rows = errors = 0
    parts = sorted(result.folder.glob("part-*"))
    assert len(parts) == result.shards
    for part in parts:
        columns = read_shard(part)
        for n, tour, length, error in zip(
            *(columns[name] for name in ("n", "tour", "length", "error")), strict=True
        ):
            assert (tour is None) == (length is None) == (error is not None), (tour, length, error)
            assert tour is None or (is_permutation(np.array(tour), n) and np.isfinite(length))
            rows, errors = rows + 1, errors + (error is not None)
    assert (rows, errors) == (result.instances, result.errors)
    left = {each.name for each in result.folder.iterdir()} - {part.name for part in parts}
    assert left == {"_manifest.json"}, left
    return rows - errors


def _own(folder: Path, source: random.Random) -> Path:
    odd = source.choice(["", "", "\udcff", "s3:"])
    own = folder / f"run-{odd}{source.randrange(2**64)}"
    own.mkdir()
    return own


def attack_bulk(source: random.Random, folder: Path) -> Outcome:
    """Files and folders of instances of every kind, most of them damaged."""
    own = _own(folder, source)
    try:
        path = _write(own, source)
        options: dict[str, Any] = {"format": source.choice(["npz", None]), "improve": source.random() < 0.2}
        options["id_column"] = source.choice([None, None, None, None, "name", "x", ""])
        options["shard_rows"] = source.choice([None, 1, 2, 5])
        if source.random() < 0.2:
            options["closed"], options["start"] = False, source.choice([0, 1, 5, 99])
        result = _solve(path, own / "out", **options)
        solved = _check(result)
        again = _solve(path, own / "out", **options)
        assert (again.solved_now, again.errors) == (0, result.errors)
        return "accepted" if solved else "refused"
    finally:
        shutil.rmtree(own)


def _finished(folder: Path) -> tuple[Path, Path]:
    """An input, and a folder in which it has been solved; made once."""
    path, out = folder / "finished.csv", folder / "finished"
    if not (out / "_manifest.json").exists():
        numbers = np.random.default_rng(0)
        lines = [f"{k // 5},{x},{y}" for k, (x, y) in enumerate(numbers.random((60, 2)).round(4).tolist())]
        lines[17] = "3,x,y"
        path.write_text("\n".join(["id,x,y", *lines]))
        _solve(path, out, format="npz", shard_rows=3, improve=False)
    return path, out


def _parts(folder: Path) -> dict[str, bytes]:
    return {part.name: part.read_bytes() for part in folder.glob("part-*")}


def _damage(out: Path, source: random.Random) -> None:
    """To the manifest or a shard: bytes, its end, all of it, another one in its place."""
    manifest, shard = out / "_manifest.json", source.choice(sorted(out.glob("part-*")))
    kind = source.randrange(8)
    if kind == 0:
        manifest.write_bytes(_text(mutated(manifest.read_text(), source)))
    elif kind == 1:
        content = json.loads(manifest.read_text())
        for _ in range(source.randint(1, 2)):
            made_of = content.get("made_of")
            within = [content, made_of, content.get("shards")]
            within += [made_of.get("options")] if isinstance(made_of, dict) else []
            place = source.choice([each for each in within if isinstance(each, dict)])
            odd: list[Any] = [None, 0, "", [], {}, -1, True, "../x", 1e308, {"0": None}, [1], "\ud800"]
            if place:
                place[source.choice(sorted(place))] = source.choice(odd)
        manifest.write_text(json.dumps(content))
    elif kind == 2:
        manifest.unlink()
    elif kind == 3:
        shard.write_bytes(shard.read_bytes()[: source.randrange(shard.stat().st_size)])
    elif kind == 4:
        shard.write_bytes(mutated_bytes(shard.read_bytes(), source))
    elif kind == 5:
        shard.write_bytes(source.choice(sorted(out.glob("part-*"))).read_bytes())
    elif kind == 6:
        shard.unlink()
        source.choice([lambda: shard.mkdir(), lambda: os.symlink("nowhere", shard), lambda: None])()
    else:
        name = source.choice(["part-000099.npz", "part-x", ".part-000000.npz.tmp", "x", "_manifest.json.tmp"])
        (out / name).write_bytes(source.randbytes(9))


def attack_bulk_folders(source: random.Random, folder: Path) -> Outcome:
    """A folder of a finished run with damage: the same command mends it or refuses it."""
    path, finished = _finished(folder)
    own = _own(folder, source)
    try:
        out = own / "out"
        shutil.copytree(finished, out)
        _damage(out, source)
        before = _parts_or_less(out)
        result = _solve(path, out, format="npz", shard_rows=3, improve=False)
        good = _parts(finished)
        if result.failed:  # where a folder is in its place
            assert not any(re.match(r"[A-Z]\w+: ", text) for text in result.failed.values()), result.failed
            return "refused"
        after = _parts(out)
        wrong = {name for name, data in good.items() if after[name] != data}
        assert {name: after[name] for name in wrong} == {name: before[name] for name in wrong}
        # A shard is known by its last bytes; what a disk has changed in its middle is not looked for.
        return "kept" if wrong else "mended"
    finally:
        shutil.rmtree(own)


def _parts_or_less(folder: Path) -> dict[str, bytes]:
    return {part.name: part.read_bytes() for part in folder.glob("part-*") if part.is_file()}
