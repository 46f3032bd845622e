"""Mutated files give a valid instance or tour, or our own error: no other exception, and no hang."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from georoutenet.errors import GeoRouteNetWarning, InputError
from georoutenet.io.distances import parse_matrix_json, parse_matrix_table
from georoutenet.io.files import read_instance, read_tour
from georoutenet.io.table import parse_table
from georoutenet.io.tsplib_format import _LAYOUTS, format_tour, format_tsp, parse_tour, parse_tsp
from georoutenet.problem.instance import Instance
from georoutenet.problem.tour import is_permutation, tour_length

SNIPPETS = [
    "\n", "\r\n", "\r", " ", "\t", "\0", "-1", "0", "1", "2", "9999999999999999999", "1e308", "-1e400", "inf",
    "nan", "-", "+", ".", "e", ":", " : ", "_", "EOF\n", "NAME : x\n", "TYPE : ATSP\n", "TYPE : TOUR\n",
    "DIMENSION : 1000000000000\n", "DIMENSION : -1\n", "EDGE_WEIGHT_TYPE : GEO\n", "NODE_COORD_SECTION\n",
    "DISPLAY_DATA_SECTION\n", "TOUR_SECTION\n", "FIXED_EDGES_SECTION\n", "COMMENT", "ä", "\u2028", "\ufeff",
    "#", '"', ",", ";", "lat,lon\n", "x,y\n", "[", "{", "}", "]", "null", "true", "EDGE_WEIGHT_SECTION\n",
    "EDGE_WEIGHT_TYPE : EXPLICIT\n", "EDGE_WEIGHT_FORMAT : UPPER_ROW\n", "DIMENSION : 10000\n", "durations",
]  # fmt: skip


def mutated(text: str, random_source: random.Random) -> str:
    """A few edits: delete, repeat, swap or overwrite a stretch, put a snippet in, or cut the end off."""
    for _ in range(random_source.randint(1, 4)):
        here = random_source.randrange(len(text) + 1)
        there = min(len(text), here + random_source.choice([1, 1, 2, 5, 20, len(text)]))
        stretch = text[here:there]
        text = random_source.choice(
            [
                text[:here] + text[there:],
                text[:here] + stretch[:50] * 2 + text[there:],
                text[:here] + random_source.choice(SNIPPETS) + text[there:],
                text[:here] + random_source.choice(SNIPPETS) + text[here:],
                text[:here] + stretch[::-1] + text[there:],
                text[:here],
                text.swapcase(),
                text.replace("\n", random_source.choice(["\r\n", " ", "\n\n"])),
            ]
        )
    return text


def check_instance(read: Callable[[Any], Instance], given: object) -> bool:
    """Whether a valid instance came out; an exception other than ours fails the test."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", GeoRouteNetWarning)
            instance = read(given)
    except InputError:
        return False
    assert instance.n >= 1
    if instance.has_coordinates:
        assert np.isfinite(instance.coordinates).all()
    if instance.matrix is not None:
        np.testing.assert_array_equal(instance.matrix, instance.matrix.T)
        assert (instance.matrix >= 0).all()
    assert np.isfinite(tour_length(instance, np.arange(instance.n)))
    return True


def check_tour_text(text: str) -> bool:
    try:
        tour = parse_tour(text)
    except InputError:
        return False
    assert is_permutation(tour, len(tour))
    return True


def synthetic_tsp(seed: int) -> str:
    generator = np.random.default_rng(seed)
    rule = ["EUC_2D", "CEIL_2D", "ATT", "GEO", "MAN_2D", "MAX_2D", "EXPLICIT"][seed % 7]
    points = generator.integers(0, 90, size=(int(generator.integers(1, 30)), 2)) + generator.choice(
        [0.0, 0.25]
    )
    matrix = synthetic_matrix(seed) if rule == "EXPLICIT" else None
    if matrix is not None:
        points = points[: len(matrix)] if len(points) >= len(matrix) else None
    instance = Instance(points, name=f"synthetic{seed}", rule=rule, matrix=matrix)
    return format_tsp(instance, comment="written by a test")


def synthetic_matrix(seed: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    n = int(generator.integers(1, 9))
    matrix = generator.integers(0, 100, (n, n)) if seed % 2 else generator.random((n, n)).round(3)
    matrix = matrix + matrix.T
    np.fill_diagonal(matrix, 0)
    return matrix


@settings(max_examples=400, deadline=5000)
@given(st.integers(0, 19), st.randoms(use_true_random=False))
def test_mutated_synthetic_instances(seed: int, random_source: random.Random) -> None:
    text = mutated(synthetic_tsp(seed), random_source)
    check_instance(parse_tsp, text)
    check_instance(parse_table, text)


@settings(max_examples=400, deadline=5000)
@given(st.integers(1, 30), st.randoms(use_true_random=False))
def test_mutated_synthetic_tours(n: int, random_source: random.Random) -> None:
    tour = random_source.sample(range(n), n)
    check_tour_text(mutated(format_tour(tour, comment="written by a test"), random_source))


@settings(max_examples=200, deadline=5000)
@given(
    st.integers(1, 30),
    st.randoms(use_true_random=False),
    st.sampled_from(["x,y", "lat,lon", "id;lat;lon", ""]),
)
def test_mutated_tables(n: int, random_source: random.Random, header: str) -> None:
    separator = ";" if ";" in header else ","
    width = header.count(separator) + 1 if header else 2
    rows = [separator.join(f"{random_source.uniform(-80, 80):.3f}" for _ in range(width)) for _ in range(n)]
    text = mutated("\n".join([header, *rows]), random_source)
    check_instance(parse_table, text)


@settings(max_examples=400, deadline=5000)
@given(st.integers(0, 19), st.randoms(use_true_random=False), st.sampled_from([*_LAYOUTS]))
def test_mutated_explicit_instances(seed: int, random_source: random.Random, form: str) -> None:
    text = format_tsp(Instance(matrix=synthetic_matrix(seed))).replace("FULL_MATRIX", form)
    check_instance(parse_tsp, mutated(text, random_source))


@settings(max_examples=400, deadline=5000)
@given(st.integers(0, 19), st.randoms(use_true_random=False), st.sampled_from([",", ";", " "]), st.booleans())
def test_mutated_matrices(seed: int, random_source: random.Random, separator: str, names: bool) -> None:
    matrix = synthetic_matrix(seed).tolist()
    rows = [[*map(str, row)] for row in matrix]
    if names:
        rows = [["to", *"abcdefgh"[: len(rows)]], *([f"c{k}", *row] for k, row in enumerate(rows))]
    table = "\n".join(separator.join(row) for row in rows)
    assert check_instance(parse_matrix_table, table)
    check_instance(parse_matrix_table, mutated(table, random_source))
    sources = [{"location": [k, -k]} for k in range(len(matrix))]
    answer = json.dumps({"code": "Ok", "durations": matrix, "sources": sources})
    assert check_instance(parse_matrix_json, answer)
    check_instance(parse_matrix_json, mutated(answer, random_source))


@settings(max_examples=200, deadline=5000)
@given(st.text(alphabet=st.sampled_from("0123456789.-+eE \n:_NAMETYPSCORDI\t\r\0")))
def test_text_from_nowhere(text: str) -> None:
    check_instance(parse_tsp, text)
    check_instance(parse_table, text)
    check_instance(parse_matrix_table, text)
    check_instance(parse_matrix_json, text)
    check_tour_text(text)


@pytest.mark.parametrize("extension", ["tsp", "csv", "txt", "npy", "tsp.gz", "npy.gz"])
def test_mutated_bytes_in_files(tmp_path: Path, extension: str) -> None:
    points = np.random.default_rng(0).random((20, 2)) * 100
    if extension.startswith("npy"):
        stream = io.BytesIO()
        np.save(stream, points)
        good = stream.getvalue()
    elif extension.startswith("tsp"):
        good = synthetic_tsp(4).encode()
    else:
        good = "\n".join(f"{x},{y}" for x, y in points).encode()
    if extension.endswith("gz"):
        good = gzip.compress(good, mtime=0)
    path = tmp_path / f"a.{extension}"
    random_source = random.Random(5)
    outcomes = []
    for _ in range(300):
        data = bytearray(good)
        for _ in range(random_source.randint(0, 3)):
            where = random_source.randrange(len(data))
            data[where : where + random_source.choice([0, 1, 1, 9])] = random_source.randbytes(
                random_source.choice([0, 1, 1, 4])
            )
        path.write_bytes(data)
        outcomes.append(check_instance(read_instance, path))
    assert set(outcomes) == {False, True}  # the mutations are neither harmless nor always fatal


@pytest.mark.parametrize("extension", ["tour", "csv", "json"])
def test_mutated_tour_files(tmp_path: Path, extension: str) -> None:
    good = {
        "tour": format_tour(range(5)),
        "csv": "city\n0\n1\n2\n3\n4\n",
        "json": '{"tour": [0, 1, 2, 3, 4]}',
    }
    path = tmp_path / f"a.{extension}"
    random_source = random.Random(6)
    outcomes = set()
    for _ in range(400):
        path.write_text(mutated(good[extension], random_source), encoding="utf-8", newline="")
        try:
            outcomes.add(is_permutation(read_tour(path, 5), 5))
        except InputError:
            outcomes.add(None)
    assert outcomes == {True, None}


@pytest.mark.skipif(
    not os.environ.get("GEOROUTENET_TSPLIB"),
    reason="GEOROUTENET_TSPLIB does not name a folder of TSPLIB files",
)
def test_mutated_real_files() -> None:
    folder = Path(os.environ["GEOROUTENET_TSPLIB"])
    random_source = random.Random(7)
    outcomes = set()
    files = [path for path in sorted(folder.iterdir()) if path.suffix in (".tsp", ".tour")]
    for path in files:
        text = path.read_text()
        for _ in range(20 if len(text) < 20_000 else 3):
            broken = mutated(text, random_source)
            valid = check_tour_text(broken) if path.suffix == ".tour" else check_instance(parse_tsp, broken)
            outcomes.add(valid)
    assert len(files) > 100
    assert outcomes == {False, True}


def test_large_hostile_texts_are_refused() -> None:
    head = "TYPE: TSP\nEDGE_WEIGHT_TYPE: EUC_2D\nDIMENSION: 30000\nNODE_COORD_SECTION\n"
    bodies = ["1 1 1\n" * 30_000, "1 " * 90_000, "A\n" * 10**5, " " * 10**6, "\n" * 10**6, "9" * 10**6]
    for body in bodies:
        assert not check_instance(parse_tsp, head + body)
        assert not check_tour_text("TOUR_SECTION\n" + body)
        assert not check_tour_text(body)
        explicit = head.replace("EUC_2D", "EXPLICIT\nEDGE_WEIGHT_FORMAT: UPPER_ROW")
        for n in ("3000", "30000"):
            text = explicit.replace("30000", n).replace("NODE_COORD", "EDGE_WEIGHT") + body
            assert not check_instance(parse_tsp, text)
        assert not check_instance(parse_matrix_json, body)
