"""Scores of pairs outside the candidate lists, remembered: an open-addressing table for compiled code.

Beams share most of their past, so the pairs that one asks for are asked for again and again.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from georoutenet.decode.cpu.math import mix
from georoutenet.jit import njit

ASKED = 1 << 14
"""How many unknown pairs are collected at most before they are scored."""


class Pairs(NamedTuple):
    """Places of the table: a pair is ``source * n + target``, -1 where there is none."""

    keys: Any  # (size,) int64
    logits: Any  # (size,) float32; NaN until they are known
    values: Any  # (size,) float32: what ranks a child
    distances: Any  # (size,) float64
    asked: Any  # (ASKED,) int64: places of the pairs that are not known yet
    counts: Any  # (2,) int64: pairs in the table, pairs asked for


def new_pairs(size: int) -> Pairs:
    """An empty table of a power of two places."""
    return Pairs(
        np.full(size, -1, np.int64),
        np.full(size, np.nan, np.float32),
        np.full(size, np.nan, np.float32),
        np.full(size, np.nan),
        np.empty(ASKED, np.int64),
        np.zeros(2, np.int64),
    )


def roomy(pairs: Pairs) -> Pairs:
    """The table, or a larger copy of it, with room for as many pairs as may be asked for at a time."""
    count, size = int(pairs.counts[0]), len(pairs.keys)
    if 2 * (count + ASKED) <= size:
        return pairs
    larger = new_pairs(2 * size)
    _copy(pairs, larger)
    return roomy(larger)


@njit(nogil=True)
def place_of(pairs: Pairs, key: int) -> int:
    """Where a pair is, or where it would be put."""
    wrap = pairs.keys.shape[0] - 1
    place = mix(key) & wrap
    while pairs.keys[place] >= 0 and pairs.keys[place] != key:
        place = (place + 1) & wrap
    return place


@njit(nogil=True)
def ask(pairs: Pairs, key: int) -> int:
    """The place of a pair; a new one is entered and asked for, and -1 returned when that has to wait."""
    place = place_of(pairs, key)
    if pairs.keys[place] < 0:
        if pairs.counts[1] == pairs.asked.shape[0]:
            return -1
        pairs.keys[place] = key
        pairs.asked[pairs.counts[1]] = place
        pairs.counts[0] += 1
        pairs.counts[1] += 1
    return place


@njit(nogil=True)
def _copy(pairs: Pairs, larger: Pairs) -> None:
    for old in range(pairs.keys.shape[0]):
        if pairs.keys[old] >= 0:
            new = place_of(larger, pairs.keys[old])
            larger.keys[new] = pairs.keys[old]
            larger.logits[new] = pairs.logits[old]
            larger.values[new] = pairs.values[old]
            larger.distances[new] = pairs.distances[old]
    larger.counts[0] = pairs.counts[0]
