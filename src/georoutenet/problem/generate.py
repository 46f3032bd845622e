"""Random instances by seed: the shapes of :mod:`georoutenet.problem.shapes`, each ``(count, n, 2)`` float32.

All but ``uniform`` draw only uniform doubles from NumPy's PCG64, transform them by the formulas of the shape,
fold what leaves the unit square back into it and round to multiples of 2**-20. The
rounding makes the last bits of logarithms and cosines, which differ between processors, irrelevant: the
same seed gives the same bytes everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from georoutenet.errors import InputError
from georoutenet.problem.shapes import SHAPES

Coordinates = NDArray[np.float32]


def uniform(count: int, n: int, seed: int) -> Coordinates:
    """Cities uniform in the unit square, bit for bit ``torch.manual_seed(seed); torch.rand(count, n, 2)``.

    torch's CPU generator is the Mersenne Twister in its original seeding, which NumPy's ``RandomState``
    shares, and a float32 takes the low 24 bits of each 32-bit word. So torch itself is not needed.
    """
    _check(count, n, seed)
    words = np.frombuffer(np.random.RandomState(seed).bytes(4 * count * n * 2), dtype="<u4")
    coordinates = (words & np.uint32(2**24 - 1)).astype(np.float32) * np.float32(2**-24)
    return coordinates.reshape(count, n, 2)


class _Doubles:
    """Uniform doubles of ``count`` instances: `georoutenet.problem.shapes.Numbers`."""

    xp = np

    def __init__(self, count: int, seed: int) -> None:
        self.batch = count
        self.generator = np.random.Generator(np.random.PCG64(seed))

    def __call__(self, count: int) -> NDArray[np.float64]:
        return self.generator.random((self.batch, count))

    def pick(self, table: Any, index: Any) -> Any:
        index = index.astype(np.int64)
        return np.take_along_axis(table, index.reshape(*index.shape, *[1] * (table.ndim - 2)), axis=1)

    def order(self, keys: Any) -> Any:
        return np.argsort(keys, axis=1, kind="stable")

    def arange(self, n: int) -> Any:
        return np.arange(n, dtype=np.float64)


def shaped(shape: str, count: int, n: int, seed: int) -> Coordinates:
    """Instances of a shape that is not uniform."""
    _check(count, n, seed)
    return _into_square(SHAPES[shape](_Doubles(count, seed), n))


GENERATORS: dict[str, Callable[[int, int, int], Coordinates]] = {
    "uniform": uniform,
    **{shape: partial(shaped, shape) for shape in SHAPES if shape != "uniform"},
}


def _check(count: int, n: int, seed: int) -> None:
    if count < 0:
        raise InputError(f"the number of instances must be >= 0, got {count}")
    if n < 1:
        raise InputError(f"an instance needs at least one city, got n = {n}")
    if not 0 <= seed < 2**32:
        raise InputError(f"a seed is a whole number in 0..{2**32 - 1}, got {seed}")


def _into_square(cities: NDArray[np.float64]) -> Coordinates:
    """Reflect at the sides of the unit square as often as needed, then round to multiples of 2**-20."""
    folded = 1.0 - np.abs(1.0 - np.mod(cities, 2.0))
    return (np.rint(folded * 2**20) / 2**20).astype(np.float32)
