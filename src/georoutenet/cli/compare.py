"""``georoutenet compare``: two files of results, or one and its references, instance by instance."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from georoutenet.cli.screen import say

if TYPE_CHECKING:
    from georoutenet.evaluate.results import Results
    from georoutenet.evaluate.statistics import Paired


def register(app: typer.Typer) -> None:
    app.command("compare")(compare)


def compare(
    a: Annotated[Path, typer.Argument(help="Results: a file of 'georoutenet evaluate', or FILE.npz:CELL.")],
    b: Annotated[
        Path | None, typer.Argument(help="Other results on the same set; none: the best tours known.")
    ] = None,
    show: Annotated[int, typer.Option("--show", min=0, help="How many of the largest differences.")] = 5,
    plot: Annotated[
        Path | None, typer.Option("--plot", help="Draw both gaps and their differences: .png, .svg or .pdf.")
    ] = None,
    worst: Annotated[
        Path | None,
        typer.Option("--worst", help="Draw the worst instance of A, solved again, and the best tour known."),
    ] = None,
    instance: Annotated[
        str | None, typer.Option("--instance", help="For --worst: this instance rather than the worst.")
    ] = None,
    weights: Annotated[
        list[str] | None,
        typer.Option("--weights", help="For --worst: the file of A's weights, then B's, if not packaged."),
    ] = None,
) -> None:
    """Compare two results by instance: mean difference with its interval, wins, largest differences."""
    from georoutenet.evaluate.packed import read_any

    results = [read_any(path) for path in (a, b) if path is not None]
    if len(results) == 2:
        _compare(results[0], results[1], show, plot)
    elif plot is not None:
        raise typer.BadParameter("a picture of two gaps needs two files", param_hint="--plot")
    else:
        _show_worst(results[0], show)
    if worst is not None:
        from georoutenet.evaluate.worst import draw_worst

        files = [*(weights or []), None, None][: len(results)]
        name = draw_worst(results, worst, name=instance, weights=files)
        say(f"{name} drawn to {worst}")


def _show_worst(results: Results, show: int) -> None:
    """One file beside its references."""
    import numpy as np

    from georoutenet.evaluate.evaluation import summarize
    from georoutenet.evaluate.names import decoder_name
    from georoutenet.evaluate.statistics import RESAMPLES, SEED

    summary = summarize(results)
    say(f"{results.header['set']}: {len(results):,} instances")
    if summary.gap is None:
        say("mean gap unknown: the set has no reference lengths")
        return
    low, high = summary.gap.low, summary.gap.high
    how = f"95 % interval {low:.4f} to {high:.4f} (bootstrap, {RESAMPLES:,} resamples, seed {SEED})"
    title = f"{results.header['weights']} {decoder_name(results.header)}"
    say(f"mean gap {summary.gap.mean:9.4f} %  {title}, {how}")
    gaps = results.gaps
    best = int((gaps < 1e-4).sum())
    say(f"as short as the best known on {best:,}, longer on {len(gaps) - best:,}")
    for index in np.argsort(-gaps, kind="stable")[:show]:
        row = results.rows[index]
        say(f"  {row.instance:16} {gaps[index]:9.4f} %  length {row.length:,.6g}")


def _compare(first: Results, second: Results, show: int, plot: Path | None) -> None:
    from georoutenet.evaluate.names import decoder_name
    from georoutenet.evaluate.statistics import RESAMPLES, SEED, pair_results

    names, result = pair_results(first, second)
    titles = [f"{each.header['weights']} {decoder_name(each.header)}" for each in (first, second)]
    shared = (
        ""
        if len(names) == len(first) == len(second)
        else f" that both have ({len(first):,}, {len(second):,})"
    )
    say(f"{first.header['set']}: {len(names):,} instances{shared}")
    for letter, title, gaps in (("A", titles[0], result.gaps_a), ("B", titles[1], result.gaps_b)):
        say(f"{letter}  mean gap {gaps.mean():9.4f} %  {title}")
    mean = result.mean
    say(
        f"B - A  {mean.mean:+.4f} points, 95 % interval {mean.low:+.4f} to {mean.high:+.4f} "
        f"(paired bootstrap, {RESAMPLES:,} resamples, seed {SEED})"
    )
    say(f"B is shorter on {result.wins:,}, equal on {result.ties:,}, longer on {result.losses:,}")
    for index in result.largest(show):
        if result.differences[index] != 0:
            change = f"{result.gaps_a[index]:9.4f} -> {result.gaps_b[index]:9.4f} %"
            say(f"  {names[index]:16} {change}  {result.differences[index]:+.4f}")
    if plot is not None:
        _draw(result, titles, first.header["set"], plot)
        say(f"drawn to {plot}")


def _draw(result: Paired, titles: list[str], set_name: str, path: Path) -> None:
    """Gap against gap, and how the differences are spread."""
    from matplotlib.figure import Figure

    from georoutenet.plot import COLORS, GRAY, drawn, save, tidy

    figure = Figure(figsize=(10, 4.6), layout="constrained")
    figure.suptitle(drawn(set_name))
    scatter, spread = figure.subplots(1, 2)
    top = max(result.gaps_a.max(), result.gaps_b.max(), 1e-9)
    scatter.plot([0, top], [0, top], color=GRAY, linewidth=0.8)
    scatter.plot(result.gaps_a, result.gaps_b, ".", color=COLORS[0], markersize=3, alpha=0.5)
    labels = [f"gap of {letter}: {drawn(title)} (%)" for letter, title in zip("AB", titles, strict=True)]
    scatter.set(xlabel=labels[0], ylabel=labels[1], aspect="equal")
    spread.hist(result.differences, bins=min(60, max(5, len(result.differences) // 4)), color=COLORS[0])
    spread.axvline(0, color=GRAY, linewidth=0.8)
    spread.axvspan(result.mean.low, result.mean.high, color=COLORS[1], alpha=0.4, label="mean, 95 %")
    spread.set(xlabel="B - A (points)", ylabel="instances")
    spread.legend()
    for ax in (scatter, spread):
        tidy(ax)
    save(figure, path)
