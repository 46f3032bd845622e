"""Beam search on a GPU: one program per instance holds all its beams, one lane for each.

Every step ranks the children of all beams and keeps the ``width`` best. Nothing is sorted: a search over the
float32 values finds the threshold that ``width`` children reach, counting them in each pass, and prefix sums
of the counts say where each survivor goes. The survivors stay in the order (parent, city), which is the
lexicographic order of the partial tours, and ties at the threshold go to the first in that order. With
dominance more children are written down and a hash table keeps one for each state. Parents and cities are
stored in every step, and tours are read back from the end.

Log-probabilities add up in float32 from normalizers summed in float64, as in the PyTorch reference.
"""

from __future__ import annotations

import triton
import triton.language as tl

from georoutenet.decode.gpu.beam_select import best_children, exact_masses, lanes, masses, write_children
from georoutenet.decode.gpu.beam_states import (
    CHILDREN,
    clear_desk,
    enter_states,
    enter_totals,
    find_cutoff,
    write_survivors,
)

_TINY = tl.constexpr(1e-280)


@triton.jit
def beam_kernel(
    scores: tl.tensor,  # (B, n, n + 1) float32: z_ij at [j, i], and the start's at [j, n]
    values: tl.tensor,  # the same less the weighted length: what ranks the children
    weights: tl.tensor,  # (B, n, n + 1) float64: exp(z - peak)
    peaks: tl.tensor,  # (B, n + 1) float32
    ends: tl.tensor,  # (B,) int64: the city kept for last, or -1
    open_cities: tl.tensor,  # (B, 2, words, block) int32: unvisited cities as bits, now and next
    # The beams as their children see them, (B, block) each:
    beam_rank: tl.tensor,
    beam_chance: tl.tensor,
    beam_normalizer: tl.tensor,
    beam_city: tl.tensor,
    choices: tl.tensor,  # (B, n, block) int32: parent * n + city
    # With a cost, float64 (B, n, n), the lengths so far and the first cities, (B, 2, block): now and next.
    distances: tl.tensor,
    lengths: tl.tensor,
    starts: tl.tensor,
    # With dominance, hashes (3, n) of cities and of the visited sets (B, 2, block), children and desk.
    hashes: tl.tensor,
    visited: tl.tensor,
    children: tl.tensor,
    desk: tl.tensor,
    n: tl.tensor,
    width: tl.tensor,
    desk_size: tl.tensor,
    has_cost: tl.constexpr,
    closed: tl.constexpr,
    weighted: tl.constexpr,
    dominance: tl.constexpr,
    block: tl.constexpr,
) -> None:
    instance = tl.program_id(0).to(tl.int64)
    words = (n + 31) // 32
    scores += instance * n * (n + 1)
    values += instance * n * (n + 1)
    weights += instance * n * (n + 1)
    peaks += instance * (n + 1)
    end = tl.load(ends + instance).to(tl.int32)
    open_cities += instance * 2 * words * block
    beam_rank += instance * block
    beam_chance += instance * block
    beam_normalizer += instance * block
    beam_city += instance * block
    choices += instance * n * block
    if has_cost:
        distances += instance * n * n
        lengths += instance * 2 * block
        starts += instance * 2 * block
    if dominance:
        visited += instance * 2 * block
        children += instance * CHILDREN * block
        desk += instance * desk_size
        clear_desk(desk, width, block)

    # The root is one beam at the imaginary city n, whose children are the starts.
    beam = lanes(width, block)
    rank = tl.zeros([block], dtype=tl.float32)
    chance = rank
    last = tl.zeros([block], dtype=tl.int32) + n
    held = tl.minimum(width, 1)
    for word in range(0, words):
        rest = tl.minimum(n - word * 32, 32)
        bits = tl.where(rest == 32, -1, (1 << (rest % 32)) - 1)
        bits = tl.where((end >> 5) == word, bits & ~(1 << (end & 31)), bits)
        tl.store(open_cities + word * block + beam, tl.where(beam == 0, bits, 0))
    tl.debug_barrier()

    for step in range(0, n):
        alive = beam < held
        now = open_cities + (step % 2) * words * block
        following = open_cities + ((step + 1) % 2) * words * block
        row = values + last
        best, mass = masses(row, weights + last, now + beam, n, block)
        peak = tl.load(peaks + last)
        if tl.min(tl.where(alive, mass, 1.0), axis=0) < _TINY:
            peak, mass = exact_masses(scores + last, now + beam, n, block)
        normalizer = (peak.to(tl.float64) + tl.log(mass)).to(tl.float32)
        normalizer = tl.where(last == n, 0.0, normalizer)  # starts are log-probabilities already
        best_child = rank + (best - normalizer)
        tl.store(beam_rank + beam, rank)
        tl.store(beam_normalizer + beam, normalizer)
        tl.store(beam_city + beam, last)
        if weighted:
            tl.store(beam_chance + beam, chance)

        if dominance:
            low = tl.max(tl.zeros([block], dtype=tl.float32) + float("inf"), axis=0)
            high = low
            tied = tl.zeros([block], dtype=tl.int32)
            seen = tied  # of each beam, the children that were walked
            walked = held * 0
            slots = walked
            cutoff = walked.to(tl.int64)
            more = walked == 0
            while more:
                # Seldom more than one and a half children for each state: the second round is the exception.
                least = walked + width + width // 2
                next_low, next_high, above, next_tied = best_children(
                    least,
                    walked + CHILDREN * block,
                    best_child,
                    held,
                    n - step,
                    rank,
                    normalizer,
                    row,
                    now + beam,
                    beam,
                    n,
                    block,
                )
                fresh = above + next_tied - seen
                write_children(
                    children,
                    tl.cumsum(fresh, axis=0) - fresh,
                    next_low,
                    next_high,
                    next_tied,
                    low,
                    high,
                    tied,
                    rank,
                    normalizer,
                    row,
                    now + beam,
                    beam,
                    n,
                    block,
                    rounds=True,
                )
                tl.debug_barrier()
                count = tl.sum(fresh, axis=0)
                slots = enter_states(
                    desk,
                    children,
                    count,
                    slots,
                    values,
                    beam_rank,
                    beam_normalizer,
                    beam_city,
                    distances,
                    lengths + (step % 2) * block,
                    starts + (step % 2) * block,
                    visited + (step % 2) * block,
                    hashes,
                    n,
                    width,
                    closed,
                    block,
                )
                cutoff = find_cutoff(desk, slots, width, block)
                enter_totals(desk, count, cutoff, width, block)
                low = next_low
                high = next_high
                tied = next_tied
                seen += fresh
                walked += count
                more = (slots <= width) & (walked >= least)
            held = write_survivors(choices + step * block, desk, slots, cutoff, following, n, width, block)
        else:
            low, high, above, tied = best_children(
                width, width, best_child, held, n - step, rank, normalizer, row, now + beam, beam, n, block
            )
            kept = above + tied
            place = tl.cumsum(kept, axis=0) - kept
            write_children(
                choices + step * block,
                place,
                low,
                high,
                tied,
                low,
                high,
                tied,
                rank,
                normalizer,
                row,
                now + beam,
                beam,
                n,
                block,
                rounds=False,
            )
            held = tl.sum(kept, axis=0)
        tl.debug_barrier()

        # Each lane now takes up the survivor of its place.
        alive = beam < held
        choice = tl.load(choices + step * block + beam, mask=alive, other=0)
        parent = choice // n
        city = choice - parent * n
        from_city = tl.load(beam_city + parent)
        z = tl.load(values + city * (n + 1) + from_city)
        normalizer = tl.load(beam_normalizer + parent)
        rank = tl.load(beam_rank + parent) + (z - normalizer)
        if weighted:
            z = tl.load(scores + city * (n + 1) + from_city)
            chance = tl.load(beam_chance + parent) + (z - normalizer)
        last = city
        inner = from_city < n
        old = (step % 2) * block + parent
        new = ((step + 1) % 2) * block + beam
        if has_cost:
            edge = tl.load(distances + from_city * n + city, mask=inner, other=0.0)
            tl.store(lengths + new, tl.load(lengths + old, mask=inner, other=0.0) + edge)
            first = tl.load(starts + old, mask=inner, other=0)
            tl.store(starts + new, tl.where(inner, first, city))
        if dominance:
            seen_set = tl.load(visited + old, mask=inner, other=0)
            tl.store(visited + new, seen_set + tl.load(hashes + city))
        for word in range(0, words):
            bits = tl.load(now + word * block + parent, mask=alive, other=0)
            going = tl.where(city // 32 == word, 1 << (city % 32), 0)
            coming = tl.where(alive & (step == n - 2) & ((end >> 5) == word), 1 << (end & 31), 0)
            tl.store(following + word * block + beam, (bits & ~going) | coming)
        tl.debug_barrier()
    tl.store(beam_rank + beam, tl.where(beam < held, rank, float("-inf")))
    if weighted:
        tl.store(beam_chance + beam, tl.where(beam < held, chance, float("-inf")))
    if has_cost:
        length = tl.load(lengths + (n % 2) * block + beam)
        if closed:
            length += tl.load(distances + last * n + tl.load(starts + (n % 2) * block + beam))
        tl.store(lengths + beam, tl.where(beam < held, length, float("inf")))


@triton.jit
def backtrack_kernel(
    choices: tl.tensor,
    order: tl.tensor,
    tours: tl.tensor,
    n: tl.tensor,
    size: tl.tensor,
    keep: tl.tensor,
    block: tl.constexpr,
) -> None:
    """Tours of the beams named in ``order (B, keep)``, from the last city to the first; -1 for no beam."""
    instance = tl.program_id(0).to(tl.int64)
    rank = tl.program_id(1) * block + tl.arange(0, block)
    choices += instance * n * size
    tours += (instance * keep + rank) * n
    parent = tl.load(order + instance * keep + rank, mask=rank < keep, other=-1).to(tl.int32)
    alive = parent >= 0
    for back in range(1, n + 1):
        choice = tl.load(choices + (n - back) * size + parent, mask=alive, other=-1)
        parent = choice // n
        city = tl.where(alive, choice - parent * n, -1)
        tl.store(tours + (n - back), city.to(tours.dtype.element_ty), mask=rank < keep)
