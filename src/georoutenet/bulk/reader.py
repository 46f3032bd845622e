"""What the readers of all kinds of files share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from georoutenet.bulk.arrow import Columns
from georoutenet.bulk.rows import Row

STRIDE = 1_000
"""Where one row is one city, the place of every so many-th instance is remembered."""


@dataclass(frozen=True)
class Scan:
    """What one file holds."""

    count: int
    """Instances."""
    columns: Columns
    schema: list[str]
    """The columns that are read, for people."""
    index: list[list[int]] = field(default_factory=list)
    """Where every ``STRIDE``-th instance begins."""
    cities: int | None = None


class Reader(Protocol):
    """Instances of one file; cheapest when asked for in order."""

    def read(self, first: int, stop: int) -> Iterator[Row]: ...

    def close(self) -> None: ...


def starting_at(index: list[list[int]], first: int) -> tuple[list[int], int]:
    """The last place in the index that is not behind an instance, and how many lie between."""
    return index[first // STRIDE], first % STRIDE
