"""The instances of a set in batches, and a policy with its decoder that solves them and times its parts."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from georoutenet.decode import decode_views
from georoutenet.errors import GeoRouteNetError, InputError
from georoutenet.evaluate.references import has_references, load_references
from georoutenet.evaluate.settings import Settings
from georoutenet.io.datasets import Dataset
from georoutenet.model.scores import Scores
from georoutenet.policy.policy import Policy
from georoutenet.problem.instance import DistanceRule, Instance
from georoutenet.problem.tour import check_tour, tour_length
from georoutenet.search.local_search import compile_kernels, improve
from georoutenet.stop import MaxTime

BATCH = 128
WARM_UP = 16
"""Instances that compile what a single batch needs, where solving all of it twice would cost too much."""
PAIRS_IN_BATCH = BATCH * 200**2
"""With batch statistics all pairs of a batch are in memory at once, so batches above 200 cities shrink."""


def batch_size(data: Dataset, settings: Settings) -> int:
    """What was asked for, else the protocol's: 128 on random sets, 1 on TSPLIB."""
    if settings.batch is not None:
        return settings.batch
    if not data.is_random:
        return 1
    if settings.statistics == "batch" and data.n is not None:
        return max(1, min(BATCH, PAIRS_IN_BATCH // data.n**2))
    return BATCH


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


def count_of(data: Dataset, limit: int | None) -> int:
    """How many instances of a set are taken."""
    return data.count if limit is None else min(limit, data.count)


class Problems:
    """The first ``limit`` instances of a set, their sizes and references."""

    def __init__(self, data: Dataset, limit: int | None) -> None:
        self.count = count_of(data, limit)
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


@dataclass(frozen=True, eq=False)
class Solved:
    """The tours of a batch ``(B, n)`` and the seconds it took: in all, in the network, in local search."""

    tours: NDArray[np.int64]
    seconds: float
    network_seconds: float
    improve_seconds: float


class Memory:
    """Dense scores, with the seconds that they took, for another decoder of the same instances."""

    def __init__(self, size: int = 1 << 30) -> None:
        self.left = size
        self.known: dict[bytes, tuple[Scores, float]] = {}

    def put(self, key: bytes, scores: Scores, seconds: float) -> None:
        needed = scores.logits.nbytes + scores.start.nbytes
        if scores.is_dense and needed <= self.left and key not in self.known:
            self.left -= needed
            self.known[key] = scores, seconds


class BatchSolver:
    """A policy, a decoder and local search, as the settings say. What is in ``memory`` is not computed again,
    but its time counts."""

    def __init__(
        self, policy: Policy, settings: Settings, device: torch.device, memory: Memory | None = None
    ) -> None:
        policy.statistics = settings.statistics
        policy.compute_dtype = torch.bfloat16 if settings.decoding.precision == "bfloat16" else None
        self.policy, self.settings, self.device, self.memory = policy, settings, device, memory
        self.network_seconds = 0.0
        self.saved_seconds = 0.0

    def warm_up(self, problems: Problems, batches: Sequence[tuple[int, int]]) -> None:
        """Compile what the batches need, by solving some instances of each size on a GPU and one on a CPU."""
        memory, self.memory = self.memory, None  # the time of scores that compile does not count
        on_cpu = self.device.type == "cpu"
        some = 1 if on_cpu else WARM_UP if len(batches) == 1 else BATCH
        sizes: set[int] = set()
        for low, high in batches[:1] if on_cpu else batches:
            if problems.sizes[low] not in sizes:
                sizes.add(problems.sizes[low])
                self._decode(problems.take(low, min(high, low + some)))
        self.memory = memory
        if self.settings.improve:
            compile_kernels()

    def solve(self, instances: list[Instance]) -> Solved:
        """One tour for each instance. Instances have one size."""
        self.network_seconds = self.saved_seconds = 0.0
        begin = time.perf_counter()
        tours = self._decode(instances)
        decoded = time.perf_counter()
        if self.settings.improve:
            stop, seed = MaxTime(self.settings.improve), self.settings.seed
            improved = []
            for each, tour in zip(instances, tours, strict=True):
                shorter = improve(each, tour, stop=stop, seed=seed)
                _go_on(shorter.interrupted)
                improved.append(shorter.tour)
            tours = np.stack(improved)
        end = time.perf_counter()
        seconds = end - begin + self.saved_seconds
        return Solved(tours, seconds, self.network_seconds, end - decoded if self.settings.improve else 0.0)

    def _decode(self, instances: list[Instance]) -> NDArray[np.int64]:
        decoding, inputs = self.settings.decoding, None
        if decoding.views == 1:
            # Random instances lie in the unit square and are taken as drawn; others are moved into it.
            drawn = DistanceRule.EUCLIDEAN
            seen = [each.coordinates if each.rule is drawn else each.normalized() for each in instances]
            inputs = torch.from_numpy(np.stack(seen)).float().to(self.device)
        found = decode_views(
            self._score,
            instances,
            decoding,
            seed=self.settings.seed,
            device=self.device,
            batch=BATCH if inputs is None else len(instances),
            inputs=inputs,
        )
        _go_on(found.interrupted)
        return found.best().cpu().numpy()

    def _score(self, coordinates: Tensor) -> Scores:
        key = b"" if self.memory is None else self._key(coordinates)
        if self.memory is not None and key in self.memory.known:
            scores, seconds = self.memory.known[key]
            self.saved_seconds += seconds
        else:
            self._wait()
            begin = time.perf_counter()
            scores = self.policy(coordinates, candidates=self.settings.decoding.candidates)
            self._wait()
            seconds = time.perf_counter() - begin
            if self.memory is not None:
                self.memory.put(key, scores, seconds)
        self.network_seconds += seconds
        return scores

    def _key(self, coordinates: Tensor) -> bytes:
        """What the scores depend on, besides the weights."""
        of_scores = (self.settings.decoding.scores_label, self.settings.statistics)
        others = (tuple(coordinates.shape), *of_scores)
        return hashlib.sha256(repr(others).encode() + coordinates.cpu().numpy().tobytes()).digest()

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def _go_on(interrupted: bool) -> None:
    """What Ctrl-C broke off still has a tour, but none that is a measurement."""
    if interrupted:
        raise KeyboardInterrupt


def checked_length(instance: Instance, tour: NDArray[np.int64], who: str = "the decoder") -> float:
    """The length of a tour under the instance's rule; what is no tour is never measured."""
    try:
        return float(tour_length(instance, check_tour(tour, instance.n)))
    except InputError as error:
        raise GeoRouteNetError(f"{instance.name}: {who} returned no tour: {error}") from None
