"""``georoutenet train``: run a recipe."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    app.command("train")(train)


def train(
    recipes: Annotated[
        list[Path],
        typer.Argument(
            metavar="RECIPE...",
            help="Packaged recipes by name (laptop, georoutenet-50, georoutenet, paper-...) or files. "
            "Several are trained side by side: on a GPU, with small batches, faster than in turn.",
        ),
    ],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a setting of the recipe; may be repeated."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="Folder of the run; of several, each has a folder in it with the recipe's name. Default: "
            "runs/ and the recipe's name.",
        ),
    ] = None,
    max_seconds: Annotated[
        float | None,
        typer.Option("--max-seconds", min=0.0, help="Stop with a checkpoint after this many seconds."),
    ] = None,
    device: Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:N.")] = "auto",
    fresh: Annotated[
        bool,
        typer.Option("--fresh/--resume", help="Start again, or go on from the checkpoint in the folder."),
    ] = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also write TensorBoard files.")] = False,
) -> None:
    """Train a policy. The same command goes on where an interrupted run stopped."""
    from georoutenet.errors import InputError
    from georoutenet.train.distributed import join_processes, leave_processes
    from georoutenet.train.log import Named, PlainLines, ProgressBar, Reporter, Silent, duration
    from georoutenet.train.recipe import read_recipe
    from georoutenet.train.trainer import Trainer, run_together

    chosen = [read_recipe(path, settings or []) for path in recipes]
    names = [recipe.name for recipe in chosen]
    if len(set(names)) < len(names):
        raise InputError(f"recipes trained side by side need names of their own, got {', '.join(names)}")
    folder = out or Path("runs")
    folders = [out if out is not None and len(chosen) == 1 else folder / name for name in names]
    processes, place = join_processes(device)
    if processes.count > 1 and len(chosen) > 1:
        raise InputError("several recipes side by side need a single process")
    reporter: Reporter = Silent()
    if processes.is_first:
        reporter = ProgressBar() if sys.stderr.isatty() and len(chosen) == 1 else PlainLines()
    reporters = [Named(reporter, name) if len(chosen) > 1 else reporter for name in names]
    try:
        trainers = []
        for recipe, place_of, lines in zip(chosen, folders, reporters, strict=True):
            lines.line(f"recipe {recipe.name}: {recipe.steps:,} steps, {recipe.objective}, into {place_of}")
            trainer = Trainer(
                recipe,
                place_of,
                device=place,
                fresh=fresh,
                reporter=lines,
                tensorboard=tensorboard,
                processes=processes,
            )
            if trainer.step:
                lines.line(f"resuming at step {trainer.step:,}")
            trainers.append(trainer)
        outcomes = run_together(trainers, max_seconds=math.inf if max_seconds is None else max_seconds)
        for outcome, place_of, lines in zip(outcomes, folders, reporters, strict=True):
            end = "finished" if outcome.finished else "stopped (the same command goes on)"
            result = "not validated yet"
            if (place_of / "last.safetensors").is_file():
                result += f", weights in {place_of / 'last.safetensors'}"
            if math.isfinite(outcome.best):
                best = place_of / "best.safetensors"
                last = f"validation {outcome.last:.5f}, " if math.isfinite(outcome.last) else ""
                result = f"{last}best {outcome.best:.5f} in {best}"
            lines.line(f"{end} at step {outcome.step:,} after {duration(outcome.seconds)}: {result}")
        leave_processes()
    finally:
        reporter.close()
    signals = [outcome.signal for outcome in outcomes if outcome.signal is not None]
    if signals:
        raise typer.Exit(128 + signals[0])
