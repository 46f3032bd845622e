from __future__ import annotations

from itertools import pairwise

import pytest

from georoutenet.train.recipe import Batch, Recipe
from georoutenet.train.schedule import batch_kind, entropy_weight, learning_rate


def test_constant_rate_is_the_papers() -> None:
    recipe = Recipe(steps=10)
    assert [learning_rate(recipe, step, 0.0) for step in range(10)] == [1e-4] * 10


def test_cosine_with_warmup() -> None:
    recipe = Recipe(steps=100, learning_rate=1.0, schedule="cosine", warmup=0.1, final_rate=0.2)
    rates = [learning_rate(recipe, step, 0.0) for step in range(101)]
    assert rates[:9] == pytest.approx([(step + 1) / 10 for step in range(9)])
    assert rates[10] == pytest.approx(1.0)
    assert rates[55] == pytest.approx(0.6)  # half way down from 1 to 0.2
    assert rates[100] == pytest.approx(0.2)
    assert all(later < earlier for earlier, later in pairwise(rates[10:]))


def test_schedules_by_seconds_ignore_the_step() -> None:
    recipe = Recipe(
        learning_rate=1.0, schedule="cosine", schedule_by="seconds", budget_seconds=50.0, entropy_first=0.5
    )
    assert learning_rate(recipe, 999, 0.0) == 1.0
    assert learning_rate(recipe, 0, 25.0) == pytest.approx(0.5)
    assert learning_rate(recipe, 0, 80.0) == pytest.approx(0.0, abs=1e-12)
    assert entropy_weight(recipe, 0, 25.0) == pytest.approx(0.25)
    assert entropy_weight(recipe, 0, 80.0) == 0.0


def test_entropy_reaches_its_end_at_the_last_step() -> None:
    recipe = Recipe(steps=5, entropy_first=0.4, entropy_last=0.0)
    assert [entropy_weight(recipe, step, 0.0) for step in range(5)] == pytest.approx(
        [0.4, 0.3, 0.2, 0.1, 0.0]
    )


def test_mixed_batches_follow_their_weights_and_the_seed() -> None:
    kinds = (Batch(n=10, weight=1), Batch(n=20, weight=3))
    recipe = Recipe(mix=kinds)
    drawn = [batch_kind(recipe, step) for step in range(4000)]
    assert drawn == [batch_kind(recipe, step) for step in range(4000)]
    assert 0.72 < sum(drawn) / 4000 < 0.78
    assert drawn != [batch_kind(Recipe(mix=kinds, seed=1), step) for step in range(4000)]
    assert batch_kind(Recipe(), 7) == 0
