"""Tours that are proven to be the shortest."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import georoutenet as grn
from georoutenet.problem.generate import GENERATORS
from georoutenet.problem.tour import tour_length
from georoutenet.web.examples import EXAMPLES
from research.references.prove import prove


def shortest_by_all_orders(instance: grn.Instance) -> float:
    """For a handful of cities: every tour."""
    orders = itertools.permutations(range(1, instance.n))
    return min(float(tour_length(instance, np.array([0, *order]))) for order in orders)


@pytest.mark.parametrize(("shape", "seed"), [("uniform", 0), ("clustered", 1), ("grid", 2), ("ring", 3)])
def test_the_program_finds_what_trying_all_orders_finds(shape: str, seed: int) -> None:
    instance = grn.Instance(GENERATORS[shape](1, 8, seed)[0])
    length, tour = prove(instance)
    assert length == pytest.approx(shortest_by_all_orders(instance), rel=1e-9)
    assert sorted(tour) == list(range(8))


def test_parts_that_are_cut_off_are_found() -> None:
    """Three triangles far apart: without cuts the shortest edges are three tours."""
    triangle = np.array([[0, 0], [1, 0], [0, 1.1]])
    instance = grn.Instance(np.concatenate([triangle + shift for shift in ([0, 0], [9, 0], [3, 8])]))
    assert prove(instance)[0] == pytest.approx(shortest_by_all_orders(instance), rel=1e-9)


@pytest.mark.parametrize("name", ["us-capitals", "uniform-50"])
def test_what_the_examples_say_is_proven(name: str) -> None:
    """These in seconds; the others by ``python -m research.references.prove``."""
    example = EXAMPLES[name]
    assert prove(example.make())[0] == pytest.approx(example.optimum, rel=1e-9)
