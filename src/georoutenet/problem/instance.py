"""What a problem is: cities in the plane and the rule that measures distances between them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from georoutenet.errors import InputError

Float = NDArray[np.float64]


class DistanceRule(StrEnum):
    """How a distance follows from two coordinate pairs; all but the first are TSPLIB's integer rules."""

    EUCLIDEAN = "EUCLIDEAN"
    EUC_2D = "EUC_2D"
    CEIL_2D = "CEIL_2D"
    ATT = "ATT"
    GEO = "GEO"

    @property
    def is_integer(self) -> bool:
        return self is not DistanceRule.EUCLIDEAN


def _euclidean(a: Float, b: Float) -> Float:
    return np.hypot(a[..., 0] - b[..., 0], a[..., 1] - b[..., 1])


def _squared(a: Float, b: Float) -> Float:
    return np.square(a[..., 0] - b[..., 0]) + np.square(a[..., 1] - b[..., 1])


def _euc_2d(a: Float, b: Float) -> Float:
    return np.floor(np.sqrt(_squared(a, b)) + 0.5)


def _ceil_2d(a: Float, b: Float) -> Float:
    return np.ceil(np.sqrt(_squared(a, b)))


def _att(a: Float, b: Float) -> Float:
    exact = np.sqrt(_squared(a, b) / 10.0)
    rounded = np.floor(exact + 0.5)
    return np.where(rounded < exact, rounded + 1.0, rounded)


def _geo(a: Float, b: Float) -> Float:
    # TSPLIB writes degrees.minutes and fixes both pi and the earth's radius to these digits.
    def radians(x: Float) -> Float:
        degrees = np.trunc(x)
        return 3.141592 * (degrees + 5.0 * (x - degrees) / 3.0) / 180.0

    ra, rb = radians(a), radians(b)
    q1 = np.cos(ra[..., 1] - rb[..., 1])
    q2 = np.cos(ra[..., 0] - rb[..., 0])
    q3 = np.cos(ra[..., 0] + rb[..., 0])
    cosine = np.clip(0.5 * ((1.0 + q1) * q2 - (1.0 - q1) * q3), -1.0, 1.0)
    # As TSPLIB has it, two cities in the same place are at distance 1.
    return np.floor(6378.388 * np.arccos(cosine) + 1.0)


_RULES: dict[DistanceRule, Callable[[Float, Float], Float]] = {
    DistanceRule.EUCLIDEAN: _euclidean,
    DistanceRule.EUC_2D: _euc_2d,
    DistanceRule.CEIL_2D: _ceil_2d,
    DistanceRule.ATT: _att,
    DistanceRule.GEO: _geo,
}


def _checked_coordinates(values: ArrayLike) -> Float:
    try:
        coordinates = np.array(values, dtype=np.float64, copy=True)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"coordinates must be an array of numbers of shape (n, 2): {error}") from None
    if coordinates.size == 0:
        raise InputError("an instance needs at least one city, got none")
    if coordinates.ndim != 2 or coordinates.shape[1] != 2:
        raise InputError(f"coordinates must have shape (n, 2), got {coordinates.shape}")
    finite = np.isfinite(coordinates).all(axis=1)
    if not finite.all():
        row = int(np.argmin(finite))
        raise InputError(
            f"coordinates must be finite: row {row} (counting from 0) is "
            f"({coordinates[row, 0]}, {coordinates[row, 1]})"
        )
    if not np.isfinite(_diameter_bound(coordinates) * len(coordinates)):
        raise InputError("coordinates are too far apart: a tour length would overflow 64-bit floats")
    coordinates.setflags(write=False)
    return coordinates


def _diameter_bound(coordinates: Float) -> float:
    with np.errstate(over="ignore"):
        return float(np.hypot(*(coordinates.max(axis=0) - coordinates.min(axis=0))))


@dataclass(frozen=True, eq=False)
class Instance:
    """Cities and their distance rule.

    Coordinates are checked and copied into a read-only float64 array. Distances are computed when asked
    for; no ``n x n`` array exists unless ``distance_matrix()`` is called.
    """

    coordinates: Float
    name: str = "instance"
    rule: DistanceRule = DistanceRule.EUCLIDEAN
    optimum: float | None = None
    """Best known tour length under ``rule``, where one is known."""
    latlon: Float | None = field(default=None, repr=False)
    """Latitude and longitude in degrees, when ``coordinates`` are their projection to kilometers."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "coordinates", _checked_coordinates(self.coordinates))
        try:
            object.__setattr__(self, "rule", DistanceRule(self.rule))
        except ValueError:
            allowed = ", ".join(DistanceRule)
            raise InputError(f"unknown distance rule {self.rule!r}; allowed: {allowed}") from None
        # Above 2^53 a float no longer holds every integer, and 64-bit sums could wrap around.
        if self.rule.is_integer and _diameter_bound(self.coordinates) * self.n >= 2.0**53:
            raise InputError(f"coordinates are too far apart for the integer rule {self.rule.value}")
        if self.latlon is not None:
            latlon = _checked_coordinates(self.latlon)
            if len(latlon) != self.n:
                raise InputError(f"latlon has {len(latlon)} rows for {self.n} cities")
            object.__setattr__(self, "latlon", latlon)
        if self.optimum is not None and not (np.isfinite(self.optimum) and self.optimum >= 0):
            raise InputError(f"optimum must be a finite length >= 0, got {self.optimum}")

    @property
    def n(self) -> int:
        return len(self.coordinates)

    def __len__(self) -> int:
        return self.n

    def __repr__(self) -> str:
        return f"Instance({self.name!r}, n={self.n}, rule={self.rule.value})"

    def distance(self, i: ArrayLike, j: ArrayLike) -> Any:
        """Distances between cities ``i`` and ``j`` (broadcast): int64 for TSPLIB rules, else float64."""
        i, j = np.asarray(i), np.asarray(j)
        distances = _RULES[self.rule](self.coordinates[i], self.coordinates[j])
        return distances.astype(np.int64) if self.rule.is_integer else distances

    def distance_matrix(self) -> NDArray[Any]:
        """All distances, ``(n, n)``, with a zero diagonal. Takes ``8 n^2`` bytes."""
        cities = np.arange(self.n)
        matrix: NDArray[Any] = self.distance(cities[:, None], cities[None, :])
        np.fill_diagonal(matrix, 0)  # GEO gives 1 from a city to itself
        return matrix

    def normalized(self) -> Float:
        """Coordinates moved and scaled into the unit square, aspect ratio kept; all-equal points map to 0."""
        return normalize(self.coordinates)


def normalize(coordinates: Float) -> Float:
    """Subtract the minimum and divide by the larger range; works on ``(..., n, 2)``."""
    shifted = coordinates - coordinates.min(axis=-2, keepdims=True)
    span = shifted.max(axis=(-2, -1), keepdims=True)
    return np.divide(shifted, span, out=np.zeros_like(shifted), where=span > 0)
