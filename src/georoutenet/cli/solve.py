"""``georoutenet solve``: files of cities in, short tours out."""

from __future__ import annotations

import json
import math
import os
import re
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from georoutenet.cli import begin
from georoutenet.cli.inputs import CITIES, Iterations, Matrix, MaxBytes, limits
from georoutenet.cli.inputs import solve_option as _option
from georoutenet.cli.screen import complain, say, styled
from georoutenet.errors import GeoRouteNetError, GeoRouteNetWarning, InputError
from georoutenet.io.names import safe_name
from georoutenet.io.unpack import MAX_BYTES
from georoutenet.problem.tour import proven
from georoutenet.solver.options import USUAL, SolveOptions

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bar

    from georoutenet.problem.instance import Instance
    from georoutenet.solver.result import Result
    from georoutenet.stop import Progress as Steps


Targets = list[tuple[str, str]]
"""Options that write something, each with the name of a file, in which ``{name}`` stands for the instance."""
SHOWN = 50
"""Cities whose order is printed in full."""


def register(app: typer.Typer) -> None:
    app.command("solve")(solve)


def solve(
    files: Annotated[list[str], typer.Argument(help=CITIES)],
    matrix: Matrix = False,
    max_bytes: MaxBytes = MAX_BYTES,
    plot: Annotated[
        list[str] | None,
        typer.Option(help="Draw the tour: .png, .svg or .pdf. {name} stands for the instance. Repeatable."),
    ] = None,
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="Draw the network's edge probabilities behind the tour.")
    ] = False,
    plot_progress: Annotated[
        list[str] | None, typer.Option(help="Draw the length over time: .png, .svg or .pdf. Repeatable.")
    ] = None,
    output: Annotated[
        list[str] | None,
        typer.Option(
            help="Write the tour: .csv, .json, .tour, and from lat,lon .geojson or .gpx. Repeatable."
        ),
    ] = None,
    id_column: Annotated[
        str | None,
        typer.Option(
            help="Column by which cities are called, in --start and --end too. Default: id, ..._id, name."
        ),
    ] = None,
    weights: Annotated[str, _option("weights")] = "georoutenet",
    decoder: Annotated[str | None, _option("decoder")] = None,
    beam_width: Annotated[int | None, _option("beam_width")] = None,
    views: Annotated[int | None, _option("views")] = None,
    first: Annotated[str, _option("first")] = "auto",
    improve: Annotated[bool, _option("improve", "--improve/--no-improve")] = True,
    max_seconds: Annotated[float | None, _option("max_seconds")] = None,
    max_iterations: Iterations = None,
    seed: Annotated[int, _option("seed")] = 0,
    device: Annotated[str, _option("device")] = "auto",
    precision: Annotated[str, _option("precision")] = "auto",
    start: Annotated[str | None, _option("start")] = None,
    end: Annotated[str | None, _option("end")] = None,
    open_path: Annotated[
        bool, typer.Option("--open", help="A path: the way back to the first city does not count.")
    ] = False,
    workers: Annotated[int | None, _option("workers")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, tours included.")] = False,
) -> None:
    """Find a short tour through the cities of each file; several files give a table."""
    given = {"--plot": plot, "--plot-progress": plot_progress, "--output": output}
    targets = [(option, target) for option, each in given.items() for target in each or ()]
    _check_targets(targets, len(files))
    if probabilities and not plot:
        raise InputError("--probabilities is about a picture; name one with --plot")
    if plot_progress and not improve:
        raise InputError("--plot-progress draws the search, and --no-improve makes none")
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
        start=_city(start, id_column),
        end=_city(end, id_column),
        closed=not open_path,
        workers=workers,
    )
    failed: list[tuple[str, str]] = []
    instances = _read(files, matrix, id_column, max_bytes, targets, failed)
    if id_column is None:
        _mention_positions(instances, {"--start": options.start, "--end": options.end})
    results: list[tuple[str, Result]] = []
    for file, result in _solve(instances, options, failed):
        try:
            _write(result, targets, probabilities)
        except GeoRouteNetError as error:
            _fail(file, error, failed)
        results.append((file, result))
    results.sort(key=lambda solved: files.index(solved[0]))
    if as_json:
        say(json.dumps(_as_json(results, failed)))
    elif len(files) == 1:
        for _, result in results:
            _describe(result)
            if not output:
                by = "" if result.instance.ids else " (rows, counting from 0)"
                say(f"visits{by}: {_order(result)}")
    elif results:
        _table(results)
    if any(result.interrupted for _, result in results):
        raise KeyboardInterrupt
    if failed:
        raise typer.Exit(1)


def _fail(file: str, error: Exception, failed: list[tuple[str, str]]) -> None:
    text = str(error) if file in str(error) else f"{file}: {error}"
    failed.append((file, text))
    complain(text)


def _note(text: str) -> None:
    say(f"note: {text}", err=True)


def _city(given: str | None, id_column: str | None) -> int | str | None:
    """An id, or a position where a whole number is given and nothing says that it is an id."""
    if given is None or id_column is not None:
        return given
    return int(given) if re.fullmatch(r"[+-]?[0-9]{1,15}", given) else given


def _mention_positions(instances: list[tuple[str, Instance]], ends: dict[str, int | str | None]) -> None:
    """Say which city a position is where another one has the same number as its id."""
    for _, instance in instances:
        for option, city in ends.items():
            ids = list(map(str, instance.ids or ()))
            if isinstance(city, int) and 0 <= city < len(ids) and str(city) in ids and ids[city] != str(city):
                _note(
                    f"{instance.name}: {option} {city} counts from 0, which is the {instance.id_column} "
                    f"{ids[city]}; --id-column {instance.id_column} makes it an id"
                )


def _read(
    files: list[str],
    matrix: bool,
    id_column: str | None,
    max_bytes: int,
    targets: Targets,
    failed: list[tuple[str, str]],
) -> list[tuple[str, Instance]]:
    """The instances of the files that can be read."""
    from georoutenet.io.export import degrees
    from georoutenet.io.files import read_instance

    instances: list[tuple[str, Instance]] = []
    names: dict[str, str] = {}
    existing = [file for file in files if Path(file).exists()]
    for file in dict.fromkeys(files):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", GeoRouteNetWarning)
            try:
                instance = read_instance(file, matrix=matrix, id_column=id_column, max_bytes=max_bytes)
                of_the_earth = {".geojson": "GeoJSON", ".gpx": "GPX"}
                for option, target in targets:
                    path = _path(target, instance)
                    if option == "--output" and path.suffix.lower() in of_the_earth:
                        degrees(instance, of_the_earth[path.suffix.lower()])  # complains before the work
                    if option == "--plot":
                        instance.coordinates  # noqa: B018 (likewise)
                    if any(path.exists() and path.samefile(input) for input in existing):
                        raise InputError(f"{file}: {option} {path} would overwrite a file of cities")
                other = names.setdefault(os.path.normcase(safe_name(instance.name)), file)
                if other != file and targets:
                    raise InputError(f"{file}: has the name {instance.name!r} of {other}, and so its output")
            except GeoRouteNetError as error:
                _fail(file, error, failed)
                continue
        for warning in caught:
            _note(f"{instance.name}: {warning.message}")
        instances.append((file, instance))
    return instances


def _solve(
    instances: list[tuple[str, Instance]],
    options: SolveOptions,
    failed: list[tuple[str, str]],
) -> Iterator[tuple[str, Result]]:
    """Results as they are ready, while the terminal shows how far the work is."""
    from rich.console import Console

    console = Console(stderr=True)
    several = len(instances) > 1
    if not instances:
        return
    with _Display(console, instances) as display:
        from georoutenet.solver.api import solve_all
        from georoutenet.solver.stages import load_for

        shown = replace(options, progress=display.show if console.is_terminal else None)
        cities = [instance for _, instance in instances]
        if options.max_seconds is not None or options.stop is not None or several:
            load_for(cities, shown)
        begin()
        for k, result in solve_all(cities, shown, single=not several):
            file = instances[k][0]
            display.advance()
            if isinstance(result, GeoRouteNetError):
                _fail(file, result, failed)
                continue
            display.rest()
            for text in (note for note in result.notes if note not in USUAL):
                _note(f"{result.instance.name}: {text}")
            yield file, result


class _Display:
    """One file: its stage and length so far. Several: a bar."""

    def __init__(self, console: Console, instances: list[tuple[str, Instance]]) -> None:
        self.name = instances[0][1].name
        self.bar: Bar | None = None
        if len(instances) > 1:
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

            columns = (
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
            )
            self.bar = Progress(*columns, console=console, transient=True)
            self.task = self.bar.add_task("loading", total=len(instances))
        else:
            self.status = console.status("loading")

    def __enter__(self) -> _Display:
        (self.bar or self.status).__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        (self.bar or self.status).__exit__(*error)

    def show(self, stage: str, at: Steps) -> None:
        if stage == "compile":
            from georoutenet.solver.compiling import WORDS, bar

            stage = f"{WORDS} {bar(at.iterations)}"
        if self.bar is not None:
            self.bar.update(self.task, description=stage)
            return
        best = "" if math.isinf(at.length) else f", length {at.length:,.6g}"
        self.status.update(styled(f"{self.name}: {stage}, {at.seconds:.1f} s{best}"))

    def rest(self) -> None:
        """One file is solved: what follows, pictures for example, may say something itself."""
        if self.bar is None:
            self.status.stop()

    def advance(self) -> None:
        if self.bar is not None:
            self.bar.advance(self.task)


def _check_targets(targets: Targets, files: int) -> None:
    """Refuse a name that cannot be written before any work is done."""
    from georoutenet.io.files import WRITTEN_TOUR_EXTENSIONS
    from georoutenet.plot import FORMATS

    for option, target in targets:
        allowed = WRITTEN_TOUR_EXTENSIONS if option == "--output" else FORMATS
        if not target.lower().endswith(allowed):
            raise InputError(f"{option} {target}: unknown extension; allowed: {', '.join(allowed)}")
        if files > 1 and "{name}" not in target:
            raise InputError(f"{option} {target}: several files need {{name}} in the name")


def _path(target: str, instance: Instance) -> Path:
    return Path(target.replace("{name}", safe_name(instance.name)))


def _write(result: Result, targets: Targets, probabilities: bool) -> None:
    for option, target in targets:
        path = _path(target, result.instance)
        if option == "--plot":
            result.plot(path, probabilities=probabilities)
        elif option == "--plot-progress":
            if not result.searched:
                _note(f"{result.instance.name}: no search was made, so {path} is not written")
                continue
            result.plot_progress(path)
        else:
            result.save(path)
        say(f"wrote {path}", err=True)


def _describe(result: Result) -> None:
    instance = result.instance
    cities = "1 city" if instance.n == 1 else f"{instance.n:,} cities"
    kind = "" if result.closed else "open path, "
    say(f"{instance.name}: {cities}, {instance.rule.value}, {kind}length {_length(result)}")
    if result.gap is not None:
        say(f"optimum {result.optimum:.15g}, gap {_gap(result)} %")
    elif result.lower_bound is not None and result.length > 0:
        say(proven(result.length, result.lower_bound))
    if result.method:
        say(f"first tour: {result.initial_length:.10g} ({result.method})")
    times = ", ".join(f"{stage} {seconds:.2f} s" for stage, seconds in result.timings.items())
    say(f"time: {times}")


def _order(result: Result) -> str:
    """The cities in visiting order by their ids, else numbers; the middle of a long tour is left out."""
    ids = result.instance.ids
    names = (" ".join(str(city if ids is None else ids[city]).split()) for city in result.tour.tolist())
    order = [f'"{name}"' if "," in name else name for name in names]
    if len(order) > SHOWN:
        left_out = f"... ({len(order) - SHOWN + 3} more, all with --output or --json) ..."
        order = [*order[: SHOWN - 6], left_out, *order[-3:]]
    return ", ".join(order)


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
            styled(result.instance.name),
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
    unit = f" {result.instance.unit}" if result.instance.unit else ""
    return f"{result.length if isinstance(result.length, int) else format(result.length, '.8g')}{unit}"


def _gap(result: Result) -> str:
    assert result.gap is not None
    return f"{round(result.gap, 3) + 0.0:.3f}"
