"""Cities in, short tour out: the network scores, a decoder makes a tour, a local search shortens it.

Each stage is visible in ``Result.timings`` and can be changed or left out. One clock starts with the call.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

import numpy as np
from numpy.typing import ArrayLike

from georoutenet.clock import now
from georoutenet.errors import GeoRouteNetError, InputError
from georoutenet.io.files import read_instance
from georoutenet.problem.instance import Instance
from georoutenet.problem.tour import check_tour
from georoutenet.solver.result import Result
from georoutenet.solver.stages import Group, Options, Report
from georoutenet.stop import Stop

if TYPE_CHECKING:
    from georoutenet.policy.policy import Policy

Problem = Instance | ArrayLike | str | os.PathLike[str]


def solve(
    problem: Problem,
    *,
    weights: str | Path | Policy = "georoutenet",
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
    ``georoutenet.solver.network.make_plan``). ``initial_tour`` takes the place of network and decoder.

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
    began = now()
    instance = as_instance(problem)
    tours = None if initial_tour is None else [check_tour(initial_tour, instance.n)]
    group = Group([instance], options, began, tours)
    group.first_tours()
    return group.finish(0)


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


def solve_many(
    problems: Sequence[Problem], *, workers: int | None = None, **options: Unpack[SolveOptions]
) -> list[Result]:
    """Results of many problems of any sizes, in the order given; those of one size share network calls.

    Options are those of ``solve`` and hold for each problem. The local searches run side by side in
    ``workers`` threads, by default as many as there are cores, and ``progress`` is called from them. Without
    time limits the results do not depend on ``workers``. ``max_seconds`` is for each problem: its share of
    the network's time, then its own search, so all take about
    ``max_seconds * len(problems) / workers``. After Ctrl-C the problems not yet reached have the tour they
    had by then, or a constructed one, and ``interrupted`` set.
    """
    try:
        checked = Options(**options)
    except TypeError as error:
        raise InputError(f"solve_many does not take these options: {error}") from None
    instances = [as_instance(problem) for problem in problems]
    results: dict[int, Result] = {}
    for k, result in solve_all(instances, checked, workers):
        if isinstance(result, GeoRouteNetError):
            raise result
        results[k] = result
    return [results[k] for k in range(len(instances))]


def solve_all(
    instances: Sequence[Instance], options: Options, workers: int | None = None
) -> Iterator[tuple[int, Result | GeoRouteNetError]]:
    """Positions and results as they are ready: first tours size by size, then searches side by side.

    Where a size cannot be solved as asked, its positions come with the error.
    """
    if workers is not None and (isinstance(workers, bool) or int(workers) != workers or workers < 1):
        raise InputError(f"workers must be a whole number of at least 1, got {workers!r}")
    cancel = threading.Event()
    sizes: dict[int, list[int]] = {}
    for k, instance in enumerate(instances):
        sizes.setdefault(instance.n, []).append(k)
    jobs: list[tuple[int, Group, int]] = []
    for positions in sizes.values():
        try:
            group = Group([instances[k] for k in positions], options, now(), cancel=cancel)
            group.first_tours()
        except GeoRouteNetError as error:
            yield from ((k, error) for k in positions)
        else:
            jobs += [(k, group, own) for own, k in enumerate(positions)]
    jobs.sort(key=lambda job: job[0], reverse=True)
    count = min(workers or available_cores(), len(jobs))
    if count <= 1 or not options.improve:
        for k, group, own in reversed(jobs):
            yield k, group.finish(own)
        return
    yield from _side_by_side(jobs, count, cancel)


def _side_by_side(
    jobs: list[tuple[int, Group, int]], workers: int, cancel: threading.Event
) -> Iterator[tuple[int, Result]]:
    """Finish the jobs, last first, in threads that help themselves; yield what is done.

    Ctrl-C can come between any two instructions, so nothing is handed over: jobs leave the list and results
    enter the table in single operations, and a lost wake-up costs nothing.
    """
    done: dict[int, Result | BaseException] = {}
    total, changed = len(jobs), threading.Event()

    def work() -> None:
        while True:
            try:
                k, group, own = jobs.pop()
            except IndexError:
                return
            try:
                done[k] = group.finish(own)
            except BaseException as error:
                done[k] = error
            changed.set()

    threads: list[threading.Thread] = []
    yielded: set[int] = set()
    try:
        while len(yielded) < total:
            try:
                while len(threads) < (1 if cancel.is_set() else workers):
                    thread = threading.Thread(target=work, daemon=True)
                    thread.start()  # one that is interrupted here and not counted does no harm
                    threads.append(thread)
                changed.wait()
                changed.clear()
            except KeyboardInterrupt:
                cancel.set()
            for k in sorted(done.keys() - yielded):
                yielded.add(k)
                result = done[k]
                if isinstance(result, BaseException):
                    raise result
                yield k, result
    finally:  # whoever stops listening stops the searches
        cancel.set()
        for thread in threads:
            thread.join()


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def as_instance(problem: Problem) -> Instance:
    """Coordinates, a file's path or an instance as an instance."""
    if isinstance(problem, Instance):
        return problem
    if isinstance(problem, (str, os.PathLike)):
        return read_instance(problem)
    return Instance(np.asarray(problem))
