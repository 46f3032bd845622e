"""Which settings vary over a run: learning rate, entropy coefficient, and the kind of the next batch."""

from __future__ import annotations

import math
from bisect import bisect
from itertools import accumulate

from georoutenet.train.objectives import entropy_coefficient
from georoutenet.train.recipe import Recipe

_MASK = (1 << 64) - 1


def learning_rate(recipe: Recipe, step: int, seconds: float) -> float:
    """The learning rate of optimizer step ``step``, ``seconds`` of training into the run."""
    if recipe.schedule_by == "steps":
        rise, progress = (step + 1) / recipe.steps, step / recipe.steps
    else:
        rise = progress = min(seconds / recipe.budget_seconds, 1.0)
    rate = recipe.learning_rate
    if rise < recipe.warmup:
        return rate * max(rise / recipe.warmup, 1e-3)
    if recipe.schedule == "constant":
        return rate
    after = max(progress - recipe.warmup, 0.0) / (1 - recipe.warmup)
    return rate * (recipe.final_rate + (1 - recipe.final_rate) * 0.5 * (1 + math.cos(math.pi * after)))


def entropy_weight(recipe: Recipe, step: int, seconds: float) -> float:
    """The entropy coefficient of optimizer step ``step`` (Eq. entropy_schedule), or by seconds."""
    ends = {"first": recipe.entropy_first, "last": recipe.entropy_last}
    if recipe.schedule_by == "steps":
        return entropy_coefficient(float(step), recipe.steps, **ends)
    return entropy_coefficient(min(seconds / recipe.budget_seconds, 1.0), 2, **ends)


def batch_kind(recipe: Recipe, step: int) -> int:
    """Which of ``recipe.batches()`` step ``step`` draws: a function of (seed, step) alone."""
    kinds = recipe.batches()
    if len(kinds) == 1:
        return 0
    x = (recipe.seed * 0x9E3779B97F4A7C15 + step + 1) & _MASK
    for multiplier in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB):  # SplitMix64's, with shifts of 29 bits
        x = ((x ^ (x >> 29)) * multiplier) & _MASK
    bounds = list(accumulate(kind.weight for kind in kinds))
    return min(bisect(bounds, (x >> 11) / 2**53 * bounds[-1]), len(kinds) - 1)
