"""Bundled example instances (own data), with the best tour lengths known for them."""

from __future__ import annotations

import dataclasses
from importlib.resources import as_file, files

from georoutenet.io.files import read_instance
from georoutenet.problem.generate import uniform
from georoutenet.problem.instance import Instance

US_CAPITALS_KM = 17082.7413670339
"""Proven: the value of the integer program of the tour, with every subtour that came up cut off."""

THOUSAND_CITIES = 23.048739702429824
"""The best of five runs of LKH; not proven."""


def us_capitals() -> Instance:
    """Capitals of the 48 contiguous states of the USA, in great-circle kilometers."""
    with as_file(files(__name__).joinpath("us_capitals.csv")) as path:
        instance = read_instance(path)
    return dataclasses.replace(instance, name="US capitals", optimum=US_CAPITALS_KM)


def thousand_cities() -> Instance:
    """1,000 cities uniform in the unit square (seed 1)."""
    return Instance(uniform(1, 1000, 1)[0], name="random cities", optimum=THOUSAND_CITIES)
