"""When a search ends: small objects to combine, such as ``AnyOf(MaxTime(2), NoImprovement(10_000))``."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from numbers import Real
from typing import TYPE_CHECKING, Protocol

from georoutenet.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Progress:
    """Where a search stands."""

    seconds: float
    iterations: int
    since_improvement: int
    """Iterations since the last one that made the tour shorter."""
    length: float
    lower_bound: float | None = None
    """No tour is shorter, where that is known."""
    method: str = ""
    """How the first tour was made, in the report of it."""
    current: Callable[[], NDArray[np.int64]] | None = field(default=None, repr=False, compare=False)
    """In a report: copies the best tour so far. None in a history, and where there is no tour yet."""

    def tour(self) -> NDArray[np.int64] | None:
        """The best tour so far; to be asked within the call that reports it, since the search then goes on.

        Above 10,000 cities it is the tour before the window that is being searched, or with several workers
        before their sweep, longer than ``length``.
        """
        return None if self.current is None else self.current()


@dataclass(frozen=True)
class Budget:
    """What is left; the search ends when either is used up."""

    seconds: float = math.inf
    iterations: float = math.inf


class Stop(Protocol):
    def budget(self, progress: Progress) -> Budget: ...


def _at_least_zero(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and float(value) >= 0


@dataclass(frozen=True)
class MaxTime:
    """Stop after ``seconds`` of wall-clock time."""

    seconds: float

    def __post_init__(self) -> None:
        if not _at_least_zero(self.seconds):
            raise InputError(f"MaxTime needs seconds >= 0, got {self.seconds!r}")

    def budget(self, progress: Progress) -> Budget:
        return Budget(seconds=self.seconds - progress.seconds)


@dataclass(frozen=True)
class MaxIterations:
    """Stop after ``iterations`` perturbations by all workers together; 0 stops at the first local optimum.

    On a GPU, where few instances get several walks each, so many by each walk.
    """

    iterations: int

    def __post_init__(self) -> None:
        if not _at_least_zero(self.iterations) or self.iterations % 1 != 0:
            raise InputError(f"MaxIterations needs a whole number >= 0, got {self.iterations!r}")

    def budget(self, progress: Progress) -> Budget:
        return Budget(iterations=self.iterations - progress.iterations)


@dataclass(frozen=True)
class NoImprovement:
    """Stop after ``iterations`` perturbations in a row that did not shorten the tour."""

    iterations: int

    def __post_init__(self) -> None:
        if not _at_least_zero(self.iterations) or self.iterations % 1 != 0:
            raise InputError(f"NoImprovement needs a whole number >= 0, got {self.iterations!r}")

    def budget(self, progress: Progress) -> Budget:
        return Budget(iterations=self.iterations - progress.since_improvement)


@dataclass(frozen=True)
class Gap:
    """Stop when the tour is proven to be at most ``percent`` above the shortest; needs a lower bound.

    The bound is mostly 0.7 to 1 % below the shortest tour, sometimes far more. Where the gap is never
    reached, ``solve`` ends as without a criterion; ``AnyOf(Gap(1), MaxTime(2))`` adds a limit.
    """

    percent: float

    def __post_init__(self) -> None:
        if not _at_least_zero(self.percent):
            raise InputError(f"Gap needs percent >= 0, got {self.percent!r}")

    def budget(self, progress: Progress) -> Budget:
        bound = progress.lower_bound
        met = bound is not None and progress.length <= bound * (1.0 + self.percent / 100.0)
        return Budget(seconds=0.0) if met else Budget()


@dataclass(frozen=True, init=False)
class AnyOf:
    """Stop as soon as one of several criteria is met."""

    criteria: tuple[Stop, ...]

    def __init__(self, *criteria: Stop) -> None:
        if not criteria:
            raise InputError("AnyOf needs at least one stopping criterion, got none")
        for criterion in criteria:
            if not hasattr(criterion, "budget"):
                raise InputError(f"AnyOf takes stopping criteria such as MaxTime(1.0), got {criterion!r}")
        object.__setattr__(self, "criteria", criteria)

    def budget(self, progress: Progress) -> Budget:
        budgets = [criterion.budget(progress) for criterion in self.criteria]
        return Budget(min(b.seconds for b in budgets), min(b.iterations for b in budgets))


def seconds_left(stop: Stop | None, elapsed: float) -> float:
    """What a criterion that knows the time alone leaves of it; all time where there is none."""
    return math.inf if stop is None else stop.budget(Progress(elapsed, 0, 0, math.inf)).seconds


def are_gaps(stop: Stop) -> bool:
    """Whether it is a gap, or several, and nothing else."""
    return all(map(are_gaps, stop.criteria)) if isinstance(stop, AnyOf) else isinstance(stop, Gap)
