"""Paths as tours: fixed ends and open paths in terms of the closed tour that the kernels know.

- A closed tour from a fixed start is any closed tour, begun there.
- Two fixed ends are neighbors in a closed tour whose edge between them may not be taken out. Whether that
  edge counts is all that differs between a closed tour and an open path.
- An open path with a free end is a closed tour through one more city, at distance zero from all others;
  a fixed start is then a fixed edge from that city to it.

The kernels find the cities concerned at the end of their arrays: the fixed edge is that of the last two.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

import numpy as np
from numpy.typing import NDArray

from georoutenet.errors import InputError
from georoutenet.problem.instance import Instance
from georoutenet.problem.tour import Tour, tour_length

Lists = NDArray[np.int32]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Ends:
    """Where tours of ``n`` cities begin and end, and whether the way back counts."""

    n: int
    _: KW_ONLY
    start: int | None = None
    end: int | None = None
    closed: bool = True

    def __post_init__(self) -> None:
        for name, city in (("start", self.start), ("end", self.end)):
            if city is None:
                continue
            if isinstance(city, bool) or int(city) != city or not 0 <= city < self.n:
                raise InputError(f"{name} must be a city in 0..{self.n - 1}, got {city!r}")
        if self.start is not None and self.start == self.end and self.n > 1:
            raise InputError(f"start and end are the same city {self.start}; a tour visits each city once")

    @property
    def is_path(self) -> bool:
        """Whether the search has to know of ends: not for a closed tour that merely begins somewhere."""
        return not self.closed or (self.start is not None and self.end is not None)

    @property
    def _first(self) -> int | None:
        """The one fixed end where there is but one: a path from its end is a path to its start."""
        return self.end if self.start is None else self.start

    def arrange(self, instance: Instance, tour: Tour) -> Tour:
        """The tour itself where it begins and ends as it should, else one near it that does.

        Up to three cities it is the shortest such tour.
        """
        if self.n <= 3:
            return self._shortest(instance)
        if self.fits(tour):
            return tour
        if self.start is not None and self.end is not None:
            tour = np.roll(tour, -int(np.flatnonzero(tour == self.start)[0]))
            return np.append(tour[tour != self.end], self.end)
        first = self._first
        assert first is not None
        forward = np.roll(tour, -int(np.flatnonzero(tour == first)[0]))
        backward = np.append(forward[:1], forward[:0:-1])
        if not self.closed and instance.distance(first, backward[-1]) > instance.distance(first, forward[-1]):
            forward = backward  # leaves out the longer of the two edges
        return forward if self.end is None else forward[::-1].copy()

    def cut(self, instance: Instance, tour: Tour) -> Tour:
        """A good closed tour as a good path: where neither end is fixed, without its longest edge."""
        if not self.closed and self._first is None and self.n > 3:
            return np.roll(tour, -1 - int(np.argmax(instance.distance(tour, np.roll(tour, -1)))))
        return self.arrange(instance, tour)

    def fits(self, tour: Sequence[int] | Tour) -> bool:
        """Whether a tour begins and ends as it should."""
        return self.start in (None, tour[0]) and self.end in (None, tour[-1])

    def _shortest(self, instance: Instance) -> Tour:
        tours = (np.array(order) for order in itertools.permutations(range(self.n)))
        allowed = [tour for tour in tours if self.n == 1 or self.fits(tour)]
        return min(allowed, key=lambda tour: tour_length(instance, tour, closed=self.closed))

    def as_cycle(
        self, x: Floats, y: Floats, neighbors: Lists, tour: Tour
    ) -> tuple[int, int, Floats, Floats, Lists, Tour]:
        """The closed tour to search: a flag for its rule, how many of its last cities the fixed edge or the
        free city take, coordinates (``x`` alone where it is a matrix), neighbor lists, tour."""
        from georoutenet.search.distances import FREE

        if not self.is_path:
            return 0, 0, x, y, neighbors, tour
        flag = 0
        if self.start is None or self.end is None:
            flag = FREE
            neighbors = _with_free_city(neighbors, tour)
            x, y, tour = _with_one_more(x), _with_one_more(y), np.append(tour, self.n)
        order = self.order(len(x))
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        special = 1 if self._first is None else 2
        lists = place[neighbors[order]].astype(np.int32)
        return flag, special, _reordered(x, order), _reordered(y, order), lists, place[tour]

    def from_cycle(self, found: Tour) -> Tour:
        """The tour that a closed tour in the kernels' numbers stands for."""
        if not self.is_path:
            if self._first is None:
                return found
            tour = np.roll(found, -int(np.flatnonzero(found == self._first)[0]))
            return tour if self.end is None else np.append(tour[1:], tour[:1])
        both = self.start is not None and self.end is not None
        tour = self.order(len(found))[found]
        begin = self.start if both else self.n
        tour = np.roll(tour, -int(np.flatnonzero(tour == begin)[0]))
        if both:
            return tour if tour[-1] == self.end else np.append(tour[:1], tour[:0:-1])
        tour = tour[1:]  # without the free city
        return tour if self.fits(tour) else tour[::-1].copy()

    def order(self, count: int) -> Tour:
        """The cities in the kernels' order."""
        if self.start is not None and self.end is not None:
            last = [self.end, self.start]
        else:
            last = [city for city in (self._first, self.n) if city is not None]
        cities = np.arange(count)
        return np.append(cities[~np.isin(cities, last)], last).astype(np.int64)


def _with_one_more(values: Floats) -> Floats:
    """Coordinates or a matrix with an entry for one more city, which means nothing."""
    if values.ndim == 2:
        return np.pad(values, (0, 1))
    return np.append(values, values[:1])


def _reordered(values: Floats, order: Tour) -> Floats:
    if values.ndim == 2:
        return values[np.ix_(order, order)]
    return values[order] if values.size else values


def _with_free_city(neighbors: Lists, tour: Tour) -> Lists:
    """Every city's list with the free city in front; its own are spread over the tour.

    It is at distance zero from all, so nobody's list would be complete without it, and its own could never
    be; moves that join it to a city are found from that city.
    """
    n, width = neighbors.shape
    lists = np.empty((n + 1, width + 1), dtype=np.int32)
    lists[:n, 0], lists[:n, 1:] = n, neighbors
    lists[n] = tour[np.linspace(0, n - 1, width + 1).astype(np.int64)]
    return lists
