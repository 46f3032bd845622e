"""Cities in, short tour out: the network scores, a decoder makes a tour, a local search shortens it.

Each stage is visible in ``Result.timings`` and can be changed or left out. One clock starts with the call.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

import numpy as np
from numpy.typing import ArrayLike

from georoutenet.errors import InputError
from georoutenet.files import read_instance
from georoutenet.improve.stop import Stop
from georoutenet.instance import Instance
from georoutenet.pipeline import Group, Options, Report
from georoutenet.result import Result
from georoutenet.tour import check_tour

if TYPE_CHECKING:
    from georoutenet.model.policy import Policy

Problem = Instance | ArrayLike | str | os.PathLike[str]


def solve(
    problem: Problem,
    *,
    weights: str | Path | Policy = "auto",
    decoder: str | None = None,
    beam_width: int | None = None,
    views: int | None = None,
    improve: bool = True,
    max_seconds: float | None = None,
    stop: Stop | None = None,
    seed: int = 0,
    device: str = "auto",
    start: int | None = None,
    end: int | None = None,
    closed: bool = True,
    initial_tour: ArrayLike | None = None,
    progress: Report | None = None,
) -> Result:
    """A short, valid tour through ``problem``: coordinates ``(n, 2)``, an ``Instance`` or a file's path.

    The tour is decoded from the scores of ``weights`` (packaged by name, a file, or a ``Policy``) by
    ``decoder`` (``beam``, ``sample`` or ``greedy``) with ``beam_width`` beams or samples shared by ``views``,
    then shortened by local search unless ``improve=False``. What is not given is chosen by size (see
    ``georoutenet.neural.make_plan``). ``initial_tour`` takes the place of network and decoder.

    ``max_seconds`` counts from the call and includes everything; ``stop`` is any stopping criterion, for
    example ``AnyOf(MaxTime(2), NoImprovement(1000))``. Where time is too short for the network, the first
    tour is constructed without it, and ``Result.notes`` says so. Ctrl-C returns the best tour so far.

    ``start`` and ``end`` fix the first and the last city; ``closed=False`` asks for a path.
    The result is the same for the same seed, machine and options unless a time limit ends the search.
    """
    options = Options(
        weights=weights,
        decoder=decoder,
        beam_width=beam_width,
        views=views,
        improve=improve,
        stop=stop,
        max_seconds=max_seconds,
        seed=seed,
        device=device,
        start=start,
        end=end,
        closed=closed,
        progress=progress,
    )
    began = time.perf_counter()
    instance = as_instance(problem)
    tours = None if initial_tour is None else [check_tour(initial_tour, instance.n)]
    return Group([instance], options, began, tours).solve()[0]


class SolveOptions(TypedDict, total=False):
    """The options of ``solve_many``; see ``solve``."""

    weights: str | Path | Policy
    decoder: str | None
    beam_width: int | None
    views: int | None
    improve: bool
    max_seconds: float | None
    stop: Stop | None
    seed: int
    device: str
    start: int | None
    end: int | None
    closed: bool
    progress: Report | None


def solve_many(problems: Sequence[Problem], **options: Unpack[SolveOptions]) -> list[Result]:
    """Results of many problems of any sizes, in the order given; those of one size share network calls.

    Options are those of ``solve`` and hold for each problem; ``max_seconds`` is each one's share of the time.
    After Ctrl-C the problems not yet reached have a constructed tour and ``interrupted`` set.
    """
    try:
        checked = Options(**options)
    except TypeError as error:
        raise InputError(f"solve_many does not take these options: {error}") from None
    instances = [as_instance(problem) for problem in problems]
    sizes: dict[int, list[int]] = {}
    for k, instance in enumerate(instances):
        sizes.setdefault(instance.n, []).append(k)
    results: dict[int, Result] = {}
    interrupted = False
    for positions in sizes.values():
        group = Group([instances[k] for k in positions], checked, time.perf_counter())
        group.interrupted = interrupted
        results.update(zip(positions, group.solve(), strict=True))
        interrupted = group.interrupted
    return [results[k] for k in range(len(instances))]


def as_instance(problem: Problem) -> Instance:
    """Coordinates, a file's path or an instance as an instance."""
    if isinstance(problem, Instance):
        return problem
    if isinstance(problem, (str, os.PathLike)):
        return read_instance(problem)
    return Instance(np.asarray(problem))
