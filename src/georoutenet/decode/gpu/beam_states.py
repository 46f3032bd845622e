"""Dominance on a GPU: of partial tours in the same state, keep the shortest.

Children are walked from best to worst until a state more than the beam can hold turns up. In parallel this
needs no order within a round: the best so many children are written down, and a hash table with open
addressing collects, for each state, the first child (by rank), the smallest total, and the first child that
has it. The round in which there are too many states finds the child that opens the first one too many, the
cutoff, and counts only the children before it. States are known by a 64-bit hash, as on the CPU.

The desk of one instance is int64 scratch that stays in the L2 cache, ``DESK * block`` of them: table (4 each:
state, first child, smallest total, child that has it), spare, child keys, totals, places in the table,
places used, first children of those.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from georoutenet.decode.gpu.beam_select import lanes, ordered
from georoutenet.decode.randomness import GOLDEN, mix

CHILDREN = tl.constexpr(2)  # children of a round, in blocks
TABLE = tl.constexpr(4)  # places in the table: a third more than the states of a full beam and a round
STATES = tl.constexpr(3)  # states of a full beam and a round
DESK = 4 * 4 + 1 + 3 * 2 + 2 * 3

_NO_STATE = tl.constexpr(0)
_LAST = tl.constexpr(2**63 - 1)


def city_hashes(n: int, device: torch.device) -> Tensor:
    """Random 64-bit numbers of each city as a visited, a last and a first one, int64 ``(3, n)``."""
    return mix(torch.arange(1, 3 * n + 1, device=device) * GOLDEN).view(3, n)


@triton.jit
def clear_desk(desk: tl.tensor, width: tl.tensor, block: tl.constexpr) -> None:
    lane = lanes(width, block)
    for chunk in range(0, 4 * TABLE):
        place = chunk * block + lane
        tl.store(desk + place, tl.where(place % 4 == 0, _NO_STATE, _LAST))
    tl.store(desk + 4 * TABLE * block + lane, tl.zeros([block], dtype=tl.int64) - 1)


@triton.jit
def enter_states(
    desk: tl.tensor,
    children: tl.tensor,
    count: tl.tensor,
    slots: tl.tensor,
    values: tl.tensor,
    beam_rank: tl.tensor,
    beam_normalizer: tl.tensor,
    beam_city: tl.tensor,
    distances: tl.tensor,
    lengths: tl.tensor,
    starts: tl.tensor,
    visited: tl.tensor,
    hashes: tl.tensor,
    n: tl.tensor,
    width: tl.tensor,
    closed: tl.constexpr,
    block: tl.constexpr,
) -> tl.tensor:
    """Enter the states of ``count`` children into the table; the number of states there are now."""
    lane = lanes(width, block)
    spare = desk + 4 * TABLE * block + lane
    keys = spare + block
    totals = keys + CHILDREN * block
    places = totals + CHILDREN * block
    used = desk + (4 * TABLE + 1 + 3 * CHILDREN) * block
    for chunk in range(0, (count + block - 1) // block):
        is_child = chunk * block + lane < count
        child = tl.load(children + chunk * block + lane, mask=is_child, other=0)
        parent = child // n
        city = child - parent * n
        last = tl.load(beam_city + parent)
        inner = last < n  # not the root
        z = tl.load(values + city * (n + 1) + last)
        rank = tl.load(beam_rank + parent) + (z - tl.load(beam_normalizer + parent))
        key = (-ordered(rank) << 32) + child
        total = tl.load(lengths + parent, mask=inner, other=0.0)
        total += tl.load(distances + last * n + city, mask=inner, other=0.0)
        total = total.to(tl.int64, bitcast=True)  # lengths are not negative: the order stays
        state = tl.load(visited + parent, mask=inner, other=0)
        state += tl.load(hashes + city) + tl.load(hashes + n + city)
        if closed:
            first = tl.where(inner, tl.load(starts + parent, mask=inner, other=0), city)
            state += tl.load(hashes + 2 * n + first)

        place = (state & (TABLE * block - 1)).to(tl.int32)
        pending = is_child
        fresh = lane < 0
        while tl.max(pending.to(tl.int32), axis=0) > 0:
            entry = tl.where(pending, desk + 4 * place, spare)
            old = tl.atomic_cas(
                entry, tl.zeros([block], dtype=tl.int64) + _NO_STATE, state, sem="relaxed", scope="cta"
            )
            fresh = fresh | (pending & (old == _NO_STATE))
            pending = pending & (old != _NO_STATE) & (old != state)
            place = tl.where(pending, (place + 1) & (TABLE * block - 1), place)
        index = slots + tl.cumsum(fresh.to(tl.int32), axis=0) - 1
        tl.store(used + index, place.to(tl.int64), mask=fresh)
        slots += tl.sum(fresh.to(tl.int32), axis=0)

        tl.atomic_min(desk + 4 * place + 1, key, mask=is_child, sem="relaxed", scope="cta")
        # A child that is no shorter than one of an earlier round changes nothing more.
        shorter = total < tl.load(desk + 4 * place + 2, mask=is_child, other=0)
        tl.store(keys + chunk * block, key, mask=is_child)
        tl.store(totals + chunk * block, total, mask=is_child)
        tl.store(places + chunk * block, tl.where(shorter, place, -1).to(tl.int64), mask=is_child)
    tl.debug_barrier()
    return slots


@triton.jit
def find_cutoff(desk: tl.tensor, slots: tl.tensor, width: tl.tensor, block: tl.constexpr) -> tl.tensor:
    """The first child of state number ``width + 1``; the last key of all where there are fewer states."""
    lane = lanes(width, block)
    used = desk + (4 * TABLE + 1 + 3 * CHILDREN) * block + lane
    firsts = used + STATES * block
    cutoff = tl.max(tl.zeros([block], dtype=tl.int64) + _LAST, axis=0)
    if slots > width:
        smallest = tl.zeros([block], dtype=tl.int64) + _LAST
        largest = -smallest
        for chunk in range(0, (slots + block - 1) // block):
            is_state = chunk * block + lane < slots
            place = tl.load(used + chunk * block, mask=is_state, other=0)
            first = tl.load(desk + 4 * place + 1, mask=is_state, other=_LAST)
            tl.store(firsts + chunk * block, first)
            smallest = tl.minimum(smallest, first)
            largest = tl.maximum(largest, tl.where(is_state, first, -_LAST))
        low = tl.min(smallest, axis=0)
        high = tl.max(largest, axis=0) + 1
        # A lane reads back what it wrote, so there is nothing to wait for.
        before = slots
        middle = low
        while before != width:
            middle = (low & high) + ((low ^ high) >> 1)  # without overflow
            reached = tl.zeros([block], dtype=tl.int32)
            for chunk in range(0, (slots + block - 1) // block):
                reached += (tl.load(firsts + chunk * block) < middle).to(tl.int32)
            before = tl.sum(reached, axis=0)
            low = tl.where(before < width, middle, low)
            high = tl.where(before > width, middle, high)
        following = tl.zeros([block], dtype=tl.int64) + _LAST
        for chunk in range(0, (slots + block - 1) // block):
            first = tl.load(firsts + chunk * block)
            following = tl.minimum(following, tl.where(first < middle, _LAST, first))
        cutoff = tl.min(following, axis=0)
    return cutoff


@triton.jit
def enter_totals(
    desk: tl.tensor, count: tl.tensor, cutoff: tl.tensor, width: tl.tensor, block: tl.constexpr
) -> None:
    """Find each state's smallest total, and its first child, among the children before the cutoff."""
    lane = lanes(width, block)
    keys = desk + (4 * TABLE + 1) * block + lane
    totals = keys + CHILDREN * block
    places = totals + CHILDREN * block
    for chunk in range(0, (count + block - 1) // block):
        is_child = chunk * block + lane < count
        key = tl.load(keys + chunk * block, mask=is_child, other=_LAST)
        place = tl.load(places + chunk * block, mask=is_child, other=-1)
        total = tl.load(totals + chunk * block, mask=is_child, other=0)
        counts = (place >= 0) & (key < cutoff)
        tl.atomic_min(desk + 4 * place + 2, total, mask=counts, sem="relaxed", scope="cta")
        tl.store(desk + 4 * place + 3, tl.zeros([block], dtype=tl.int64) + _LAST, mask=counts)
    tl.debug_barrier()
    for chunk in range(0, (count + block - 1) // block):
        is_child = chunk * block + lane < count
        key = tl.load(keys + chunk * block, mask=is_child, other=_LAST)
        place = tl.load(places + chunk * block, mask=is_child, other=-1)
        total = tl.load(totals + chunk * block, mask=is_child, other=0)
        counts = (place >= 0) & (key < cutoff)
        counts = counts & (total == tl.load(desk + 4 * place + 2, mask=counts, other=-1))
        tl.atomic_min(desk + 4 * place + 3, key, mask=counts, sem="relaxed", scope="cta")
    tl.debug_barrier()


@triton.jit
def write_survivors(
    choices: tl.tensor,
    desk: tl.tensor,
    slots: tl.tensor,
    cutoff: tl.tensor,
    kept_words: tl.tensor,
    n: tl.tensor,
    width: tl.tensor,
    block: tl.constexpr,
) -> tl.tensor:
    """Write the children that stand for their states, in the order of (parent, city); how many there are.

    Each parent's are first set as bits of ``kept_words (words, block)``. The table is left empty.
    """
    lane = lanes(width, block)
    used = desk + (4 * TABLE + 1 + 3 * CHILDREN) * block + lane
    for word in range(0, (n + 31) // 32):
        tl.store(kept_words + word * block + lane, tl.zeros([block], dtype=tl.int32))
    tl.debug_barrier()
    for chunk in range(0, (slots + block - 1) // block):
        is_state = chunk * block + lane < slots
        entry = desk + 4 * tl.load(used + chunk * block, mask=is_state, other=0)
        first = tl.load(entry + 1, mask=is_state, other=_LAST)
        child = (tl.load(entry + 3, mask=is_state, other=0) & 0xFFFFFFFF).to(tl.int32)
        parent = child // n
        city = child - parent * n
        bit = tl.zeros([block], dtype=tl.int32) + 1 << (city % 32)
        tl.atomic_or(
            kept_words + city // 32 * block + parent, bit, mask=first < cutoff, sem="relaxed", scope="cta"
        )
        tl.store(entry, tl.zeros([block], dtype=tl.int64) + _NO_STATE, mask=is_state)
        for part in tl.static_range(1, 4):
            tl.store(entry + part, tl.zeros([block], dtype=tl.int64) + _LAST, mask=is_state)
    tl.debug_barrier()
    kept = tl.zeros([block], dtype=tl.int32)
    for word in range(0, (n + 31) // 32):
        kept += _population(tl.load(kept_words + word * block + lane))
    place = tl.cumsum(kept, axis=0) - kept
    for word in range(0, (n + 31) // 32):
        bits = tl.load(kept_words + word * block + lane)
        for city in range(word * 32, tl.minimum(word * 32 + 32, n)):
            take = ((bits >> (city % 32)) & 1) != 0
            tl.store(choices + place, lane * n + city, mask=take)
            place += take.to(tl.int32)
    return tl.sum(kept, axis=0)


@triton.jit
def _population(bits: tl.tensor) -> tl.tensor:
    """How many bits of each int32 are set."""
    pairs = bits - ((bits >> 1) & 0x55555555)
    fours = (pairs & 0x33333333) + ((pairs >> 2) & 0x33333333)
    return ((((fours + (fours >> 4)) & 0x0F0F0F0F) * 0x01010101) >> 24) & 0xFF
