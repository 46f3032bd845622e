"""``georoutenet bulk``: files of many instances in, a folder of tours out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from georoutenet.cli import begin
from georoutenet.cli.inputs import Iterations, limits
from georoutenet.cli.inputs import solve_option as option
from georoutenet.cli.screen import complain, say
from georoutenet.solver.options import SolveOptions

if TYPE_CHECKING:
    from georoutenet.bulk.api import Plan

INPUT = (
    "Instances: .parquet (id and lists x, y or points; or a row per city), .csv (id,x,y per city), "
    ".npy or .npz (B, n, 2), or a folder of such files or of .tsp files."
)


def register(app: typer.Typer) -> None:
    app.command("bulk")(bulk)


def bulk(
    input: Annotated[Path, typer.Argument(help=INPUT)],
    out: Annotated[Path, typer.Argument(help="Folder of the shards; the same command goes on in it.")],
    engine: Annotated[str, typer.Option(help="local, or ray: on this machine, or a cluster.")] = "local",
    address: Annotated[
        str | None, typer.Option(help="Of a Ray cluster, as auto. Default: Ray starts on this machine.")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Processes. Default: one per core, three per GPU (Ray: one)."),
    ] = None,
    shard_rows: Annotated[
        int | None, typer.Option(min=1, help="Instances of a shard. Default: by their number, mostly 1000.")
    ] = None,
    format: Annotated[
        str | None, typer.Option(help="Of the shards: parquet or npz. Default: parquet with PyArrow.")
    ] = None,
    id_column: Annotated[str | None, typer.Option(help="Column of the ids. Default: id.")] = None,
    lower_bound: Annotated[
        bool, typer.Option("--lower-bound", help="Also write what no tour can be shorter than.")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Say what is there and how long it will take, about."),
    ] = False,
    weights: Annotated[str, option("weights")] = "georoutenet",
    decoder: Annotated[str | None, option("decoder")] = None,
    beam_width: Annotated[int | None, option("beam_width")] = None,
    views: Annotated[int | None, option("views")] = None,
    first: Annotated[str, option("first")] = "auto",
    improve: Annotated[bool, option("improve", "--improve/--no-improve")] = True,
    max_seconds: Annotated[float | None, option("max_seconds")] = None,
    max_iterations: Iterations = None,
    seed: Annotated[int, option("seed")] = 0,
    device: Annotated[str, option("device")] = "auto",
    precision: Annotated[str, option("precision")] = "auto",
    start: Annotated[int | None, typer.Option(min=0, help="Position of the first city, from 0.")] = None,
    end: Annotated[int | None, typer.Option(min=0, help="Position of the last city, from 0.")] = None,
    open_path: Annotated[
        bool, typer.Option("--open", help="Paths: the way back to the first city does not count.")
    ] = False,
) -> None:
    """Solve all instances of a file or folder. The same command goes on where it was stopped or killed."""
    from georoutenet.bulk.api import make_plan, run_plan

    begin()
    options = SolveOptions(
        weights=weights,
        decoder=decoder,
        beam_width=beam_width,
        views=views,
        first=first,
        improve=improve,
        **limits(max_seconds, max_iterations),
        seed=seed,
        device=device,
        precision=precision,
        start=start,
        end=end,
        closed=not open_path,
        workers=workers,
    )
    plan = make_plan(
        input,
        out,
        options,
        engine=engine,
        address=address,
        shard_rows=shard_rows,
        format=format,
        id_column=id_column,
        lower_bound=lower_bound,
    )
    if dry_run:
        _describe(plan)
        return
    with _Bar(plan.job.input.instances) as bar:
        try:
            result = run_plan(plan, bar.report)
        except KeyboardInterrupt:
            say("the same command goes on from here", err=True)
            raise
    for shard, error in result.failed.items():
        complain(f"{plan.job.path(shard).name}: {error}")
    speed = f", {result.solved_now / result.seconds:,.1f} instances/s" if result.solved_now else ""
    missing = f", {_counted(len(result.failed), 'shard')} missing" if result.failed else ""
    say(
        f"{_counted(result.instances, 'instance')} in {_counted(result.shards, 'shard')} in {out}: "
        f"{result.solved_now:,} solved now in {result.seconds:,.1f} s{speed}{missing}"
    )
    if result.errors:
        say(f"{_counted(result.errors, 'row')} could not be solved: see the column error", err=True)
    if result.errors or result.failed:
        raise typer.Exit(1)


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"


class _Bar:
    """A bar with instances per second and the time left, where somebody looks."""

    def __init__(self, total: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        console = Console(stderr=True)
        self.bar: Any = None
        if console.is_terminal and sys.stderr.isatty():
            columns = (
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[speed]}", markup=False),
                TimeRemainingColumn(),
            )
            self.bar = Progress(*columns, console=console, transient=True, speed_estimate_period=120)
            self.task = self.bar.add_task("", total=total, speed="")

    def __enter__(self) -> _Bar:
        if self.bar is not None:
            self.bar.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        if self.bar is not None:
            self.bar.__exit__(*error)

    def report(self, done: int, total: int) -> None:
        if self.bar is None:
            return
        speed = self.bar.tasks[0].speed
        self.bar.update(self.task, completed=done, speed=f"{speed:,.1f}/s" if speed else "")


def _describe(plan: Plan) -> None:
    """What the input holds, what the output will be, and about how long it will take."""
    from georoutenet.bulk.estimate import estimate
    from georoutenet.train.log import duration

    job, found = plan.job, plan.job.input
    files, instances = _counted(len(found.names), "file"), _counted(found.instances, "instance")
    cities = "" if found.cities is None else f", {found.cities:,} cities"
    say(f"input    {found.kind}, {files}, {found.bytes:,} bytes, {instances}{cities}")
    for line in found.schema:
        say(f"         {line}")
    if found.columns.id is None:
        say("         no column of ids: rows are numbered from 0")
    say(
        f"output   {_counted(job.shards, 'shard')} of {_counted(job.shard_rows, 'instance')}, "
        f"{job.format}, in {job.out}"
    )
    if not plan.repeats:
        say(f"         a second run gives other bytes: {plan.manifest.about['why not']}")
    sample = estimate(plan)
    if sample is None:
        return
    say(
        f"sample   {sample.rows} instances of {sample.least} to {sample.most} cities, "
        f"{sample.errors} with errors"
    )
    workers = _counted(sample.workers, "worker")
    say(f"time     about {duration(sample.seconds)} with {workers}, {sample.per_second:,.1f} instances/s")
