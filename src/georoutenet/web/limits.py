"""What one request may ask for, and all of them together."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from typing import Any

from georoutenet.errors import InputError, whole
from georoutenet.solver.api import available_cores


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of a server; those of searches and queue hold over all its processes."""

    cities: int = 5_000
    seconds: float = 10.0
    """Of one search, network included."""
    body_bytes: int = 2 << 20
    body_seconds: float = 10.0
    """Until a request's head and its body must have come in."""
    searches: int = 0
    """That run at a time; 0 stands for one per core."""
    queue: int = 4
    """Requests that wait for one of them to end; others are sent away with status 429."""
    workers: int = 1
    """Threads of one search at most."""
    beam_width: int = 2_000
    decoded: int = 500_000
    """Width times cities at most: no clock interrupts the decoding of one view."""
    views: int = 64
    candidates: int = 100
    edges: int = 20_000
    """Edges in an answer of scores at most."""
    connections: int = 1_000
    """Of one process; more are answered with status 503."""

    def __post_init__(self) -> None:
        for name in ("seconds", "body_seconds"):
            value = getattr(self, name)
            if not (isinstance(value, (int, float)) and 0 < value < math.inf):
                raise InputError(f"{name} must be a number of seconds above 0, got {value!r}")
        for each in fields(self):
            if each.name not in ("seconds", "body_seconds"):
                least = 0 if each.name in ("queue", "searches") else 1
                object.__setattr__(self, each.name, whole(each.name, getattr(self, each.name), least=least))
        if self.searches == 0:
            object.__setattr__(self, "searches", available_cores())

    @property
    def longest(self) -> float:
        """Seconds after which no request can still be at work but one whose client does not read: waiting in
        line, the search, and as long again for the rest."""
        return self.seconds * (self.queue / self.searches + 3) + self.body_seconds

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)
