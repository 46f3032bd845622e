"""The published optimal tour lengths of TSPLIB's instances up to 5,934 cities."""

from __future__ import annotations

import csv
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from georoutenet.problem.instance import DistanceRule


class PublishedOptimum(NamedTuple):
    name: str
    n: int
    rule: DistanceRule
    optimum: int


@cache
def published_optima() -> dict[str, PublishedOptimum]:
    """The packaged table by instance name, in order of size."""
    text = files("georoutenet.io").joinpath("tsplib_optima.csv").read_text(encoding="utf-8")
    return {
        row["name"]: PublishedOptimum(
            row["name"], int(row["n"]), DistanceRule(row["rule"]), int(row["optimum"])
        )
        for row in csv.DictReader(text.splitlines())
    }


def known_optimum(name: str, n: int, rule: DistanceRule) -> int | None:
    """The published optimum when name, number of cities and rule all agree with the table, else None."""
    entry = published_optima().get(name)
    return entry.optimum if entry is not None and (entry.n, entry.rule) == (n, rule) else None
