"""Measure a policy with a decoder on a data set, instance by instance."""

from __future__ import annotations

import hashlib
import math
import os
import platform
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import get_args

import numpy as np
import torch
from torch import Tensor

from georoutenet import __version__
from georoutenet.decode import beam, greedy, sample, solve_views
from georoutenet.decode.beam_task import cheapest
from georoutenet.decode.common import whole
from georoutenet.decode.costs import as_costs
from georoutenet.decode.views import Decoder
from georoutenet.device import choose_device
from georoutenet.errors import GeoRouteNetError, InputError
from georoutenet.evaluate.datasets import Dataset, dataset
from georoutenet.evaluate.references import has_references, load_references
from georoutenet.evaluate.results import PartialResults, Results, Row
from georoutenet.evaluate.statistics import Interval, bootstrap_mean
from georoutenet.instance import Instance
from georoutenet.model.policy import STATISTICS, Policy
from georoutenet.model.scores import Scores
from georoutenet.model.weights import find_weights, load_policy, read_card
from georoutenet.tour import check_tour, tour_length

PRECISIONS = {"float32": None, "bfloat16": torch.bfloat16}
Progress = Callable[[int, int], None]
"""Called with the number of instances done and their total."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a set is solved. ``batch = None`` is the protocol's: 128 on random sets, 1 on TSPLIB."""

    decoder: str = "greedy"
    width: int = 1000
    """Beams or samples of an instance, all views together; greedy has none."""
    views: int = 1
    """1: the instance as it is. More: rotated and reflected copies share the width."""
    statistics: str = "frozen"
    """Of NAR4TSP's norms; GeoRouteNet has none."""
    limit: int | None = None
    """Only this many instances, from the first on."""
    batch: int | None = None
    precision: str = "float32"
    seed: int = 0
    """Of sampling, and of the views after the eight of the square."""

    def __post_init__(self) -> None:
        for name, allowed in (
            ("decoder", get_args(Decoder)),
            ("statistics", STATISTICS),
            ("precision", PRECISIONS),
        ):
            if getattr(self, name) not in allowed:
                given = getattr(self, name)
                raise InputError(f"unknown {name} {given!r}; allowed: {', '.join(allowed)}")
        for name in ("width", "views", "limit", "batch"):
            if getattr(self, name) is not None:
                whole(name, getattr(self, name))

    @property
    def label(self) -> str:
        """Short and usable in a file name: ``greedy``, ``beam-1000``, ``beam-1000-views-8``."""
        parts = [self.decoder if self.decoder == "greedy" else f"{self.decoder}-{self.width}"]
        if self.views > 1:
            parts.append(f"views-{self.views}")
        if self.statistics != "frozen":
            parts.append(self.statistics)
        if self.precision != "float32":
            parts.append(self.precision)
        if self.limit is not None:
            parts.append(f"first-{self.limit}")
        return "-".join(parts)


def default_file(weights: str | Path, set_name: str, settings: Settings) -> Path:
    """Where the results go unless the user says otherwise."""
    return Path("results") / Path(weights).stem / f"{set_name}-{settings.label}.csv"


def evaluate(
    weights: str | Path,
    set_name: str,
    path: str | Path,
    settings: Settings | None = None,
    *,
    device: str = "auto",
    fresh: bool = False,
    progress: Progress | None = None,
) -> Results:
    """Solve the instances of a set and write their results to ``path``.

    Rows are appended to ``path.partial`` batch by batch; the same call goes on after the last whole batch.
    The first batch is solved once before the clock starts, so compilation is not measured.
    """
    settings = settings or Settings()
    data = dataset(set_name)
    place = choose_device(device)
    problems = _Problems(data, settings.limit)
    batches = list(consecutive(problems.sizes, settings.batch or default_batch(data)))
    header = _header(weights, data, settings, place)
    partial = PartialResults(path, header, fresh=fresh)
    # Whole batches only: draws and batch statistics depend on an instance's place in its batch.
    ends = [0, *(high for _, high in batches if high <= len(partial.rows))]
    partial.keep(ends[-1])
    left = batches[len(ends) - 1 :]

    policy = load_policy(weights, place)
    policy.statistics = settings.statistics
    policy.compute_dtype = PRECISIONS[settings.precision]
    solver = _Solver(policy, settings, place)
    if left:
        solver.solve(problems.take(*left[0]))
    if place.type == "cuda":
        torch.cuda.reset_peak_memory_stats(place)
    for low, high in left:
        if progress is not None:
            progress(low, problems.count)
        partial.append(_measure(solver, problems.take(low, high), problems.references[low:high]))
    if progress is not None:
        progress(problems.count, problems.count)
    memory = f"{torch.cuda.max_memory_allocated(place)}" if place.type == "cuda" and left else ""
    return partial.finish(peak_device_bytes=memory)


def default_batch(data: Dataset) -> int:
    return 128 if data.is_random else 1


def consecutive(sizes: Sequence[int], batch: int) -> list[tuple[int, int]]:
    """Ranges of at most ``batch`` neighboring instances of one size, in order."""
    ranges: list[tuple[int, int]] = []
    for position, size in enumerate(sizes):
        low, high = ranges[-1] if ranges else (0, 0)
        if ranges and high - low < batch and sizes[low] == size:
            ranges[-1] = (low, position + 1)
        else:
            ranges.append((position, position + 1))
    return ranges


class _Problems:
    """The first ``limit`` instances of a set, their sizes and references."""

    def __init__(self, data: Dataset, limit: int | None) -> None:
        self.count = data.count if limit is None else min(limit, data.count)
        self.data = data
        if data.is_random:
            assert data.n is not None
            self.sizes = [data.n] * self.count
            known = has_references(data.name)
            self.references = load_references(data.name).lengths if known else np.full(data.count, math.nan)
        else:
            self.instances = list(islice(data.instances(), self.count))
            self.sizes = [instance.n for instance in self.instances]
            optima = (math.nan if each.optimum is None else each.optimum for each in self.instances)
            self.references = np.array(list(optima), dtype=np.float64)

    def take(self, low: int, high: int) -> list[Instance]:
        if not self.data.is_random:
            return self.instances[low:high]
        return [
            Instance(self.data.coordinates[index], name=f"{self.data.name}-{index}")
            for index in range(low, high)
        ]


class _Solver:
    """The policy and decoder of one evaluation, with the time spent in the network kept apart."""

    def __init__(self, policy: Policy, settings: Settings, device: torch.device) -> None:
        self.policy, self.settings, self.device = policy, settings, device
        self.network_seconds = 0.0

    @torch.no_grad()
    def solve(self, instances: list[Instance]) -> np.ndarray:
        """One tour for each instance, ``(B, n)``. Instances have one size."""
        settings = self.settings
        if settings.views > 1:
            found = solve_views(
                self._score,
                instances=instances,
                views=settings.views,
                decoder=settings.decoder,  # type: ignore[arg-type]  # checked by Settings
                width=settings.width,
                seed=settings.seed,
                device=self.device,
            )
            return found.best().cpu().numpy()
        # Random instances lie in the unit square and are taken as drawn; others are moved into it.
        inputs = [each.normalized() if each.rule.is_integer else each.coordinates for each in instances]
        scores = self._score(torch.from_numpy(np.stack(inputs)).float().to(self.device))
        if settings.decoder == "greedy":
            tours = greedy(scores, log_probabilities=False).best()
        elif settings.decoder == "beam":
            tours = beam(scores, settings.width, instances=instances).best()
        else:
            drawn = sample(scores, settings.width, seed=settings.seed, log_probabilities=False).tours
            costs = as_costs(len(instances), scores.n, self.device, instances=instances)
            tours = cheapest(drawn, None, costs, 1).best()
        return tours.cpu().numpy()

    def _score(self, coordinates: Tensor) -> Scores:
        self.wait()
        begin = time.perf_counter()
        scores: Scores = self.policy(coordinates)
        self.wait()
        self.network_seconds += time.perf_counter() - begin
        return scores

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def _measure(solver: _Solver, instances: list[Instance], references: np.ndarray) -> list[Row]:
    solver.network_seconds = 0.0
    begin = time.perf_counter()
    tours = solver.solve(instances)
    seconds = time.perf_counter() - begin
    rows = []
    for instance, tour, reference in zip(instances, tours, references, strict=True):
        try:
            length = float(tour_length(instance, check_tour(tour, instance.n)))
        except InputError as error:
            raise GeoRouteNetError(f"{instance.name}: the decoder returned no tour: {error}") from None
        share = len(instances)
        rows.append(
            Row(
                instance.name,
                instance.n,
                length,
                float(reference),
                seconds / share,
                solver.network_seconds / share,
            )
        )
    return rows


def _header(weights: str | Path, data: Dataset, settings: Settings, device: torch.device) -> dict[str, str]:
    file = find_weights(weights)
    config, card = read_card(weights)
    recipe = card.get("recipe")
    objective = recipe.get("objective", "") if isinstance(recipe, dict) else ""
    count = data.count if settings.limit is None else min(settings.limit, data.count)
    return {
        "weights": file.stem,
        "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
        "encoder": config.encoder,
        "objective": str(objective),
        "set": data.name,
        "instances": f"{count} of {data.count}",
        "inputs": inputs(data, settings),
        "decoder": settings.decoder,
        "width": "" if settings.decoder == "greedy" else str(settings.width),
        "views": str(settings.views),
        "seed": str(settings.seed),
        "statistics": settings.statistics if config.encoder == "nar4tsp" else "",
        "precision": settings.precision,
        "batch": str(settings.batch or default_batch(data)),
        "device": device_name(device),
        "threads": str(torch.get_num_threads()),
        "torch": torch.__version__,
        "georoutenet": __version__,
        "commit": commit(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }


def inputs(data: Dataset, settings: Settings) -> str:
    """What the network sees."""
    if settings.views > 1:
        return "each view fills the unit square"
    return "as drawn" if data.is_random else "normalized to the unit square"


def device_name(device: torch.device) -> str:
    """The GPU's or processor's name as it calls itself."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def commit() -> str:
    """The commit of the checkout this package runs from, with ``+`` where files differ; else empty."""
    folder = Path(__file__).resolve().parent.parent
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            check=True,
            env=environment,
        )
        return done.stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "__init__.py")  # not some other project that an install lies in
        changed = git("status", "--porcelain", "--untracked-files=no", "--", ".")
        return git("rev-parse", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return ""


@dataclass(frozen=True)
class Summary:
    """What the rows come to. Times are sums over the instances; NaN where they were not measured."""

    instances: int
    gap: Interval | None
    """In percent; None where an instance has no reference."""
    length: float
    seconds: float
    network_seconds: float

    @property
    def decode_seconds(self) -> float:
        return self.seconds - self.network_seconds


def summarize(results: Results) -> Summary:
    gaps = results.gaps
    return Summary(
        len(results),
        bootstrap_mean(gaps) if len(gaps) and np.isfinite(gaps).all() else None,
        float(results.lengths.mean()) if len(results) else math.nan,
        float(results.seconds.sum()),
        float(results.network_seconds.sum()),
    )
