"""``georoutenet solve``: files of cities in, short tours out."""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from georoutenet.errors import GeoRouteNetError, GeoRouteNetWarning, InputError

if TYPE_CHECKING:
    from georoutenet.improve.stop import Progress
    from georoutenet.pipeline import Options
    from georoutenet.result import Result


def register(app: typer.Typer) -> None:
    app.command("solve")(solve)


def solve(
    files: Annotated[
        list[str], typer.Argument(help="Cities: .tsp, .csv, .txt or .npy (also gzipped), - for stdin.")
    ],
    plot: Annotated[
        str | None, typer.Option(help="Draw the tour: .png, .svg or .pdf. {name} stands for the instance.")
    ] = None,
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="Draw the network's edge probabilities behind the tour.")
    ] = False,
    plot_progress: Annotated[
        str | None, typer.Option(help="Draw the length over time: .png, .svg or .pdf.")
    ] = None,
    output: Annotated[
        str | None, typer.Option(help="Write the tour: .tour, .csv, .json or .geojson (from lat,lon).")
    ] = None,
    decoder: Annotated[
        str | None, typer.Option(help="greedy, sample or beam. Default: beam to 300 cities, then greedy.")
    ] = None,
    beam_width: Annotated[
        int | None, typer.Option(help="Beams or samples in all, shared by the views. Default: 1000.")
    ] = None,
    views: Annotated[
        int | None, typer.Option(help="Rotated and reflected views of each instance. Default: by size.")
    ] = None,
    max_seconds: Annotated[
        float | None, typer.Option(help="Time limit per file, not counting the start of the program.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of sampling and local search.")] = 0,
    improve: Annotated[
        bool, typer.Option("--improve/--no-improve", help="Local search, or the network's tour as it is.")
    ] = True,
    weights: Annotated[str, typer.Option(help="Packaged weights, a file, or auto (by size).")] = "auto",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    start: Annotated[int | None, typer.Option(help="First city, counting from 0.")] = None,
    end: Annotated[int | None, typer.Option(help="Last city, counting from 0.")] = None,
    open_path: Annotated[
        bool, typer.Option("--open", help="A path: the way back to the first city does not count.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, tours included.")] = False,
) -> None:
    """Find a short tour through the cities of each file; several files give a table."""
    from rich.console import Console

    targets = {"--plot": plot, "--plot-progress": plot_progress, "--output": output}
    _check_targets(targets, len(files))
    notes = Console(stderr=True)
    with notes.status("loading") as status:

        def show(stage: str, at: Progress) -> None:
            best = "" if math.isinf(at.length) else f", length {at.length:,.6g}"
            status.update(f"{name}: {stage}, {at.seconds:.1f} s{best}")

        from georoutenet.pipeline import Options, preload

        options = Options(
            weights=weights,
            decoder=decoder,
            beam_width=beam_width,
            views=views,
            improve=improve,
            max_seconds=max_seconds,
            seed=seed,
            device=device,
            start=start,
            end=end,
            closed=not open_path,
            progress=show if notes.is_terminal else None,
        )
        if max_seconds is not None or len(files) > 1:
            preload(device)
        results: list[tuple[str, Result]] = []
        failed: list[tuple[str, str]] = []
        for file in files:
            name = Path(file).name
            try:
                result = _solve_file(file, options, notes)
                _write(result, targets, probabilities)
            except GeoRouteNetError as error:
                failed.append((file, str(error)))
                typer.secho(f"error: {error}", fg=typer.colors.RED, err=True)
                continue
            results.append((file, result))
            if result.interrupted:
                break
    if as_json:
        typer.echo(json.dumps(_as_json(results, failed)))
    elif len(files) == 1:
        for _, result in results:
            _describe(result)
    elif results:
        _table(results)
    if any(result.interrupted for _, result in results):
        raise KeyboardInterrupt
    if failed:
        raise typer.Exit(1)


def _check_targets(targets: dict[str, str | None], files: int) -> None:
    """Refuse a name that cannot be written before any work is done."""
    from georoutenet.files import WRITTEN_TOUR_EXTENSIONS
    from georoutenet.plot import FORMATS

    for option, target in targets.items():
        if target is None:
            continue
        allowed = WRITTEN_TOUR_EXTENSIONS if option == "--output" else FORMATS
        if not target.lower().endswith(allowed):
            raise InputError(f"{option} {target}: unknown extension; allowed: {', '.join(allowed)}")
        if files > 1 and "{name}" not in target:
            raise InputError(f"{option} {target}: several files need {{name}} in the name")


def _solve_file(file: str, options: Options, notes: Any) -> Result:
    from georoutenet.files import read_instance
    from georoutenet.pipeline import solve_instance

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", GeoRouteNetWarning)
        try:
            result = solve_instance(read_instance(file), options)
        except InputError as error:
            where = "" if file in str(error) else f"{file}: "
            raise InputError(f"{where}{error}") from None
    for text in [*(str(warning.message) for warning in caught), *result.notes]:
        notes.print(f"note: {result.instance.name}: {text}", markup=False, highlight=False, soft_wrap=True)
    return result


def _write(result: Result, targets: dict[str, str | None], probabilities: bool) -> None:
    for option, target in targets.items():
        if target is None:
            continue
        path = target.replace("{name}", result.instance.name)
        if option == "--plot":
            result.plot(path, probabilities=probabilities)
        elif option == "--plot-progress":
            result.plot_progress(path)
        else:
            result.save(path)
        typer.echo(f"wrote {path}", err=True)


def _describe(result: Result) -> None:
    instance = result.instance
    cities = "1 city" if instance.n == 1 else f"{instance.n:,} cities"
    kind = "" if result.closed else "open path, "
    typer.echo(f"{instance.name}: {cities}, {instance.rule.value}, {kind}length {_length(result)}")
    if result.gap is not None:
        typer.echo(f"optimum {result.optimum:.15g}, gap {_gap(result)} %")
    if result.method:
        typer.echo(f"first tour: {result.initial_length:.10g} ({result.method})")
    times = ", ".join(f"{stage} {seconds:.2f} s" for stage, seconds in result.timings.items())
    typer.echo(f"time: {times}")


def _table(results: list[tuple[str, Result]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE)
    table.add_column("instance")
    for column in ("cities", "first tour", "length", "optimum", "gap %", "time"):
        table.add_column(column, justify="right")
    for _, result in results:
        table.add_row(
            result.instance.name,
            f"{result.instance.n:,}",
            f"{result.initial_length:.8g}",
            _length(result),
            "" if result.optimum is None else f"{result.optimum:.8g}",
            "" if result.gap is None else _gap(result),
            f"{result.timings['total']:.2f} s",
        )
    gaps = [result.gap for _, result in results if result.gap is not None]
    if gaps:
        table.caption = f"mean gap {sum(gaps) / len(gaps):.4f} % over {len(gaps)} of {len(results)} instances"
    console = Console()
    console.print(table, width=max(console.width, 100))


def _as_json(results: list[tuple[str, Result]], failed: list[tuple[str, str]]) -> dict[str, Any]:
    gaps = [result.gap for _, result in results if result.gap is not None]
    return {
        "results": [{"file": file, **result.to_dict()} for file, result in results],
        "errors": [{"file": file, "error": message} for file, message in failed],
        "mean_gap_percent": sum(gaps) / len(gaps) if gaps else None,
    }


def _length(result: Result) -> str:
    unit = " km" if result.instance.latlon is not None else ""
    return f"{result.length if isinstance(result.length, int) else format(result.length, '.8g')}{unit}"


def _gap(result: Result) -> str:
    assert result.gap is not None
    return f"{round(result.gap, 3) + 0.0:.3f}"
