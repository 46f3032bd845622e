"""The best children of a beam, as integer keys, and those that stand for their state.

A child is one 64-bit key, (score, parent, city), so that one integer order decides everything, ties included.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import uint64

from georoutenet.decode.cpu.math import mix
from georoutenet.jit import njit

LOW = uint64(0xFFFFFFFF)
"""The part of a key that holds the child's number, ``parent * n + city``."""


@njit(nogil=True)
def packed(score: Any, child: int) -> Any:
    """A key whose ascending order is descending score, then ascending child number."""
    bits = np.float32(score).view(np.uint32)
    # Negative floats already order backwards as integers; positive ones are flipped to come first.
    high = bits if bits >> np.uint32(31) else ~bits & np.uint32(0x7FFFFFFF)
    return (uint64(high) << uint64(32)) | uint64(child)


@njit(nogil=True)
def select(keys: Any, count: int, wanted: int) -> None:
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


@njit(nogil=True)
def unpacked(key: Any) -> Any:
    """Score and child number of a key."""
    high = np.uint32(key >> uint64(32))
    bits = high if high >> np.uint32(31) else ~high & np.uint32(0x7FFFFFFF)
    return np.uint32(bits).view(np.float32), int(key & LOW)


@njit(nogil=True)
def children(
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
                        select(keys, count, wanted)
                        count = wanted
                        bound = unpacked(keys[:count].max())[0]
                    # A child below the new bound does no harm: the last selection removes it.
                    keys[count] = packed(score, parent * n + j)
                    count += 1
                    position[parent] = k + 1
                    open_parents[still] = parent
                    still += 1
                    break
        left = still
    if count > wanted:
        select(keys, count, wanted)
        count = wanted
    return count


@njit(nogil=True)
def by_child(keys: Any, count: int, alive: int, n: int, sorted_keys: Any) -> None:
    """Keys in the order of their child numbers: counted by parent, then by insertion within a parent."""
    place = np.zeros(alive + 1, np.int32)
    for k in range(count):
        place[int(keys[k] & LOW) // n + 1] += 1
    for parent in range(alive):
        place[parent + 1] += place[parent]
    filled = place[:alive].copy()
    for k in range(count):
        parent = int(keys[k] & LOW) // n
        at = filled[parent]
        filled[parent] += 1
        while at > place[parent] and (sorted_keys[at - 1] & LOW) > (keys[k] & LOW):
            sorted_keys[at] = sorted_keys[at - 1]
            at -= 1
        sorted_keys[at] = keys[k]


@njit(nogil=True)
def undominated(keys: Any, totals: Any, n: int, first: Any, visited: Any, kept: Any) -> Any:
    """Write to ``kept`` the children (of sorted ``keys``) that stand for their state, the shortest ones.

    Returns how many there are, and whether the walk met one state more than ``kept`` can hold. A state is
    known by a 64-bit hash: the sum of a hash of each visited city, mixed with first and last city.
    """
    width = kept.shape[0]
    size = 16
    while size < 2 * width:
        size *= 2
    table = np.full(size, -1, np.int32)  # open addressing: hash -> slot of ``kept``
    states, shortest = np.empty(width, np.int64), np.empty(width)
    slots = 0
    for k in range(totals.shape[0]):
        parent, j = divmod(np.int64(keys[k] & LOW), n)
        ends = (np.int64(first[parent] + 1) << 32) | (j + 1)
        state = mix(visited[parent] + mix(j + 1) + mix(ends))
        place = state & (size - 1)
        while table[place] >= 0 and states[table[place]] != state:
            place = (place + 1) & (size - 1)
        slot = table[place]
        if slot < 0:
            if slots == width:
                return slots, True
            table[place] = slots
            states[slots], shortest[slots], kept[slots] = state, totals[k], keys[k]
            slots += 1
        elif totals[k] < shortest[slot]:
            shortest[slot], kept[slot] = totals[k], keys[k]
    return slots, False
