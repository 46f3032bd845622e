"""``georoutenet data``: the named data sets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from georoutenet.cli.screen import say

if TYPE_CHECKING:
    from georoutenet.io.datasets import Dataset

data = typer.Typer(
    name="data", help="The named data sets: list, show, make, and fetch TSPLIB.", no_args_is_help=True
)


def register(app: typer.Typer) -> None:
    app.add_typer(data)


@data.command("list")
def list_sets(
    markdown: Annotated[
        bool, typer.Option("--markdown", help="A Markdown table with seeds and reference lengths.")
    ] = False,
) -> None:
    """List every data set with its role, size and whether reference tours are packaged."""
    from georoutenet.evaluate.references import has_references
    from georoutenet.io.datasets import DATASETS

    if markdown:
        say(*_markdown().splitlines())
        return
    say(f"{'name':13} {'role':11} {'instances':>9} {'n':>5}  {'references':10}  what")
    for each in DATASETS.values():
        known = ("yes" if has_references(each.name) else "no") if each.is_random else "published"
        size = "" if each.n is None else str(each.n)
        row = f"{each.name:13} {each.role:11} {each.count:>9,} {size:>5}  {known:10}  {each.description}"
        say(row)


def _markdown() -> str:
    """The table in the documentation: one row per random data set."""
    from georoutenet.evaluate.references import has_references, load_references
    from georoutenet.io.datasets import DATASETS

    lines = [
        "| name | role | instances | n | seed | mean reference length | proven optimal |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for each in DATASETS.values():
        if each.is_random:
            mean, proven = "", ""
            if has_references(each.name):
                known = load_references(each.name)
                mean, proven = f"{known.mean:.6f}", f"{int(known.proven.sum()):,}"
            cells = (f"`{each.name}`", each.role, f"{each.count:,}", each.n, each.seed, mean, proven)
            lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


@data.command("show")
def show(
    name: Annotated[str, typer.Argument(help="Name of the data set; see 'georoutenet data list'.")],
    plot: Annotated[
        Path | None, typer.Option(help="Draw the first instances and their reference tours to this file.")
    ] = None,
    instances: Annotated[int, typer.Option(min=1, max=100, help="How many instances to draw.")] = 6,
) -> None:
    """Describe a data set: role, seed, SHA-256, mean reference length and how much of it is proven."""
    from georoutenet.evaluate.references import has_references, load_references
    from georoutenet.io.datasets import dataset
    from georoutenet.io.tsplib import tsplib_names

    each = dataset(name)
    say(f"{each.name}: {each.description}")
    say(f"role        {each.role}")
    if not each.is_random:
        say(f"instances   {each.count}: {', '.join(tsplib_names(each.name))}")
        say("references  the published optima")
    else:
        say(f"instances   {each.count:,} of {each.n} cities")
        say(f"generator   {each.generator}, seed {each.seed}")
        say(f"SHA-256     {each.sha256}")
        if has_references(name):
            known = load_references(name)
            say(f"references  mean length {known.mean:.6f}, {known.proven.sum():,} of {known.count:,} proven")
            for entry in known.info:
                say(f"            {entry['solver']} on {entry['instances']:,} instances")
        else:
            say(f"references  none; make them with: georoutenet reference {name}")
    if plot is not None:
        _draw(each, plot, instances)
        say(f"drawn to {plot}")


@data.command("make")
def make(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Data sets; all random ones by default.")
    ] = None,
) -> None:
    """Generate data sets, check their SHA-256 and write them to the user cache as .npy files."""
    from georoutenet.io.datasets import DATASETS, dataset

    chosen = [dataset(name) for name in names] if names else [d for d in DATASETS.values() if d.is_random]
    for each in chosen:
        say(f"{each.name:13} {each.make()}")


@data.command("tsplib")
def tsplib(
    folder: Annotated[
        Path | None, typer.Option(help="Where to put the files; by default the user cache.")
    ] = None,
    address: Annotated[str | None, typer.Option(help="A mirror, http:// or https://.")] = None,
) -> None:
    """Download TSPLIB's instances and optimal tours, each checked by its SHA-256; can be resumed."""
    from rich.console import Console
    from rich.progress import Progress

    from georoutenet.io.cache import cache_folder
    from georoutenet.io.tsplib_download import download_tsplib

    target = cache_folder() / "tsplib" if folder is None else folder
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("TSPLIB", total=None)
        fetched = download_tsplib(
            target,
            address=address,
            progress=lambda done, total, file: bar.update(task, completed=done, total=total),
        )
    say(f"{len(fetched)} files fetched to {target}")


def _draw(each: Dataset, path: Path, instances: int) -> None:
    """Panels of the first instances, with the reference (or published optimal) tour where one is known."""
    from itertools import islice

    from georoutenet.evaluate.references import has_references, load_references
    from georoutenet.plot import plot_instances

    shown = list(islice(each.instances(), instances))
    known = each.is_random and has_references(each.name)
    tours = load_references(each.name).tours[: len(shown)] if known else None
    plot_instances(shown, path, tours=tours, columns=3 if len(shown) <= 6 else 5)  # type: ignore[arg-type]
