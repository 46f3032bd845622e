"""The search of many tours on a GPU: one warp a walk (``kernels/cuda/source/search.cu``).

A walk's tour, places and neighbor lists lie in shared memory while some kicks are made; between two launches
the walk is a tour, the best tour and a few words of state in global memory, and the host reads the clock.
Places are float32, so a gain below ``TOLERANCE`` is none; lengths are measured again in float64 at the end,
and no tour is returned that is longer than the one given. The same seed, number of walks and kicks give the
same tours, however the kicks are spread over launches.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch
from torch import Tensor

from georoutenet.decode.costs import RULES
from georoutenet.errors import InputError
from georoutenet.kernels.cuda.compile import Kernel, try_all, usable
from georoutenet.problem.instance import DistanceRule
from georoutenet.search.gpu.cycle import Cycle, begun_at_zero, tour_lengths
from georoutenet.search.path import Ends

NEAR = 8  # neighbors in a list
LOG = 128  # of `tour.cuh`
STATE = 15
AGREED, KICKS, LAST = 5, 11, 12  # words of the state
DEEPEST = 5
CITIES = 1024
"""At most, the free city of a path included: what lies in shared memory grows with them."""
FEWEST = 5
AMONG = 40
"""Nearest cities among which a neighbor list finds one in every quadrant."""
CANDIDATES = 16
"""Cities in the lists from which those of least alpha are chosen; the last gives way to the tree's edge."""
ITERATIONS = 20
"""Of the ascent: 50 and 100 take longer, and the tours are no shorter."""
TOLERANCE = 3e-7
"""Smaller gains, as a part of what coordinates span, are rounding noise of float32."""
SLACK, BRIDGES = 0.1, 20
"""As in ``search/local_search.py``."""
MARGIN, SHORTEST_WALK = 2.0, 100
"""Looking deeper sooner, and shorter walks than on the CPU: twice as near to the shortest tours for the same
work at 100 cities, a quarter nearer at 200."""
KICKS_PER_LAUNCH = 64
RESIDENT = 24
"""Warps of the search on a multiprocessor, by their registers."""


def bytes_of(cities: int) -> int:
    """Shared memory of a walk, as laid out by `tour.cuh`."""
    padded = -(-cities // 8) * 8
    size = padded * (8 + 2 * NEAR + 3 * 2) + 4 * (-(-padded // 32) + LOG + STATE)
    return -(-size // 16) * 16


WARPS = {256: 4, CITIES: 1}
"""Warps in a block, by the most cities."""
SEARCH = {
    (cities, plain): Kernel(
        "search.cu", "search" if plain else "search_any", warps=warps, shared=warps * bytes_of(cities)
    )
    for cities, warps in WARPS.items()
    for plain in (True, False)
}
LISTS = Kernel("neighbor_lists.cu", "neighbor_lists", warps=8, shared=8 * 4 * CITIES)
ALPHA = {
    cities: Kernel("alpha_lists.cu", "alpha_lists", warps=warps, shared=warps * 24 * cities)
    for cities, warps in WARPS.items()
}


def size_class(cities: int) -> int:
    return min(most for most in WARPS if cities <= most)


def kernel_for(cycle: Cycle, rule: DistanceRule) -> Kernel:
    """The search of such tours."""
    plain = rule is DistanceRule.EUCLIDEAN and not cycle.ends.is_path
    return SEARCH[size_class(cycle.count), plain]


@cache
def problem(device: torch.device, kernel: Kernel) -> str:
    """Why a search cannot be compiled for the device or launched there, empty if it can."""
    return try_all([LISTS, *ALPHA.values(), kernel], device, lambda: _launch(kernel, device))


@cache
def compiles(device: torch.device, kernel: Kernel) -> bool:
    """Whether a search runs on the device; warns once if not."""
    return usable(problem(device, kernel), "the GPU's search does not run", "the CPU searches")


def _launch(kernel: Kernel, device: torch.device) -> None:
    """All kernels of a search once: the fewest cities for which it is taken, on a line."""
    (most, plain) = next(key for key, each in SEARCH.items() if each == kernel)
    n = max([FEWEST, *(other + 1 for other in WARPS if other < most)])
    rule = DistanceRule.EUCLIDEAN if plain else DistanceRule.EUC_2D
    points = torch.arange(2 * n, dtype=torch.float64, device=device).view(1, n, 2)
    tours = torch.arange(n, device=device)[None]
    search = Walks(points, tours, ends=Ends(n), rule=rule, iterations=1)
    search.run(0)
    search.found()


def why_not(n: int, rule: DistanceRule, ends: Ends) -> str:
    """Why instances cannot be searched on a GPU, empty if they can."""
    count = Cycle(ends).count
    if not FEWEST <= count <= CITIES:
        path = " and the free end of a path" if count > n else ""
        return f"the GPU searches {FEWEST} to {CITIES:,} cities, got {n:,}{path}"
    if rule not in RULES:
        return f"the GPU measures by {', '.join(RULES)}, got {rule}"
    return ""


@dataclass(frozen=True)
class Found:
    tours: Tensor  # (B, n) int64
    lengths: Tensor  # (B,) float64
    kicks: Tensor  # (B,) int64, by all walks
    interrupted: bool = False


def neighbor_lists(places: Tensor, sizes: Tensor, width: int = NEAR) -> Tensor:
    """Lists ``(B, n, width)`` of places ``(B, n, 2)``; all cities and then zeros where there are fewer.

    ``sizes (B,)`` of the places are cities; the others have lists of zeros.
    """
    batch, n, _ = places.shape
    near = places.new_zeros((batch, n, width), dtype=torch.int16)
    blocks = -(-batch * n // LISTS.warps)
    LISTS(places, sizes.int(), near, batch * n, n, width, AMONG, blocks=blocks, shared=4 * n * LISTS.warps)
    return near


def alpha_lists(
    places: Tensor, sizes: Tensor, among: Tensor, cycle: Cycle, rule: DistanceRule, iterations: int
) -> Tensor:
    """Of the lists ``among (B, n, CANDIDATES)`` the cities of least alpha ``(B, n, NEAR)``.

    ``places (B, count, 2)`` and ``sizes (B,)`` count the city that is free.
    """
    batch, count, _ = places.shape
    kernel, size = ALPHA[size_class(count)], 24 * (-(-count // 4) * 4)
    near = places.new_zeros((batch, among.shape[1], NEAR), dtype=torch.int16)
    kernel(
        places, sizes.int(), among, near, batch, count, iterations, RULES[rule],
        int(cycle.fixed < cycle.count), int(cycle.is_free),
        blocks=-(-batch // kernel.warps), shared=size * kernel.warps,
    )  # fmt: skip
    return near


class Walks:
    """Walks on the way: ``walks`` for each instance, their tours and their states."""

    def __init__(
        self,
        points: Tensor,
        tours: Tensor,
        *,
        ends: Ends,
        rule: DistanceRule = DistanceRule.EUCLIDEAN,
        seed: int = 0,
        walks: int = 1,
        depth: int = DEEPEST,
        agreed: int = 0,
        sizes: Tensor | None = None,
        iterations: int | None = None,
    ) -> None:
        """``points (B, n, 2)`` in float64 and ``tours (B, n)`` that begin and end as ``ends`` says.

        ``sizes (B,)`` is how many cities each instance has; what is behind them is as ``padded`` makes it.
        The neighbor lists are those of least alpha after this number of ``iterations``; after 0, the nearest.
        """
        iterations = ITERATIONS if iterations is None else iterations
        reason = why_not(points.shape[1], rule, ends)
        if reason:
            raise InputError(reason)
        if not 1 <= depth <= DEEPEST:
            raise InputError(f"depth must be 1 to {DEEPEST}, got {depth}")
        self.points, self.given, self.rule, self.cycle = points, tours, rule, Cycle(ends)
        self.walks, self.depth, self.agreed = walks, depth, agreed
        device = points.device
        self.places = self.cycle.places(points, rule)
        closed = self.cycle.enter(tours)
        own = torch.full((len(points),), ends.n, device=device) if sizes is None else sizes
        self.sizes, self.mixed = (own + self.cycle.is_free).int(), sizes is not None
        cities, width = self.places[:, : ends.n].contiguous(), CANDIDATES if iterations else NEAR
        near = neighbor_lists(cities, own, width)
        if iterations:
            near = alpha_lists(self.places, self.sizes, near, self.cycle, rule, iterations)
        self.lists = self.cycle.lists(near, closed)
        self.tours = closed.to(torch.int16).repeat_interleave(walks, dim=0)
        self.best = self.tours.clone()
        self.states = torch.zeros((len(points) * walks, STATE), dtype=torch.int32, device=device)
        seeds = np.array([np.random.SeedSequence([seed, k]).generate_state(2) for k in range(walks)])
        seeds[:, 0] |= 1  # never 0
        words = torch.from_numpy(seeds.astype(np.uint32).view(np.int32).copy()).to(device)
        self.states[:, :2] = words.repeat(len(points), 1)
        units = -np.log((np.arange(64) + 0.5) / 64)
        self.units = torch.from_numpy(units.astype(np.float32)).to(device)
        self.active = torch.arange(len(self.states), dtype=torch.int32, device=device)

    def run(self, kicks: int) -> None:
        """A descent where there was none yet, then this number of kicks of every active walk."""
        kernel, count = kernel_for(self.cycle, self.rule), self.cycle.count
        size = bytes_of(count)
        kernel(
            self.places, self.lists, self.sizes, self.active, self.tours, self.best, self.states, self.units,
            len(self.active), count, self.walks, kicks, self.depth, SHORTEST_WALK, BRIDGES,
            self.agreed, RULES[self.rule], self.cycle.fixed, int(self.cycle.is_free),
            _bits(TOLERANCE), _bits(SLACK), _bits(MARGIN), size,
            blocks=-(-len(self.active) // kernel.warps), shared=size * kernel.warps,
        )  # fmt: skip

    def retire(self, idle: float) -> None:
        """Leave out walks that have agreed often enough, or made ``idle`` kicks in vain."""
        own = self.states[self.active.long()]
        goes_on = own[:, KICKS] - own[:, LAST] < idle
        if self.agreed:
            goes_on &= own[:, AGREED] < self.agreed
        self.active = self.active[goes_on]

    def found(self) -> Found:
        """The best tour of each instance's walks, checked and measured; the given one if none is shorter."""
        batch, n = self.given.shape
        closed = self.cycle.ends.closed
        tours = self.cycle.leave(self.best.long())
        if self.mixed:
            tours = begun_at_zero(tours, self.sizes.repeat_interleave(self.walks))
        if not bool((tours.sort(dim=1).values == torch.arange(n, device=tours.device)).all()):
            raise RuntimeError("the GPU's search gave a tour that is no permutation: a bug, please report it")
        points = self.points.repeat_interleave(self.walks, dim=0)
        lengths = tour_lengths(points, tours, self.rule, closed=closed).view(batch, self.walks)
        length, walk = lengths.min(dim=1)
        tours = tours.view(batch, self.walks, n)[torch.arange(batch, device=tours.device), walk]
        given = tour_lengths(self.points, self.given, self.rule, closed=closed)
        shorter = length < given
        tours = torch.where(shorter[:, None], tours, self.given)
        return Found(
            tours, torch.where(shorter, length, given), self.states[:, KICKS].view(batch, -1).sum(dim=1)
        )


def improve_batch(
    points: Tensor,
    tours: Tensor,
    *,
    ends: Ends,
    rule: DistanceRule = DistanceRule.EUCLIDEAN,
    seed: int = 0,
    walks: int = 1,
    depth: int = DEEPEST,
    kicks: float = 1000,
    idle: float = math.inf,
    agreed: int = 0,
    goes_on: Callable[[], bool] = lambda: True,
    sizes: Tensor | None = None,
) -> Found:
    """Shorten tours of many instances; see ``Walks``.

    Each walk makes ``kicks`` kicks, fewer when ``idle`` of them were in vain or ``agreed`` of its walks (if
    not 0) came back to its best length. ``goes_on`` is asked between launches. Ctrl-C ends the search, too.
    """
    search = Walks(
        points, tours, ends=ends, rule=rule, seed=seed, walks=walks, depth=depth, agreed=agreed, sizes=sizes
    )
    made, interrupted = 0, False
    try:
        search.run(0)
        while made < kicks and len(search.active) and goes_on():
            step = int(min(KICKS_PER_LAUNCH, kicks - made))
            search.run(step)
            made += step
            search.retire(idle)
    except KeyboardInterrupt:  # between two launches: what the walks have is whole
        interrupted = True
    return replace(search.found(), interrupted=interrupted)


def walks_to_fill(device: torch.device, batch: int) -> int:
    """Walks for each of ``batch`` instances, so that the whole chip has work."""
    count = torch.cuda.get_device_properties(device).multi_processor_count
    return max(1, min(256, RESIDENT * count // max(1, batch)))


def _bits(value: float) -> int:
    return int(struct.unpack("i", struct.pack("f", value))[0])
