"""Parts of the GPU beam search: each beam's normalizer, and the score that the best children reach.

A tensor has one lane for each beam. A table of scores is read by target city, then source, so that the lanes
of one city read near each other; ``row`` points at the source of each lane.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOWEST = tl.constexpr(-3.4028234663852886e38)  # the lowest float32
INT_MIN = tl.constexpr(-(2**31))


@triton.jit
def lanes(width: tl.tensor, block: tl.constexpr) -> tl.tensor:
    """Numbers 0 to block - 1, of which the compiler does not know where they begin.

    It would otherwise read them four at a time, and move between that layout and the one of scattered
    stores within the loops.
    """
    return tl.arange(0, block) + (tl.minimum(width, 1) - 1)


@triton.jit
def ordered(value: tl.tensor) -> tl.tensor:
    """A float32 as an integer of the same order."""
    bits = value.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, INT_MIN - bits, bits).to(tl.int64)


@triton.jit
def from_ordered(key: tl.tensor) -> tl.tensor:
    """The float32 of such an integer."""
    bits = key.to(tl.int32)
    return tl.where(bits < 0, INT_MIN - bits, bits).to(tl.float32, bitcast=True)


@triton.jit
def masses(
    row: tl.tensor,
    weight: tl.tensor,
    open_words: tl.tensor,
    n: tl.tensor,
    block: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """For each beam the best score and the sum of the weights of its unvisited cities."""
    best = tl.full([block], float("-inf"), dtype=tl.float32)
    mass = tl.zeros([block], dtype=tl.float64)
    for word in range(0, (n + 31) // 32):
        bits = tl.load(open_words + word * block)
        for city in range(word * 32, tl.minimum(word * 32 + 32, n)):
            is_open = ((bits >> (city % 32)) & 1) != 0
            offset = city * (n + 1)
            best = tl.maximum(best, tl.load(row + offset, mask=is_open, other=float("-inf")))
            mass += tl.load(weight + offset, mask=is_open, other=0.0)
    return best, mass


@triton.jit
def exact_masses(
    row: tl.tensor, open_words: tl.tensor, n: tl.tensor, block: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """The best logit of the unvisited cities and the sum of exp(z - best): right where all weights vanish."""
    best = tl.full([block], float("-inf"), dtype=tl.float32)
    for word in range(0, (n + 31) // 32):
        bits = tl.load(open_words + word * block)
        for city in range(word * 32, tl.minimum(word * 32 + 32, n)):
            is_open = ((bits >> (city % 32)) & 1) != 0
            best = tl.maximum(best, tl.load(row + city * (n + 1), mask=is_open, other=float("-inf")))
    mass = tl.zeros([block], dtype=tl.float64)
    for word in range(0, (n + 31) // 32):
        bits = tl.load(open_words + word * block)
        for city in range(word * 32, tl.minimum(word * 32 + 32, n)):
            is_open = ((bits >> (city % 32)) & 1) != 0
            z = tl.load(row + city * (n + 1), mask=is_open, other=float("-inf"))
            mass += tl.exp(z - best).to(tl.float64)
    return best, mass


@triton.jit
def counts(
    low: tl.tensor,
    middle: tl.tensor,
    high: tl.tensor,
    rank: tl.tensor,
    normalizer: tl.tensor,
    row: tl.tensor,
    open_words: tl.tensor,
    n: tl.tensor,
    block: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """For each beam the number of children that reach each of three rising thresholds."""
    count_low = tl.zeros([block], dtype=tl.int32)
    count_middle = tl.zeros([block], dtype=tl.int32)
    count_high = tl.zeros([block], dtype=tl.int32)
    for word in range(0, (n + 31) // 32):
        bits = tl.load(open_words + word * block)
        packed = tl.zeros([block], dtype=tl.int32)  # three counts up to 32 in one integer: half the work
        for city in range(word * 32, tl.minimum(word * 32 + 32, n)):
            is_open = ((bits >> (city % 32)) & 1) != 0
            z = tl.load(row + city * (n + 1), mask=is_open, other=float("-inf"))
            child = rank + (z - normalizer)
            reached = tl.where(child >= middle, 0x000101, (child >= low).to(tl.int32))
            packed += tl.where(child >= high, 0x010101, reached)
        count_low += packed & 0xFF
        count_middle += (packed >> 8) & 0xFF
        count_high += packed >> 16
    return count_low, count_middle, count_high


@triton.jit
def _by_count(
    count1: tl.tensor,
    count2: tl.tensor,
    count3: tl.tensor,
    wanted: tl.tensor,
    none: tl.tensor,
    one: tl.tensor,
    two: tl.tensor,
    three: tl.tensor,
) -> tl.tensor:
    """One of four values by how many of the falling counts reach the wanted one."""
    return tl.where(
        count3 >= wanted, three, tl.where(count2 >= wanted, two, tl.where(count1 >= wanted, one, none))
    )


@triton.jit
def best_children(
    least: tl.tensor,
    most: tl.tensor,
    best_child: tl.tensor,
    held: tl.tensor,
    open_count: tl.tensor,
    rank: tl.tensor,
    normalizer: tl.tensor,
    row: tl.tensor,
    open_words: tl.tensor,
    beam: tl.tensor,
    n: tl.tensor,
    block: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """Which children are the best ``least`` to ``most``, or all where there are fewer.

    Returns two scores and, for each beam, numbers of children: those that reach the higher score are all
    among the best, and of those between the two the first so many of the beam.
    """
    alive = beam < held
    high = ordered(tl.max(tl.where(alive, best_child, float("-inf")), axis=0)) + 1
    bottom = ordered(tl.min(tl.where(alive, best_child, float("inf")), axis=0))
    # Enough children reach low, fewer reach high: the best children alone may be enough.
    low = bottom
    count = most + 1
    first = low + (high - low) // 4
    second = low + (high - low) // 2
    third = low + (high - low) * 3 // 4
    if held < least:
        low = ordered(tl.max(tl.zeros([block], dtype=tl.float32) + LOWEST, axis=0))
        count = held * open_count  # or fewer, where starts are forbidden
        # The threshold is likely a little below the worst beam's best child: two octaves, a quarter of one.
        third = bottom
        second = tl.maximum(bottom - 2**21, low)
        first = tl.maximum(bottom - 2**24, low)
    while (count > most) & (high - low > 1):
        reach1, reach2, reach3 = counts(
            from_ordered(first),
            from_ordered(second),
            from_ordered(third),
            rank,
            normalizer,
            row,
            open_words,
            n,
            block,
        )
        count1 = tl.sum(reach1, axis=0)
        count2 = tl.sum(reach2, axis=0)
        count3 = tl.sum(reach3, axis=0)
        high = _by_count(count1, count2, count3, least, first, second, third, high)
        low = _by_count(count1, count2, count3, least, low, first, second, third)
        count = _by_count(count1, count2, count3, least, count, count1, count2, count3)
        first = low + (high - low) // 4
        second = low + (high - low) // 2
        third = low + (high - low) * 3 // 4
    high = tl.where(count <= most, low, high)

    low_value = from_ordered(low)
    high_value = from_ordered(high)
    reach, above, _ = counts(low_value, high_value, high_value, rank, normalizer, row, open_words, n, block)
    tied = reach - above
    room = most - tl.sum(above, axis=0) - (tl.cumsum(tied, axis=0) - tied)
    tied = tl.minimum(tied, tl.maximum(room, 0))
    return low_value, high_value, above, tied


@triton.jit
def write_children(
    target: tl.tensor,
    place: tl.tensor,
    low: tl.tensor,
    high: tl.tensor,
    tied: tl.tensor,
    seen_low: tl.tensor,
    seen_high: tl.tensor,
    seen_tied: tl.tensor,
    rank: tl.tensor,
    normalizer: tl.tensor,
    row: tl.tensor,
    open_words: tl.tensor,
    beam: tl.tensor,
    n: tl.tensor,
    block: tl.constexpr,
    rounds: tl.constexpr,
) -> None:
    """Write the numbers of the best children, ``parent * n + city``, to ``target`` from each beam's place on.

    ``low``, ``high`` and ``tied`` are what ``best_children`` found. With ``rounds`` the children that an
    earlier finding named (``seen_*``) are left out.
    """
    for word in range(0, (n + 31) // 32):
        bits = tl.load(open_words + word * block)
        for city in range(word * 32, tl.minimum(word * 32 + 32, n)):
            is_open = ((bits >> (city % 32)) & 1) != 0
            z = tl.load(row + city * (n + 1), mask=is_open, other=float("-inf"))
            child = rank + (z - normalizer)
            is_tied = (child >= low) & (child < high) & (tied > 0)
            take = (child >= high) | is_tied
            tied -= is_tied.to(tl.int32)
            if rounds:
                was_tied = (child >= seen_low) & (child < seen_high) & (seen_tied > 0)
                take = take & ~((child >= seen_high) | was_tied)
                seen_tied -= was_tied.to(tl.int32)
            tl.store(target + place, beam * n + city, mask=take)
            place += take.to(tl.int32)
