"""Files of results with made-up numbers."""

from __future__ import annotations

import numpy as np

from georoutenet.evaluate.results import Results, Row
from georoutenet.io.datasets import dataset
from georoutenet.io.optima import published_optima
from georoutenet.io.tsplib import tsplib_names


def header(set_name: str, **other: str) -> dict[str, str]:
    return {
        "weights": "tiny",
        "sha256": "ab" * 32,
        "encoder": "georoutenet",
        "objective": "mcs",
        "set": set_name,
        "decoder": "beam",
        "width": "1000",
        "views": "1",
        "precision": "float32",
        "device": "an abacus",
        "threads": "2",
        **other,
    }


def random_set(name: str, **other: str) -> Results:
    data = dataset(name)
    lengths = np.random.default_rng(1).uniform(1.0, 1.1, data.count)
    assert data.n is not None
    rows = [Row(f"{name}-{k}", data.n, float(x), 1.0, 0.5, 0.25) for k, x in enumerate(lengths)]
    return Results(header(name, **other), rows)


def tsplib_set(**other: str) -> Results:
    """Gaps of 1, 2, ... percent in the order of the set."""
    rows = [
        Row(name, published_optima()[name].n, 100.0 + k, 100.0)
        for k, name in enumerate(tsplib_names("tsplib36"), start=1)
    ]
    return Results(header("tsplib36", **other), rows)
