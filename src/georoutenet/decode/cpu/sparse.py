"""Greedy and sampled tours from candidate lists on the CPU, in ``O(n k)`` memory and time.

A kernel runs every tour until it is done or has no unvisited candidate left. Then it notes the nearest
unvisited cities, found in a grid from which visited cities are taken out; the network scores those pairs for
all waiting tours at once, and the tours run on.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch

from georoutenet.decode.common import Decoded, Task
from georoutenet.decode.cpu.math import LOWEST, tour_key, uniform
from georoutenet.decode.cpu.threads import in_ranges
from georoutenet.decode.sparse import fallback_size, pair_scores
from georoutenet.errors import InputError
from georoutenet.jit import njit

PER_CELL = 2.0
"""Cities in a cell of the grid, on average."""


class Grid(NamedTuple):
    """Cells of each instance; every tour has its own copy of the members, so that it can remove them."""

    points: Any  # (B, n, 2) float64
    corner: Any  # (B, 2) float64
    side: Any  # (B,) float64: side of a cell
    cells: int  # cells along one side of the square
    first: Any  # (B, cells^2 + 1) int32: where a cell's members begin
    members: Any  # (T, n) int32
    counts: Any  # (T, cells^2) int32: members that are left


class Progress(NamedTuple):
    """Where each of ``T`` tours stands."""

    tours: Any  # (T, n) int64
    step: Any  # (T,) int64: how many cities have been visited
    visited: Any  # (T, n) bool
    chance: Any  # (T,) float64 log-probabilities
    further: Any  # (T, R) int64: cities to look at for want of candidates
    further_logits: Any  # (T, R) float32
    waiting: Any  # (T,) int64: how many of them there are; 0 while a tour does not wait


@njit(nogil=True)
def _cell(x: float, y: float, corner: Any, side: float, cells: int) -> Any:
    column = min(max(int((x - corner[0]) / side), 0), cells - 1)
    row = min(max(int((y - corner[1]) / side), 0), cells - 1)
    return row, column


@njit(nogil=True)
def _fill_grid(grid: Grid, tours_per_instance: int) -> None:
    batch, n = grid.points.shape[0], grid.points.shape[1]
    cells = grid.cells
    for b in range(batch):
        home = np.empty(n, np.int32)
        for i in range(n):
            row, column = _cell(
                grid.points[b, i, 0], grid.points[b, i, 1], grid.corner[b], grid.side[b], cells
            )
            home[i] = row * cells + column
            grid.first[b, home[i] + 1] += 1
        for c in range(cells * cells):
            grid.first[b, c + 1] += grid.first[b, c]
        tour = b * tours_per_instance
        for i in range(n):
            c = home[i]
            grid.members[tour, grid.first[b, c] + grid.counts[tour, c]] = i
            grid.counts[tour, c] += 1
        for other in range(tour + 1, tour + tours_per_instance):
            grid.members[other] = grid.members[tour]
            grid.counts[other] = grid.counts[tour]


@njit(nogil=True)
def _remove(grid: Grid, b: int, tour: int, city: int) -> None:
    point = grid.points[b, city]
    row, column = _cell(point[0], point[1], grid.corner[b], grid.side[b], grid.cells)
    c = row * grid.cells + column
    first = grid.first[b, c]
    last = first + grid.counts[tour, c] - 1
    for k in range(first, last + 1):
        if grid.members[tour, k] == city:
            grid.members[tour, k] = grid.members[tour, last]
            grid.counts[tour, c] -= 1
            return


@njit(nogil=True)
def _look_at(
    grid: Grid,
    b: int,
    tour: int,
    row: int,
    column: int,
    x: float,
    y: float,
    found: int,
    squares: Any,
    cities: Any,
) -> int:
    """Merge a cell's members into the nearest cities found so far, sorted by (distance, index)."""
    c = row * grid.cells + column
    first = grid.first[b, c]
    for k in range(first, first + grid.counts[tour, c]):
        j = grid.members[tour, k]
        dx, dy = grid.points[b, j, 0] - x, grid.points[b, j, 1] - y
        square = dx * dx + dy * dy
        at = found
        while at > 0 and (squares[at - 1] > square or (squares[at - 1] == square and cities[at - 1] > j)):
            at -= 1
        if at < squares.shape[0]:
            for m in range(min(found, squares.shape[0] - 1), at, -1):
                squares[m] = squares[m - 1]
                cities[m] = cities[m - 1]
            squares[at] = square
            cities[at] = j
            found = min(found + 1, squares.shape[0])
    return found


@njit(nogil=True)
def _nearest(grid: Grid, b: int, tour: int, city: int, squares: Any, cities: Any) -> int:
    """The nearest cities left in the grid, ring of cells by ring of cells; how many were found."""
    x, y = grid.points[b, city, 0], grid.points[b, city, 1]
    row, column = _cell(x, y, grid.corner[b], grid.side[b], grid.cells)
    found = 0
    for ring in range(grid.cells):
        # All cells of this ring are at least ring - 1 sides away; the margin covers rounding of the cell.
        away = (ring - 1) * grid.side[b] * (1 - 1e-9)
        if found == squares.shape[0] and ring > 1 and squares[found - 1] < away * away:
            break
        low, high = max(row - ring, 0), min(row + ring, grid.cells - 1)
        for r in range(low, high + 1):
            if abs(r - row) == ring:
                for c in range(max(column - ring, 0), min(column + ring, grid.cells - 1) + 1):
                    found = _look_at(grid, b, tour, r, c, x, y, found, squares, cities)
            else:
                if column - ring >= 0:
                    found = _look_at(grid, b, tour, r, column - ring, x, y, found, squares, cities)
                if ring > 0 and column + ring < grid.cells:
                    found = _look_at(grid, b, tour, r, column + ring, x, y, found, squares, cities)
    return found


@njit(nogil=True)
def _choose(logits: Any, count: int, weights: Any, greedy: bool, chance: float) -> Any:
    """Index of the chosen one of ``count`` logits, and its log-probability; -1 for NaN."""
    best = 0
    for k in range(count):
        if math.isnan(logits[k]):
            return -1, 0.0
        logits[k] = max(logits[k], LOWEST)
        if logits[k] > logits[best]:
            best = k
    top = np.float64(logits[best])
    total = 0.0
    for k in range(count):
        weights[k] = math.exp(np.float64(logits[k]) - top)
        total += weights[k]
    chosen = best
    if not greedy:
        chosen = _drawn(count, weights, chance * total)
    return chosen, np.float64(logits[chosen]) - top - math.log(total)


@njit(nogil=True)
def _drawn(count: int, weights: Any, target: float) -> int:
    """Where the sum of the weights passes ``target``, over the cities in their order."""
    chosen, running = 0, 0.0
    for k in range(count):
        if weights[k] > 0.0:
            chosen = k
            running += weights[k]
            if running > target:
                break
    return chosen


@njit(nogil=True)
def _advance(
    low: int,
    high: int,
    start: Any,
    logits: Any,
    neighbors: Any,
    end: Any,
    seed: Any,
    greedy: bool,
    tours_per_instance: int,
    grid: Grid,
    progress: Progress,
) -> bool:
    """Run the tours in [low, high) until they are done or wait for scores; False when a score was NaN."""
    n, k_candidates = start.shape[1], neighbors.shape[2]
    size = max(n, k_candidates)
    options, scores, weights = np.empty(size, np.int64), np.empty(size, np.float32), np.empty(size)
    squares = np.empty(progress.further.shape[1])
    has_grid = grid.points.shape[1] == n
    for tour in range(low, high):
        b = tour // tours_per_instance
        key = tour_key(seed, b, tour % tours_per_instance)
        while progress.step[tour] < n:
            step = progress.step[tour]
            count = 0
            if step == 0:
                for j in range(n):
                    if start[b, j] > -np.inf:
                        options[count] = j
                        scores[count] = start[b, j]
                        count += 1
            elif step == n - 1 and end[b] >= 0:
                options[0], scores[0], count = end[b], np.float32(0.0), 1
            elif progress.waiting[tour] > 0:
                count = progress.waiting[tour]
                options[:count] = progress.further[tour, :count]
                scores[:count] = progress.further_logits[tour, :count]
                progress.waiting[tour] = 0
            else:
                i = progress.tours[tour, step - 1]
                for c in range(k_candidates):
                    j = neighbors[b, i, c]
                    if not progress.visited[tour, j]:
                        options[count] = j
                        scores[count] = logits[b, i, c]
                        count += 1
                if count == 0:
                    further = progress.further[tour]
                    if has_grid:
                        found = _nearest(grid, b, tour, i, squares, further)
                        further[:found].sort()
                    else:
                        found = 0
                        for j in range(n):
                            if not progress.visited[tour, j]:
                                further[found] = j
                                found += 1
                    progress.waiting[tour] = found
                    break
            chosen, chance = _choose(scores, count, weights, greedy, uniform(key, step))
            if chosen < 0:
                return False
            city = options[chosen]
            progress.tours[tour, step] = city
            progress.chance[tour] += chance
            progress.visited[tour, city] = True
            if has_grid:
                _remove(grid, b, tour, city)
            if step == 0 and end[b] >= 0:
                progress.visited[tour, end[b]] = True
                if has_grid:
                    _remove(grid, b, tour, end[b])
            progress.step[tour] = step + 1
    return True


def construct(task: Task, tours_per_instance: int, seed: int | None) -> Decoded:
    """Tours as ``reference.construct`` builds them from sparse scores."""
    batch, n = task.shape
    assert task.neighbors is not None
    total, further = batch * tours_per_instance, fallback_size(task)
    progress = Progress(
        np.empty((total, n), np.int64),
        np.zeros(total, np.int64),
        np.zeros((total, n), np.bool_),
        np.zeros(total),
        np.zeros((total, further), np.int64),
        np.zeros((total, further), np.float32),
        np.zeros(total, np.int64),
    )
    grid = _grid(task, tours_per_instance)
    arrays = (
        task.start.numpy(),
        task.logits.numpy(),
        task.neighbors.numpy(),
        task.end.numpy(),
        seed or 0,
        seed is None,
        tours_per_instance,
        grid,
        progress,
    )
    while True:
        if not all(in_ranges(total, lambda low, high: bool(_advance(low, high, *arrays)))):
            raise InputError("the scores hold values that are not numbers (NaN)")
        (stuck,) = np.nonzero(progress.waiting)
        if len(stuck) == 0:
            break
        _score(task, tours_per_instance, progress, stuck)
    shape = (batch, tours_per_instance)
    chances = torch.from_numpy(progress.chance.astype(np.float32))
    return Decoded(torch.from_numpy(progress.tours).reshape(*shape, n), chances.reshape(shape))


def _score(task: Task, tours_per_instance: int, progress: Progress, stuck: Any) -> None:
    """Ask the network for the pairs that the waiting tours look at, all in one call."""
    counts = progress.waiting[stuck]
    row = np.repeat(stuck, counts)
    column = np.concatenate([np.arange(count) for count in counts])
    city = progress.tours[row, progress.step[row] - 1]
    pairs = (row // tours_per_instance, city, progress.further[row, column])
    logits = pair_scores(task, *(torch.from_numpy(index) for index in pairs))
    progress.further_logits[row, column] = logits.cpu().numpy()


def _grid(task: Task, tours_per_instance: int) -> Grid:
    batch, n = task.shape
    if task.coordinates is None:
        nothing = np.empty((0, 0), np.int32)
        return Grid(np.empty((0, 0, 2)), np.empty((0, 2)), np.empty(0), 1, nothing, nothing, nothing)
    points = task.coordinates.numpy()
    corner = points.min(axis=1)
    span = (points.max(axis=1) - corner).max(axis=1)
    cells = max(1, int(math.sqrt(n / PER_CELL)))
    side = np.where(span > 0, span, 1.0) / cells
    total = batch * tours_per_instance
    grid = Grid(
        points,
        corner,
        side,
        cells,
        np.zeros((batch, cells * cells + 1), np.int32),
        np.empty((total, n), np.int32),
        np.zeros((total, cells * cells), np.int32),
    )
    _fill_grid(grid, tours_per_instance)
    return grid
