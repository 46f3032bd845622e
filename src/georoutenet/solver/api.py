"""Cities in, short tour out: the network scores, a decoder makes a tour, a local search shortens it.

Each stage is visible in ``Result.timings`` and can be changed or left out. One clock starts with the call.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Unpack, cast

from numpy.typing import ArrayLike

from georoutenet.clock import now
from georoutenet.device import gpu_possible
from georoutenet.errors import GeoRouteNetError, InputError, warn
from georoutenet.io.files import read_instance
from georoutenet.io.frame import Frame, frame_instance, is_frame
from georoutenet.problem.arrays import Numbers
from georoutenet.problem.instance import Instance
from georoutenet.problem.tour import check_tour
from georoutenet.solver.options import SolveKeywords, SolveOptions, read_options, takes_options
from georoutenet.solver.result import Result
from georoutenet.solver.stages import NO_ROOM, TOO_SHORT, Group
from georoutenet.unbroken import ALERT

WORTH_THREADS = 200
"""Cities from which on one instance is searched by all cores: smaller ones are solved before threads meet."""
OWN_CITIES = 10
"""Cities of an instance for each thread, at least: walks of more threads would only repeat one another."""

Problem = Instance | Numbers | str | os.PathLike[str] | Frame


@takes_options
def solve(
    problem: Problem, *, initial_tour: ArrayLike | None = None, **options: Unpack[SolveKeywords]
) -> Result:
    """A short, valid tour through ``problem``: coordinates ``(n, 2)``, an ``Instance``, a file or a frame.

    A file is given by its path. A frame (pandas, polars) has the columns ``x``, ``y`` or ``lat``, ``lon``, or
    holds points of GeoPandas.

    The tour is decoded from the scores of ``weights`` (packaged by name, a file, or a ``Policy``) by
    ``decoder`` (``beam``, ``sample`` or ``greedy``) with ``beam_width`` beams or samples shared by ``views``,
    then shortened by local search unless ``improve=False``. What is not given is chosen by size (see
    ``georoutenet.solver.network.choose_decoding``). A decoder written in full, such as
    ``beam-1000-views-32-dominance-length-60`` (or a ``Decoding``), says all of that at once.
    ``first`` names another source of the first tour, and ``initial_tour`` is one.

    ``max_seconds`` counts from the call and includes everything; ``stop`` is any stopping criterion, for
    example ``AnyOf(MaxTime(2), NoImprovement(1000))``. Where time is too short for the network, the first
    tour is constructed without it, and ``Result.notes`` says so. Ctrl-C returns the best tour so far.

    ``start`` and ``end`` fix the first and the last city, by position or, as a string, by id;
    ``closed=False`` asks for a path.
    The result is the same for the same seed, machine and options unless a time limit ends the search.
    """
    checked = read_options("solve", options)
    began = now()
    result = solve_one(as_instance(problem), checked, initial_tour=initial_tour, began=began)
    _warn_of_short_limit([result])
    return result


def solve_one(
    instance: Instance,
    options: SolveOptions,
    *,
    initial_tour: ArrayLike | None = None,
    began: float | None = None,
    cancel: threading.Event | None = None,
    longest: float = math.inf,
) -> Result:
    """``solve`` for programs that serve others: ``cancel`` ends it from another thread, as Ctrl-C would.

    ``longest`` bounds it in seconds where the options set no limit, and leaves it to end by itself before.
    """
    if initial_tour is not None and options.first != "auto":
        raise InputError(f"give initial_tour or first={options.first!r}, not both")
    tours = None if initial_tour is None else [check_tour(initial_tour, instance.n)]
    group = Group([instance], options, now() if began is None else began, tours, cancel)
    group.workers, group.longest, group.tight_bound = threads(options, instance.n), longest, True
    group.first_tours()
    return group.finish(0)


@takes_options
def solve_many(problems: Sequence[Problem], **options: Unpack[SolveKeywords]) -> list[Result]:
    """Results of many problems of any sizes, in the order given; those of one size share network calls.

    Options are those of ``solve`` and hold for each problem, but ``workers`` counts problems: the local
    searches run side by side in that many threads, one each, by default as many as there are cores, and
    ``progress`` is called from them. Without time limits the results do not depend on ``workers``.
    ``max_seconds`` is for each problem: its share of the network's time, then its own search, so all take
    about ``max_seconds * len(problems) / workers``.

    On a GPU, one that is named or, from some dozens of problems on, one that is there, problems of 5 to 1,024
    cities are searched side by side whatever their sizes, each until ``max_seconds`` are over: see
    ``solve_batch``. After Ctrl-C the problems not yet reached have the tour
    they had by then, or a constructed one, and ``interrupted`` set.
    """
    checked = read_options("solve_many", options)
    instances = [as_instance(problem) for problem in _several(problems)]
    results: dict[int, Result] = {}
    for k, result in solve_all(instances, checked):
        if isinstance(result, GeoRouteNetError):
            raise result
        results[k] = result
    _warn_of_short_limit(list(results.values()))
    return [results[k] for k in range(len(instances))]


def _several(problems: Sequence[Problem]) -> Sequence[Problem]:
    """The problems, unless they are a single one, whose letters, columns or rows would be taken for many."""
    single = isinstance(problems, (Instance, str, os.PathLike)) or is_frame(problems)
    if single or getattr(problems, "ndim", 3) != 3 or not isinstance(problems, Iterable):
        given = " ".join(repr(problems).split())[:60]
        raise InputError(f"solve_many takes a list of problems, got {given}; solve takes one")
    return problems


def _warn_of_short_limit(results: list[Result]) -> None:
    """Where a limit ended too early: few read ``notes`` of a tour that looks like any other."""
    short = [result for result in results if set(result.notes) & set(TOO_SHORT)]
    if not short:
        return
    first = short[0]
    which = (
        f"{first.instance.n:,} cities" if len(results) == 1 else f"{len(short)} of {len(results)} problems"
    )
    warn(
        f"the time limit was too short for a good tour of {which}: {first.method or 'the first tour'}, "
        f"{'not searched' if NO_ROOM in first.notes else 'hardly searched'}. Give more seconds; "
        "warm_up() loads beforehand what the first call of a process loads"
    )


def solve_all(
    instances: Sequence[Instance], options: SolveOptions, *, single: bool = False, on_gpu: bool = True
) -> Iterator[tuple[int, Result | GeoRouteNetError]]:
    """Positions and results as they are ready: first tours size by size, then searches side by side.

    Where a size cannot be solved as asked, its positions come with the error. ``single``: there is one
    instance, and ``workers`` is for it, as in ``solve``. GPUs search where they are wanted and can, unless
    ``on_gpu`` is False.
    """
    cancel = threading.Event()
    sizes: dict[tuple[object, ...], list[int]] = {}
    for k, instance in enumerate(instances):
        try:
            ends = [None if city is None else instance.city(city) for city in (options.start, options.end)]
        except InputError as error:  # an id that this instance does not have
            yield k, error
            continue
        sizes.setdefault((instance.n, instance.has_coordinates, *ends), []).append(k)
    if on_gpu and not single and options.improve and gpu_possible(options.device):
        done = set[int]()
        try:
            for k, result in _on_gpus(instances, sorted(chain(*sizes.values())), options):
                yield k, result
                done.add(k)
        except KeyboardInterrupt:
            cancel.set()
        sizes = {size: [k for k in positions if k not in done] for size, positions in sizes.items()}
    jobs: list[tuple[int, Group, int]] = []
    for positions in filter(None, sizes.values()):
        try:
            group = Group([instances[k] for k in positions], options, now(), cancel=cancel)
            group.tight_bound = single
            if single:
                group.workers = threads(options, group.n)
            group.first_tours()
        except GeoRouteNetError as error:
            yield from ((k, error) for k in positions)
        else:
            jobs += [(k, group, own) for own, k in enumerate(positions)]
    jobs.sort(key=lambda job: job[0], reverse=True)
    count = min(options.workers or available_cores(), len(jobs))
    if count <= 1 or not options.improve:
        for k, group, own in reversed(jobs):
            yield k, group.finish(own)
        return
    yield from _side_by_side(jobs, count, cancel)


def _on_gpus(
    instances: Sequence[Instance], positions: list[int], options: SolveOptions
) -> Iterator[tuple[int, Result]]:
    """Results of those of the instances that GPUs search."""
    from georoutenet.solver.many_gpu import results

    for k, result in results([instances[k] for k in positions], options):
        yield positions[k], result


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
                changed.wait(ALERT)
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


def threads(options: SolveOptions, n: int) -> int:
    """How many search a single instance of ``n`` cities."""
    wanted = options.workers or (available_cores() if n >= WORTH_THREADS else 1)
    return max(1, min(wanted, n // OWN_CITIES))


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def as_instance(problem: Problem) -> Instance:
    """Coordinates, a file's path, a data frame or an instance as an instance."""
    if isinstance(problem, Instance):
        return problem
    if isinstance(problem, (str, os.PathLike)):
        return read_instance(problem)
    if is_frame(problem):
        return frame_instance(problem)
    return Instance(cast("Numbers", problem))
