"""``georoutenet compare``: two files of results, instance by instance."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from georoutenet.evaluate.statistics import Paired


def register(app: typer.Typer) -> None:
    app.command("compare")(compare)


def compare(
    a: Annotated[Path, typer.Argument(help="Results of 'georoutenet evaluate'.")],
    b: Annotated[Path, typer.Argument(help="Other results on the same set.")],
    show: Annotated[int, typer.Option("--show", min=0, help="How many of the largest differences.")] = 5,
    plot: Annotated[
        Path | None, typer.Option("--plot", help="Draw both gaps and their differences: .png, .svg or .pdf.")
    ] = None,
) -> None:
    """Compare two results by instance: mean difference with its interval, wins, largest differences."""
    from georoutenet.evaluate.results import read_results
    from georoutenet.evaluate.statistics import RESAMPLES, SEED, pair_results
    from georoutenet.evaluate.tables import decoder_name

    first, second = read_results(a), read_results(b)
    names, result = pair_results(first, second)
    titles = [f"{each.header['weights']} {decoder_name(each.header)}" for each in (first, second)]
    shared = (
        ""
        if len(names) == len(first) == len(second)
        else f" that both have ({len(first):,}, {len(second):,})"
    )
    typer.echo(f"{first.header['set']}: {len(names):,} instances{shared}")
    for letter, title, gaps in (("A", titles[0], result.gaps_a), ("B", titles[1], result.gaps_b)):
        typer.echo(f"{letter}  mean gap {gaps.mean():9.4f} %  {title}")
    mean = result.mean
    typer.echo(
        f"B - A  {mean.mean:+.4f} points, 95 % interval {mean.low:+.4f} to {mean.high:+.4f} "
        f"(paired bootstrap, {RESAMPLES:,} resamples, seed {SEED})"
    )
    typer.echo(f"B is shorter on {result.wins:,}, equal on {result.ties:,}, longer on {result.losses:,}")
    for index in result.largest(show):
        if result.differences[index] != 0:
            change = f"{result.gaps_a[index]:9.4f} -> {result.gaps_b[index]:9.4f} %"
            typer.echo(f"  {names[index]:16} {change}  {result.differences[index]:+.4f}")
    if plot is not None:
        _draw(result, titles, first.header["set"], plot)
        typer.echo(f"drawn to {plot}")


def _draw(result: Paired, titles: list[str], set_name: str, path: Path) -> None:
    """Gap against gap, and how the differences are spread."""
    from matplotlib.figure import Figure

    from georoutenet.plot import save

    figure = Figure(figsize=(9, 4.2), layout="constrained")
    figure.suptitle(set_name)
    scatter, spread = figure.subplots(1, 2)
    top = max(result.gaps_a.max(), result.gaps_b.max(), 1e-9)
    scatter.plot([0, top], [0, top], color="gray", linewidth=0.8)
    scatter.plot(result.gaps_a, result.gaps_b, ".", markersize=3, alpha=0.5)
    scatter.set(xlabel=f"gap of A: {titles[0]} (%)", ylabel=f"gap of B: {titles[1]} (%)", aspect="equal")
    spread.hist(result.differences, bins=min(60, max(5, len(result.differences) // 4)))
    spread.axvline(0, color="gray", linewidth=0.8)
    spread.axvspan(result.mean.low, result.mean.high, color="tab:orange", alpha=0.4, label="mean, 95 %")
    spread.set(xlabel="B - A (points)", ylabel="instances")
    spread.legend()
    save(figure, path)
