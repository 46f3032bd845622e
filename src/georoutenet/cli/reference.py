"""``georoutenet reference``: reference tours of a data set by classical solvers (``research/references``)."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from georoutenet.cli.screen import say


def register(app: typer.Typer) -> None:
    app.command("reference")(reference)


def reference(
    name: Annotated[str, typer.Argument(metavar="SET", help="A random data set, for example test50.")],
    solver: Annotated[
        list[str] | None,
        typer.Option(
            help="concorde, lkh, fast-tsp, or-tools or pyvrp; may be given several times, the shorter tour "
            "counts. lkh when neither this nor --prove is given."
        ),
    ] = None,
    prove: Annotated[
        int | None, typer.Option(metavar="N", help="Prove the first N instances with Concorde.")
    ] = None,
    runs: Annotated[int, typer.Option(help="Runs of LKH per instance.")] = 1,
    seconds: Annotated[
        float, typer.Option(help="Seconds per instance for fast-tsp, or-tools and pyvrp.")
    ] = 1.0,
    workers: Annotated[int, typer.Option(help="Worker processes.")] = os.cpu_count() or 1,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the .npz file. By default the package's own references.")
    ] = None,
) -> None:
    """Compute or improve the reference tours of a data set.

    Known tours are kept unless a shorter one is found, and proven ones are not computed again. A job that was
    stopped goes on where it was when the same command is given again.
    """
    from georoutenet.cli.checkout import research
    from georoutenet.evaluate.references import PACKAGED, reference_file
    from georoutenet.io.datasets import dataset

    job = research("references.make", "reference")

    options: dict[str, dict[str, float]] = {
        "lkh": {"runs": runs},
        "fast-tsp": {"seconds": seconds},
        "or-tools": {"seconds": seconds},
        "pyvrp": {"seconds": seconds},
    }
    names = solver or ([] if prove is not None else ["lkh"])
    passes = [job.Pass(each, options.get(each, {})) for each in names]
    if prove is not None:
        passes.append(job.Pass("concorde", first=prove))
    folder = PACKAGED if out is None else out
    with _progress(name) as report:
        made = job.make_references(dataset(name), passes, workers=workers, folder=folder, progress=report)
    say(f"{name}: mean length {made.mean:.6f}, {int(made.proven.sum())} of {made.count} proven optimal")
    for entry in made.info[-len(passes) :]:
        say(
            f"  {entry['solver']}: {entry['instances']} instances, {entry['improved']} improved, "
            f"{entry['seconds']} s"
        )
    say(f"written to {reference_file(name, folder)}")


@contextmanager
def _progress(name: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal; elsewhere, as in a log file, a line every half minute."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn(name, markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True)) as bar:
            task = bar.add_task(name, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)
    else:
        started = last = time.monotonic()

        def report(done: int, total: int) -> None:
            nonlocal last
            now = time.monotonic()
            if now - last > 30 or done == total:
                last = now
                say(f"{name}: {done} of {total} instances after {now - started:.0f} s", err=True)

        yield report
