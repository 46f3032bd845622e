"""Hostile inputs, seeded: ``make torture`` runs them for minutes, the tests a short slice of the same.

Each attack makes one input from a random generator, gives it to the product and says how that ended. Only
``GeoRouteNetError`` may be raised. Anything else is a finding, printed with the seed that repeats it::

    python -m research.torture --seconds 60 --seed 0
    python -m research.torture --attack instances --seed 1234 --count 1

A module of this package holds attacks of one kind: functions ``attack_NAME(source, folder)`` that make what
they need from ``source`` in ``folder``. To add a module, name it in ``research.torture.run.MODULES``. Attacks
on the service are in ``research.abuse``.
"""

from __future__ import annotations

import collections
import random

MAX_BYTES = 1 << 16
"""What the readers may unpack here, so that bombs need not be large."""

SNIPPETS = [
    "\n", "\r\n", "\r", " ", "\t", "\0", "-1", "0", "1", "2", "9999999999999999999", "1e308", "-1e400", "inf",
    "nan", "-", "+", ".", "e", ":", "_", "EOF\n", "NAME : ../x\n", "NAME : \x1b[31m[/red]\n", "TYPE : ATSP\n",
    "TYPE : TOUR\n", "DIMENSION : 1000000000000\n", "DIMENSION : -1\n", "EDGE_WEIGHT_TYPE : GEO\n", "\u2028",
    "NODE_COORD_SECTION\n", "DISPLAY_DATA_SECTION\n", "TOUR_SECTION\n", "COMMENT", "ä", "\ufeff", "#", '"',
    ",", ";", "lat,lon\n", "x,y\n", "[", "{", "}", "]", "null", "true", "EDGE_WEIGHT_SECTION\n", "durations",
    "\ud800", "EDGE_WEIGHT_TYPE : EXPLICIT\n", "EDGE_WEIGHT_FORMAT : UPPER_ROW\n", "1e5" * 50, "\n" * 500,
    " " * 500,
]  # fmt: skip

Outcome = str
"""``accepted`` or ``refused``, or what an attack has to say instead."""

tally: collections.Counter[str] = collections.Counter()
"""Inputs, solves, kills and signals so far."""

overshoot: list[float] = []
"""By how many seconds each solve with a time limit exceeded it."""


def mutated(text: str, source: random.Random) -> str:
    """A few edits: delete, repeat, turn round or overwrite a stretch, put a snippet in, cut the end off."""
    for _ in range(source.randint(0, 4)):
        here = source.randrange(len(text) + 1)
        there = min(len(text), here + source.choice([1, 1, 2, 5, 20, len(text)]))
        stretch, snippet = text[here:there], source.choice(SNIPPETS)
        text = source.choice(
            [
                text[:here] + text[there:],
                text[:here] + stretch[:50] * 2 + text[there:],
                text[:here] + snippet + text[there:],
                text[:here] + snippet + text[here:],
                text[:here] + stretch[::-1] + text[there:],
                text[:here],
                text.swapcase(),
                text.replace("\n", source.choice(["\r\n", " ", "\n\n"])),
            ]
        )
    return text


def mutated_bytes(data: bytes, source: random.Random) -> bytes:
    for _ in range(source.choice([0, 1, 1, 2, 5])):
        here = source.randrange(len(data) + 1)
        size = source.choice([0, 1, 1, 9, len(data)])
        data = data[:here] + source.randbytes(source.choice([0, 1, 1, 4])) + data[here + size :]
    return data
