"""A data set of five instances and tours of it, for tests of reference tours."""

import numpy as np

from georoutenet.evaluate.references import References
from georoutenet.io.datasets import DATASETS, Dataset, Role, digest
from georoutenet.problem.generate import uniform
from georoutenet.problem.tour import canonical, tour_lengths

COUNT, N = 5, 7


def small_set(monkeypatch):
    """The data set ``small``, known under that name while a test runs."""
    coordinates = uniform(COUNT, N, 5)
    small = Dataset("small", Role.HELD_OUT, "for tests", "uniform", COUNT, N, 5, digest(coordinates))
    monkeypatch.setitem(DATASETS, "small", small)
    return small


def some_references(data, seed=0):
    rng = np.random.default_rng(seed)
    tours = np.stack([canonical(rng.permutation(N)) for _ in range(COUNT)])
    return References(
        "small",
        tours,
        tour_lengths(data.coordinates, tours),
        np.zeros(COUNT, dtype=bool),
        [{"solver": "dice"}],
    )
