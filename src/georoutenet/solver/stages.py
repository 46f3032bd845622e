"""The stages of ``solve`` under one clock: network and decoder, or a construction, then local search."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from georoutenet.clock import OutOfTime, compiled_seconds, now, watch_compiler
from georoutenet.decode.decoding import Decoding
from georoutenet.device import choose_device, gpu_possible
from georoutenet.jit import interrupts
from georoutenet.problem.instance import Instance
from georoutenet.problem.tour import Tour, tour_length
from georoutenet.search.path import Ends
from georoutenet.search.space_filling import nearest_city_tour, space_filling_curve
from georoutenet.solver import large
from georoutenet.solver.compiling import compiling
from georoutenet.solver.criteria import Cancelled, Later
from georoutenet.solver.edges import EdgeProbabilities
from georoutenet.solver.network import (
    NETWORK,
    check_memory,
    choose_decoding,
    edge_marginals,
    load,
    neural_tours,
    seconds_per_view,
    warn_of_long,
)
from georoutenet.solver.options import CPU_NOTE, GPU_NOTE, Report, SolveOptions
from georoutenet.solver.result import Result
from georoutenet.stop import AnyOf, MaxTime, NoImprovement, Progress, Stop, are_gaps, seconds_left
from georoutenet.unbroken import do_behind, import_whole, is_behind

IMPORT = {"torch": 1.1, "numba": 0.35}
"""Seconds that a first use in a process takes, about (with Numba the compiled search)."""
COMPILING = 0.2
"""Seconds of compiling from which on a result mentions it."""
PER_CITY = {"greedy edge": 7e-6, "candidates": 1.5e-5, "nearest": 3e-6}
"""Seconds per city of what cannot be interrupted, on an idle core."""
PER_PAIR = 1.5e-8
"""Seconds per entry of the same under a matrix."""
CURVE = "space-filling curve"
NO_ROOM = "the time limit left no room for local search"
BROKEN_OFF = "the time limit ended the local search before it came to an end for the first time"
TOO_SHORT = (NO_ROOM, BROKEN_OFF)
"""Notes of tours that a little more time would make much shorter."""
AGREED = 7
"""Walks that came back to the best length when a search without a limit ends. Measured on 300 instances of
100 cities: 0.024 % at 1, 0.012 at 2, 0.002 at 4."""
FIRST_SEARCH = 0.03
"""Seconds of search, to 1,000 cities, even where importing Numba took the whole limit, as on a busy core."""
MARGIN = 3
"""Room asked for such work, in multiples of its time: cores are shared."""


class Group:
    """Instances of one size on their way through the stages.

    ``first_tours`` serves all of them, and each counts as using its share of the time. ``finish`` serves one,
    in any thread. When ``cancel`` is set, all that remains is done in the fastest way.
    """

    def __init__(
        self,
        instances: list[Instance],
        options: SolveOptions,
        began: float,
        tours: list[Tour] | None = None,
        cancel: threading.Event | None = None,
    ) -> None:
        self.instances, self.options, self.began = instances, options, began
        self.n, self.count = instances[0].n, len(instances)
        start, end = (
            None if each is None else instances[0].city(each) for each in (options.start, options.end)
        )
        self.ends = Ends(self.n, start=start, end=end, closed=options.closed)
        self.tours = tours
        self.limit = options.stop if options.max_seconds is None else MaxTime(options.max_seconds)
        self.timings: dict[str, float] = {}
        self.notes: list[str] = []
        self.method = "given tour" if tours else ""
        self.passed_over = False
        """Whether the network was not even considered, as is usual on a CPU."""
        self.edges: list[EdgeProbabilities] | None = None
        self.cancel = cancel or threading.Event()
        self.compiled = compiled_seconds()
        self.shared = 0.0
        self.workers = 1
        """Threads that search one instance."""
        self.tight_bound = False
        """Whether the lower bound may take some of the time: not where many instances wait."""
        self.lists: NDArray[np.int32] | None = None
        """Of a large instance that is alone, where its first tour needed them."""
        self.least = FIRST_SEARCH if self.count == 1 and self.n <= 1000 and _numba_import() > 0 else 0.0
        self.longest = math.inf
        """Seconds after which the work ends although the caller set no limit."""

    def ask_network(self) -> None:
        """For first tours, where it is to be asked; there are none afterwards where it is not."""
        asked = self.options.first in ("auto", "network")
        if self.tours is None and self.n > 3 and asked and not self.cancel.is_set():
            try:
                decoding = self._decoding()
                if decoding is not None:
                    self._decode(decoding)
            except KeyboardInterrupt:
                self.cancel.set()
            except OutOfTime:
                self.method = ""
                who = "who asked" if self.cancel.is_set() else "the time limit"
                self.notes.append(f"{who} ended the network's work; the first tour was constructed")

    def first_tours(self) -> None:
        """By the network or a construction; Ctrl-C at any point leaves a valid tour for every instance."""
        try:
            with interrupts():
                self._first_tours()
        except KeyboardInterrupt:
            self.cancel.set()
            self._first_tours()

    def _first_tours(self) -> None:
        self.ask_network()
        if self.tours is None:
            self._construct_all()
        assert self.tours is not None
        pairs = zip(self.instances, self.tours, strict=True)
        self.tours = [self.ends.arrange(instance, tour) for instance, tour in pairs]
        self.shared = self._elapsed()

    # -- the clock ---------------------------------------------------------------------------------------

    def _elapsed(self) -> float:
        return (now() - self.began) / self.count

    def _remaining(self) -> float:
        """Seconds left to each instance."""
        return self._left(self._elapsed())

    def _report(self, stage: str) -> None:
        if self.options.progress is not None:
            self.options.progress(stage, Progress(self._elapsed(), 0, 0, math.inf))

    # -- the stages --------------------------------------------------------------------------------------

    def _decoding(self) -> Decoding | None:
        """What to ask the network, or None where it is not to be asked."""
        options = self.options
        by_size = options.first == "auto" and options.decoder is None and options.improve
        if self.n > NETWORK and by_size:
            self.notes.append(f"the network is not asked above {NETWORK:,} cities unless a decoder is named")
            return None
        if options.network_by_default and not gpu_possible(options.device):
            self.passed_over = True
            return None
        if not all(instance.has_coordinates for instance in self.instances):
            if not by_size:
                _ = [instance.coordinates for instance in self.instances]  # whoever has none complains
            self.notes.append("the network needs coordinates; the first tour was constructed")
            return None
        if not self._affordable(choose_decoding(self.n, options)):
            return None
        self._report("load")
        began = now()
        device = str(choose_device(options.device))
        policy = options.weights
        if isinstance(policy, (str, Path)):
            self.method = f"{Path(policy).stem}, "
            policy = load(policy, device)
        decoding = choose_decoding(self.n, options, str(policy.device))
        check_memory(self.n, decoding, str(policy.device))
        if self._remaining() == math.inf:
            warn_of_long(self.n, decoding, str(policy.device))
        self.policy = policy
        if device == "cpu" or options.improve:
            load_compiled(self.ends, self.instances, options.progress)
        self.timings["load"] = (now() - began) / self.count
        return decoding if self._affordable(decoding) else None

    def _affordable(self, decoding: Decoding) -> bool:
        """Whether loading, and one view with a margin, fit into what is left.

        Before a local search, loading has to fit three times: where files come slowly it would take the
        time of the search, which matters more.
        """
        left = self._remaining()
        if left == math.inf:
            return True
        load_first = sum(IMPORT[name] for name in IMPORT if name not in sys.modules)
        load_first *= 3 if self.options.improve else 1
        if load_first / self.count + MARGIN * seconds_per_view(self.n, decoding) <= left:
            return True
        self.method = ""
        self.notes.append("the time limit left no room for the network; the first tour was constructed")
        return False

    def _decode(self, decoding: Decoding) -> None:
        self._report("network")
        reserve = 0.5 if self.options.improve else 0.9
        until = self._elapsed() + reserve * self._remaining()
        found = neural_tours(
            self.policy,
            self.instances,
            decoding,
            self.ends,
            seed=self.options.seed,
            remaining=lambda: -math.inf if self.cancel.is_set() else (until - self._elapsed()) * self.count,
        )
        self.timings["network"] = found.network / self.count
        self.timings["decode"] = found.decode / self.count
        if found.interrupted:
            self.cancel.set()
        self.method += str(found.decoding)
        self.tours, self.edges = list(found.tours), found.edges
        if self.options.network_by_default and gpu_possible(self.options.device):
            self.notes.append(GPU_NOTE)
        if not found.complete and not found.interrupted:
            finals = " and no more for all finalists" if decoding.finalists else ""
            self.notes.append(f"time for {found.decoding.views} of {decoding.views} views{finals}")

    def _construct_all(self) -> None:
        began = now()
        self.tours = [self.construct(instance) for instance in self.instances]
        if self.passed_over and self.method == "greedy edge":  # a curve, where time was short, is none
            self.notes.append(CPU_NOTE)
        self.timings["construct"] = (now() - began) / self.count

    def construct(self, instance: Instance) -> Tour:
        """A tour without the network, cut open where a path is asked for."""
        return self.ends.cut(instance, self._construct(instance))

    def _construct(self, instance: Instance) -> Tour:
        """A tour without the network: greedy edge, or along a curve where even that takes too long."""
        if self.n <= 3:
            return np.arange(self.n)
        curve = self.options.first == "curve"
        if large.is_large(instance) and not curve and not self.cancel.is_set():
            return self._construct_large(instance)
        cost = MARGIN * self._seconds("greedy edge") + _numba_import()
        if curve or self.cancel.is_set() or cost > self._remaining():
            if instance.matrix is not None:
                self.method = "nearest neighbor"
                return nearest_city_tour(instance.matrix)
            self.method = CURVE
            self._no_greedy_edge()
            return space_filling_curve(instance.plane)
        watch_compiler()
        import_whole("georoutenet.search.construct")
        from georoutenet.search.construct import greedy_edge, greedy_edge_in_matrix
        from georoutenet.search.neighbors import spatial_points

        self.method = "greedy edge"
        with compiling(self.options.progress):
            if instance.matrix is not None:
                return greedy_edge_in_matrix(instance.matrix)
            return greedy_edge(spatial_points(instance))

    def _construct_large(self, instance: Instance) -> Tour:
        with compiling(self.options.progress):
            left = lambda: self._uncancelled(self._elapsed())  # noqa: E731
            tour, self.method, lists = large.first_tour(instance, self.workers, left, _numba_import())
        self._no_greedy_edge()
        self.lists = lists if self.count == 1 else None
        return tour

    def _no_greedy_edge(self) -> None:
        note = "there was no time for greedy edge; the first tour follows a curve"
        if self.options.first == "greedy-edge" and self.method == CURVE and note not in self.notes:
            self.notes.append(note)

    def _uncancelled(self, elapsed: float) -> float:
        """Seconds left, none after Ctrl-C."""
        return 0.0 if self.cancel.is_set() else self._left(elapsed)

    def finish(self, k: int) -> Result:
        """Shorten one tour in the time that is left to it; Ctrl-C at any point leaves what there is."""
        try:
            with interrupts():
                return self._finish(k)
        except KeyboardInterrupt:
            self.cancel.set()
            return self._finish(k)

    def _finish(self, k: int) -> Result:
        from georoutenet.search.local_search import PROVEN, improve

        began, shared = now(), self.shared
        instance, options = self.instances[k], self.options
        assert self.tours is not None
        tour = self.tours[k]
        length = tour_length(instance, tour, closed=options.closed)
        history = [Progress(shared, 0, 0, float(length))]
        if options.progress is not None:
            options.progress("first", replace(history[0], method=self.method, current=tour.copy))
        timings, notes, iterations = dict(self.timings), list(self.notes), 0
        interrupted, bound = self.cancel.is_set(), None
        if options.improve and self.n > 3 and not interrupted:
            least = 0.0 if _numba_import() else self.least
            left = lambda: max(least, self._uncancelled(shared + now() - began))  # noqa: E731
            if self._shorten_curve(k, left):
                tour = self.tours[k]
                length = tour_length(instance, tour, closed=options.closed)
                history.append(Progress(shared + now() - began, 0, 0, float(length)))
            neighbors, has_room = self._neighbors(instance, left)
            if has_room:
                load_compiled(self.ends, [instance], options.progress)
                offset = shared + now() - began
                found = improve(
                    instance,
                    tour,
                    neighbors=neighbors,
                    stop=AnyOf(self._search_stop(offset), Cancelled(self.cancel)),
                    seed=options.seed,
                    start=self.ends.start,
                    end=self.ends.end,
                    closed=options.closed,
                    progress=self._search_report(offset),
                    agreed=AGREED if self.limit is None else 0,
                    workers=self.workers,
                    tight_bound=self.tight_bound,
                )
                bound = found.lower_bound
                tour, length, iterations = found.tour, found.length, found.iterations
                history += [replace(step, seconds=step.seconds + offset) for step in found.history[1:]]
                if found.interrupted:
                    self.cancel.set()
                interrupted = self.cancel.is_set()
                if length < history[-1].length and interrupted:  # Ctrl-C came before the record
                    history.append(Progress(found.seconds + offset, iterations, 0, float(length)))
                timings["improve"] = now() - began
                proven = bound is not None and length <= bound * PROVEN
                if not (iterations or interrupted or proven) and self._left(offset + found.seconds) <= 0:
                    notes.append(BROKEN_OFF)
            else:
                notes.append(NO_ROOM)
                if _numba_import() > 0 and left() > 0:  # with it loaded such a limit would do
                    do_behind(partial(_load_search, self.ends, [instance], lambda *_: None))
        timings["total"] = shared + now() - began
        compiled = compiled_seconds() - self.compiled
        if compiled > COMPILING:
            timings["compile"] = compiled
            notes.append(
                f"{compiled:.1f} s went into compiling, once on this machine; no time limit counts them"
            )
        return Result(
            instance=instance,
            tour=tour,
            length=length,
            closed=options.closed,
            method=self.method,
            timings=timings,
            history=history,
            iterations=iterations,
            notes=notes,
            interrupted=interrupted,
            lower_bound=bound,
            edges=None if self.edges is None else self.edges[k],
            score=partial(edge_marginals, instance, options.weights, options.device, self.ends),
        )

    def _left(self, elapsed: float) -> float:
        if self.limit is None:
            return self.longest - elapsed
        return seconds_left(self.limit, elapsed)

    @property
    def _by_matrix(self) -> bool:
        """Whether distances are looked up instead of computed, at least those of one instance."""
        return any(instance.matrix is not None for instance in self.instances)

    def _seconds(self, work: str) -> float:
        """What some work that cannot be interrupted takes, about."""
        if self._by_matrix:
            return PER_PAIR * self.n**2
        return PER_CITY[work] * self.n

    def _shorten_curve(self, k: int, left: Callable[[], float]) -> bool:
        """Large tours along a curve are shortened before they are searched; whether this one was."""
        assert self.tours is not None
        instance, tour = self.instances[k], self.tours[k]
        if self.method != CURVE or not large.is_large(instance) or left() <= _numba_import():
            return False
        with compiling(self.options.progress):
            self.tours[k] = large.shorten_curve(instance, tour, closed=self.options.closed, left=left)
        return True

    def _neighbors(
        self, instance: Instance, left: Callable[[], float]
    ) -> tuple[NDArray[np.int32] | None, bool]:
        """Neighbor lists for the search (None: its own), and whether there is room for a search."""
        if not large.is_large(instance):
            room = left() - _numba_import() > MARGIN * self._seconds("nearest")
            return self.neighbors(instance, left()) if room else None, room
        with compiling(self.options.progress):
            lists = large.make_lists(instance, self.workers, left) if self.lists is None else self.lists
        least = large.MARGIN * large.SET_UP * self.n + _numba_import()
        return lists, lists is not None and left() > least

    def neighbors(self, instance: Instance, left: float) -> NDArray[np.int32] | None:
        """The local search's own candidate lists (None), or the nearest cities where time is short."""
        if left > MARGIN * self._seconds("candidates"):
            return None
        from georoutenet.search.neighbors import instance_neighbors

        return instance_neighbors(instance, 7)

    def _search_stop(self, offset: float) -> Stop:
        """The caller's limit; without one, until little more is to be gained."""
        if self.options.max_seconds is not None:
            return Later(MaxTime(max(self.options.max_seconds, offset + self.least)), offset)
        if self.options.stop is not None:
            return Later(that_ends(self.options.stop, self.n), offset)
        return AnyOf(default_stop(self.n), Later(MaxTime(self.longest), offset))

    def _search_report(self, offset: float) -> Callable[[Progress], None] | None:
        report = self.options.progress
        if report is None:
            return None
        return lambda step: report("improve", replace(step, seconds=step.seconds + offset))


def warm_up(
    weights: str | Path | None = "georoutenet", *, device: str = "auto", progress: Report | None = None
) -> None:
    """Load now what the first ``solve`` would load within its time limit: torch, weights, compiled code.

    Where ``solve`` has never run, the code is compiled, which may take a minute. ``weights=None`` leaves the
    weights out. ``progress`` hears of the stage ``compile``, as in ``solve``.
    """
    _load_search(Ends(1), [], progress)
    place = _load_decoders(device, progress)
    if weights is not None:
        load(weights, place)


def _load_search(ends: Ends, instances: list[Instance], progress: Report | None) -> None:
    """``load_compiled``, and greedy edge."""
    load_compiled(ends, instances, progress)
    from georoutenet.search.construct import greedy_edge
    from georoutenet.search.neighbors import ALL_PAIRS

    greedy_edge(np.random.default_rng(0).random((ALL_PAIRS + 1, 2)))  # loads SciPy's tree


def load_for(instances: list[Instance], options: SolveOptions) -> None:
    """Before any clock starts, what ``solve`` with these options needs for these instances; no weights."""
    start, end = (None if city is None else k for k, city in enumerate((options.start, options.end)))
    ends = Ends(2, start=start, end=end, closed=options.closed)
    load_compiled(ends, instances, options.progress)
    network = options.first == "network" or options.names_network or not options.improve
    if network or gpu_possible(options.device):
        _load_decoders(options.device, options.progress)


def _load_decoders(device: str, progress: Report | None) -> str:
    """Load torch, and on a CPU the compiled decoders; returns the device chosen."""
    place = choose_device(device)
    if place.type == "cpu":
        from georoutenet.decode import compile_decoders

        with compiling(progress):
            compile_decoders()
    return str(place)


def that_ends(stop: Stop, n: int) -> Stop:
    """Gaps alone may never be reached: then the search ends as it does without a criterion."""
    return AnyOf(stop, default_stop(n)) if are_gaps(stop) else stop


def default_stop(n: int) -> Stop:
    """Without a limit: until little more is to be gained."""
    return AnyOf(MaxTime(max(10.0, n / 1000)), NoImprovement(max(20_000, 100 * n)))


def _numba_import() -> float:
    return 0.0 if "numba" in sys.modules and not is_behind() else IMPORT["numba"]


def load_compiled(ends: Ends, instances: list[Instance], progress: Report | None = None) -> None:
    """The search for instances of these kinds; all kinds up to 10,000 cities where none is given."""
    watch_compiler()
    import_whole(*(f"georoutenet.search.{name}" for name in ("kernels", "population", "large")))
    from georoutenet.search.local_search import compile_kernels, kind_of

    kinds = [kind_of(each) for each in instances]
    kinds = kinds or [{"matrix": table, "crossed": True} for table in (False, True)]
    with compiling(progress):
        for kind in {tuple(kind.items()) for kind in kinds}:
            compile_kernels(path=ends.is_path, **dict(kind))
