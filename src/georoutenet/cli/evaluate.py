"""``georoutenet evaluate``: measure weights and decoders on data sets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from georoutenet.cli.screen import say

if TYPE_CHECKING:
    from georoutenet.evaluate.results import Results


def register(app: typer.Typer) -> None:
    app.command("evaluate")(evaluate)


def evaluate(
    weights: Annotated[str, typer.Argument(help="Packaged weights by name, or a .safetensors file.")],
    sets: Annotated[
        str,
        typer.Option(
            "--set",
            help="One data set or several, as in val50,test20; see 'georoutenet data list'. "
            "paper and shift stand for the sets of the paper and for the held-out ones.",
        ),
    ],
    decoder: Annotated[
        str,
        typer.Option(
            "--decoder",
            help="greedy, beam or sample, or several, as in greedy,beam-100,beam-1000-views-8-improve-0.1; "
            "solve --no-improve does beam-1000-views-8-dominance-length-60 (on a CPU up to 100 cities). "
            "The five options below go with a decoder's name alone.",
        ),
    ] = "greedy",
    beam_width: Annotated[
        int | None,
        typer.Option("--beam-width", help="Beams or samples per instance, all views together; default 1000."),
    ] = None,
    views: Annotated[
        int | None,
        typer.Option("--views", help="Rotated and reflected copies that share the width; default 1."),
    ] = None,
    finalists: Annotated[
        int | None,
        typer.Option(
            "--finalists",
            help="A quarter of the beams looks at all views; so many of them, the best, share the rest.",
        ),
    ] = None,
    dominance: Annotated[
        bool | None,
        typer.Option(
            "--dominance", help="Of beams that visited the same cities and end alike, keep the shortest."
        ),
    ] = None,
    length_weight: Annotated[
        float | None,
        typer.Option("--length-weight", help="Rank beams by log-probability less this times their length."),
    ] = None,
    improve: Annotated[
        float, typer.Option("--improve", min=0.0, help="Seconds of local search per instance after decoding.")
    ] = 0.0,
    statistics: Annotated[
        str, typer.Option("--statistics", help="Of NAR4TSP's norms: frozen, or those of the batch.")
    ] = "frozen",
    candidates: Annotated[
        int | None,
        typer.Option(
            "--candidates", min=1, help="Score so many cities around each, others on demand; default all."
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Only the first so many.")] = None,
    batch: Annotated[
        int | None, typer.Option("--batch", min=1, help="Instances at a time: 128, on TSPLIB 1.")
    ] = None,
    device: Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:N.")] = "auto",
    precision: Annotated[
        str, typer.Option("--precision", help="Of the network's products: float32 or bfloat16.")
    ] = "float32",
    seed: Annotated[int, typer.Option("--seed", help="Of sampling, random views and local search.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="A .csv or .csv.gz file for one result, a folder for any number. Default: results/WEIGHTS.",
        ),
    ] = None,
    fresh: Annotated[
        bool,
        typer.Option("--fresh/--resume", help="Measure again, or keep what is there and go on after it."),
    ] = False,
) -> None:
    """Solve data sets and write one row per instance; print the mean gap with its interval and the speed."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    from torch import OutOfMemoryError

    from georoutenet.device import choose_device
    from georoutenet.evaluate.batch_solver import Memory
    from georoutenet.evaluate.evaluation import default_file
    from georoutenet.evaluate.evaluation import evaluate as run
    from georoutenet.evaluate.settings import parse_decoder
    from georoutenet.io.datasets import dataset, parse_sets
    from georoutenet.policy.weights import load_policy

    of_decoder = {
        "width": beam_width,
        "views": views,
        "finalists": finalists,
        "dominance": dominance,
        "length_weight": length_weight,
    }
    of_decoder = {name: value for name, value in of_decoder.items() if value is not None}
    others: dict[str, Any] = {"improve": improve, "statistics": statistics, "seed": seed}
    others |= {"candidates": candidates, "limit": limit, "batch": batch, "precision": precision}
    settings = [parse_decoder(each.strip(), alone=of_decoder, **others) for each in decoder.split(",")]
    tasks = [(name, each) for name in parse_sets(sets) for each in settings]
    as_file = out is not None and bool(out.suffix) and not out.is_dir()
    if out is not None and as_file:
        if not out.name.endswith((".csv", ".csv.gz")):
            raise typer.BadParameter(f"{out}: results end in .csv or .csv.gz", param_hint="--out")
        if len(tasks) > 1:
            raise typer.BadParameter(
                f"{out} is one file for {len(tasks)} results; name a folder", param_hint="--out"
            )
    for name in dict.fromkeys(name for name, _ in tasks):
        next(iter(dataset(name).instances()))  # TSPLIB may not be there: say so now, not after an hour
    place = choose_device(device)
    policy = load_policy(weights, place)
    # On a CPU the network is most of the time, and several decoders read the same scores.
    shared = len(settings) > 1 and place.type == "cpu"
    failed = 0
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    for set_name, each in tasks:
        if each is settings[0]:  # of the next set
            memory = Memory() if shared else None
        if memory is not None and each is settings[-1]:
            memory.left = 0  # nobody comes after it
        path = out if out is not None and as_file else default_file(weights, set_name, each, out)
        there = path.exists() and not fresh
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(f"{set_name} {each.label}", total=None)

            def report(done: int, total: int, bar: Progress = bar, task: int = task) -> None:
                bar.update(task, completed=done, total=total)  # type: ignore[arg-type]

            try:
                results = run(
                    weights, set_name, path, each,
                    device=device, policy=policy, fresh=fresh, progress=report, memory=memory,
                )  # fmt: skip
            except OutOfMemoryError:  # other results may still fit
                failed += 1
                bar.stop()
                say(f"{set_name} {each.label}: the device has too little memory; try --batch", err=True)
                continue
        say(*(_report(results) if len(tasks) == 1 else [_line(results)]))
        if len(tasks) == 1:
            say(f"{'kept       ' if there else 'written    '} {path}")
    if len(tasks) > 1:
        say(f"{len(tasks) - failed} files in {path.parent}")
    if failed:
        raise typer.Exit(1)


def _report(results: Results) -> list[str]:
    from georoutenet.evaluate.evaluation import summarize
    from georoutenet.evaluate.names import decoder_name
    from georoutenet.evaluate.statistics import RESAMPLES, SEED

    header, summary = results.header, summarize(results)
    lines = [
        f"{header['weights']} on {header['set']}: {decoder_name(header)}",
        f"device      {header['device']}, {header['precision']}, batch {header['batch']}, "
        f"{header['threads']} CPU threads",
        f"instances   {header['instances'].replace('of', 'of the')} in the set",
    ]
    if summary.gap is None:
        lines.append("mean gap    unknown: the set has no reference lengths")
    else:
        interval = f"95 % interval {summary.gap.low:.4f} to {summary.gap.high:.4f}"
        how = f"bootstrap, {RESAMPLES:,} resamples, seed {SEED}"
        lines.append(f"mean gap    {summary.gap.mean:.4f} %, {interval} ({how})")
    lines.append(f"mean length {summary.length:.6f}")
    if summary.seconds > 0:
        parts = f"network {summary.network_seconds:.2f} s, decode {summary.decode_seconds:.2f} s"
        if summary.improve_seconds > 0:
            parts += f", improve {summary.improve_seconds:.2f} s"
        lines.append(
            f"throughput  {summary.instances / summary.seconds:,.1f} instances/s in {summary.seconds:.2f} s "
            f"({parts})"
        )
    if memory := header.get("peak_device_bytes"):
        lines.append(f"peak memory {int(memory) / 2**20:,.0f} MiB on the device")
    return lines


def _line(results: Results) -> str:
    """One of many results."""
    from georoutenet.evaluate.evaluation import summarize
    from georoutenet.evaluate.names import decoder_name

    summary = summarize(results)
    gap = f"{'unknown':>9}  " if summary.gap is None else f"{summary.gap.mean:9.4f} %"
    seconds = f"{summary.seconds:9.2f} s" if summary.seconds > 0 else ""
    return f"{results.header['set']:13} {decoder_name(results.header):30} {gap}{seconds}"
