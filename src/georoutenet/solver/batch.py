"""Many instances of one size in one call: an array of cities in, arrays of tours and lengths out.

The stages are those of ``solve_many``, and so are the tours. What differs is what surrounds them: one check
for all, no ``Result`` for each, and a time limit that bounds the whole call.
"""

from __future__ import annotations

import itertools
import math
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

import numpy as np
from numpy.typing import NDArray

from georoutenet.clock import now
from georoutenet.device import gpu_possible
from georoutenet.errors import InputError, warn
from georoutenet.problem.arrays import given_array, refuse_other_than_numbers
from georoutenet.problem.globe import are_degrees
from georoutenet.problem.instance import DistanceRule, Instance
from georoutenet.problem.tour import tour_length
from georoutenet.search.path import Ends
from georoutenet.search.space_filling import space_filling_curve
from georoutenet.solver.api import available_cores
from georoutenet.solver.criteria import Cancelled, Later
from georoutenet.solver.options import SolveKeywords, SolveOptions, read_options, takes_options
from georoutenet.solver.stages import (
    AGREED,
    Group,
    default_stop,
    load_compiled,
    that_ends,
)
from georoutenet.stop import AnyOf, MaxTime, Progress, Stop, seconds_left

if TYPE_CHECKING:
    from torch import Tensor

CHUNK = 1024
"""Instances that are in work at a time: beside them only the arrays given and returned are in memory."""
LEAST = (1e-3, 5e-5)
"""Seconds, and seconds per city, of a construction and a descent: with less, a search is not begun."""
REPORT = 0.1
"""Seconds between two calls of ``progress``."""

Points = NDArray[np.float64]
Tours = NDArray[np.int64]
Lengths = NDArray[np.float64]


Arrays = NDArray[Any] | Sequence[Any]


@overload
def solve_batch(
    coordinates: Arrays, *, rule: str = ..., tours: Literal[True] = ..., **options: Unpack[SolveKeywords]
) -> tuple[Tours, Lengths]: ...
@overload
def solve_batch(
    coordinates: Arrays, *, rule: str = ..., tours: Literal[False], **options: Unpack[SolveKeywords]
) -> Lengths: ...
@overload
def solve_batch(
    coordinates: Tensor, *, rule: str = ..., tours: Literal[True] = ..., **options: Unpack[SolveKeywords]
) -> tuple[Tensor, Tensor]: ...
@overload
def solve_batch(
    coordinates: Tensor, *, rule: str = ..., tours: Literal[False], **options: Unpack[SolveKeywords]
) -> Tensor: ...


@takes_options
def solve_batch(
    coordinates: Any, *, rule: str = "EUCLIDEAN", tours: bool = True, **options: Unpack[SolveKeywords]
) -> Any:
    """Short, valid tours through ``B`` instances of ``n`` cities each: ``coordinates (B, n, 2)``.

    Returns tours ``(B, n)``, whole numbers of 64 bits, and lengths ``(B,)`` in float64; with ``tours=False``
    the lengths alone. NumPy (or lists) in, NumPy out; a tensor of torch gives tensors on its device. All
    instances are measured by ``rule``: a ``DistanceRule`` but EXPLICIT, or its name.

    Options are those of ``solve`` and on a CPU give the tours that ``solve_many`` would give, on ``workers``
    threads (one per core); up to 1,024 cities a GPU, where there is one, searches by itself.
    ``max_seconds``, and the time in ``stop``, bound the whole call, and what one instance does not need goes
    to the others; iterations and gaps in ``stop`` are of each instance. Where time ends before all are
    searched, the rest have a tour along a space-filling curve, or the network's if it made one, and a
    warning says how many.
    ``start`` and ``end`` are positions and hold for all. ``progress`` is called some ten times a second with
    the stage ``batch`` and a ``Progress`` whose iterations are the instances done and whose length is their
    mean. Ctrl-C ends the call without a result.
    """
    began = now()
    checked = read_options("solve_batch", options)
    if tours not in (True, False):
        raise InputError(f"tours must be True or False, got {tours!r}")
    found = _Batch(coordinates, _rule(rule), checked, began)
    if not found.run_on_gpu(tours):
        found.run()
    lengths = _as_given(found.lengths, coordinates)
    return (_as_given(found.tours, coordinates), lengths) if tours else lengths


class _Batch:
    """One call: the arrays, the clock, the threads."""

    def __init__(self, given: Any, rule: DistanceRule, options: SolveOptions, began: float) -> None:
        self.given, self.rule, self.options, self.began = given, rule, options, began
        self.count, self.n = (given if _is_good_on_gpu(given, rule) else self.points).shape[:2]
        start, end = (
            Instance(np.zeros((self.n, 2))).city(city) if isinstance(city, str) else city
            for city in (options.start, options.end)
        )
        self.ends = Ends(self.n, start=start, end=end, closed=options.closed)
        self.limit: Stop | None = options.stop
        if options.max_seconds is not None:
            self.limit = MaxTime(options.max_seconds)
        self.timed = math.isfinite(self._left())
        self.workers = options.workers or available_cores()
        self.least = LEAST[0] + LEAST[1] * self.n
        self.cancel = threading.Event()
        self.tours: Any = np.empty((self.count, self.n), dtype=np.int64)  # no memory until it is written to
        self.lengths: Any = np.zeros(self.count)
        self.done = np.zeros(self.count, dtype=np.bool_)
        self.unasked = 0
        """Instances of which the network was to be asked, and was not."""

    @cached_property
    def points(self) -> Points:
        return _points(self.given, self.rule)

    def run(self) -> None:
        if self.n <= 3:
            self._compare_all()
            return
        if self.timed:
            self._follow_curves()
        try:
            for first in range(0, self.count, CHUNK):
                if self._left() < self.least:
                    break
                self._solve(range(first, min(first + CHUNK, self.count)))
        finally:
            self.cancel.set()
        self._warn(self.count - int(self.done.sum()))
        if self.unasked:
            warn(
                f"there was no time to ask the network about {self.unasked:,} of {self.count:,} instances; "
                "their first tours were constructed"
            )

    def run_on_gpu(self, keep_tours: bool) -> bool:
        """Solve on GPUs, where they are asked for or there and can; whether they did."""
        options = self.options
        if self.n <= 3 or not self.count or not gpu_possible(options.device):
            return False
        from georoutenet.solver import batch_gpu

        devices = batch_gpu.gpus_for(options, self.n, self.rule, self.ends, self.count)
        if not devices:
            return False
        import torch

        on_gpus = batch_gpu.GpuBatches(
            self.given.detach() if _is_tensor(self.given) else torch.from_numpy(self.points),
            devices,
            self.ends,
            self.rule,
            options,
            limit=self.limit,
            left=self._left,
            report=self._report_mean,
            keep_tours=keep_tours,
        )
        on_gpus.run()
        self._warn(self.count - int(on_gpus.joined("searched").sum()))
        self.lengths = on_gpus.joined("lengths")
        if keep_tours:
            self.tours = on_gpus.joined("tours")
        return True

    def _warn(self, missed: int) -> None:
        if missed:
            warn(
                f"time ended before {missed:,} of {self.count:,} instances were searched; "
                "they have a first tour alone"
            )

    def _left(self) -> float:
        """Seconds left to the call."""
        return seconds_left(self.limit, now() - self.began)

    def _compare_all(self) -> None:
        """Up to three cities: the shortest of all tours that are allowed."""
        tours = [order for order in itertools.permutations(range(self.n)) if self.ends.fits(order)]
        best = np.full(self.count, math.inf)
        for order in np.array(tours):
            lengths = self._measure(slice(None), np.broadcast_to(order, self.tours.shape))
            shorter = lengths < best
            self.tours[shorter], best[shorter] = order, lengths[shorter]
        self.lengths = best

    def _follow_curves(self) -> None:
        """A valid tour for every instance, whatever time is left."""
        for first in range(0, self.count, CHUNK):
            part = slice(first, first + CHUNK)
            tours = space_filling_curve(self.points[part])
            start, end = self.ends.start, self.ends.end
            if start is not None or end is not None:
                begin = np.argmax(tours == (end if start is None else start), axis=1) + (start is None)
                tours = np.take_along_axis(tours, (begin[:, None] + np.arange(self.n)) % self.n, axis=1)
            if start is not None and end is not None:
                tours = np.take_along_axis(tours, np.argsort(tours == end, axis=1, kind="stable"), axis=1)
            self.tours[part], self.lengths[part] = tours, self._measure(part, tours)

    def _measure(self, part: slice, tours: Tours) -> Points:
        places = np.take_along_axis(self.points[part], tours[:, :, None], axis=1)
        following = np.roll(places, -1, axis=1)
        if not self.options.closed or self.n == 1:
            places, following = places[:, :-1], following[:, :-1]
        return self.rule.between(places, following).sum(axis=1)

    def _solve(self, part: range) -> None:
        """First tours by the network where it is to be asked; then each instance in a thread."""
        instances = [Instance(self.points[k], rule=self.rule) for k in part]
        options = self.options
        if self.timed:
            share = self._left() / (self.count - part.start)
            options = replace(options, stop=None, max_seconds=share)
        group = Group(instances, options, now(), cancel=self.cancel)
        group.ask_network()
        if self.cancel.is_set():
            raise KeyboardInterrupt
        if not options.network_by_default and any("the time limit" in note for note in group.notes):
            self.unasked += len(part)
        if options.improve:
            load_compiled(self.ends, instances[:1], options.progress)
        jobs = iter(enumerate(part))
        failed: list[BaseException] = []
        threads = [
            threading.Thread(target=self._work, args=(group, jobs, failed), daemon=True)
            for _ in range(min(self.workers, len(part)))
        ]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                while thread.is_alive():
                    thread.join(REPORT)
                    self._report()
        finally:
            if any(thread.is_alive() for thread in threads):
                self.cancel.set()
                for thread in threads:
                    thread.join()
        if failed:
            raise failed[0]
        self._report()

    def _report(self) -> None:
        if self.options.progress is not None and self.done.any():
            self._report_mean(int(self.done.sum()), float(self.lengths[self.done].mean()))

    def _report_mean(self, done: int, mean: float) -> None:
        if self.options.progress is not None:
            self.options.progress("batch", Progress(now() - self.began, done, 0, mean))

    def _work(self, group: Group, jobs: Iterator[tuple[int, int]], failed: list[BaseException]) -> None:
        try:
            for own, k in jobs:  # taking one is a single operation
                if self.cancel.is_set():
                    return
                self._finish(group, own, k)
        except BaseException as error:
            failed.append(error)
            self.cancel.set()

    def _finish(self, group: Group, own: int, k: int) -> None:
        """One instance to its end."""
        instance, options = group.instances[own], self.options
        left, has_room = math.inf, True
        tour = None if group.tours is None else self.ends.arrange(instance, group.tours[own])
        if self.timed:
            left = self._left()
            has_room = left >= self.least
            if not has_room and tour is None:
                return
            left = max(self.least, left * self.workers / (self.count - k))
        tour = group.construct(instance) if tour is None else tour
        if not (options.improve and has_room):
            length = tour_length(instance, tour, closed=options.closed)
            self._keep(k, tour, length, as_asked=not options.improve)
            return
        from georoutenet.search.local_search import improve

        found = improve(
            instance,
            tour,
            neighbors=group.neighbors(instance, left),
            stop=AnyOf(self._search_stop(left), Cancelled(self.cancel)),
            seed=options.seed,
            start=self.ends.start,
            end=self.ends.end,
            closed=options.closed,
            agreed=AGREED if self.timed or self.limit is None else 0,
        )
        self._keep(k, found.tour, found.length)

    def _keep(self, k: int, tour: Tours, length: float, *, as_asked: bool = True) -> None:
        if not self.cancel.is_set():
            self.tours[k], self.lengths[k], self.done[k] = tour, length, as_asked

    def _search_stop(self, left: float) -> Stop:
        if self.limit is None:
            return default_stop(self.n)
        own = Later(that_ends(self.limit, self.n), now() - self.began)
        return AnyOf(own, MaxTime(left), default_stop(self.n)) if self.timed else own


def _rule(rule: str) -> DistanceRule:
    allowed = [each for each in DistanceRule if each is not DistanceRule.EXPLICIT]
    if rule not in allowed:
        raise InputError(f"unknown distance rule {rule!r}; allowed: {', '.join(allowed)}")
    return DistanceRule(rule)


def _is_tensor(values: Any) -> bool:
    return "torch" in sys.modules and isinstance(values, sys.modules["torch"].Tensor)


def _is_good_on_gpu(given: Any, rule: DistanceRule) -> bool:
    """Whether it is a tensor on a GPU in which nothing has to be complained of; it is not copied to see."""
    if not _is_tensor(given) or not given.is_cuda or given.requires_grad or not given.is_floating_point():
        return False
    if given.dim() != 3 or given.numel() == 0 or given.shape[2] != 2:
        return False
    largest = 2.0**51 / given.shape[1] if rule.is_integer else 1e100
    low, high = given.detach().aminmax()
    return -largest < float(low) <= float(high) < largest  # of NaN neither holds


def _points(coordinates: Any, rule: DistanceRule) -> Points:
    """What was given as ``(B, n, 2)`` in float64, checked as ``Instance`` checks it."""
    values = coordinates
    if _is_tensor(values) and not values.requires_grad:
        values = values.cpu()
        values = values.double() if values.is_floating_point() else values  # NumPy has no bfloat16
    given = given_array(values, "coordinates", "(B, n, 2)")
    refuse_other_than_numbers(
        coordinates if isinstance(coordinates, (list, tuple)) else (), given, "coordinates"
    )
    try:
        points = np.ascontiguousarray(given, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"coordinates must be an array of numbers of shape (B, n, 2): {error}") from None
    if points.ndim != 3 or points.shape[2] != 2 or points.shape[1] == 0:
        one = "; solve takes one instance (n, 2)" if points.ndim == 2 and points.shape[1] == 2 else ""
        raise InputError(f"coordinates must have shape (B, n, 2) with n >= 1, got {given.shape}{one}")
    with np.errstate(over="ignore", invalid="ignore"):
        span = (points.max(axis=1) - points.min(axis=1)).sum(axis=1)
        good = np.isfinite(points).all(axis=(1, 2)) & (span < 1e100)
        good &= (span * points.shape[1] < 2.0**53) | (not rule.is_integer)
    if rule is DistanceRule.GREAT_CIRCLE:
        good &= are_degrees(points.reshape(-1, 2)).reshape(points.shape[:2]).all(axis=1)
    for k in np.flatnonzero(~good):
        try:
            Instance(points[k], rule=rule)
        except InputError as error:
            raise InputError(f"instance {k} (counting from 0): {error}") from None
    return points


def _as_given(values: Any, like: Any) -> Any:
    """As a tensor on its device where ``like`` is one, else as an array."""
    if _is_tensor(like):
        return sys.modules["torch"].as_tensor(values).to(like.device)
    return values.cpu().numpy() if _is_tensor(values) else values
