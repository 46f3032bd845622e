"""The shapes of random instances, one body each, for NumPy arrays and for torch tensors on any device.

A shape is a function of `Numbers`, which draw uniform numbers, and of n; it gives cities ``(batch, n, 2)``.
It uses only what NumPy and torch call by the same name, no size that depends on what was drawn, and waits for
no device, so a training step may make its instances inside a CUDA graph. What leaves the unit square is
folded back into it by whoever calls.

The last five are made from what maps, road networks and drilled boards have in common: lattices with holes,
patterns that are repeated, lines and winding roads, dense knots in empty space, pairs of nearly the same
place, long strips, coordinates in whole units, any rotation. No real instance had a part in them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol


class Numbers(Protocol):
    """Uniform numbers in [0, 1), and the few operations that NumPy and torch name differently."""

    @property
    def xp(self) -> Any:
        """The module ``numpy`` or ``torch``."""

    def __call__(self, count: int, /) -> Any:
        """The next ``count`` numbers of every instance, ``(batch, count)``."""

    def pick(self, table: Any, index: Any) -> Any:
        """Of ``table (batch, K, ...)`` the entries at ``index (batch, n)``, whole numbers of any type."""

    def order(self, keys: Any) -> Any:
        """Where the entries of ``keys (batch, K)`` are in ascending order."""

    def arange(self, n: int) -> Any:
        """0, 1, ..., n - 1 as numbers with fractions."""


Shape = Callable[[Numbers, int], Any]


def _points(draw: Numbers, n: int) -> Any:
    return draw(2 * n).reshape(-1, n, 2)


def _gaussian(draw: Numbers, n: int) -> Any:
    """Pairs of independent standard normals ``(batch, n, 2)``, by the Box-Muller transform.

    NumPy may change its own normal sampler from version to version; this one stays.
    """
    xp = draw.xp
    radius = xp.sqrt(-2 * xp.log1p(-draw(n)))
    angle = 2 * math.pi * draw(n)
    return xp.stack((radius * xp.cos(angle), radius * xp.sin(angle)), -1)


def _between(draw: Numbers, low: float, high: float, count: int = 1) -> Any:
    """Numbers whose logarithm is uniform."""
    return low * draw.xp.exp(math.log(high / low) * draw(count))


def _often(draw: Numbers, share: float, value: Any, otherwise: float) -> Any:
    """``value (batch, 1)`` in this share of the instances."""
    return draw.xp.where(draw(1) < share, value, otherwise)


def _turned(draw: Numbers, cities: Any, angle: Any) -> Any:
    across, up = cities[..., 0], cities[..., 1]
    cos, sin = draw.xp.cos(angle), draw.xp.sin(angle)
    return draw.xp.stack((cos * across - sin * up, sin * across + cos * up), -1)


def _filling(draw: Numbers, cities: Any) -> Any:
    """Moved and scaled until they fill the unit square."""
    xp = draw.xp
    shifted = cities - xp.amin(cities, 1)[:, None]
    span = xp.amax(xp.amax(shifted, 1), 1)[:, None, None]
    return shifted / xp.where(span == 0, 1.0, span)


def uniform(draw: Numbers, n: int) -> Any:
    """Uniform in the unit square."""
    return _points(draw, n)


def clustered(draw: Numbers, n: int) -> Any:
    """3 to 8 Gaussian clusters of standard deviation 0.06 around centers uniform in [0.1, 0.9]^2.

    Every city belongs to a cluster drawn uniformly.
    """
    clusters = 3 + draw.xp.floor(6 * draw(1))
    centers = 0.1 + 0.8 * _points(draw, 8)
    return draw.pick(centers, draw.xp.floor(clusters * draw(n))) + 0.06 * _gaussian(draw, n)


def explosion(draw: Numbers, n: int) -> Any:
    """Uniform cities, but a disk of radius R in [0.2, 0.4] around a center in [0.3, 0.7]^2 is blown empty.

    A city at the distance r < R from the center moves along its ray to the distance R + s, with s drawn
    from the exponential distribution of mean 0.05.
    """
    xp = draw.xp
    radius = 0.2 + 0.2 * draw(1)
    center = 0.3 + 0.4 * _points(draw, 1)
    away = _points(draw, n) - center
    shift = -0.05 * xp.log1p(-draw(n))
    distance = xp.hypot(away[..., 0], away[..., 1])
    blown = xp.where(distance < radius, (radius + shift) / xp.clip(distance, 1e-12, None), 1.0)
    return center + away * blown[..., None]


def grid(draw: Numbers, n: int) -> Any:
    """n different crossings of a regular g x g lattice, g = ceil(sqrt(2 n)), drawn without repetition.

    About half of the lattice is used. There are many equal distances, as on a drilled circuit board.
    """
    side = math.ceil(math.sqrt(2 * n))
    crossings = draw.order(draw(side * side))[:, :n]
    return (draw.xp.stack((crossings // side, crossings % side), -1) + 0.5) / side


def ring(draw: Numbers, n: int) -> Any:
    """An annulus: angle uniform, distance Gaussian with mean R in [0.2, 0.4] and deviation 0.05.

    The center is uniform in [0.45, 0.55]^2.
    """
    radius = 0.2 + 0.2 * draw(1)
    center = 0.45 + 0.1 * _points(draw, 1)
    angle = 2 * math.pi * draw(n)
    distance = radius + 0.05 * _gaussian(draw, n)[..., 0]
    return center + distance[..., None] * draw.xp.stack((draw.xp.cos(angle), draw.xp.sin(angle)), -1)


def rectangle(draw: Numbers, n: int) -> Any:
    """Uniform in a rectangle, as wide or as high as the unit square; the other side is in [0.2, 1]."""
    xp = draw.xp
    shorter = 0.2 + 0.8 * draw(1)
    is_wide = draw(1) < 0.5
    sides = xp.stack((xp.where(is_wide, 1.0, shorter), xp.where(is_wide, shorter, 1.0)), -1)
    return _points(draw, n) * sides


def turned(draw: Numbers, n: int) -> Any:
    """Uniform in a square turned by an angle in [0, pi/2], then made to fill the unit square.

    That is all angles, since a square turned by a quarter is itself; and what a random view looks like.
    """
    angle = math.pi / 2 * draw(1)
    return _filling(draw, _turned(draw, _points(draw, n) - 0.5, angle))


# -- structure -----------------------------------------------------------------------------------------------


def _crossings(draw: Numbers, wanted: int, least: Any, holes: int) -> Any:
    """Different crossings ``(batch, wanted, 2)`` of a lattice of pitch one that has 1 to 3 times ``least``
    crossings, at most four times as wide as high; so many rectangles are spared where others are left."""
    xp = draw.xp
    cells = 3 * wanted
    used = xp.clip(xp.floor(least * (1 + 2 * draw(1))), None, cells)
    columns = xp.floor(1 + xp.sqrt(used * _between(draw, 1 / 4, 4)))
    cell = draw.arange(cells)[None]
    row = xp.floor(cell / columns)
    column = cell - columns * row
    key = draw(cells) + 4.0 * (cell >= used)
    for _ in range(holes):
        across, up = xp.abs(column / columns - draw(1)), xp.abs(row * columns / used - draw(1))
        key = key + 1.0 * ((across < 0.05 + 0.15 * draw(1)) & (up < 0.05 + 0.15 * draw(1)))
    chosen = draw.order(key)[:, :wanted]
    return xp.stack((draw.pick(column, chosen), draw.pick(row, chosen)), -1)


def _lattice(draw: Numbers, n: int) -> Any:
    """Crossings of a lattice with three rectangular holes, of which a third to all are used. Half of them
    have rows up to three times as far apart as columns; in half of them every 2 to 12 columns and rows are a
    block, and blocks lie up to four pitches apart."""
    xp = draw.xp
    cities = _crossings(draw, n, float(n), 3)
    each, gap = xp.floor(2 + 11 * draw(2)), _often(draw, 0.5, 4 * draw(1), 0.0)
    spread = cities + gap[..., None] * xp.floor(cities / each[:, None])
    taller = _often(draw, 0.5, 1 + 2 * draw(1), 1.0)
    return spread * xp.stack((1 + 0 * taller, taller), -1)


MOST_IN_MOTIF = 40


def _patterns(draw: Numbers, n: int) -> Any:
    """One motif of 3 to 40 points again and again: crossings of a small lattice, a row or two, a circle, or
    scattered points, at crossings of a lattice or anywhere; in half of the instances turned by quarters."""
    xp = draw.xp
    size = xp.floor(_between(draw, 3, MOST_IN_MOTIF + 0.99))
    point = draw.arange(MOST_IN_MOTIF)[None]
    along = point / size
    rows = 1 + xp.floor(2 * draw(1))
    circle = 2 * math.pi * along
    kinds = (
        _crossings(draw, MOST_IN_MOTIF, size, 0) / xp.sqrt(3 * size)[..., None],
        xp.stack((xp.floor(point / rows) * rows / size, 0.3 * (point - rows * xp.floor(point / rows))), -1),
        xp.stack((0.5 + 0.5 * xp.cos(circle), 0.5 + 0.5 * xp.sin(circle)), -1),
        _points(draw, MOST_IN_MOTIF),
    )
    motif = _one_of(draw, kinds)
    copies, most = xp.clip(n / size, 1.0, None), -(-n // 3)
    regular = _crossings(draw, most, copies, 1)
    places = xp.where(draw(1)[..., None] < 0.5, regular, xp.sqrt(copies)[..., None] * _points(draw, most))
    quarter = math.pi / 2 * _often(draw, 0.5, xp.floor(4 * draw(most)), 0.0)
    city = draw.arange(n)[None] + 0 * size
    copy = xp.floor(city / size)
    own = _turned(draw, draw.pick(motif, city - size * copy), draw.pick(quarter, copy))
    return draw.pick(places, copy) + _between(draw, 0.1, 0.9)[..., None] * own


MOST_STRINGS = 24


def _strings(draw: Numbers, n: int) -> Any:
    """2 to 24 strings of points, as places on lines and along roads: straight or winding, in four directions
    or in any, at equal steps or at steps that differ by up to two orders of magnitude, on the line or beside
    it."""
    xp = draw.xp
    string = draw.arange(MOST_STRINGS)[None]
    count = xp.floor(_between(draw, 2, MOST_STRINGS + 0.99))
    share = (0.1 + draw(MOST_STRINGS)) * (string < count)
    ends = xp.cumsum(share, 1) / xp.sum(share, 1)[:, None]
    position = (draw.arange(n)[None, :, None] + 0.5) / n
    of_city = xp.sum(1.0 * (ends[:, None, :-1] <= position), 2)
    first = xp.sum(1.0 * (of_city[:, None] < string[..., None]), 2)

    deviation = _often(draw, 0.7, 1.2 * draw(1), 0.0)
    winding = _often(draw, 0.5, _between(draw, 0.02, 0.5), 0.0)
    noise = _gaussian(draw, n)
    steps = xp.exp(deviation * noise[..., 0])
    direction = 2 * math.pi * draw(MOST_STRINGS)
    direction = xp.where(draw(1) < 0.5, math.pi / 2 * xp.floor(4 * draw(MOST_STRINGS)), direction)
    heading = draw.pick(direction, of_city) + xp.cumsum(winding * noise[..., 1], 1)
    walked = xp.cumsum(steps[..., None] * xp.stack((xp.cos(heading), xp.sin(heading)), -1), 1)
    begin = draw.pick(walked, xp.clip(first, 0, n - 1))
    stretch = _between(draw, 0.1, 1.5, MOST_STRINGS) / xp.clip(share / xp.sum(share, 1)[:, None] * n, 1, None)
    own = (walked - draw.pick(begin, of_city)) * draw.pick(stretch, of_city)[..., None]
    beside = _often(draw, 0.5, _between(draw, 0.001, 0.02), 0.0)
    return draw.pick(_points(draw, MOST_STRINGS), of_city) + own + beside[..., None] * _gaussian(draw, n)


MOST_KNOTS = 16


def _mixture(draw: Numbers, n: int) -> Any:
    """3 to 16 knots of cities, round or long, with soft or sharp ends, of sizes from 0.004 to 0.3: densities
    over more than two orders of magnitude. In half of the instances up to half of the cities lie anywhere."""
    xp = draw.xp
    count = xp.floor(_between(draw, 3, MOST_KNOTS + 0.99))
    share = (0.05 + draw(MOST_KNOTS)) * (draw.arange(MOST_KNOTS)[None] < count)
    ends = xp.cumsum(share, 1) / xp.sum(share, 1)[:, None]
    of_city = xp.sum(1.0 * (ends[:, None, :-1] <= draw(n)[..., None]), 2)
    size = _between(draw, 0.004, 0.3, MOST_KNOTS)
    thin = draw.xp.exp(-2 * draw(MOST_KNOTS))
    sides = xp.stack((size, size * thin), -1)
    is_sharp = draw.pick(draw(MOST_KNOTS), of_city)[..., None] < 0.3
    own = xp.where(is_sharp, 3.5 * (_points(draw, n) - 0.5), _gaussian(draw, n)) * draw.pick(sides, of_city)
    own = _turned(draw, own, draw.pick(math.pi * draw(MOST_KNOTS), of_city))
    apart = _often(draw, 0.5, 0.5 * draw(1), 0.0)
    knots = draw.pick(_points(draw, MOST_KNOTS), of_city) + own
    return xp.where((draw(n) < apart)[..., None], _points(draw, n), knots)


def _one_of(draw: Numbers, kinds: tuple[Any, ...]) -> Any:
    """Of several ``(batch, n, 2)`` one for each instance, each as often."""
    which, chosen = draw.xp.floor(len(kinds) * draw(1))[..., None], kinds[0]
    for number, kind in enumerate(kinds[1:], start=1):
        chosen = draw.xp.where(which == number, kind, chosen)
    return chosen


def _places(draw: Numbers, whole: Any) -> Any:
    """How many different places the cities have, ``(batch, 1)``; coordinates are whole numbers, of which
    across + √2 up takes a value once."""
    keys = whole[..., 0] + math.sqrt(2) * whole[..., 1]
    keys = draw.pick(keys, draw.order(keys))
    return 1 + draw.xp.sum(1.0 * (keys[:, 1:] != keys[:, :-1]), 1)[:, None]


MOST_HALVINGS = 8


def _in_units(draw: Numbers, cities: Any, units: Any) -> Any:
    """Coordinates in so many whole units to a side, or in halves, quarters, ... of them, until at least 19 of
    20 places are left: maps of many cities, and of cities in knots, are drawn in finer units."""
    xp = draw.xp
    least = 0.95 * _places(draw, xp.floor(cities * 2**20 + 0.5))
    for _ in range(MOST_HALVINGS):
        is_coarse = _places(draw, xp.floor(cities * units[..., None] + 0.5)) < least
        units = xp.where(is_coarse, 2 * units, units)
    return xp.floor(cities * units[..., None] + 0.5) / units[..., None]


def _placed(draw: Numbers, cities: Any) -> Any:
    """What may happen to any map. A third is squeezed, up to five times. In a third up to a sixth of the
    cities are others again: the same places, or up to a hundredth beside them. Half are turned by any angle.
    A third has coordinates in whole units, 50 to 5,000 to a side or as many as its cities take."""
    xp, n = draw.xp, cities.shape[1]
    thin = _often(draw, 1 / 3, _between(draw, 0.2, 1), 1.0)
    filled = _filling(draw, cities) * xp.stack((1 + 0 * thin, thin), -1)
    beside = _often(draw, 0.5, _between(draw, 1e-4, 1e-2), 0.0)[..., None] * _gaussian(draw, n)
    again = draw(n) < _often(draw, 1 / 3, draw(1) / 6, 0.0)
    filled = xp.where(again[..., None], draw.pick(filled, xp.floor(n * draw(n))) + beside, filled)
    filled = _filling(draw, _turned(draw, filled, _often(draw, 0.5, 2 * math.pi * draw(1), 0.0)))
    whole = _in_units(draw, filled, xp.floor(_between(draw, 50, 5000)))
    return xp.where(draw(1)[..., None] < 1 / 3, whole, filled)


KINDS: dict[str, Shape] = {
    "lattice": _lattice,
    "patterns": _patterns,
    "strings": _strings,
    "mixture": _mixture,
}


def structure(draw: Numbers, n: int) -> Any:
    """One of the four kinds above; in half of the instances a part of the cities is of another one, a fifth
    of the map to all of it wide, somewhere in the first."""
    xp = draw.xp
    kinds = tuple(_filling(draw, shape(draw, n)) for shape in KINDS.values())
    one, other = _one_of(draw, kinds), _one_of(draw, kinds)
    width = _between(draw, 0.2, 1)[..., None]
    within = width * other + (1 - width) * _points(draw, 1)
    share = _often(draw, 0.5, draw(1), 1.0)
    return _placed(draw, xp.where((draw(n) < share)[..., None], one, within))


def _shape(kind: Shape) -> Shape:
    return lambda draw, n: _placed(draw, kind(draw, n))


SHAPES: dict[str, Shape] = {
    "uniform": uniform,
    "clustered": clustered,
    "explosion": explosion,
    "grid": grid,
    "ring": ring,
    "rectangle": rectangle,
    "turned": turned,
    **{name: _shape(kind) for name, kind in KINDS.items()},
    "structure": structure,
}
"""Every shape by its name in recipes and data sets."""

TIED = ("grid", *KINDS, "structure")
"""Shapes in which many distances are equal."""
