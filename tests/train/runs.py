"""What the tests of whole runs share."""

from __future__ import annotations

import csv
from pathlib import Path

import torch

from georoutenet.train.checkpoint import load_checkpoint
from georoutenet.train.log import Silent
from georoutenet.train.recipe import Recipe
from georoutenet.train.trainer import Outcome, Trainer


def train(recipe: Recipe, out: Path, **options: object) -> Outcome:
    return Trainer(recipe, out, **options).run()  # type: ignore[arg-type]


def rows(out: Path) -> list[dict[str, str]]:
    with open(out / "metrics.csv", newline="") as file:
        return list(csv.DictReader(file))


def assert_same_weights(one: Path, other: Path) -> None:
    first, second = load_checkpoint(one), load_checkpoint(other)
    assert first is not None
    assert second is not None
    assert first.step == second.step
    for group, tensors in second.groups.items():
        for name, tensor in tensors.items():
            assert torch.equal(first.groups[group][name], tensor), (group, name)


class Listening(Silent):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def line(self, text: str) -> None:
        self.lines.append(text)
