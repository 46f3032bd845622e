"""One row of a bulk input: an id, and an instance or the reason why there is none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import ArrayLike

from georoutenet.errors import InputError
from georoutenet.problem.instance import DistanceRule, Instance

Id = int | str | None
MOST_CITIES = 1 << 24
"""Of an instance: a small file may unpack to more than any memory holds."""
LONGEST_ID = 256
"""Characters of an id: in NumPy's arrays each takes as much as the longest of its shard."""


@dataclass(frozen=True)
class Row:
    """What was read; ``error`` says why there is nothing to solve."""

    id: Id
    instance: Instance | None = None
    error: str = ""
    n: int = 0
    """Cities, as far as they could be counted."""

    def __post_init__(self) -> None:
        """Whoever reads, an id that is too long is left out of what is kept."""
        if isinstance(self.id, str) and len(self.id) > LONGEST_ID:
            given = f"the id {self.id[:40]!r}... has {len(self.id):,} characters; allowed: {LONGEST_ID}"
            for name, value in (("id", None), ("instance", None), ("error", given)):
                object.__setattr__(self, name, value)


def make_row(id: Any, coordinates: ArrayLike | None, *, geographic: bool = False, error: str = "") -> Row:
    """A row of coordinates, checked; bytes that are no UTF-8 make no id."""
    if isinstance(id, bytes):
        try:
            id = id.decode()
        except UnicodeDecodeError:
            error, id = f"the id is not UTF-8: {id[:80]!r}", id.decode(errors="backslashreplace")
    n = 0
    if not error and id is None:
        error = "no id: it is null"
    if not error and coordinates is None:
        error = "no cities: they are null"
    if coordinates is not None:
        n = len(coordinates)  # type: ignore[arg-type]
    if n > MOST_CITIES:
        error = error or f"more than {MOST_CITIES:,} cities"
    if error:
        return Row(id, error=error, n=n)
    rule = DistanceRule.GREAT_CIRCLE if geographic else DistanceRule.EUCLIDEAN
    try:
        return Row(id, Instance(coordinates, rule=rule), n=n)
    except InputError as problem:
        return Row(id, error=str(problem), n=n)
