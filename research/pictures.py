"""Every picture of the documentation, in one style, from the packaged weights and the results kept here.

    python -m research.pictures                      # all, into docs/images
    python -m research.pictures results-time bulk    # some

Those of the playground need the extras ``web`` and ``browser`` and a Chromium on the PATH, and one TSPLIB
(``georoutenet data tsplib``): what is missing is named, and that picture left as it is. Searches run for as
long as their picture says, so that lengths and times can differ a little from machine to machine.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import georoutenet as grn
from georoutenet.errors import InputError
from georoutenet.evaluate.packed import read_any
from georoutenet.evaluate.references import load_references
from georoutenet.evaluate.worst import draw_worst
from georoutenet.examples import thousand_cities, us_capitals, us_outline
from georoutenet.io.datasets import SHIFT, dataset
from georoutenet.plot import plot_instances, save
from georoutenet.problem.generate import GENERATORS
from georoutenet.problem.instance import Instance
from georoutenet.problem.shapes import KINDS
from georoutenet.train.curve import Curve, plot_curves, read_curve
from research import bulk_picture, gpu_picture
from research.report.efficiency import Measurement
from research.report.figures import figure_names, make_figure
from research.report.shrink import shrink
from research.report.tables import Cell, make_cells, read_folder

if TYPE_CHECKING:
    from playwright.sync_api import Page

ROOT = Path(__file__).parent.parent
IMAGES = ROOT / "docs" / "images"
RUNS = ROOT / "docs" / "runs"
RESULTS = ROOT / "results"
WORST = {
    "results-worst-val50": ("val50-greedy", "val50-beam-1000"),
    "results-worst-tsplib36": ("tsplib36-beam-1000",),
}
"""Cells of ``georoutenet-50``; the instance is the worst of the first."""


class Missing(Exception):
    """What a picture needs and is not there."""


def hero(path: Path) -> None:
    result = grn.solve(us_capitals(), start="Atlanta", max_seconds=3)
    result.plot(path, probabilities=True, outline=us_outline())


def probabilities(path: Path) -> None:
    instance = next(iter(dataset("clustered100").instances()))
    grn.solve(instance, max_seconds=3).plot(path, probabilities=True)


def progress(path: Path) -> None:
    grn.warm_up(None)
    grn.solve(thousand_cities(), max_seconds=10).plot_progress(path)


def distributions(path: Path) -> None:
    instances, tours = [], []
    for sizes in SHIFT.values():
        name = sizes[200]
        instances.append(next(iter(dataset(name).instances())))
        tours.append(load_references(name).tours[0])
    save(plot_instances(instances, tours=tours, titles=list(SHIFT), columns=len(instances)), path)


def structure(path: Path) -> None:
    """Four instances of each of the shapes with structure."""
    shapes = (*KINDS, "structure")
    drawn = {shape: GENERATORS[shape](4, 200, 5) for shape in shapes}
    instances = [Instance(drawn[shape][k]) for k in range(4) for shape in shapes]
    titles = [*shapes, *[""] * (3 * len(shapes))]
    save(plot_instances(instances, titles=titles, columns=len(shapes)), path)


def example(script: str, picture: str) -> Callable[[Path], None]:
    def draw(path: Path) -> None:
        with tempfile.TemporaryDirectory() as folder, _working_in(folder):
            runpy.run_path(str(ROOT / "examples" / script), run_name="__main__")
            path.write_bytes(Path(picture).read_bytes())

    return draw


def training(*runs: str, stages: bool = False) -> Callable[[Path], None]:
    def draw(path: Path) -> None:
        curves = [read_curve(RUNS / f"{run}.csv.gz") for run in runs]
        if stages:
            joined = curves[0]
            for later in curves[1:]:
                joined = Curve.then(joined, later)
            curves = [joined]
        save(plot_curves(curves), path)

    return draw


def worst(name: str) -> Callable[[Path], None]:
    def draw(path: Path) -> None:
        cells = [read_any(Path(f"{RESULTS / 'georoutenet-50'}.npz:{cell}")) for cell in WORST[name]]
        try:
            draw_worst(cells, path, weights=[None] * len(cells))
        except InputError as error:
            raise Missing(str(error)) from None

    return draw


@cache
def kept_results() -> tuple[list[Cell], list[Measurement]]:
    """What the pictures of the results are drawn from; reading it takes seconds."""
    found = read_folder(RESULTS)
    return make_cells(found.complete), found.measurements


def results(name: str) -> Callable[[Path], None]:
    def draw(path: Path) -> None:
        save(make_figure(name, *kept_results()), path)

    return draw


# -- the playground ------------------------------------------------------------------------------------------

DESKTOP, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 844}
ENDED = """window.playground.panes[0].scores && window.playground.panes
    .filter((pane) => pane.run).every((pane) => pane.run.result && !pane.run.isRunning)"""


def page(act: Callable[[Page], None], *, dark: bool = False, phone: bool = False) -> Callable[[Path], None]:
    """A picture of the page after something was done there."""

    def draw(path: Path) -> None:
        from benchmarks.browser import CHROMIUM, chromium, playground

        try:
            import playwright  # noqa: F401
        except ImportError as error:
            raise Missing(f"{error}: pip install 'georoutenet[browser]'") from None
        if CHROMIUM is None:
            raise Missing("there is no Chromium on the PATH")
        with playground() as address, chromium() as browser:
            opened = browser.new_page(
                viewport=PHONE if phone else DESKTOP, color_scheme="dark" if dark else "light"
            )
            opened.goto(address)
            until(opened, "window.playground?.panes[0].scores")
            act(opened)
            opened.wait_for_timeout(500)
            opened.screenshot(path=path)

    return draw


def until(opened: Page, expression: str, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not opened.evaluate(f"Boolean({expression})"):
        if time.monotonic() > end:
            raise Missing(f"never in {seconds:g} s: {expression}")
        opened.wait_for_timeout(20)


def solved_on_page(opened: Page, *, first: str = "network-greedy", seconds: str = "2") -> None:
    """By the network and the search, everything loaded by a call before."""
    opened.select_option("#method-a [data-part=first]", first)
    for given in ("10", seconds):
        opened.fill("#seconds", given)
        opened.click("#solve")
        opened.wait_for_timeout(200)
        until(opened, ENDED)


def capitals_on_page(opened: Page) -> None:
    if opened.is_visible("#show-start"):
        opened.check("#show-start")
    else:  # on a phone the settings are behind tabs
        opened.click("[data-tab=tab-solve]")
    solved_on_page(opened)
    if opened.is_visible("[data-tab=tab-solve]"):
        opened.click("[data-tab=tab-solve]")


def step_on_page(opened: Page) -> None:
    opened.select_option("#example", "random-1000")
    until(opened, "window.playground.store.problem.n === 1000")
    solved_on_page(opened, seconds="6")
    opened.evaluate("window.playground.player.seek(0)")
    for _ in range(4):
        opened.click("#forward")


def compared_on_page(opened: Page) -> None:
    opened.select_option("#example", "clustered-200")
    until(opened, "window.playground.store.problem.n === 200")
    opened.select_option("#compare", "edge")
    for which in ("a", "b"):
        opened.uncheck(f"#method-{which} [data-part=improve]")
    solved_on_page(opened, seconds="10")


# -- all of them ---------------------------------------------------------------------------------------------

PAPER = [
    f"paper-{encoder}-{objective}" for encoder in ("nar4tsp", "georoutenet") for objective in ("pg", "mcs")
]
PICTURES: dict[str, Callable[[Path], None]] = {
    "us_capitals": hero,
    "solve_probabilities": probabilities,
    "solve_progress": progress,
    "distributions": distributions,
    "structure": structure,
    "gallery-customers": example("customers.py", "route.png"),
    "gallery-network": example("network.py", "network.png"),
    "bulk": lambda path: save(bulk_picture.draw(), path),
    "many-instances": lambda path: save(gpu_picture.draw(), path),
    "training-2x2": training(*PAPER),
    "training-georoutenet-50": training(*(f"georoutenet-50-stage{k}" for k in (1, 2, 3, 4)), stages=True),
    "training-georoutenet": training("georoutenet"),
    **{name: worst(name) for name in WORST},
    "playground": page(capitals_on_page),
    "playground_phone": page(capitals_on_page, dark=True, phone=True),
    "playground_step": page(step_on_page, dark=True),
    "playground_compare": page(compared_on_page),
}


def all_pictures() -> dict[str, Callable[[Path], None]]:
    """By the name of the file without ``.png``; those of the results are what there is to draw."""
    names = figure_names(*kept_results())
    return {**PICTURES, **{name: results(name) for name in names}}


def draw_all(names: list[str], folder: Path = IMAGES) -> list[str]:
    """Draw pictures, by default all; why some were left as they are."""
    known, left = all_pictures(), []
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise InputError(f"no picture is called {', '.join(unknown)}; there are {', '.join(sorted(known))}")
    for name in names or known:
        path = folder / f"{name}.png"
        try:
            known[name](path)
        except Missing as missing:
            left.append(f"{name}: {missing}")
            continue
        shrink(path)
        print(f"{path.stat().st_size / 1000:6.1f} kB  {path}", flush=True)
    return left


@contextlib.contextmanager
def _working_in(folder: str) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


if __name__ == "__main__":
    not_drawn = draw_all(sys.argv[1:])
    for reason in not_drawn:
        print(f"left as it was: {reason}", file=sys.stderr)
    sys.exit(1 if not_drawn else 0)
