"""What is no name of a file, where one is meant, is an error of ours that says what was given."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import georoutenet as grn
from georoutenet.errors import InputError, path_name

CITIES = grn.Instance(np.random.default_rng(0).random((6, 2)))


class Calls:
    read_instance = staticmethod(grn.read_instance)
    load_policy = staticmethod(grn.load_policy)

    @staticmethod
    def read_tour(name: Any) -> object:
        return grn.read_tour(name, 6)

    @staticmethod
    def write_instance(name: Any) -> object:
        return grn.write_instance(name, CITIES)

    @staticmethod
    def write_tour(name: Any) -> object:
        return grn.write_tour(name, range(6), CITIES)

    @staticmethod
    def save(name: Any) -> object:
        return grn.solve(CITIES, seed=1).save(name)

    @staticmethod
    def plot(name: Any) -> object:
        return grn.solve(CITIES, seed=1).plot(name)

    @staticmethod
    def bulk_input(name: Any) -> object:
        return grn.solve_bulk(name, "out")

    @staticmethod
    def bulk_output(name: Any) -> object:
        return grn.solve_bulk("in.npy", name)


@pytest.mark.parametrize("call", [getattr(Calls, name) for name in vars(Calls) if name[0] != "_"])
def test_what_is_no_name(call: Callable[[Any], object]) -> None:
    for given, kind in ((5, "int"), (CITIES.coordinates, "ndarray"), (b"cities.csv", "bytes")):
        with pytest.raises(InputError, match=f"a file's name is needed, text or a Path, got {kind}"):
            call(given)


def test_names() -> None:
    assert path_name("a/b.csv") == path_name(Path("a", "b.csv")) == "a/b.csv"


def test_lengths_that_are_none() -> None:
    with pytest.raises(InputError, match="gap takes lengths"):
        grn.gap("long", 1.0)  # type: ignore[call-overload]
