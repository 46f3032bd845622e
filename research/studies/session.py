"""Train runs side by side until they are done or time is up.

Started as a program by `research.studies.run` where a study names sources of its own (an older version whose
kernels the present one does not have), so it uses nothing of the package but the trainer, as it is in both.
"""

from __future__ import annotations

import argparse
import csv
import gc
import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch

import georoutenet
from georoutenet.train.recipe import read_recipe
from georoutenet.train.trainer import Trainer, run_together

BATCH_OF_STATISTICS = 128
"""Instances that share statistics, as in ``georoutenet evaluate``."""


class Lines:
    """One line for everything a run says, under its name; progress only so often."""

    def __init__(self, name: str, every: int = 10) -> None:
        self.name, self.every, self.calls = name, every, 0

    def line(self, text: str) -> None:
        print(f"{self.name}: {text}", file=sys.stderr, flush=True)

    def progress(self, step: int, share: float, text: str) -> None:
        self.calls += 1
        if "validation" in text or self.calls % self.every == 1:
            self.line(f"step {step:,} ({100 * share:.0f} %)  {text}")

    def close(self) -> None:
        pass


class BothStatistics:
    """Validates NAR4TSP under both statistics: the frozen ones count, those of the batch are written beside
    them to ``validation.csv``."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer, self.path = trainer, trainer.out / "validation.csv"
        validate: Any = trainer.validate  # a partial function with batches of another size
        self.frozen, self.of_batch = validate, partial(validate, batch=BATCH_OF_STATISTICS)

    def __call__(self, policy: Any) -> float:
        frozen = self.frozen(policy)
        policy.statistics = "batch"
        try:
            self._append(self.trainer.step, frozen, self.of_batch(policy))
        finally:
            policy.statistics = "frozen"
        return frozen

    def _append(self, step: int, frozen: float, batch: float) -> None:
        rows: list[list[str]] = []
        if self.path.exists():
            with open(self.path, newline="", encoding="utf-8") as file:
                rows = [row for row in list(csv.reader(file))[1:] if int(row[0]) < step]
        temporary = self.path.with_suffix(".tmp")
        with open(temporary, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(("step", "frozen", "batch"))
            writer.writerows([*rows, [str(step), f"{frozen:.6f}", f"{batch:.6f}"]])
        os.replace(temporary, self.path)


def train(files: list[Path], *, seconds: float, device: str) -> list[bool]:
    """Train the recipes in these files, each in the folder that its file lies in; which are finished."""
    trainers = []
    print(f"package in {Path(georoutenet.__file__).parent}", file=sys.stderr, flush=True)
    for file in files:
        recipe = read_recipe(file)
        trainer = Trainer(recipe, file.parent, device=device, reporter=Lines(recipe.name))
        if recipe.policy.encoder == "nar4tsp":
            trainer.validate = BothStatistics(trainer)
        if trainer.step:
            trainer.reporter.line(f"resuming at step {trainer.step:,}")
        trainers.append(trainer)
    outcomes = run_together(trainers, max_seconds=seconds)
    for trainer, outcome in zip(trainers, outcomes, strict=True):
        state = "finished" if outcome.finished else "stopped"
        trainer.reporter.line(f"{state} at step {outcome.step:,}, best {outcome.best:.5f}")
    finished = [outcome.finished for outcome in outcomes]
    del trainers, trainer
    forget(device)
    return finished


def forget(device: str) -> None:
    """Give back what runs held: graphs, compiled functions, memory."""
    gc.collect()
    if device.startswith("cuda"):
        torch._dynamo.reset()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def main() -> None:
    parser = argparse.ArgumentParser(description="Train recipes side by side, each in its file's folder.")
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--until", type=float, required=True, help="time.time() at the end of training")
    parser.add_argument("--device", required=True)
    options = parser.parse_args()
    # What was imported until now took its time, too.
    train(options.files, seconds=options.until - time.time(), device=options.device)


if __name__ == "__main__":
    main()
