"""Means with bootstrap intervals, and differences paired by instance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from georoutenet.errors import InputError
from georoutenet.evaluate.results import Results
from georoutenet.problem.tour import gap

RESAMPLES = 2_000
SEED = 0
LEVEL = 0.95
TIE = 1e-6
"""Relative difference below which two tours count as equally long."""


@dataclass(frozen=True)
class Interval:
    """A mean and its bootstrap interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.3f} ({self.low:.3f} to {self.high:.3f})"


def bootstrap_mean(
    values: ArrayLike, *, resamples: int = RESAMPLES, seed: int = SEED, level: float = LEVEL
) -> Interval:
    """The mean and its percentile bootstrap interval over ``resamples`` draws with replacement.

    The interval says how far the mean would move with other instances of the same kind. It says nothing
    about other training runs.
    """
    sample = np.asarray(values, dtype=np.float64)
    if sample.ndim != 1 or len(sample) == 0 or not np.isfinite(sample).all():
        raise InputError(f"a bootstrap needs a list of finite numbers, got {sample.size} of {sample.shape}")
    if resamples < 1 or not 0 < level < 1:
        raise InputError(f"resamples must be >= 1 and 0 < level < 1, got {resamples} and {level}")
    return _interval(sample, bootstrap_means(sample, resamples, seed), level)


def bootstrap_all(samples: Sequence[NDArray[np.float64]]) -> list[Interval]:
    """``bootstrap_mean`` of each, much faster for many of one size."""
    found: dict[int, Interval] = {}
    for size in {len(sample) for sample in samples}:
        own = [k for k, sample in enumerate(samples) if len(sample) == size]
        means = bootstrap_means(np.stack([samples[k] for k in own], axis=1), RESAMPLES, SEED)
        found |= {k: _interval(samples[k], means[:, column], LEVEL) for column, k in enumerate(own)}
    return [found[k] for k in range(len(samples))]


def _interval(sample: NDArray[np.float64], means: NDArray[np.float64], level: float) -> Interval:
    tail = (1 - level) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return Interval(float(sample.mean()), float(low), float(high))


def bootstrap_means(sample: NDArray[np.float64], resamples: int, seed: int) -> NDArray[np.float64]:
    """The mean of each resample; of a sample ``(size, columns)`` those of each column."""
    counts = draw_counts(len(sample), resamples, seed)
    return np.concatenate([block.astype(np.float64) @ sample for block in counts]) / len(sample)


@lru_cache(maxsize=4)
def draw_counts(size: int, resamples: int, seed: int) -> list[NDArray[np.uint16]]:
    """How often each resample holds each position, in blocks; the same for all samples of a size."""
    generator = np.random.default_rng(seed)
    rows = [
        np.bincount(generator.integers(0, size, size), minlength=size).astype(np.uint16)
        for _ in range(resamples)
    ]
    return [np.stack(rows[first : first + 50]) for first in range(0, resamples, 50)]


@dataclass(frozen=True, eq=False)
class Paired:
    """Gaps of ``a`` and ``b`` on the same instances, in percent; negative differences favor ``b``."""

    gaps_a: NDArray[np.float64]
    gaps_b: NDArray[np.float64]
    mean: Interval
    """Of the differences, in percentage points."""
    wins: int
    """Instances on which ``b`` is shorter."""
    ties: int
    losses: int

    @property
    def differences(self) -> NDArray[np.float64]:
        return self.gaps_b - self.gaps_a

    def largest(self, count: int) -> list[int]:
        """Positions of the largest differences in either direction, largest first."""
        return [int(i) for i in np.argsort(-np.abs(self.differences), kind="stable")[:count]]


def paired(a: ArrayLike, b: ArrayLike, reference: ArrayLike) -> Paired:
    """Compare lengths ``a`` and ``b`` of the same instances; lengths within ``TIE`` of each other tie."""
    first, second, base = (np.asarray(x, dtype=np.float64) for x in (a, b, reference))
    if not first.shape == second.shape == base.shape or first.ndim != 1:
        shapes = f"{first.shape}, {second.shape}, {base.shape}"
        raise InputError(f"paired lengths and references must be lists of one length, got {shapes}")
    if not (base > 0).all():
        raise InputError("paired gaps need references greater than 0")
    tie = np.abs(second - first) <= TIE * base
    wins, ties = int((~tie & (second < first)).sum()), int(tie.sum())
    gaps_a, gaps_b = gap(first, base), gap(second, base)
    return Paired(gaps_a, gaps_b, bootstrap_mean(gaps_b - gaps_a), wins, ties, len(first) - wins - ties)


def pair_results(a: Results, b: Results) -> tuple[list[str], Paired]:
    """The instances that both results have, and their comparison; results of different sets are an error."""
    sets = [each.header.get("set", "?") for each in (a, b)]
    if sets[0] != sets[1]:
        raise InputError(f"results of different sets cannot be compared: {sets[0]} and {sets[1]}")
    other = {row.instance: row for row in b.rows}
    pairs = [(row, other[row.instance]) for row in a.rows if row.instance in other]
    if not pairs:
        raise InputError(f"the two results of {sets[0]} have no instance in common")
    for one, two in pairs:
        if one.reference != two.reference:
            references = f"{one.reference} and {two.reference}"
            raise InputError(
                f"the two results measure {one.instance} against different lengths: {references}"
            )
    lengths = ([one.length for one, _ in pairs], [two.length for _, two in pairs])
    return [one.instance for one, _ in pairs], paired(*lengths, [one.reference for one, _ in pairs])
