"""The instance on which a result is worst, solved again and drawn beside the best tour known."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from georoutenet.errors import InputError
from georoutenet.evaluate.batch_solver import BatchSolver, Problems, checked_length, consecutive
from georoutenet.evaluate.names import decoder_name
from georoutenet.evaluate.references import has_references, load_references
from georoutenet.evaluate.results import Results
from georoutenet.evaluate.settings import settings_of
from georoutenet.io.datasets import Dataset, dataset
from georoutenet.io.packaged import find_weights
from georoutenet.io.tsplib import load_optimal_tour
from georoutenet.plot import COLORS, drawn, plot_tour, save
from georoutenet.policy.weights import digest, load_policy
from georoutenet.problem.instance import Instance
from georoutenet.problem.tour import Tour, gap, tour_length
from georoutenet.search import improve
from georoutenet.stop import AnyOf, MaxTime, NoImprovement

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def worst_position(results: Results) -> int:
    """The row with the largest gap."""
    gaps = results.gaps
    if not len(gaps) or not np.isfinite(gaps).all():
        raise InputError("the worst instance needs rows that all have a reference")
    return int(np.argmax(gaps))


def solve_again(results: Results, name: str, *, weights: str | Path | None = None) -> tuple[Instance, Tour]:
    """The instance of that name and its tour, decoded on the CPU with the settings in the header.

    Files of results hold lengths, no tours. Where the place in a batch matters, the whole batch is solved.
    """
    header = results.header
    given = weights or header["weights"]
    file = find_weights(given)
    if digest(file) != header["sha256"]:
        raise InputError(f"{file} are not the weights of these results: their SHA-256 is {header['sha256']}")
    settings = settings_of(header)
    problems = Problems(dataset(header["set"]), None)
    index = _index(problems, name)
    low, high = index, index + 1
    if settings.statistics == "batch" or settings.decoding.decoder == "sample":
        batches = consecutive(problems.sizes, settings.batch or 1)
        low, high = next((low, high) for low, high in batches if low <= index < high)
    cpu = torch.device("cpu")
    instances = problems.take(low, high)
    solved = BatchSolver(load_policy(file, cpu), settings, cpu).solve(instances)
    instance, tour = instances[index - low], solved.tours[index - low]
    checked_length(instance, tour)
    return instance, tour


def _index(problems: Problems, name: str) -> int:
    data = problems.data
    if data.is_random:
        start, _, number = name.rpartition("-")
        if start == data.name and number.isdigit() and int(number) < data.count:
            return int(number)
    else:
        for index, instance in enumerate(problems.instances):
            if instance.name == name:
                return index
    raise InputError(f"{data.name} has no instance {name!r}")


def best_tour(data: Dataset, instance: Instance, start: Tour) -> tuple[Tour, str]:
    """The best tour known and what it is: packaged, or TSPLIB's, or what local search makes of ``start``."""
    if data.is_random and has_references(data.name):
        known, index = load_references(data.name), int(instance.name.rpartition("-")[2])
        return known.tours[index].astype(np.int64), "optimal" if known.proven[index] else "best known"
    try:
        return load_optimal_tour(instance.name), "optimal"
    except InputError:  # TSPLIB has no tour for it
        found = improve(instance, start, stop=AnyOf(MaxTime(10.0), NoImprovement(20 * instance.n))).tour
        optimal = instance.optimum is not None and tour_length(instance, found) == instance.optimum
        return found, "optimal" if optimal else "local search"


def draw_worst(
    results: Sequence[Results],
    path: str | Path,
    *,
    name: str | None = None,
    weights: Sequence[str | Path | None],
) -> str:
    """Draw an instance, by default the worst of the first results, with all tours and the best; its name."""
    first = results[0]
    name = name or first.rows[worst_position(first)].instance
    tours: list[tuple[str, Tour]] = []
    for each, given in zip(results, weights, strict=True):
        instance, tour = solve_again(each, name, weights=given)
        tours.append((f"{drawn(each.header['weights'])}, {decoder_name(each.header)}", tour))
    best, words = best_tour(dataset(first.header["set"]), instance, tours[0][1])
    reference = tour_length(instance, best)
    save(_figure(instance, [*tours, (words, best)], best, reference), path)
    return name


def _figure(instance: Instance, tours: list[tuple[str, Tour]], best: Tour, reference: float) -> Figure:
    """A panel per tour; edges that the best tour does not have stand out."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    width, height = np.ptp(instance.coordinates, axis=0)
    shape = min(1.6, max(0.4, float(height / width))) if width > 0 else 1.0
    figure = Figure(figsize=(4.6 * len(tours), 4.6 * shape + 0.6), layout="constrained")
    axes: Any = figure.subplots(1, len(tours), squeeze=False)
    own, thick = _edges(best), min(2.2, max(1.0, 16 / instance.n**0.5))
    for ax, (words, tour) in zip(axes[0], tours, strict=True):
        percent = gap(tour_length(instance, tour), reference)
        title = f"{words}\n{percent:.2f} % above the best"
        if tour is best:
            title = f"{drawn(instance.name)}, {instance.n:,} cities\n{words}"
        plot_tour(instance, tour, ax=ax, title=title)
        for a, b in _edges(tour) - own:
            ax.plot(*instance.coordinates[[a, b]].T, color=COLORS[1], linewidth=thick, zorder=2.5)
    other = Line2D(
        [], [], color=COLORS[1], linewidth=thick, label=f"edges that the {words} tour does not have"
    )
    figure.legend(handles=[other], loc="outside lower center", fontsize=9, frameon=False)
    return figure


def _edges(tour: Tour) -> set[tuple[int, int]]:
    return {(min(a, b), max(a, b)) for a, b in zip(tour.tolist(), np.roll(tour, -1).tolist(), strict=True)}
