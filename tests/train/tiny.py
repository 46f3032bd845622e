"""A training run that takes a second: shared by the tests of the step, the trainer and the command."""

from __future__ import annotations

from collections.abc import Iterable

from georoutenet.train.recipe import Recipe, recipe_from_dict

SETTINGS = {
    "name": "tiny",
    "n": 6,
    "batch": 4,
    "candidates": 3,
    "learning_rate": 1e-3,
    "steps": 24,
    "epoch_steps": 8,
    "log_every": 4,
    "checkpoint_every": 5,
    "validation": "uniform",
    "validation_size": 16,
    "policy": {"hidden": 8, "heads": 2, "layers": 2, "neighbors": 3, "rbf": 4},
}


def tiny_recipe(overrides: Iterable[str] = ()) -> Recipe:
    return recipe_from_dict(SETTINGS, overrides)
