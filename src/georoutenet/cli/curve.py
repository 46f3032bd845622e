"""``georoutenet curve``: learning curves of training runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from georoutenet.cli.screen import say


def register(app: typer.Typer) -> None:
    app.command("curve")(curve)


def curve(
    runs: Annotated[
        list[Path],
        typer.Argument(help="Folders of 'georoutenet train', or their metrics.csv under any name."),
    ],
    output: Annotated[Path, typer.Option("--output", help="The picture: .png, .svg or .pdf.")] = Path(
        "curve.png"
    ),
    by: Annotated[str, typer.Option("--by", help="instances, seconds or step.")] = "instances",
    stages: Annotated[
        bool, typer.Option("--stages", help="Each run went on from the one before: one curve.")
    ] = False,
    training: Annotated[
        bool, typer.Option("--training", help="Also the greedy length on the training's own batches.")
    ] = False,
    line: Annotated[
        list[float] | None, typer.Option("--line", help="A length to compare with; may be repeated.")
    ] = None,
) -> None:
    """Draw the learning curves of training runs: greedy length against instances, time or steps."""
    from functools import reduce

    from georoutenet.plot import save
    from georoutenet.train.curve import Curve, plot_curves, read_curve

    curves = [read_curve(run) for run in runs]
    if stages:
        curves = [reduce(Curve.then, curves)]
    save(plot_curves(curves, by=by, training=training, lines=line or ()), output)
    for each in curves:
        known = [length for length in each.validation if length == length]
        best = f"best validation length {min(known):.5f}" if known else "not validated yet"
        say(f"{each.name}: {each.at['step'][-1]:,.0f} steps, {best}")
    say(f"drawn to {output}")
