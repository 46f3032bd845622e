"""Instances in every form that bulk runs read, and an engine without processes."""

from __future__ import annotations

import gzip
from collections.abc import Generator, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import georoutenet as grn
from georoutenet.bulk.engine import Advance, Step, attempt, told
from georoutenet.bulk.inputs import Rows
from georoutenet.bulk.shards import Job, Report, make_solver

Cities = list[list[list[float]]]


def random_cities(count: int, seed: int = 0, least: int = 1, most: int = 9) -> Cities:
    """Coordinates that every form writes exactly."""
    numbers = np.random.default_rng(seed)
    return [numbers.random((n, 2)).round(6).tolist() for n in numbers.integers(least, most + 1, count)]


def wide(ids: Any, cities: Cities, list_type: Any = None) -> pa.Table:
    kind = list_type or pa.list_(pa.float64())
    x, y = ([[city[axis] for city in one] for one in cities] for axis in (0, 1))
    return pa.table({"id": ids, "x": pa.array(x, kind), "y": pa.array(y, kind)})


def write_form(form: str, path: Path, ids: list[Any], cities: Cities) -> Path:
    """One file, or a folder, of a form; its path."""
    flat = [(id, *city) for id, one in zip(ids, cities, strict=True) for city in one]
    if form == "wide":
        pq.write_table(wide(ids, cities), path := path / "in.parquet", row_group_size=7)
    elif form == "large lists":
        kind = pa.large_list(pa.float64())
        pq.write_table(wide(ids, cities, kind), path := path / "in.parquet", row_group_size=1000)
    elif form == "points":
        table = pa.table({"id": ids, "points": pa.array(cities, pa.list_(pa.list_(pa.float64(), 2)))})
        pq.write_table(table, path := path / "in.parquet", row_group_size=5)
    elif form == "structs":
        structs = [[{"x": x, "y": y, "z": 0} for x, y in one] for one in cities]
        pq.write_table(pa.table({"id": ids, "coordinates": structs}), path := path / "in.parquet")
    elif form == "long":
        columns = list(zip(*flat, strict=True))
        table = pa.table({"x": columns[1], "id": columns[0], "weight": [0] * len(flat), "y": columns[2]})
        pq.write_table(table, path := path / "in.parquet", row_group_size=11)
    elif form == "csv":
        lines = "".join(f"{id},{x!r},{y!r}\n" for id, x, y in flat)
        (path := path / "in.csv").write_text(f"ID,x,y\n{lines}", encoding="utf-8")
    elif form == "csv.gz":
        lines = "".join(f"{x!r};{id};{y!r}\r\n\r\n".replace(".", ",") for id, x, y in flat)
        with gzip.open(path := path / "in.csv.gz", "wt", encoding="utf-8-sig", newline="") as file:
            file.write(f"x;id;y\r\n{lines}")
    elif form == "folder":
        (path := path / "in" / "deeper").mkdir(parents=True)
        pq.write_table(wide(ids[:5], cities[:5]), path / "a.parquet")
        pq.write_table(wide(pa.array([], pa.int64()), []), path / "b.parquet")
        pq.write_table(wide(ids[5:], cities[5:]), path.parent / "z.parquet", row_group_size=3)
        (path.parent / "_ignored.parquet").write_text("not Parquet")
        return path.parent
    else:
        raise ValueError(form)
    return path


FORMS = ("wide", "large lists", "points", "structs", "long", "csv", "csv.gz", "folder")


def run_here(
    job: Job, shards: Iterable[int], workers: int, gpus: Sequence[str] = ()
) -> Generator[Step, None, None]:
    """In place of the local engine: the same work in this process."""
    rows, solver = Rows(job.input), make_solver(job)
    for shard in shards:
        step = told(attempt(job, rows, solver, shard))
        if isinstance(step, Report):
            yield Advance(step.rows)
        yield step


def solved(cities: Cities, **options: Any) -> tuple[list[list[int]], list[float]]:
    """Tours and lengths by ``solve_many``."""
    results = grn.solve_many([np.array(one) for one in cities], **options)
    return [result.tour.tolist() for result in results], [float(result.length) for result in results]


def read_folder(folder: Path) -> dict[str, list[Any]]:
    """All shards of a folder, one after the other."""
    from georoutenet.bulk import read_shard

    columns: dict[str, list[Any]] = {}
    for part in sorted(folder.glob("part-*")):
        for name, values in read_shard(part).items():
            columns.setdefault(name, []).extend(values)
    return columns


def contents(folder: Path) -> dict[str, bytes]:
    """The bytes of all shards, by name."""
    return {part.name: part.read_bytes() for part in folder.glob("part-*")}
