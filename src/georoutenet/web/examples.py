"""Instances to begin with: our own, made by seed, and the lengths of their shortest tours.

Those lengths are proven by ``research/references/prove.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from georoutenet.examples import US_CAPITALS_KM, thousand_cities, us_capitals
from georoutenet.problem.generate import GENERATORS
from georoutenet.problem.instance import Instance


@dataclass(frozen=True)
class Example:
    name: str
    title: str
    cities: int
    make: Callable[[], Instance]
    optimum: float | None = None
    """The length of the shortest tour, where it is proven."""

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "title": self.title, "cities": self.cities, "optimum": self.optimum}


def _drawn(shape: str, n: int, seed: int, title: str, optimum: float | None = None) -> Example:
    name = f"{shape}-{n}"

    def make() -> Instance:
        return Instance(GENERATORS[shape](1, n, seed)[0], name=name, optimum=optimum)

    return Example(name, title, n, make, optimum)


def _unproven() -> Instance:
    """A good tour of it is known, but not that no other is shorter."""
    return thousand_cities().replaced(optimum=None)


EXAMPLES = {
    example.name: example
    for example in (
        Example("us-capitals", "Capitals of the 48 contiguous states", 48, us_capitals, US_CAPITALS_KM),
        _drawn("uniform", 50, 1, "50 random cities", 5.783220523367535),
        _drawn("uniform", 200, 1, "200 random cities", 10.459927250022433),
        _drawn("clustered", 200, 1, "200 cities in clusters", 5.971157717013748),
        _drawn("grid", 150, 1, "150 holes to drill, on a lattice", 10.346722781094954),
        _drawn("ring", 120, 1, "120 cities on a ring", 5.385406800453731),
        _drawn("explosion", 300, 1, "300 cities around a crater", 11.39317724072974),
        Example("random-1000", "1,000 random cities", 1_000, _unproven),
    )
}
