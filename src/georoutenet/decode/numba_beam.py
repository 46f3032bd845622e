"""Beam search on the CPU, equal to ``reference.beam`` child by child.

What makes it fast: ``exp`` of the logits is taken once per instance, so a partial tour's normalizer is a
masked sum; rows are sorted once, so a parent's children come best first and the scan stops at the score
that can no longer make the beam; parents and cities are stored per step and tours read back at the end.
A child is one 64-bit key, (score, parent, city), so that one integer order decides everything. No step sorts
its beam: partial tours stand in the order of (parent, city), as in every backend.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numba import njit, uint64

from georoutenet.decode.beam_task import BeamTask, cheapest, stacked
from georoutenet.decode.common import FLOOR, Decoded
from georoutenet.decode.numba_tours import TINY, _mix
from georoutenet.decode.threads import in_ranges
from georoutenet.errors import InputError

_FLOOR = np.float32(FLOOR)
_LOW = uint64(0xFFFFFFFF)


@njit(cache=True, nogil=True)
def _packed(score: Any, child: int) -> Any:
    """A key whose ascending order is descending score, then ascending child number."""
    bits = np.float32(score).view(np.uint32)
    # Negative floats already order backwards as integers; positive ones are flipped to come first.
    high = bits if bits >> np.uint32(31) else ~bits & np.uint32(0x7FFFFFFF)
    return (uint64(high) << uint64(32)) | uint64(child)


@njit(cache=True, nogil=True)
def _select(keys: Any, count: int, wanted: int) -> None:
    """Move the ``wanted`` smallest of the first ``count`` keys to the front, in any order."""
    low, high = 0, count - 1
    while low < high:
        a, b, c = keys[low], keys[(low + high) >> 1], keys[high]
        pivot = max(min(a, b), min(max(a, b), c))
        i, j = low, high
        while i <= j:
            while keys[i] < pivot:
                i += 1
            while keys[j] > pivot:
                j -= 1
            if i <= j:
                keys[i], keys[j] = keys[j], keys[i]
                i += 1
                j -= 1
        if wanted - 1 <= j:
            high = j
        elif wanted - 1 >= i:
            low = i
        else:
            return


@njit(cache=True, nogil=True, fastmath={"reassoc", "nsz"})
def _masked_sum(weights: Any, mask: Any) -> float:
    total = 0.0
    for j in range(weights.shape[0]):
        total += weights[j] * mask[j]
    return total


@njit(cache=True, nogil=True)
def _normalizer(row: Any, weights: Any, largest: float, mask: Any) -> Any:
    """Log of the denominator of Eq. masked_transition, rounded to float32."""
    total = _masked_sum(weights, mask)
    if total > TINY:
        return np.float32(largest + math.log(total))
    top = -np.inf
    for j in range(row.shape[0]):
        if mask[j] > 0:
            top = max(top, float(max(row[j], _FLOOR)))
    total = 0.0
    for j in range(row.shape[0]):
        if mask[j] > 0:
            total += math.exp(float(max(row[j], _FLOOR)) - top)
    return np.float32(top + math.log(total))


@njit(cache=True, nogil=True)
def _unpacked(key: Any) -> Any:
    """Score and child number of a key."""
    high = np.uint32(key >> uint64(32))
    bits = high if high >> np.uint32(31) else ~high & np.uint32(0x7FFFFFFF)
    return np.uint32(bits).view(np.float32), int(key & _LOW)


@njit(cache=True, nogil=True)
def _children(
    alive: int,
    rank: Any,
    city: Any,
    normalizer: Any,
    sorted_values: Any,
    order: Any,
    mask: Any,
    wanted: int,
    keys: Any,
) -> int:
    """The ``wanted`` best children of all parents as keys in any order; how many there are.

    First every parent gives its best child, then its second best, and so on: after two rounds the bound
    is already close to the final one, and a parent whose next child is below it has no more to give.
    """
    n = order.shape[0]
    position = np.zeros(alive, np.int32)  # how much of its sorted row each parent has looked at
    open_parents = np.arange(alive)
    left = alive
    count = 0
    bound = np.float32(-np.inf)
    while left > 0:
        still = 0
        for a in range(left):
            parent = open_parents[a]
            i = city[parent]
            for k in range(position[parent], n):
                score = rank[parent] + (sorted_values[i, k] - normalizer[parent])
                if score < bound:
                    break
                j = order[i, k]
                if mask[parent, j] > 0:
                    if count == keys.shape[0]:
                        _select(keys, count, wanted)
                        count = wanted
                        bound = _unpacked(keys[:count].max())[0]
                    # A child below the new bound does no harm: the last selection removes it.
                    keys[count] = _packed(score, parent * n + j)
                    count += 1
                    position[parent] = k + 1
                    open_parents[still] = parent
                    still += 1
                    break
        left = still
    if count > wanted:
        _select(keys, count, wanted)
        count = wanted
    return count


@njit(cache=True, nogil=True)
def _by_child(keys: Any, count: int, alive: int, n: int, sorted_keys: Any) -> None:
    """Keys in the order of their child numbers: counted by parent, then by insertion within a parent."""
    place = np.zeros(alive + 1, np.int32)
    for k in range(count):
        place[int(keys[k] & _LOW) // n + 1] += 1
    for parent in range(alive):
        place[parent + 1] += place[parent]
    filled = place[:alive].copy()
    for k in range(count):
        parent = int(keys[k] & _LOW) // n
        at = filled[parent]
        filled[parent] += 1
        while at > place[parent] and (sorted_keys[at - 1] & _LOW) > (keys[k] & _LOW):
            sorted_keys[at] = sorted_keys[at - 1]
            at -= 1
        sorted_keys[at] = keys[k]


@njit(cache=True, nogil=True)
def _undominated(
    keys: Any,
    count: int,
    width: int,
    city: Any,
    first: Any,
    visited: Any,
    length: Any,
    distances: Any,
    kept: Any,
) -> Any:
    """Write to ``kept`` the children that stand for their state from sorted ``keys``, as ``reference._undominated`` does.

    Returns how many there are, and whether the walk met one state more than the beam can hold. A state is
    known by a 64-bit hash: the sum of a hash of each visited city, mixed with first and last city.
    """
    n = distances.shape[0]
    size = 16
    while size < 2 * width:
        size *= 2
    wrap = uint64(size - 1)
    table = np.full(size, -1, np.int32)  # open addressing: hash -> slot of ``kept``
    states = np.empty(width, np.uint64)
    totals = np.empty(width)
    slots = 0
    for k in range(count):
        child = int(keys[k] & _LOW)
        parent, j = child // n, child % n
        ends = (uint64(first[parent] + 1) << uint64(32)) | uint64(j + 1)
        state = _mix(visited[parent] + _mix(uint64(j + 1)) + _mix(ends))
        total = length[parent] + distances[city[parent], j]
        place = state & wrap
        while table[place] >= 0 and states[table[place]] != state:
            place = (place + uint64(1)) & wrap
        slot = table[place]
        if slot < 0:
            if slots == width:
                return slots, True
            table[place] = slots
            states[slots] = state
            totals[slots] = total
            kept[slots] = keys[k]
            slots += 1
        elif total < totals[slot]:
            totals[slot] = total
            kept[slot] = keys[k]
    return slots, False


@njit(cache=True, nogil=True)
def _search(
    first_cities: Any,
    first_ranks: Any,
    logits: Any,
    sorted_values: Any,
    order: Any,
    weights: Any,
    largest: Any,
    end: int,
    width: int,
    dominance: bool,
    closed: bool,
    distances: Any,
) -> Any:
    """Beam search over one instance: tours, best rank first, and their log-probabilities."""
    n, padded = weights.shape
    alive = first_cities.shape[0]
    rank, chance = np.empty(width, np.float32), np.empty(width, np.float32)
    rank[:alive] = first_ranks
    chance[:alive] = first_ranks
    normalizer = np.empty(width, np.float32)
    parents, cities = np.zeros((n, width), np.int32), np.zeros((n, width), np.int32)
    cities[0, :alive] = first_cities
    mask, next_mask = np.zeros((width, padded), np.float64), np.zeros((width, padded), np.float64)
    mask[:alive, :n] = 1
    for w in range(alive):
        mask[w, first_cities[w]] = 0
        if end >= 0 and n > 2:
            mask[w, end] = 0
    # Only dominance needs to know where a partial tour began, what it visited and how long it is.
    states = width if dominance else 1
    first, length, visited = np.zeros(states, np.int32), np.zeros(states), np.zeros(states, np.uint64)
    kept = np.empty(states, np.uint64)
    if dominance:
        for w in range(alive):
            first[w] = first_cities[w] if closed else -1
            visited[w] = _mix(uint64(first_cities[w] + 1))
    keys, chosen = np.empty(2 * width, np.uint64), np.empty(width, np.uint64)
    wanted = width

    for step in range(1, n):
        city = cities[step - 1]
        for w in range(alive):
            normalizer[w] = _normalizer(logits[city[w]], weights[city[w]], largest[city[w]], mask[w])
        while True:
            count = _children(alive, rank, city, normalizer, sorted_values, order, mask, wanted, keys)
            if not dominance:
                _by_child(keys, count, alive, n, chosen)
                break
            keys[:count].sort()
            slots, full = _undominated(keys, count, width, city, first, visited, length, distances, kept)
            if full or count < wanted:
                count = slots
                _by_child(kept, count, alive, n, chosen)
                break
            wanted *= 2
            keys = np.empty(2 * wanted, np.uint64)
        next_rank, next_chance = np.empty(width, np.float32), np.empty(width, np.float32)
        next_first, next_length = np.empty(states, np.int32), np.empty(states)
        next_visited = np.empty(states, np.uint64)
        for w in range(count):
            score, child = _unpacked(chosen[w])
            parent, j = child // n, child % n
            i = city[parent]
            next_rank[w] = score
            next_chance[w] = chance[parent] + (max(logits[i, j], _FLOOR) - normalizer[parent])
            parents[step, w] = parent
            cities[step, w] = j
            next_mask[w] = mask[parent]
            next_mask[w, j] = 0
            if end >= 0 and step == n - 2:
                next_mask[w, end] = 1
            if dominance:
                next_first[w] = first[parent]
                next_length[w] = length[parent] + distances[i, j]
                next_visited[w] = visited[parent] + _mix(uint64(j + 1))
        alive = count
        rank, chance = next_rank, next_chance
        mask, next_mask = next_mask, mask
        if dominance:
            first, length, visited = next_first, next_length, next_visited

    tours = np.empty((alive, n), np.int64)
    best_first = np.argsort(-rank[:alive], kind="mergesort")
    for w in range(alive):
        back = best_first[w]
        for step in range(n - 1, -1, -1):
            tours[w, step] = cities[step, back]
            back = parents[step, back]
    return tours, chance[best_first]


def beam(task: BeamTask) -> Decoded:
    """Beam search, equal to ``reference.beam``; instances are shared among threads."""
    batch, n = task.shape
    if task.width * n >= 1 << 32:
        raise InputError(f"width times cities must stay below 2^32, got {task.width} x {n}")

    def work(low: int, high: int) -> list[Decoded]:
        return [_beam(task, b) for b in range(low, high)]

    return stacked([part for parts in in_ranges(batch, work) for part in parts])


def _beam(task: BeamTask, b: int) -> Decoded:
    logits = task.logits[b]
    if bool(logits.isnan().any()):
        raise InputError("the scores hold values that are not numbers (NaN)")
    start = task.start[b]
    starts = min(task.width, int((start > -torch.inf).sum()))
    cities = torch.sort(start, descending=True, stable=True).indices[:starts].sort().values
    sorted_values, order = torch.sort(task.values(b), dim=1, descending=True, stable=True)
    clamped = logits.double().clamp(min=FLOOR)
    largest = clamped.amax(dim=1, keepdim=True)
    unused = np.zeros((1, 1))
    tours, chance = _search(
        cities.to(torch.int32).numpy(),
        start[cities].numpy(),
        logits.numpy(),
        sorted_values.numpy(),
        order.to(torch.int32).numpy(),
        (clamped - largest).exp().numpy(),
        largest[:, 0].numpy(),
        int(task.end[b]),
        task.width,
        task.dominance,
        task.closed,
        task.costs.matrix(b).numpy() if task.dominance and task.costs is not None else unused,
    )
    return cheapest(task, torch.from_numpy(tours)[None], torch.from_numpy(chance)[None], b)
