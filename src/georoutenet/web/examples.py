"""Instances to begin with: our own, made by seed, and what is known of their shortest tours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from georoutenet.errors import InputError
from georoutenet.examples import thousand_cities, us_capitals
from georoutenet.problem.generate import GENERATORS
from georoutenet.problem.instance import Instance


@dataclass(frozen=True)
class Example:
    name: str
    title: str
    cities: int
    make: Callable[[], Instance]


def _drawn(shape: str, n: int, seed: int, title: str, optimum: float | None = None) -> Example:
    name = f"{shape}-{n}"

    def make() -> Instance:
        return Instance(GENERATORS[shape](1, n, seed)[0], name=name, optimum=optimum)

    return Example(name, title, n, make)


EXAMPLES = {
    example.name: example
    for example in (
        Example("us-capitals", "Capitals of the 48 contiguous states", 48, us_capitals),
        _drawn("uniform", 50, 1, "50 random cities"),
        _drawn("uniform", 200, 1, "200 random cities"),
        _drawn("clustered", 200, 1, "200 cities in clusters"),
        _drawn("grid", 150, 1, "150 holes to drill, on a lattice"),
        _drawn("ring", 120, 1, "120 cities on a ring"),
        _drawn("explosion", 300, 1, "300 cities around a crater"),
        Example("random-1000", "1,000 random cities", 1_000, thousand_cities),
    )
}


@cache
def example(name: str) -> Instance:
    """The instance of that name."""
    if name not in EXAMPLES:
        raise InputError(f"there is no example {name[:40]!r}; examples: {', '.join(EXAMPLES)}")
    return EXAMPLES[name].make()
