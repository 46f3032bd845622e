"""Files: whatever they hold, they are read or refused."""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import json
import os
import random
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import numpy as np

from georoutenet.io.files import read_instance, read_tour, write_tour
from georoutenet.io.names import safe_name
from georoutenet.io.tsplib_format import format_tour, format_tsp
from georoutenet.problem.instance import DistanceRule, Instance
from georoutenet.problem.tour import is_permutation, tour_length
from research.torture import MAX_BYTES, SNIPPETS, Outcome, mutated, mutated_bytes

KIND = "inputs"


def _text(data: str) -> bytes:
    return data.encode("utf-8", "surrogatepass")


def _matrix(source: random.Random) -> np.ndarray:
    numbers = np.random.default_rng(source.randrange(2**32))
    n = source.randint(1, 8)
    matrix = numbers.integers(0, 100, (n, n)) if source.random() < 0.5 else numbers.random((n, n)).round(3)
    matrix = matrix + matrix.T
    np.fill_diagonal(matrix, 0)
    return matrix


def _instance_text(extension: str, matrix: bool, source: random.Random) -> str:
    if extension == ".tsp":
        rule = source.choice([rule for rule in DistanceRule if rule is not DistanceRule.EUCLIDEAN])
        if rule is DistanceRule.EXPLICIT:
            return format_tsp(Instance(matrix=_matrix(source)))
        n = source.randint(1, 20)
        points = np.array(
            [[source.randint(0, 89), source.randint(0, 89)] for _ in range(n)], dtype=np.float64
        )
        return format_tsp(Instance(points, name="synthetic", rule=rule), comment="written by an attack")
    if extension in (".json", ".geojson"):
        return json.dumps(_matrix_json(source) if matrix else _places_json(extension, source))
    separator = "\t" if extension == ".tsv" else source.choice([",", ";", " "])
    if matrix:
        return "\n".join(separator.join(map(str, row)) for row in _matrix(source).tolist())
    header = source.choice(["", "x,y", "lat,lon", "id,lat,lon", "name,x,y"]).replace(",", separator)
    width = header.count(separator) + 1 if header else 2
    rows = [
        separator.join(f"{source.uniform(-80, 80):.3f}" for _ in range(width))
        for _ in range(source.randint(1, 20))
    ]
    return "\n".join([*filter(None, [header]), *rows])


def _matrix_json(source: random.Random) -> Any:
    table = _matrix(source).tolist()
    return source.choice([table, {"durations": table}, {"distances": table, "code": "Ok"}])


def _places_json(extension: str, source: random.Random) -> Any:
    places = [
        [round(source.uniform(-80, 80), 3), round(source.uniform(-80, 80), 3)]
        for _ in range(source.randint(1, 9))
    ]
    objects = [
        {
            "id": k,
            source.choice(["lat", "x"]): x,
            source.choice(["lon", "y"]): y,
            "note": source.choice(SNIPPETS),
        }
        for k, (x, y) in enumerate(places)
    ]
    features = [
        {
            "type": "Feature",
            "geometry": {"type": source.choice(["Point", "Point", "Polygon"]), "coordinates": place},
            "properties": source.choice([None, {}, {"id": k}, {"name": source.choice(SNIPPETS)}]),
        }
        for k, place in enumerate(places)
    ]
    crs: Any = source.choice(
        [None, {"properties": {"name": "urn:ogc:def:crs:EPSG::3857"}}, [], {"properties": 1}]
    )
    collection = {"type": "FeatureCollection", "features": features, "crs": crs}
    if extension == ".geojson" or source.random() < 0.3:
        return collection
    return source.choice([places, objects, {"visits": objects, "rule": "EUC_2D", "name": "x"}])


def _npy(matrix: bool, source: random.Random) -> bytes:
    array = _matrix(source) if matrix else np.arange(2 * source.randint(1, 20)).reshape(-1, 2)
    array = array.astype(source.choice(["<f8", ">f4", "<i2", "<f2", "|u1", "<c16", "|S3", "<f8"]))
    stream = io.BytesIO()
    version = source.choice([(1, 0), (2, 0)])
    array = np.asfortranarray(array) if source.random() < 0.5 else array
    np.lib.format.write_array(stream, array, version)
    data = stream.getvalue()
    if source.random() < 0.3:
        blank = source.randint(0, 9000)
        data = data[:8] + blank.to_bytes(2, "little") + b" " * blank + data[10:]
    return data


def _packed(data: bytes, source: random.Random) -> bytes:
    packed = gzip.compress(data, mtime=0)
    odd = source.randrange(8)
    if odd == 0:
        return gzip.compress(data + b"\n" * (4 * MAX_BYTES), mtime=0)
    if odd == 1:
        return packed * source.randint(2, 50)
    return packed + source.randbytes(source.randint(1, 9)) if odd == 2 else packed


def attack_instances(source: random.Random, folder: Path) -> Outcome:
    """Files of cities and distances: every extension, gzipped or not, by name or on standard input."""
    extension = source.choice([".tsp", ".csv", ".txt", ".tsv", ".npy", ".json", ".geojson"])
    matrix = source.random() < 0.3
    if extension == ".npy":
        data = _npy(matrix, source)
    else:
        data = _text(mutated(_instance_text(extension, matrix, source), source))
    packed = source.random() < 0.3
    data = mutated_bytes(data, source) if source.random() < 0.3 else data
    data = _packed(data, source) if packed else data
    data = mutated_bytes(data, source) if source.random() < 0.2 else data
    path = folder / f"attack{extension}{'.gz' if source.random() < 0.3 else ''}"
    path.write_bytes(data)
    kept = sys.stdin
    try:
        sys.stdin = SimpleNamespace(buffer=io.BytesIO(data))
        where = "-" if source.random() < 0.3 else path
        ids = source.choice([None, None, None, "id", "note", "x", ""])
        instance = read_instance(where, matrix=matrix, id_column=ids, max_bytes=MAX_BYTES)
    finally:
        sys.stdin = kept
    assert instance.n >= 1
    assert not instance.has_coordinates or np.isfinite(instance.coordinates).all()
    assert np.isfinite(tour_length(instance, np.arange(instance.n)))
    return "accepted"


def attack_tours(source: random.Random, folder: Path) -> Outcome:
    """Files of tours."""
    n = source.randint(1, 12)
    tour = source.sample(range(n), n)
    texts = {
        ".tour": format_tour(tour, comment="written by an attack"),
        ".csv": "\n".join(["position,city", *(f"{k},{city}" for k, city in enumerate(tour))]),
        ".json": json.dumps(source.choice([tour, {"tour": tour}])),
    }
    extension = source.choice(list(texts))
    data = _text(mutated(texts[extension], source))
    path = folder / f"attack{extension}"
    path.write_bytes(_packed(data, source) if source.random() < 0.2 else data)
    assert is_permutation(read_tour(path, n, max_bytes=MAX_BYTES), n)
    return "accepted"


def attack_names(source: random.Random, folder: Path) -> Outcome:
    """Names that a file gives itself, as file names."""
    alphabet = ["/", "\\", "..", ".", "\0", "~", "C:", "con", " ", "a", "ä", "\u202e", "\x1b", "\ud800", "😀"]
    name = "".join(source.choice(alphabet) for _ in range(source.choice([0, 1, 3, 10, 300])))
    path = folder / f"{safe_name(name)}.json"
    assert path.parent == folder
    assert not os.path.lexists(path)
    path.touch()
    path.unlink()
    return "accepted"


def attack_weights(source: random.Random, folder: Path) -> Outcome:
    """Weights files with damage, most of it in the header."""
    from georoutenet.policy.weights import load_policy, save_weights

    good = folder / "good.safetensors"
    if not good.exists():
        save_weights(good, load_policy("georoutenet-50"))
    data = good.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    path = folder / "attack.safetensors"
    form = source.randrange(4)
    if form == 0:
        path.write_bytes(data[: source.randrange(len(data))])
    elif form == 1:
        header = _text(mutated(data[8:end].decode().rstrip(" "), source)).ljust(end - 8)
        path.write_bytes(len(header).to_bytes(8, "little") + header + data[end:])
    else:
        here = source.randrange(end if form == 2 else len(data))
        path.write_bytes(data[:here] + bytes([data[here] ^ 1 << source.randrange(8)]) + data[here + 1 :])
    load_policy(path)
    assert path.read_bytes() == data, "damage was not noticed"
    return "accepted"


def _text_of_results(source: random.Random) -> str:
    from georoutenet.evaluate.results import Results, Row, format_results

    header = {
        "weights": source.choice(["georoutenet", "../x", "\x1b[31m"]), "sha256": "0" * 64, "set": "test20",
        "encoder": "georoutenet", "objective": "mcs", "instances": "3 of 10000", "inputs": "as drawn",
        "decoder": source.choice(["greedy", "beam", "sample"]), "width": source.choice(["", "10"]),
        "views": "1", "improve": "", "seed": "0", "statistics": "", "candidates": "", "precision": "float32",
        "batch": "128", "device": "x", "threads": "2", "torch": "2", "georoutenet": "0.1.0", "commit": "",
        "date": "2026-01-01",
    }  # fmt: skip
    for name in source.sample(list(header), source.choice([0, 0, 0, 1, 3])):
        del header[name]
    rows = [Row(f"test20-{k}", 20, 4.0 + k, 3.5, 0.5, 0.25) for k in range(source.randint(0, 4))]
    return format_results(Results(header, rows))


def attack_results(source: random.Random, folder: Path) -> Outcome:
    """Files of results, packed or not, and learning curves, as ``compare`` and ``curve`` read them."""
    from georoutenet.cli import compare
    from georoutenet.evaluate.packed import read_any
    from georoutenet.train.curve import read_curve

    kind = source.choice(["results", "results", "packed", "curve"])
    if kind == "packed":
        path = folder / "attack.npz"
        path.write_bytes(_packed_results(source))
        results = read_any(f"{path}:{source.choice(['a', 'a', 'a', 'b'])}")
    else:
        text = _text_of_results(source)
        if kind == "curve":
            text = "step,instances,seconds,greedy_cost,validation\n10,100,1,5.0,\n20,200,2,4.0,4.5\n"
        data = _text(mutated(text, source) if source.random() < 0.8 else text)
        path = folder / f"attack.csv{'.gz' if source.random() < 0.3 else ''}"
        path.write_bytes(_packed(data, source) if path.suffix == ".gz" or source.random() < 0.1 else data)
        if kind == "curve":
            assert read_curve(path).at["step"]
            return "accepted"
        results = read_any(path)
    with contextlib.redirect_stdout(io.StringIO()):
        compare._show_worst(results, 3)
    return "accepted"


def _packed_results(source: random.Random) -> bytes:
    """An archive with the index or a member changed, or its bytes."""
    members = {
        "a/length": np.array([[1, 2]], np.uint8),
        "a/seconds": np.ones((1, 6), np.uint8),
        "t/n": np.array([[20, 20]], np.uint8),
        "t/reference": np.array([[3, 3]], np.uint8),
    }
    header = {"weights": "x", "set": "test20", "decoder": "greedy"}
    index = {
        "format": "georoutenet-packed 1",
        "tables": {"t": {"count": 2, "prefix": "test20-"}},
        "cells": {"a": {"table": "t", "least": 0, "header": header}},
    }
    text = json.dumps(index)
    text = mutated(text, source) if source.random() < 0.6 else text
    arrays = {**members, "index": np.frombuffer(_text(text), np.uint8)}
    if source.random() < 0.2:
        wrong: Any = source.choice(
            [np.zeros(3), np.zeros((2, 2), np.uint8), np.array("x"), np.zeros((9, 2), np.uint8)]
        )
        arrays[source.choice(list(members))] = wrong
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", source.choice([zipfile.ZIP_STORED, zipfile.ZIP_LZMA])) as archive:
        for name, array in arrays.items():
            data = io.BytesIO()
            np.lib.format.write_array(data, array, allow_pickle=False)
            archive.writestr(f"{name}.npy", data.getvalue())
    data_of_all = stream.getvalue()
    return mutated_bytes(data_of_all, source) if source.random() < 0.3 else data_of_all


def attack_exports(source: random.Random, folder: Path) -> Outcome:
    """Tours with hostile columns in every format: what is written is well formed and is read back."""
    n = source.randint(1, 8)
    geographic = source.random() < 0.7
    values = [
        *SNIPPETS,
        None,
        0,
        1.5,
        float("nan"),
        float("inf"),
        2**70,
        True,
        b"x",
        [1],
        {"a": 1},
        "<x>",
        "]]>",
        "&amp;",
    ]
    names = [
        "id",
        "name",
        "city",
        "lat",
        "x",
        "note",
        "",
        "given_x",
        "a\0b",
        "<b>",
        "position",
        "\ud800",
        "=",
    ]
    columns = {name: [source.choice(values) for _ in range(n)] for name in source.sample(names, 3)}
    instance = Instance(
        [[round(source.uniform(-80, 80), 3), round(source.uniform(-170, 170), 3)] for _ in range(n)],
        name=source.choice(SNIPPETS),
        rule=DistanceRule.GREAT_CIRCLE if geographic else DistanceRule.EUCLIDEAN,
        columns=columns,
        id_column=source.choice([None, None, *columns]),
    )
    tour = source.sample(range(n), n)
    extension = source.choice([".tour", ".csv", ".json", ".geojson", ".gpx"])
    path = folder / f"attack{extension}"
    write_tour(path, tour, instance, closed=source.random() < 0.5)
    data = path.read_bytes()
    if extension == ".gpx":
        points = [each for each in ElementTree.fromstring(data).iter() if each.tag.endswith("}rtept")]
        assert len(points) in (n, n + 1)
    elif extension == ".geojson":
        json.loads(data, parse_constant=lambda constant: 1 // 0)
    else:
        assert read_tour(path, n).tolist() == tour
    if extension == ".csv":
        assert len(list(csv.reader(io.StringIO(data.decode("utf-8-sig"), newline="")))) == n + 1
    if extension in (".csv", ".json"):
        again = read_instance(path)
        assert np.array_equal(again.coordinates, instance.coordinates[tour])
    return "accepted"
