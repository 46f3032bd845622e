"""``solve_batch`` on a GPU: chunk by chunk, what a chunk holds stays on the device from cities to tours."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from georoutenet.clock import now
from georoutenet.device import choose_device, memory_available
from georoutenet.errors import GeoRouteNetWarning
from georoutenet.problem.instance import DistanceRule, Instance
from georoutenet.search.gpu.cycle import Cycle, curves, tour_lengths
from georoutenet.search.gpu.engine import FEWEST, compiles, improve_batch, kernel_for, walks_to_fill, why_not
from georoutenet.search.path import Ends
from georoutenet.solver.options import SolveOptions
from georoutenet.solver.stages import AGREED, Group
from georoutenet.stop import Progress, Stop

CHUNK = 1 << 16
"""Instances on the device at a time, at most."""
BYTES_PER_CITY = 256
"""Of a walk, roughly: places, lists, tours of 16 and of 64 bits, sorted and measured."""
FAR = 1 << 60


def gpu_for(name: str, n: int, rule: DistanceRule, ends: Ends) -> torch.device | None:
    """The GPU that searches, or None where the CPU does; said once where a GPU was asked for by name."""
    device = choose_device(name)
    if device.type != "cuda":
        return None
    reason = why_not(n, rule, ends)
    if reason:
        if name != "auto" and n >= FEWEST:
            warnings.warn(f"{reason}; the CPU searches", GeoRouteNetWarning, stacklevel=4)
        return None
    return device if compiles(device, kernel_for(Cycle(ends), rule)) else None


def limits(stop: Stop) -> tuple[float, float]:
    """Kicks of a walk, and kicks in vain, after which a criterion ends it: each asked with the other away."""
    kicks = stop.budget(Progress(0.0, 0, -FAR, math.inf)).iterations
    idle = stop.budget(Progress(0.0, -FAR, 0, math.inf)).iterations
    return tuple(math.inf if each > FAR // 2 else each for each in (kicks, idle))  # type: ignore[return-value]


class GpuBatch:
    """One call of ``solve_batch``: ``(B, n, 2)`` in float64 in, tours and lengths on the device out."""

    def __init__(
        self,
        points: Tensor,
        device: torch.device,
        ends: Ends,
        rule: DistanceRule,
        options: SolveOptions,
        *,
        stop: Stop,
        timed: bool,
        left: Callable[[], float],
        report: Callable[[int, float], None],
    ) -> None:
        """``left`` says how many seconds the call has, ``report`` takes the instances done and their mean."""
        self.points, self.device, self.rule, self.options = points, device, rule, options
        self.cycle, self.left, self.report = Cycle(ends), left, report
        self.kicks, self.idle = limits(stop)
        self.agreed = AGREED if timed or options.stop is None else 0
        count, n = points.shape[:2]
        self.walks = walks_to_fill(device, count)
        self.tours = torch.empty((count, n), dtype=torch.int64, device=device)
        self.lengths = torch.zeros(count, dtype=torch.float64, device=device)
        self.searched = 0

    def run(self) -> None:
        count, n = self.points.shape[:2]
        room = memory_available(str(self.device)) // (BYTES_PER_CITY * n * self.walks)
        chunk, first = max(1, min(CHUNK, room, count)), 0
        while first < count:
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
            self.report(first, float(self.lengths[:first].mean()))

    def _solve(self, part: slice) -> None:
        points = self.points[part].to(self.device)
        began, share = now(), self.left() * len(points) / (len(self.points) - part.start)
        tours = self._first_tours(points, share / len(points))
        ends = self.cycle.ends
        if share > 0:
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
                goes_on=lambda: now() - began < share,
            )
            tours, lengths = found.tours, found.lengths
            self.searched += len(points)
        else:
            lengths = tour_lengths(points, tours, self.rule, closed=ends.closed)
        self.tours[part], self.lengths[part] = tours, lengths

    def _first_tours(self, points: Tensor, seconds: float) -> Tensor:
        """By the network where the caller names it and there is time, else along a curve."""
        options, asked = self.options, None
        if math.isfinite(seconds):
            options = replace(options, stop=None, max_seconds=max(0.0, seconds))
        if options.first == "network" or (options.first == "auto" and options.names_network):
            instances = [Instance(cities, rule=self.rule) for cities in points.cpu().numpy()]
            group = Group(instances, options, now())
            group.ask_network()
            if group.cancel.is_set():
                raise KeyboardInterrupt
            asked = group.tours
        if asked is None:
            return self.cycle.arrange(curves(points))
        return self.cycle.arrange(torch.as_tensor(np.array(asked), device=self.device))
