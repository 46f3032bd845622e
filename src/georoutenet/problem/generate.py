"""Random instances by seed: seven distributions, each ``(count, n, 2)`` float32.

All but :func:`uniform` draw only uniform doubles from NumPy's PCG64, transform them by the formulas in
their docstrings, fold what leaves the unit square back into it and round to multiples of 2**-20. The
rounding makes the last bits of logarithms and cosines, which differ between processors, irrelevant: the
same seed gives the same bytes everywhere.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from georoutenet.errors import InputError
from georoutenet.problem.instance import normalize

Coordinates = NDArray[np.float32]
_Doubles = NDArray[np.float64]


def uniform(count: int, n: int, seed: int) -> Coordinates:
    """Cities uniform in the unit square, bit for bit ``torch.manual_seed(seed); torch.rand(count, n, 2)``.

    torch's CPU generator is the Mersenne Twister in its original seeding, which NumPy's ``RandomState``
    shares, and a float32 takes the low 24 bits of each 32-bit word. So torch itself is not needed.
    """
    _check(count, n, seed)
    words = np.frombuffer(np.random.RandomState(seed).bytes(4 * count * n * 2), dtype="<u4")
    coordinates = (words & np.uint32(2**24 - 1)).astype(np.float32) * np.float32(2**-24)
    return coordinates.reshape(count, n, 2)


def clustered(count: int, n: int, seed: int) -> Coordinates:
    """3 to 8 Gaussian clusters of standard deviation 0.06 around centers uniform in [0.1, 0.9]^2.

    Every city belongs to a cluster drawn uniformly.
    """
    rng = _rng(count, n, seed)
    clusters = 3 + np.floor(6 * rng.random((count, 1)))
    centers = 0.1 + 0.8 * rng.random((count, 8, 2))
    of_city = np.floor(clusters * rng.random((count, n))).astype(np.int64)
    centers = np.take_along_axis(centers, of_city[..., None], axis=1)
    return _into_square(centers + 0.06 * _gaussian(rng, (count, n)))


def explosion(count: int, n: int, seed: int) -> Coordinates:
    """Uniform cities, but a disk of radius R in [0.2, 0.4] around a center in [0.3, 0.7]^2 is blown empty.

    A city at the distance r < R from the center moves along its ray to the distance R + s, with s drawn
    from the exponential distribution of mean 0.05.
    """
    rng = _rng(count, n, seed)
    radius = 0.2 + 0.2 * rng.random((count, 1))
    center = 0.3 + 0.4 * rng.random((count, 1, 2))
    cities = rng.random((count, n, 2))
    shift = -0.05 * np.log1p(-rng.random((count, n)))
    away = cities - center
    distance = np.hypot(away[..., 0], away[..., 1])
    blown = np.where(distance < radius, (radius + shift) / np.maximum(distance, 1e-12), 1.0)
    return _into_square(center + away * blown[..., None])


def grid(count: int, n: int, seed: int) -> Coordinates:
    """n different crossings of a regular g x g lattice, g = ceil(sqrt(2 n)), drawn without repetition.

    About half of the lattice is used. There are many equal distances, as on a drilled circuit board.
    """
    rng = _rng(count, n, seed)
    side = int(np.ceil(np.sqrt(2 * n)))
    crossings = np.argsort(rng.random((count, side * side)), axis=1, kind="stable")[:, :n]
    cities = np.stack([crossings // side, crossings % side], axis=-1)
    return _into_square((cities + 0.5) / side)


def ring(count: int, n: int, seed: int) -> Coordinates:
    """An annulus: angle uniform, distance Gaussian with mean R in [0.2, 0.4] and deviation 0.05.

    The center is uniform in [0.45, 0.55]^2.
    """
    rng = _rng(count, n, seed)
    radius = 0.2 + 0.2 * rng.random((count, 1))
    center = 0.45 + 0.1 * rng.random((count, 1, 2))
    angle = 2 * np.pi * rng.random((count, n))
    distance = radius + 0.05 * _gaussian(rng, (count, n))[..., 0]
    return _into_square(center + distance[..., None] * np.stack([np.cos(angle), np.sin(angle)], axis=-1))


def rectangle(count: int, n: int, seed: int) -> Coordinates:
    """Cities uniform in a rectangle, as wide or as high as the unit square; the other side is in [0.2, 1]."""
    rng = _rng(count, n, seed)
    shorter = 0.2 + 0.8 * rng.random((count, 1))
    is_wide = rng.random((count, 1)) < 0.5
    sides = np.concatenate([np.where(is_wide, 1.0, shorter), np.where(is_wide, shorter, 1.0)], axis=1)
    return _into_square(rng.random((count, n, 2)) * sides[:, None])


def turned(count: int, n: int, seed: int) -> Coordinates:
    """Cities uniform in a square turned by an angle in [0, pi/2], then made to fill the unit square.

    That is all angles, since a square turned by a quarter is itself; and what a random view looks like.
    """
    rng = _rng(count, n, seed)
    angle = np.pi / 2 * rng.random((count, 1))
    across, up = np.moveaxis(rng.random((count, n, 2)) - 0.5, -1, 0)
    cos, sin = np.cos(angle), np.sin(angle)
    return _into_square(normalize(np.stack([cos * across - sin * up, sin * across + cos * up], axis=-1)))


GENERATORS: dict[str, Callable[[int, int, int], Coordinates]] = {
    "uniform": uniform,
    "clustered": clustered,
    "explosion": explosion,
    "grid": grid,
    "ring": ring,
    "rectangle": rectangle,
    "turned": turned,
}


def _check(count: int, n: int, seed: int) -> None:
    if count < 0:
        raise InputError(f"the number of instances must be >= 0, got {count}")
    if n < 1:
        raise InputError(f"an instance needs at least one city, got n = {n}")
    if not 0 <= seed < 2**32:
        raise InputError(f"a seed is a whole number in 0..{2**32 - 1}, got {seed}")


def _rng(count: int, n: int, seed: int) -> np.random.Generator:
    _check(count, n, seed)
    return np.random.Generator(np.random.PCG64(seed))


def _gaussian(rng: np.random.Generator, shape: tuple[int, int]) -> _Doubles:
    """Pairs of independent standard normals, ``(*shape, 2)``, by the Box-Muller transform.

    NumPy may change its own normal sampler from version to version; this one stays.
    """
    radius = np.sqrt(-2 * np.log1p(-rng.random(shape)))
    angle = 2 * np.pi * rng.random(shape)
    return radius[..., None] * np.stack([np.cos(angle), np.sin(angle)], axis=-1)


def _into_square(cities: _Doubles) -> Coordinates:
    """Reflect at the sides of the unit square as often as needed, then round to multiples of 2**-20."""
    folded = 1.0 - np.abs(1.0 - np.mod(cities, 2.0))
    return (np.rint(folded * 2**20) / 2**20).astype(np.float32)
