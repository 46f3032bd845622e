"""Measure a policy with a decoder on a data set, instance by instance."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from georoutenet import __version__
from georoutenet.device import choose_device
from georoutenet.errors import InputError
from georoutenet.evaluate.batch_solver import (
    BatchSolver,
    Memory,
    Problems,
    batch_size,
    checked_length,
    consecutive,
    count_of,
)
from georoutenet.evaluate.results import PartialResults, Results, Row, read_results
from georoutenet.evaluate.settings import Settings, header_of, parse_decoder
from georoutenet.evaluate.statistics import Interval, bootstrap_mean
from georoutenet.io.datasets import Dataset, dataset
from georoutenet.io.packaged import find_weights
from georoutenet.io.provenance import commit, device_name, today
from georoutenet.policy.policy import Policy
from georoutenet.policy.weights import digest, load_policy, read_card
from georoutenet.problem.instance import Instance

Progress = Callable[[int, int], None]
"""Called with the number of instances done and their total."""

RESULT_KEYS = ("sha256", "set", "instances", *header_of(Settings()))
"""What decides the tours: files that differ in one of these hold different results."""


def weights_name(weights: str | Path) -> str:
    """The name of packaged weights or of a file; ``best`` and ``last`` are called after their run."""
    path = Path(weights)
    return path.resolve().parent.name if path.stem in ("best", "last") else path.stem


def file_name(set_name: str, settings: Settings) -> str:
    """``val50-beam-1000.csv.gz``; TSPLIB's few rows are not compressed."""
    return f"{set_name}-{settings.label}.csv" + (".gz" if dataset(set_name).is_random else "")


def default_file(weights: str | Path, set_name: str, settings: Settings, folder: Path | None = None) -> Path:
    """Where the results go unless the user says otherwise: to a file that is there, compressed or not."""
    folder = folder or Path("results") / weights_name(weights)
    name = file_name(set_name, settings)
    other = name.removesuffix(".gz") if name.endswith(".gz") else f"{name}.gz"
    return folder / (other if (folder / other).exists() and not (folder / name).exists() else name)


def evaluate(
    weights: str | Path,
    set_name: str,
    path: str | Path,
    settings: Settings | str = "greedy",
    *,
    device: str = "auto",
    policy: Policy | None = None,
    fresh: bool = False,
    progress: Progress | None = None,
    memory: Memory | None = None,
) -> Results:
    """Solve the instances of a set and write their results to ``path``.

    ``settings`` may be a decoder's label; ``policy`` are the loaded weights, and ``memory`` may hold scores
    of theirs from another decoder.

    Rows are appended to ``path.partial`` batch by batch; the same call goes on after the last whole batch.
    A finished file with the same settings is read and returned. Compilation is not measured.
    """
    settings = parse_decoder(settings) if isinstance(settings, str) else settings
    data = dataset(set_name)
    place = choose_device(device)
    header = result_header(weights, data, settings, place)
    if Path(path).exists() and not fresh:
        return _finished(path, header)
    problems = Problems(data, settings.limit)
    batches = list(consecutive(problems.sizes, batch_size(data, settings)))
    partial = PartialResults(path, header, fresh=fresh)
    # Whole batches only: draws and batch statistics depend on an instance's place in its batch.
    ends = [0, *(high for _, high in batches if high <= len(partial.rows))]
    partial.keep(ends[-1])
    left = batches[len(ends) - 1 :]

    solver = BatchSolver(policy or load_policy(weights, place), settings, place, memory)
    if left:
        solver.warm_up(problems, left)
    if place.type == "cuda":
        torch.cuda.reset_peak_memory_stats(place)
    for low, high in left:
        if progress is not None:
            progress(low, problems.count)
        partial.append(_measure(solver, problems.take(low, high), problems.references[low:high]))
    if progress is not None:
        progress(problems.count, problems.count)
    peak = f"{torch.cuda.max_memory_allocated(place)}" if place.type == "cuda" and left else ""
    return partial.finish(peak_device_bytes=peak)


def _finished(path: str | Path, header: dict[str, str]) -> Results:
    """The results that are there, unless they are others than those asked for."""
    done = read_results(path)
    by_batch = header["statistics"] == "batch" or header["decoder"] == "sample"
    for key in (*RESULT_KEYS, *(["batch"] if by_batch else [])):
        there, here = done.header.get(key) or "none", header[key] or "none"
        if there != here:
            raise InputError(
                f"{path} was made with other settings ({key}: {there} there, {here} here); "
                "--fresh replaces it"
            )
    return done


def _measure(solver: BatchSolver, instances: list[Instance], references: np.ndarray) -> list[Row]:
    solved = solver.solve(instances)
    share = len(instances)
    return [
        Row(
            instance.name,
            instance.n,
            checked_length(instance, tour),
            float(reference),
            solved.seconds / share,
            solved.network_seconds / share,
            solved.improve_seconds / share,
        )
        for instance, tour, reference in zip(instances, solved.tours, references, strict=True)
    ]


def result_header(
    weights: str | Path, data: Dataset, settings: Settings, device: torch.device
) -> dict[str, str]:
    file = find_weights(weights)
    config, card = read_card(weights)
    recipe = card.get("recipe")
    objective = recipe.get("objective", "") if isinstance(recipe, dict) else ""
    return {
        "weights": weights_name(file),
        "sha256": digest(file),
        "encoder": config.encoder,
        "objective": str(objective),
        "training_instances": str(card.get("instances", "")),
        "set": data.name,
        "instances": f"{count_of(data, settings.limit)} of {data.count}",
        "inputs": inputs(data, settings),
        **header_of(settings),
        "statistics": settings.statistics if config.encoder == "nar4tsp" else "",
        "batch": str(batch_size(data, settings)),
        "device": device_name(device),
        "threads": str(torch.get_num_threads()),
        "torch": torch.__version__,
        "georoutenet": __version__,
        "commit": commit(),
        "date": today(),
    }


def inputs(data: Dataset, settings: Settings) -> str:
    """What the network sees."""
    if settings.decoding.views > 1:
        return "each view fills the unit square"
    return "as drawn" if data.is_random else "normalized to the unit square"


@dataclass(frozen=True)
class Summary:
    """What the rows come to. Times are sums over the instances; NaN where they were not measured."""

    instances: int
    gap: Interval | None
    """In percent; None where an instance has no reference."""
    length: float
    seconds: float
    network_seconds: float
    improve_seconds: float = 0.0

    @property
    def decode_seconds(self) -> float:
        return self.seconds - self.network_seconds - self.improve_seconds


def summarize(results: Results) -> Summary:
    gaps = results.gaps
    return Summary(
        len(results),
        bootstrap_mean(gaps) if len(gaps) and np.isfinite(gaps).all() else None,
        float(results.lengths.mean()) if len(results) else math.nan,
        float(results.seconds.sum()),
        float(results.network_seconds.sum()),
        float(results.improve_seconds.sum()),
    )
