"""Many instances on GPUs: chunk by chunk, what a chunk holds stays on its device from cities to tours."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from georoutenet.clock import OutOfTime, now
from georoutenet.decode.views import decode_views
from georoutenet.device import choose_device, memory_available
from georoutenet.errors import warn
from georoutenet.model.scores import Scores
from georoutenet.problem.instance import DistanceRule, Instance
from georoutenet.search.gpu.cycle import Cycle, curves, tour_lengths
from georoutenet.search.gpu.engine import FEWEST, compiles, improve_batch, kernel_for, walks_to_fill, why_not
from georoutenet.search.path import Ends
from georoutenet.solver.network import check_memory, choose_decoding, in_precision, load, views_per_call
from georoutenet.solver.options import SolveOptions
from georoutenet.solver.stages import AGREED, Group, default_stop
from georoutenet.stop import AnyOf, Progress, Stop

CHUNK = 1 << 16
"""Instances on the device at a time, at most."""
BYTES_PER_CITY = 256
"""Of a walk, roughly: places, lists, tours of 16 and of 64 bits, sorted and measured."""
FAR = 1 << 60
KICKS_PER_CITY = 40
"""Of a walk, where neither a limit nor agreement ends it before."""
DECODED = 1 << 30
"""Bytes of the tours of all views that are in memory at a time, about."""
LEAST_EACH = 1024
"""Instances that are worth another GPU."""


def gpus_for(options: SolveOptions, n: int, rule: DistanceRule, ends: Ends, count: int) -> list[torch.device]:
    """The GPUs that share the instances; none where the CPU is to solve them, said where a GPU was named."""
    device = choose_device(options.device)
    if device.type != "cuda":
        return []
    if device.index is None:  # by number: kernels are compiled for each
        device = torch.device("cuda", torch.cuda.current_device())
    else:
        count = 0
    policy = options.weights
    if options.improve:
        reason = why_not(n, rule, ends)
        if reason:
            if options.device != "auto" and n >= FEWEST:
                warn(f"{reason}; the CPU searches")
            return []
        if not compiles(device, kernel_for(Cycle(ends), rule)):
            return []
    elif rule is not DistanceRule.EUCLIDEAN or options.first not in ("auto", "network"):
        return []
    if not isinstance(policy, (str, Path)) and (options.names_network or not options.improve):
        return [policy.device] if policy.device.type == "cuda" else [device] if options.improve else []
    others = [torch.device("cuda", k) for k in range(torch.cuda.device_count()) if k != device.index]
    return [device, *others][: max(1, count // LEAST_EACH)]


def limits(stop: Stop) -> tuple[float, float]:
    """Kicks of a walk, and kicks in vain, after which a criterion ends it: each asked with the other away."""
    kicks = stop.budget(Progress(0.0, 0, -FAR, math.inf)).iterations
    idle = stop.budget(Progress(0.0, -FAR, 0, math.inf)).iterations
    return tuple(math.inf if each > FAR // 2 else each for each in (kicks, idle))  # type: ignore[return-value]


class GpuBatch:
    """Instances ``(B, n, 2)`` on one GPU: tours, lengths and first lengths.

    These are kept where the instances are, so that a batch given by the host takes no more of the device than
    one chunk does. With ``sizes (B,)`` instances are as ``search.gpu.cycle.padded`` makes them, and tours are
    closed.
    """

    def __init__(
        self,
        points: Tensor,
        device: torch.device,
        ends: Ends,
        rule: DistanceRule,
        options: SolveOptions,
        *,
        limit: Stop | None,
        left: Callable[[], float],
        report: Callable[[int, float], None],
        sizes: Tensor | None = None,
        keep_tours: bool = True,
    ) -> None:
        """``limit`` is the caller's, ``left`` says how many seconds it leaves to all instances; ``report``
        takes the number of instances that are done now and the sum of their lengths. Where tours are not
        to be kept, they never leave the device."""
        self.points, self.device, self.rule, self.options = points, device, rule, options
        self.cycle, self.left, self.report, self.sizes = Cycle(ends), left, report, sizes
        count, n = points.shape[:2]
        timed, default = math.isfinite(left()), default_stop(n)
        if limit is not None and not timed and limits(limit) == (math.inf, math.inf):
            limit = None  # a gap, for one: there are no bounds here, and lengths are not looked at
        own = default if limit is None else limit
        self.kicks, self.idle = limits(AnyOf(own, default) if timed else own)
        if limit is None:
            self.kicks = min(self.kicks, KICKS_PER_CITY * n)
        self.agreed = AGREED if timed or limit is None else 0
        self.walks = walks_to_fill(device, count)
        self.tours: Tensor | None = None
        if keep_tours:
            self.tours = torch.empty((count, n), dtype=torch.int64, device=points.device)
        self.lengths = torch.zeros(count, dtype=torch.float64, device=points.device)
        self.first = torch.zeros_like(self.lengths)
        self.kicked = torch.zeros(count, dtype=torch.int64, device=points.device)
        self.searched = torch.zeros(count, dtype=torch.bool, device=points.device)
        self.ready = torch.zeros_like(self.searched)
        self.method = "space-filling curve"
        self.cancel = threading.Event()

    def run(self) -> None:
        count, n = self.points.shape[:2]
        room = memory_available(str(self.device)) // (BYTES_PER_CITY * n * self.walks)
        chunk, first = max(1, min(CHUNK, room, count)), 0
        while first < count and not self.cancel.is_set():
            part = slice(first, min(first + chunk, count))
            try:
                self._solve(part)
            except torch.OutOfMemoryError:
                torch.cuda.empty_cache()
                if chunk == 1:
                    raise
                chunk //= 2
                continue
            first = part.stop
            self.report(part.stop - part.start, float(self.lengths[part].sum()))

    def _solve(self, part: slice) -> None:
        points = self.points[part].to(self.device, torch.float64)
        sizes = None if self.sizes is None else self.sizes[part].to(self.device)
        began, share = now(), self.left() * len(points) / (len(self.points) - part.start)
        tours, made = self._first_tours(points, sizes, share)
        ends = self.cycle.ends
        first = lengths = tour_lengths(points, tours, self.rule, closed=ends.closed)
        kicks, interrupted = torch.zeros(len(points), dtype=torch.int64), False
        if share > 0 and self.options.improve:
            found = improve_batch(
                points,
                tours,
                ends=ends,
                rule=self.rule,
                seed=self.options.seed,
                walks=self.walks,
                kicks=self.kicks,
                idle=self.idle,
                agreed=self.agreed,
                goes_on=lambda: now() - began < share and self.left() > 0 and not self.cancel.is_set(),
                sizes=sizes,
            )
            tours, lengths, kicks = found.tours, found.lengths, found.kicks
            interrupted = found.interrupted
            made = len(points)
        self.searched[part] = torch.arange(len(points)) < made
        if self.tours is not None:
            self.tours[part] = tours
        self.lengths[part], self.first[part], self.kicked[part] = lengths, first, kicks
        self.ready[part] = True
        if interrupted:
            raise KeyboardInterrupt

    def _first_tours(self, points: Tensor, sizes: Tensor | None, seconds: float) -> tuple[Tensor, int]:
        """By the network where it is asked for, else along a curve; and how many, from the first on, are as
        asked. For the others there was no time, and they follow a curve."""
        options, asked = self.options, None
        network = options.first == "network" or (
            options.first == "auto" and (options.names_network or not options.improve)
        )
        if sizes is None and (network or options.first == "greedy-edge") and seconds > 0:
            plain = network and self.rule is DistanceRule.EUCLIDEAN
            asked = self._by_network(points, seconds) if plain else self._by_group(points, seconds)
        if asked is None:
            return self.cycle.arrange(curves(points, sizes)), len(points) if seconds > 0 else 0
        made = len(asked)
        if made < len(points):
            asked = torch.cat([asked, curves(points[made:])])
        return self.cycle.arrange(asked), made

    def _by_network(self, points: Tensor, seconds: float) -> Tensor:
        """Decoded where they are: as many as there was time for a first view of."""
        n, options, until = points.shape[1], self.options, now() + seconds
        weights, place = options.weights, str(self.device)
        policy = load(weights, place) if isinstance(weights, (str, Path)) else weights
        if policy.device != self.device:
            return self._by_group(points, seconds)
        decoding = choose_decoding(n, options, place)
        asked = in_precision(policy, decoding.precision)
        check_memory(n, decoding, place)

        def score(some: Tensor) -> Scores:
            if now() > until or self.cancel.is_set():
                raise OutOfTime
            return asked(some, candidates=decoding.candidates)

        ends, step = self.cycle.ends, max(1, DECODED // (decoding.views * n * (n if decoding.merge else 8)))
        tours = [torch.empty((0, n), dtype=torch.int64, device=self.device)]
        for some in points.split(step):
            try:
                found = decode_views(
                    score,
                    some,
                    decoding,
                    start=ends.start,
                    end=ends.end,
                    closed=ends.closed,
                    seed=options.seed,
                    device=self.device,
                    batch=views_per_call(n, decoding, place),
                    together=1 if math.isfinite(seconds) else None,
                    remaining=lambda: until - now(),
                )
            except OutOfTime:
                break
            if found.interrupted:
                raise KeyboardInterrupt
            tours.append(found.best())
        if len(tours) > 1:
            self.method = f"{Path(weights).stem}, " if isinstance(weights, (str, Path)) else ""
            self.method += str(decoding)
        return torch.cat(tours)

    def _by_group(self, points: Tensor, seconds: float) -> Tensor:
        """As ``solve_many`` makes them: under other distance rules, or with a network on another device."""
        ends = self.cycle.ends  # by position: ids stayed behind
        options = replace(self.options, start=ends.start, end=ends.end)
        if math.isfinite(seconds):
            options = replace(options, stop=None, max_seconds=max(0.0, seconds / len(points)))
        group = Group([Instance(cities, rule=self.rule) for cities in points.cpu().numpy()], options, now())
        group.first_tours()
        if group.cancel.is_set():
            raise KeyboardInterrupt
        self.method = group.method
        return torch.as_tensor(np.array(group.tours), device=self.device)


class GpuBatches:
    """A batch shared among GPUs; what each has found, put together where the instances are.

    After Ctrl-C the instances that are ``ready`` have tours.
    """

    def __init__(self, points: Tensor, devices: list[torch.device], *given: Any, **settings: Any) -> None:
        """The rest as ``GpuBatch`` takes it, but ``report``: of all instances done and their mean length."""
        sizes, report, lock = settings.pop("sizes", None), settings.pop("report"), threading.Lock()
        done, total = 0, 0.0

        def report_mean(more: int, lengths: float) -> None:
            nonlocal done, total
            with lock:
                done, total = done + more, total + lengths
                report(done, total / done)

        cuts = np.linspace(0, len(points), len(devices) + 1).astype(int).tolist()
        self.parts = [
            GpuBatch(
                points[low:high],
                device,
                *given,
                **settings,
                report=report_mean,
                sizes=None if sizes is None else sizes[low:high],
            )
            for device, low, high in zip(devices, cuts, cuts[1:], strict=False)
        ]

    def run(self) -> None:
        if len(self.parts) == 1:
            self._run(self.parts[0])
            return
        with ThreadPoolExecutor(len(self.parts)) as pool:
            jobs = [pool.submit(self._run, part) for part in self.parts]
            try:
                for job in as_completed(jobs):
                    job.result()
            except BaseException:  # Ctrl-C comes here
                self._cancel()
                raise

    def _run(self, part: GpuBatch) -> None:
        try:
            with torch.cuda.device(part.device) if part.device.type == "cuda" else nullcontext():
                part.run()
        except BaseException:
            self._cancel()
            raise

    def _cancel(self) -> None:
        """All end at their next launch, or do not begin."""
        for part in self.parts:
            part.cancel.set()

    def joined(self, name: str) -> Tensor:
        """``tours``, ``lengths``, ``first``, ``kicked``, ``searched`` or ``ready`` of all instances."""
        first, *others = (getattr(part, name) for part in self.parts)
        return torch.cat([first, *others]) if others else first
