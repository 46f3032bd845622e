"""Contrasts of the paper's 2x2, two encoders by two objectives, over training seeds and instances.

The primary ones, listed when the mean gaps of both seeds were known and their intervals were not: the
encoder, the objective and their interaction, with Beam-1000 and NAR4TSP's frozen statistics, on ``test50``,
``test100`` and ``tsplib36``. With ``G[e, o]`` the mean gap of encoder ``e`` (0: NAR4TSP, 1: GeoRouteNet)
under objective ``o`` (0: PG, 1: MCS), averaged over seeds, in percent:

    encoder       ((G00 - G10) + (G01 - G11)) / 2        points that the encoder takes off
    objective     ((G00 - G01) + (G10 - G11)) / 2        points that the objective takes off
    interaction   (G00 - G10) - (G01 - G11)              the encoder's gain under PG less that under MCS
    log-ratio     log G00 - log G10 - log G01 + log G11  0 where the two gains multiply

Two intervals of 95 %. *Bootstrap*: hierarchical; each resample draws instances, the same for all models, and
for each model as many of its seeds as it has. *t*: seeds alone; the variance between seeds is pooled over the
four models, which gives four degrees of freedom for two seeds. A bootstrap over two seeds is too narrow, so
where the two disagree the second counts.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from georoutenet.errors import InputError
from georoutenet.evaluate.names import METHODS, decoder_name, method_name
from georoutenet.evaluate.results import Results
from georoutenet.evaluate.statistics import LEVEL, RESAMPLES, SEED, Interval, draw_counts

Array = NDArray[np.float64]

PRIMARY = {"test50": "val50", "test100": "diag100", "tsplib36": "tsplib27"}
"""The sets of the primary contrasts, and of what set the paper's value stands beside."""
FIXED, THIRD, FOURTH = (51, 101), (105, 150), (159, 299)
"""Sizes of the paper's groups: the 13 instances of the first two are certain, of the others it took 7."""
CHOSEN = 7
FIRST_SEED = "1234"
"""Of weights whose name says none."""


def encoder(g: Array) -> Array:
    return ((g[..., 0, 0] - g[..., 1, 0]) + (g[..., 0, 1] - g[..., 1, 1])) / 2


def objective(g: Array) -> Array:
    return ((g[..., 0, 0] - g[..., 0, 1]) + (g[..., 1, 0] - g[..., 1, 1])) / 2


def interaction(g: Array) -> Array:
    return (g[..., 0, 0] - g[..., 1, 0]) - (g[..., 0, 1] - g[..., 1, 1])


class Contrast(NamedTuple):
    """A linear function of the gaps ``(..., 2, 2)``, or of their logarithms."""

    name: str
    of: Callable[[Array], Array]
    logarithms: bool = False

    def __call__(self, gaps: Array) -> Array:
        return self.of(np.log(gaps) if self.logarithms else gaps)


CONTRASTS = (
    Contrast("encoder", encoder),
    Contrast("objective", objective),
    Contrast("interaction", interaction),
    Contrast("log-ratio", interaction, logarithms=True),
)
SIMPLE = (
    Contrast("encoder under PG", lambda g: g[..., 0, 0] - g[..., 1, 0]),
    Contrast("encoder under MCS", lambda g: g[..., 0, 1] - g[..., 1, 1]),
    Contrast("objective with NAR4TSP", lambda g: g[..., 0, 0] - g[..., 0, 1]),
    Contrast("objective with GeoRouteNet", lambda g: g[..., 1, 0] - g[..., 1, 1]),
    Contrast("interaction", interaction),
)
"""The effects that the paper's text speaks of, one by one."""


@dataclass(frozen=True, eq=False)
class Runs:
    """Gaps ``(seeds, instances, 2, 2)`` of the four models on one set with one decoder."""

    instances: list[str]
    sizes: NDArray[np.int64]
    gaps: Array
    names: tuple[str, ...] = ()
    """Of the seeds."""

    @property
    def seeds(self) -> int:
        return len(self.gaps)

    def of(self, chosen: NDArray[np.bool_] | NDArray[np.int64] | slice) -> Array:
        """Mean gaps ``(seeds, 2, 2)`` over some instances."""
        return self.gaps[:, chosen].mean(axis=1)


def seeds_of(names: Sequence[str], method: str) -> list[str]:
    """Of these weights those of the paper's recipe for a model: ``paper-nar4tsp-pg``, ``...-seed2``, ..."""
    pattern = re.compile(rf"paper-{re.escape(method.lower())}(-seed(\d+))?")
    found = {name: pattern.fullmatch(name) for name in names}
    return sorted((name for name, match in found.items() if match), key=lambda name: (len(name), name))


def read_runs(complete: Sequence[tuple[str, Results]], set_name: str, decoder: str) -> Runs | None:
    """The runs of the 2x2 in these files, of the seeds that all four models have; None if there is none.

    For GeoRouteNet, which has no such norms, the words about NAR4TSP's statistics in ``decoder`` do not
    count.
    """
    plain = decoder.split(", ")[0]
    found: dict[str, dict[str, Results]] = {method: {} for method in METHODS.values()}
    for _, results in complete:
        header = results.header
        method = method_name(header)
        wanted = decoder if method.startswith("NAR4TSP") else plain
        if header["set"] == set_name and method in found and decoder_name(header) == wanted:
            found[method].setdefault(header["weights"], results)
    by_seed = [
        {
            name.rpartition("-seed")[2] if "-seed" in name else FIRST_SEED: of[name]
            for name in seeds_of(list(of), method)
        }
        for method, of in found.items()
    ]
    seeds = [seed for seed in by_seed[0] if all(seed in each for each in by_seed)]
    if not seeds:
        return None
    grid = [[each[seed] for seed in seeds] for each in by_seed]
    first = grid[0][0]
    for results in itertools.chain.from_iterable(grid):
        same = [row.instance for row in results.rows] == [row.instance for row in first.rows]
        if not same or not (results.references == first.references).all():
            raise InputError(
                f"{set_name}: results of the 2x2 are of different instances or different references"
            )
    gaps = np.stack([np.stack([each.gaps for each in seeds]) for seeds in grid], axis=-1)  # (S, N, 4)
    return Runs(
        [row.instance for row in first.rows],
        np.array([row.n for row in first.rows]),
        gaps.reshape(*gaps.shape[:2], 2, 2),
        tuple(seeds),
    )


class Estimate(NamedTuple):
    """A contrast: its value for each seed by itself, over all seeds, and its intervals."""

    seeds: list[float]
    bootstrap: Interval
    t: Interval | None
    """None with a single seed."""


def estimate(runs: Runs, contrast: Contrast) -> Estimate:
    means = runs.of(slice(None))
    value = float(over_seeds(contrast, means[None])[0])
    low, high = np.quantile(resampled(runs, contrast), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    own = [float(contrast(each)) for each in means]
    return Estimate(own, Interval(value, float(low), float(high)), _t_interval(contrast, means, value))


def over_seeds(contrast: Contrast, means: Array) -> Array:
    """The contrast of means ``(..., seeds, 2, 2)`` averaged over seeds; logarithms are averaged as such."""
    return contrast.of((np.log(means) if contrast.logarithms else means).mean(axis=-3))


def resampled(runs: Runs, contrast: Contrast) -> Array:
    """The contrast in each resample of instances and of each model's seeds."""
    seeds, count = runs.gaps.shape[:2]
    flat = runs.gaps.transpose(1, 0, 2, 3).reshape(count, -1)
    blocks = [block.astype(np.float64) @ flat for block in draw_counts(count, RESAMPLES, SEED)]
    means = np.concatenate(blocks).reshape(RESAMPLES, seeds, 4) / count
    drawn = np.random.default_rng(SEED + 1).integers(0, seeds, (RESAMPLES, seeds, 4))
    chosen = np.take_along_axis(means, drawn, axis=1)
    return over_seeds(contrast, chosen.reshape(RESAMPLES, seeds, 2, 2))


def _t_interval(contrast: Contrast, means: Array, value: float) -> Interval | None:
    seeds = len(means)
    if seeds < 2:
        return None
    weights = np.array([contrast.of(unit.reshape(2, 2)) for unit in np.eye(4)])
    pooled = (np.log(means) if contrast.logarithms else means).var(axis=0, ddof=1).mean()
    spread = np.sqrt(pooled * (weights**2).sum() / seeds)
    width = float(stats.t.ppf((1 + LEVEL) / 2, 4 * (seeds - 1)) * spread)
    return Interval(value, value - width, value + width)


def possible_lists(runs: Runs) -> Array:
    """Mean gaps ``(lists, seeds, 2, 2)`` over each list of 27 that the paper may have used."""
    sizes = runs.sizes

    def sums(low: int, high: int, count: int | None) -> Array:
        own = np.flatnonzero((sizes >= low) & (sizes <= high))
        lists = itertools.combinations(own, len(own) if count is None else count)
        return np.stack([runs.gaps[:, list(each)].sum(axis=1) for each in lists])

    fixed, third, fourth = sums(*FIXED, None), sums(*THIRD, CHOSEN), sums(*FOURTH, CHOSEN)
    total = fixed[0] + third[:, None] + fourth[None]
    certain = int(((sizes >= FIXED[0]) & (sizes <= FIXED[1])).sum())
    return total.reshape(-1, *total.shape[2:]) / (certain + 2 * CHOSEN)


def difference(a: Array, b: Array) -> Interval:
    """Mean of ``b`` less mean of ``a``, which are of thousands of different instances: a normal interval."""
    value = float(b.mean() - a.mean())
    spread = math.sqrt(a.var(ddof=1) / len(a) + b.var(ddof=1) / len(b))
    width = float(stats.norm.ppf((1 + LEVEL) / 2)) * spread
    return Interval(value, value - width, value + width)


def mean_over_seeds(gaps: Array) -> Interval:
    """The mean of gaps ``(seeds, instances)`` of one model, bootstrap over both."""
    seeds, count = gaps.shape
    blocks = [block.astype(np.float64) @ gaps.T for block in draw_counts(count, RESAMPLES, SEED)]
    means = np.concatenate(blocks) / count
    drawn = np.random.default_rng(SEED + 1).integers(0, seeds, (RESAMPLES, seeds))
    low, high = np.quantile(
        np.take_along_axis(means, drawn, axis=1).mean(axis=1), [(1 - LEVEL) / 2, (1 + LEVEL) / 2]
    )
    return Interval(float(gaps.mean()), float(low), float(high))
