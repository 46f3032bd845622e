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
    recipe: Annotated[Path, typer.Argument(help="A recipe file, for example recipes/laptop.toml.")],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a setting of the recipe; may be repeated."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder of the run. Default: runs/ and the recipe's name.")
    ] = None,
    max_seconds: Annotated[
        float | None, typer.Option("--max-seconds", help="Stop with a checkpoint after this many seconds.")
    ] = None,
    device: Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:N.")] = "auto",
    fresh: Annotated[
        bool,
        typer.Option("--fresh/--resume", help="Start again, or go on from the checkpoint in the folder."),
    ] = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also write TensorBoard files.")] = False,
) -> None:
    """Train a policy. The same command goes on where an interrupted run stopped."""
    from georoutenet.train.distributed import join_processes, leave_processes
    from georoutenet.train.log import PlainLines, ProgressBar, Reporter, Silent, duration
    from georoutenet.train.recipe import read_recipe
    from georoutenet.train.trainer import Trainer

    chosen = read_recipe(recipe, settings or [])
    out = out or Path("runs") / chosen.name
    processes, place = join_processes(device)
    reporter: Reporter = Silent()
    if processes.is_first:
        reporter = ProgressBar() if sys.stderr.isatty() else PlainLines()
    try:
        reporter.line(f"recipe {chosen.name}: {chosen.steps:,} steps, {chosen.objective}, into {out}")
        trainer = Trainer(
            chosen,
            out,
            device=place,
            fresh=fresh,
            reporter=reporter,
            tensorboard=tensorboard,
            processes=processes,
        )
        if trainer.step:
            reporter.line(f"resuming at step {trainer.step:,}")
        outcome = trainer.run(max_seconds=math.inf if max_seconds is None else max_seconds)
        end = "finished" if outcome.finished else "stopped (the same command goes on)"
        result = "not validated yet"
        if math.isfinite(outcome.best):
            result = f"validation {outcome.last:.5f}, best {outcome.best:.5f} in {out / 'best.safetensors'}"
        reporter.line(f"{end} at step {outcome.step:,} after {duration(outcome.seconds)}: {result}")
        leave_processes()
    finally:
        reporter.close()
    if outcome.signal is not None:
        raise typer.Exit(128 + outcome.signal)
