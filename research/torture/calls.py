"""Calls from Python: whatever is given, it is taken or refused."""

from __future__ import annotations

import random
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from georoutenet.problem.asymmetric import Asymmetric
from georoutenet.problem.instance import DistanceRule, Instance
from georoutenet.problem.tour import is_permutation, tour_length
from research.torture import SNIPPETS, Outcome

KIND = "inputs"

ODD: list[Any] = [
    None, True, "", "a", "x" * 300, "a\0b", "\ud800", -1, 0, 1, 2**70, 1.5, float("inf"), float("nan"),
    1j, b"x", [], [1], {}, (), object(), int, len, np.ones(2), np.float32(2), Path("none"), "beam",
    "cuda:7", "beam-3-views-2", "greedy-views-99999999999", "auto", "beam-8-views-4-merge", Fraction(1, 3),
    np.array("x"), np.datetime64("NaT"), np.ma.masked, range(3), {1}, -0.0, 1e308, np.int8(-128),
]  # fmt: skip
"""What nobody should give."""


def attack_options(source: random.Random, folder: Path) -> Outcome:
    """Options of ``solve``, one or two of them odd."""
    from georoutenet.solver.options import HELP, read_options

    given = {source.choice([*HELP, "other"]): source.choice(ODD) for _ in range(source.randint(1, 2))}
    read_options("solve", given)  # type: ignore[arg-type]
    return "accepted"


def _array(source: random.Random, *shape: int) -> Any:
    """Numbers of some shape and type, some of them odd."""
    numbers = np.random.default_rng(source.randrange(2**32))
    array: Any = numbers.normal(size=shape) * source.choice([1.0, 1e-300, 1e150, 1e300, 0.0])
    kind = source.randrange(10)
    with np.errstate(all="ignore"):
        if kind == 0:
            return array.astype(
                source.choice(["f2", "f4", "i1", "u2", "i8", "c16", "?", "S3", "U3", "M8[s]", "O"])
            )
    if kind == 1 and array.size:
        array.flat[source.randrange(array.size)] = source.choice([np.nan, np.inf, -np.inf, 1e308, -0.0])
    if kind == 2:
        array = array.tolist()
        target = array
        while isinstance(target, list) and target and isinstance(target[0], list):
            target = target[source.randrange(len(target))]
        if isinstance(target, list) and target:
            target[source.randrange(len(target))] = source.choice(ODD)
    if kind == 3:
        array = np.ma.masked_array(array, mask=source.random() < 0.5)
    if kind == 4:
        array = np.asfortranarray(array)[::-1]
    return array


def attack_arrays(source: random.Random, folder: Path) -> Outcome:
    """Coordinates, matrices, tours and columns as arrays and lists of any shape and type."""
    n = source.choice([0, 1, 2, 3, 5])
    form = source.randrange(5)
    if form == 0:
        instance = Instance(_array(source, *source.choice([(n, 2), (n, 2), (n, 3), (n,), (1, n, 2)])))
    elif form == 1:
        matrix = _array(source, *source.choice([(n, n), (n, n), (n, n + 1), (n,)]))
        with np.errstate(all="ignore"):
            if isinstance(matrix, np.ndarray) and matrix.dtype.kind in "fiu" and source.random() < 0.7:
                matrix = (
                    np.abs(matrix) + np.abs(matrix).T if matrix.ndim == 2 and n == matrix.shape[1] else matrix
                )
                if matrix.ndim == 2 and len(matrix):
                    np.fill_diagonal(matrix, 0)
        instance = Instance(matrix=matrix)
    elif form == 2:
        problem = Asymmetric(_array(source, n, n))
        order = problem.tour(np.arange(2 * problem.n))
        assert is_permutation(order, problem.n)
        instance = problem.doubled()
    elif form == 3:
        instance = Instance(
            np.eye(5, 2),
            rule=source.choice([*DistanceRule, *ODD]),
            name=source.choice(["a", "a", *ODD]),
            optimum=source.choice([None, None, 3.0, *ODD]),
            latlon=source.choice([None, None, np.eye(5, 2), *ODD]),
        )
    else:
        columns: Any = {source.choice(["id", 1, "a"]): source.choice([range(5), "abcde", [1] * 4, *ODD])}
        instance = Instance(
            np.eye(5, 2),
            columns=source.choice([columns, columns, columns, *ODD]) if source.random() < 0.3 else columns,
            id_column=source.choice([None, "id", "a", *ODD]),
        )
        instance.city(source.choice(["0", "a", "1"]))
    assert instance.n >= 1
    tour = source.choice(
        [np.arange(instance.n), range(instance.n), _array(source, instance.n), source.choice(ODD)]
    )
    assert np.isfinite(tour_length(instance, tour, closed=source.random() < 0.5))
    return "accepted"


def attack_frames(source: random.Random, folder: Path) -> Outcome:
    """Data frames of pandas, and what looks like one."""
    import pandas

    from georoutenet.solver.api import as_instance
    from georoutenet.solver.result import Result

    n = source.randint(0, 5)
    names = [
        "x",
        "y",
        "lat",
        "lon",
        "id",
        "name",
        "LAT",
        "Longitude",
        0,
        None,
        ("a", "b"),
        "z",
        "position",
        "note",
    ]
    values: list[Any] = [*SNIPPETS, *ODD, *range(5), *np.linspace(-80, 80, 9)]
    chosen = source.sample(names, source.randint(0, 4))
    chosen += source.choice([["x", "y"], ["lat", "lon"], []])
    columns = {}
    for name in chosen:
        plain = [source.uniform(-80, 80) for _ in range(n)]
        columns[name] = plain if source.random() < 0.8 else [source.choice(values) for _ in range(n)]
    index = source.choice([None, [source.choice(values[:40]) for _ in range(n)], range(10, 10 + n)])
    try:
        frame: Any = pandas.DataFrame(columns, index=index)
    except Exception:  # pandas' own refusal
        return "not a frame"
    if source.random() < 0.1:
        frame = SimpleNamespace(columns=source.choice([[], None, 3, ["x", "y"]]), __getitem__=len)
    elif source.random() < 0.2 and len(frame.columns):
        dtype = source.choice(["category", "string", "Float64", "complex128", "datetime64[ns]"])
        try:
            frame = frame.astype(dtype)
        except Exception:  # pandas' own refusal
            return "not a frame"
    instance = as_instance(frame)
    order = np.arange(instance.n)
    written = Result(instance, order, tour_length(instance, order)).to_frame()
    assert len(written) == instance.n == n
    return "accepted"
