"""Distances that differ by direction: one-way streets, slopes, wind."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from georoutenet.problem.arrays import Numbers
from georoutenet.problem.instance import Instance
from georoutenet.problem.matrix import directed_matrix
from georoutenet.problem.tour import Tour, check_tour


class Asymmetric:
    """A problem whose matrix may be asymmetric: ``matrix[i, j]`` is the way from city i to city j.

    >>> problem = Asymmetric([[0, 1, 9], [9, 0, 1], [1, 9, 0]])
    >>> instance = problem.doubled()  # to be solved
    >>> problem.tour([0, 3, 2, 5, 1, 4])
    array([0, 1, 2])
    """

    def __init__(self, matrix: Numbers, name: str = "instance") -> None:
        self.matrix, self.is_integer = directed_matrix(matrix)
        self.name = name

    @property
    def n(self) -> int:
        return len(self.matrix)

    def doubled(self) -> Instance:
        """The symmetric instance of 2n cities whose tours are those of this problem (Jonker and Volgenant).

        City i becomes two, i and n + i, at distance zero. One arrives at n + i and leaves from i, so the way
        from i to j is the edge from i to n + j. Every such edge costs ``bonus`` more than the way, and edges
        between two of the same kind cost twice the bonus. It exceeds every tour, so none that parts a city
        from its double is shorter than one that does not: closed tours are n times the bonus longer here.
        """
        n, bonus = self.n, self.bonus
        matrix = np.full((2 * n, 2 * n), 2.0 * bonus)
        matrix[:n, n:] = self.matrix + bonus
        np.fill_diagonal(matrix[:n, n:], 0.0)
        matrix[n:, :n] = matrix[:n, n:].T
        return Instance(name=self.name, matrix=matrix.astype(np.int64) if self.is_integer else matrix)

    @property
    def bonus(self) -> float:
        return float(np.ceil(self.matrix.max(axis=1).sum())) + 1.0

    def tour(self, doubled: ArrayLike) -> Tour:
        """The order in which a closed tour through the doubled cities leaves the cities.

        The tour may be read either way around: the shorter is taken.
        """
        order = check_tour(doubled, 2 * self.n)
        forward = order[order < self.n]
        return min(forward, forward[::-1].copy(), key=self.length)

    def length(self, tour: ArrayLike) -> Any:
        """Length of a closed tour in the direction in which it is given."""
        cities = check_tour(tour, self.n)
        length = self.matrix[cities, np.roll(cities, -1)].sum().item()
        return int(length) if self.is_integer else length
