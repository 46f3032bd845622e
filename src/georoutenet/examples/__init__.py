"""Bundled example instances (own data), with the best tour lengths known for them."""

from __future__ import annotations

import dataclasses
import re
from importlib.resources import as_file, files

import numpy as np
from numpy.typing import NDArray

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


def us_outline() -> NDArray[np.float64]:
    """The contiguous United States, coarse: a closed line ``(m, 2)`` of degrees, latitude first.

    Thinned by us from the Census Bureau's cartographic boundaries of 2017, a work of the US government in the
    public domain. The page of ``georoutenet serve`` draws the same line; its file says how it is written.
    """
    text = files("georoutenet").joinpath("web/static/outline.js").read_text(encoding="utf-8")
    written = re.search("const STEPS = `(.*?)(?<!\\\\)`;", text, re.DOTALL)
    begin = re.search(r"\[longitude, latitude\] = \[(-?\d+), (-?\d+)\]", text)
    assert written is not None
    assert begin is not None
    digits = re.sub(r"\\(.)", r"\1", written[1].replace("\n", "")).encode("ascii")
    steps = (np.frombuffer(digits, dtype=np.uint8).astype(np.int64) - 35).reshape(-1, 2, 2) @ (80, 1) - 3200
    places = np.cumsum([[int(begin[1]), int(begin[2])], *steps.tolist()], axis=0) / 100
    return np.concatenate([places, places[:1]])[:, ::-1]


def thousand_cities() -> Instance:
    """1,000 cities uniform in the unit square (seed 1)."""
    return Instance(uniform(1, 1000, 1)[0], name="random cities", optimum=THOUSAND_CITIES)
