"""``solve_many`` on GPUs: instances of whatever sizes are searched side by side, many thousands at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from georoutenet.clock import now
from georoutenet.decode.costs import RULES
from georoutenet.errors import InputError, warn
from georoutenet.problem.instance import DistanceRule, Instance
from georoutenet.search.gpu.cycle import padded
from georoutenet.search.gpu.engine import CITIES, FEWEST, WARPS, why_not
from georoutenet.search.path import Ends
from georoutenet.solver.batch_gpu import GpuBatches, gpus_for
from georoutenet.solver.network import edge_marginals
from georoutenet.solver.options import SolveOptions
from georoutenet.solver.result import Result
from georoutenet.solver.stages import NO_ROOM
from georoutenet.stop import MaxTime, Progress, seconds_left

WORTH_IT = 64
"""Instances from which on a GPU that was not named searches: fewer are as soon done by the cores."""


@dataclass(frozen=True)
class Searched:
    """Instances that one launch after another has searched."""

    positions: list[int]
    tours: NDArray[np.int64]  # (B, n); of each as many are its own as it has cities
    lengths: NDArray[np.float64]  # (B,)
    first: NDArray[np.float64]  # (B,), of the first tours
    kicks: NDArray[np.int64]  # (B,)
    searched: NDArray[np.bool_]  # (B,); the others follow a curve, since time had ended
    method: str
    seconds: float  # of all
    interrupted: bool


def search_many(instances: Sequence[Instance], options: SolveOptions) -> Iterator[Searched]:
    """Those that GPUs can search, and are to. Ctrl-C is raised when what they have by then was given."""
    if not options.improve:
        return
    if options.device != "auto":
        _say_what_is_left(instances)
    groups = _groups(instances, options)
    if options.device == "auto" and sum(map(len, groups.values())) < WORTH_IT:
        return
    for (rule, *_), positions in groups.items():
        began = now()
        try:
            found, interrupted = _search([instances[k] for k in positions], rule, options, began)
        except InputError:  # whoever solves them one by one says which cannot be
            continue
        if found is None:
            continue
        ready: Any = slice(None)
        if interrupted:
            ready = np.flatnonzero(found.joined("ready").numpy())
            positions = [positions[k] for k in ready]
        tours, lengths, first, kicks, searched = (
            found.joined(name).numpy()[ready] for name in ("tours", "lengths", "first", "kicked", "searched")
        )
        if positions:
            method, seconds = found.parts[0].method, now() - began
            yield Searched(positions, tours, lengths, first, kicks, searched, method, seconds, interrupted)
        if interrupted:
            raise KeyboardInterrupt


def _say_what_is_left(instances: Sequence[Instance]) -> None:
    """Why the CPU searches some of the instances, where a GPU was asked for by name."""
    reasons = (why_not(each.n, each.rule, Ends(each.n)) for each in instances if each.n >= FEWEST)
    if reason := next(filter(None, reasons), ""):
        warn(f"{reason}; the CPU searches such instances")


def _search(
    instances: list[Instance], rule: DistanceRule, options: SolveOptions, began: float
) -> tuple[GpuBatches | None, bool]:
    """One group, None where no GPU is to search it; whether Ctrl-C ended that."""
    points, sizes = padded([instance.coordinates for instance in instances])
    n, count = points.shape[1], len(instances)
    ends = _ends(instances[0], options, n)
    devices = gpus_for(options, n, rule, ends, count)
    if not devices:
        return None, False
    limit = options.stop if options.max_seconds is None else MaxTime(options.max_seconds)

    def report(done: int, mean: float) -> None:
        if options.progress is not None:
            options.progress("batch", Progress(now() - began, done, 0, mean))

    batches = GpuBatches(
        points,
        devices,
        ends,
        rule,
        options,
        limit=limit,
        left=lambda: seconds_left(limit, now() - began),
        report=report,
        sizes=None if int(sizes.min()) == n else sizes,
    )
    try:
        batches.run()
    except KeyboardInterrupt:
        return batches, True
    return batches, False


def _ends(instance: Instance, options: SolveOptions, n: int) -> Ends:
    start, end = (None if each is None else instance.city(each) for each in (options.start, options.end))
    return Ends(n, start=start, end=end, closed=options.closed)


def results(instances: Sequence[Instance], options: SolveOptions) -> Iterator[tuple[int, Result]]:
    """``search_many`` as ``solve_many`` gives it."""
    for group in search_many(instances, options):
        each = group.seconds / len(group.positions)
        for j, k in enumerate(group.positions):
            instance = instances[k]
            ends = _ends(instance, options, instance.n)
            tour = group.tours[j, : instance.n].copy()
            whole = int if instance.is_integer else float
            length, first = whole(group.lengths[j]), whole(group.first[j])
            history = [Progress(0.0, 0, 0, first)]
            if length < first:
                history.append(Progress(each, int(group.kicks[j]), 0, length))
            yield (
                k,
                Result(
                    instance=instance,
                    tour=tour,
                    length=length,
                    closed=options.closed,
                    method=group.method,
                    timings={"improve": each, "total": each},
                    history=history,
                    iterations=int(group.kicks[j]),
                    notes=[] if group.searched[j] else [NO_ROOM],
                    interrupted=group.interrupted,
                    score=partial(edge_marginals, instance, options.weights, options.device, ends),
                ),
            )


def _groups(
    instances: Sequence[Instance], options: SolveOptions
) -> dict[tuple[DistanceRule, object, object, object], list[int]]:
    """Positions of instances that can be searched together: under one rule, in as much shared memory; of one
    size where tours have fixed ends, are open, or follow no curve at first."""
    plain = options.first == "curve" or (options.first == "auto" and not options.names_network)
    together = plain and options.closed and options.start is None and options.end is None
    given = (options.start, options.end)
    groups: dict[tuple[DistanceRule, object, object, object], list[int]] = {}
    for k, instance in enumerate(instances):
        if instance.rule in RULES and instance.has_coordinates and FEWEST <= instance.n <= CITIES:
            size = _room(instance.n) if together else instance.n
            try:
                ends = [None if city is None else instance.city(city) for city in given]
            except InputError:
                continue
            groups.setdefault((instance.rule, size, *ends), []).append(k)  # type: ignore[arg-type]
    return groups


def _room(n: int) -> int:
    """The least of some sizes that has room for ``n`` cities."""
    return min(size for size in (64, 128, 512, *WARPS) if n <= size)
