"""``georoutenet evaluate``: measure weights and a decoder on a data set."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from georoutenet.evaluate.results import Results


def register(app: typer.Typer) -> None:
    app.command("evaluate")(evaluate)


def evaluate(
    weights: Annotated[str, typer.Argument(help="Packaged weights by name, or a .safetensors file.")],
    set_name: Annotated[str, typer.Option("--set", help="A data set; see 'georoutenet data list'.")],
    decoder: Annotated[str, typer.Option("--decoder", help="greedy, beam or sample.")] = "greedy",
    beam_width: Annotated[
        int, typer.Option("--beam-width", min=1, help="Beams or samples per instance, all views together.")
    ] = 1000,
    views: Annotated[
        int, typer.Option("--views", min=1, help="Rotated and reflected copies that share the width.")
    ] = 1,
    statistics: Annotated[
        str, typer.Option("--statistics", help="Of NAR4TSP's norms: frozen, or batch as the paper has it.")
    ] = "frozen",
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Only the first so many.")] = None,
    batch: Annotated[
        int | None, typer.Option("--batch", min=1, help="Instances at a time: 128, on TSPLIB 1.")
    ] = None,
    device: Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:N.")] = "auto",
    precision: Annotated[
        str, typer.Option("--precision", help="Of the network's products: float32 or bfloat16.")
    ] = "float32",
    seed: Annotated[int, typer.Option("--seed", help="Of sampling and of random views.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Results, .csv or .csv.gz. Default: results/WEIGHTS/SET-DECODER.csv."),
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh/--resume", help="Start again, or go on where a killed run stopped.")
    ] = False,
) -> None:
    """Solve a data set and write one row per instance; print the mean gap with its interval and the speed."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from georoutenet.evaluate.evaluation import Settings, default_file
    from georoutenet.evaluate.evaluation import evaluate as run

    settings = Settings(
        decoder=decoder,
        width=beam_width,
        views=views,
        statistics=statistics,
        limit=limit,
        batch=batch,
        precision=precision,
        seed=seed,
    )
    path = out or default_file(weights, set_name, settings)
    if path.suffixes[-1:] != [".csv"] and path.suffixes[-2:] != [".csv", ".gz"]:
        raise typer.BadParameter(f"{path}: results end in .csv or .csv.gz", param_hint="--out")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(f"{set_name} {settings.label}", total=None)
        results = run(
            weights,
            set_name,
            path,
            settings,
            device=device,
            fresh=fresh,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    typer.echo(_report(results))
    typer.echo(f"written     {path}")


def _report(results: Results) -> str:
    from georoutenet.evaluate.evaluation import summarize
    from georoutenet.evaluate.statistics import RESAMPLES, SEED

    header, summary = results.header, summarize(results)
    width = f", width {header['width']}" if header["width"] else ""
    views = f", {header['views']} views" if header["views"] != "1" else ""
    lines = [
        f"{header['weights']} on {header['set']}: {header['decoder']}{width}{views}",
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
        lines.append(
            f"throughput  {summary.instances / summary.seconds:,.1f} instances/s in {summary.seconds:.2f} s "
            f"(network {summary.network_seconds:.2f} s, decode {summary.decode_seconds:.2f} s)"
        )
    if memory := header.get("peak_device_bytes"):
        lines.append(f"peak memory {int(memory) / 2**20:,.0f} MiB on the device")
    return "\n".join(lines)
