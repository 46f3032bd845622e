"""What a problem is: cities, and the rule or the matrix that says how far apart they are."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from georoutenet.errors import InputError
from georoutenet.problem.arrays import Numbers, given_array, refuse_other_than_numbers
from georoutenet.problem.globe import RANGES, are_degrees, great_circle, map_turn, project
from georoutenet.problem.matrix import checked_matrix
from georoutenet.problem.sketch import sketch

if TYPE_CHECKING:
    from torch import Tensor

Float = NDArray[np.float64]

WIDEST = 1e153
"""How far apart two cities may be: searches square distances."""


class DistanceRule(StrEnum):
    """How a distance follows from two coordinate pairs; all but the first two are TSPLIB's.

    GREAT_CIRCLE is the rule of degrees (latitude, longitude): unrounded kilometers on a sphere of the mean
    radius of the Earth, see ``georoutenet.problem.globe``. EXPLICIT is the rule of an instance with a matrix:
    the distances are those that were given.
    """

    EUCLIDEAN = "EUCLIDEAN"
    GREAT_CIRCLE = "GREAT_CIRCLE"
    EUC_2D = "EUC_2D"
    CEIL_2D = "CEIL_2D"
    ATT = "ATT"
    GEO = "GEO"
    MAN_2D = "MAN_2D"
    MAX_2D = "MAX_2D"
    EXPLICIT = "EXPLICIT"

    @property
    def is_integer(self) -> bool:
        """Whether the rule rounds to whole numbers. EXPLICIT does not: ``Instance.is_integer`` knows."""
        return self.is_tsplib and self is not DistanceRule.EXPLICIT

    @property
    def is_tsplib(self) -> bool:
        return self not in (DistanceRule.EUCLIDEAN, DistanceRule.GREAT_CIRCLE)

    def between(self, a: Float, b: Float) -> Float:
        """Distances between places ``(..., 2)``; EXPLICIT has none."""
        return _RULES[self](a, b)


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


def _man_2d(a: Float, b: Float) -> Float:
    return np.floor(np.abs(a[..., 0] - b[..., 0]) + np.abs(a[..., 1] - b[..., 1]) + 0.5)


def _max_2d(a: Float, b: Float) -> Float:
    return np.floor(np.maximum(np.abs(a[..., 0] - b[..., 0]), np.abs(a[..., 1] - b[..., 1])) + 0.5)


_RULES: dict[DistanceRule, Callable[[Float, Float], Float]] = {
    DistanceRule.EUCLIDEAN: _euclidean,
    DistanceRule.GREAT_CIRCLE: great_circle,
    DistanceRule.EUC_2D: _euc_2d,
    DistanceRule.CEIL_2D: _ceil_2d,
    DistanceRule.ATT: _att,
    DistanceRule.GEO: _geo,
    DistanceRule.MAN_2D: _man_2d,
    DistanceRule.MAX_2D: _max_2d,
}


def _checked_coordinates(values: Numbers) -> Float:
    given = given_array(values, "coordinates", "(n, 2)")
    refuse_other_than_numbers(values, given, "coordinates")
    try:
        coordinates = np.array(given, dtype=np.float64, copy=True)
    except (TypeError, ValueError, OverflowError) as error:
        reason = re.sub(r"np\.str_\((.*)\)", r"\1", str(error))
        raise InputError(f"coordinates must be an array of numbers of shape (n, 2): {reason}") from None
    if coordinates.size == 0:
        raise InputError("an instance needs at least one city, got none")
    if coordinates.ndim != 2 or coordinates.shape[1] != 2:
        square = coordinates.ndim == 2 and coordinates.shape[0] == coordinates.shape[1]
        hint = "; distances between cities are given as Instance(matrix=...)" if square else ""
        raise InputError(f"coordinates must have shape (n, 2), got {coordinates.shape}{hint}")
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
    """No distance between two of the cities exceeds it under any rule but by rounding."""
    with np.errstate(over="ignore"):
        return float((coordinates.max(axis=0) - coordinates.min(axis=0)).sum())


def _is_length(value: Any) -> bool:
    try:
        return math.isfinite(value) and value >= 0
    except (TypeError, ValueError, OverflowError):
        return False


def _not_given() -> Any:
    """The default of a field that ``__post_init__`` fills in."""
    return None


def needs_instance(given: object) -> None:
    """Refuse coordinates, paths and the like where only an ``Instance`` says how to measure."""
    if not isinstance(given, Instance):
        raise InputError(f"an Instance is needed, got {type(given).__name__}: give Instance(coordinates)")


@dataclass(frozen=True, eq=False)
class Instance:
    """Cities and how far apart they are: by a rule from their coordinates, or by a matrix.

    Coordinates are checked and copied into a read-only float64 array. Distances are computed when asked
    for; no ``n x n`` array exists unless one was given or ``distance_matrix()`` is called.

    A matrix is checked and copied likewise (see ``georoutenet.problem.matrix``). It need not satisfy the
    triangle inequality. Coordinates are then optional: the network and pictures use them, lengths do not.
    Where they are missing, asking for ``coordinates`` raises ``InputError``.

    Two instances are equal only if they are the same object.
    """

    coordinates: Float = field(default_factory=_not_given)
    """Pairs x, y; under GREAT_CIRCLE and GEO latitude, longitude."""
    name: str = "instance"
    rule: DistanceRule = field(default_factory=_not_given)
    """EXPLICIT with a matrix, else by default EUCLIDEAN."""
    optimum: float | None = None
    """Best known tour length under ``rule``, where one is known."""
    latlon: Float | None = field(default=None, repr=False)
    """Latitude and longitude in degrees: under GREAT_CIRCLE the coordinates themselves, elsewhere what they
    are a map of, in kilometers, if they are."""
    matrix: Float | None = field(default=None, repr=False)
    """The distances ``(n, n)``, symmetric, with a zero diagonal, if they were given."""
    columns: Mapping[str, Sequence[Any]] = field(default_factory=dict, repr=False)
    """What else is known of each city, by name; files of a tour hold it. No distance depends on it."""
    id_column: str | None = field(default=None, repr=False)
    """The name in ``columns`` of what the cities are called; ``start`` and ``end`` may then be such an id."""
    decimal_commas: bool = field(default=False, repr=False)
    """Whether its table has semicolons between columns and commas in numbers: so have the tables of tours."""
    is_integer: bool = field(init=False)
    """Whether all distances are whole numbers: under TSPLIB's rules, and with a matrix of integers."""
    has_coordinates: bool = field(init=False)

    if TYPE_CHECKING:  # the same, but for what is converted

        def __init__(
            self,
            coordinates: Numbers | None = None,
            name: str = "instance",
            rule: DistanceRule | str | None = None,
            optimum: float | None = None,
            latlon: Numbers | None = None,
            matrix: Numbers | None = None,
            columns: Mapping[str, Sequence[Any]] = ...,
            id_column: str | None = None,
            decimal_commas: bool = False,
        ) -> None: ...

    def __post_init__(self) -> None:
        def store(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        store("has_coordinates", self.coordinates is not None)
        if not self.has_coordinates:
            object.__delattr__(self, "coordinates")  # from now on __getattr__ answers
            if self.matrix is None:
                raise InputError("an instance needs coordinates (n, 2) or a matrix (n, n) of distances")
        else:
            store("coordinates", _checked_coordinates(self.coordinates))
        self._check_rule()
        store("is_integer", self.rule.is_integer)
        if self.matrix is not None:
            matrix, whole = checked_matrix(self.matrix)
            store("matrix", matrix)
            store("is_integer", whole)
            if self.has_coordinates and len(self.coordinates) != len(matrix):
                raise InputError(f"coordinates have {len(self.coordinates)} rows for {len(matrix)} cities")
        elif _diameter_bound(self.coordinates) > WIDEST:
            raise InputError(
                f"coordinates are too far apart, by up to {_diameter_bound(self.coordinates):g}; allowed: "
                f"{WIDEST:g}, beyond which squares of distances overflow 64-bit floats"
            )
        # Above 2^53 a float no longer holds every integer, and 64-bit sums could wrap around.
        elif self.is_integer and _diameter_bound(self.coordinates) * self.n >= 2.0**53:
            raise InputError(f"coordinates are too far apart for the integer rule {self.rule.value}")
        if self.rule is DistanceRule.GREAT_CIRCLE:
            inside = are_degrees(self.coordinates)
            if not inside.all():
                row = int(np.argmin(inside))
                latitude, longitude = self.coordinates[row].tolist()
                raise InputError(f"{RANGES}: row {row} (counting from 0) is ({latitude}, {longitude})")
            store("latlon", self.coordinates)
        elif self.latlon is not None:
            latlon = _checked_coordinates(self.latlon)
            if len(latlon) != self.n:
                raise InputError(f"latlon has {len(latlon)} rows for {self.n} cities")
            store("latlon", latlon)
        if self.optimum is not None and not _is_length(self.optimum):
            raise InputError(f"optimum must be a finite length >= 0, got {self.optimum!r:.80}")
        if not isinstance(self.name, str):
            raise InputError(f"name must be a string, got {self.name!r}")
        store("columns", self._checked_columns())
        if self.id_column is not None and not (
            isinstance(self.id_column, str) and self.id_column in self.columns
        ):
            known = ", ".join(self.columns) or "none"
            raise InputError(f"there is no column {self.id_column!r} of ids; columns: {known}")

    def _checked_columns(self) -> dict[str, tuple[Any, ...]]:
        columns: dict[str, tuple[Any, ...]] = {}
        if not isinstance(self.columns, Mapping):
            raise InputError(f"columns must be a dict of names and values, got {self.columns!r:.80}")
        for name, values in self.columns.items():
            try:
                columns[str(name)] = tuple(values)
            except TypeError:
                raise InputError(
                    f"the column {name!r} must hold a value for each city, got {values!r:.80}"
                ) from None
            if len(columns[str(name)]) != self.n:
                raise InputError(
                    f"the column {name!r} has {len(columns[str(name)])} rows for {self.n} cities"
                )
        return columns

    def _check_rule(self) -> None:
        fits = DistanceRule.EUCLIDEAN if self.matrix is None else DistanceRule.EXPLICIT
        try:
            rule = fits if self.rule is None else DistanceRule(self.rule)
        except ValueError:
            allowed = ", ".join(DistanceRule)
            raise InputError(f"unknown distance rule {self.rule!r}; allowed: {allowed}") from None
        if (rule is DistanceRule.EXPLICIT) == (self.matrix is None):
            given = "no matrix" if self.matrix is None else "a matrix"
            raise InputError(f"the rule EXPLICIT goes with a matrix, got the rule {rule.value} and {given}")
        object.__setattr__(self, "rule", rule)

    if not TYPE_CHECKING:  # a type checker would take every misspelled name for an attribute

        def __getattr__(self, name: str) -> Any:
            if name == "coordinates":
                raise InputError(
                    f"{self.name!r} has distances but no coordinates, which the network and pictures need: "
                    "give Instance(coordinates, matrix=...) both"
                )
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def replaced(self, **changes: Any) -> Instance:
        """A copy with some fields changed: ``dataclasses.replace`` for instances without coordinates too."""
        kept = {each.name: self.__dict__.get(each.name) for each in fields(self) if each.init}
        return Instance(**{**kept, **changes})

    @property
    def n(self) -> int:
        return len(self.coordinates if self.matrix is None else self.matrix)

    def __len__(self) -> int:
        return self.n

    @property
    def ids(self) -> tuple[Any, ...] | None:
        """What the cities are called, where they have a column of ids."""
        return None if self.id_column is None else tuple(self.columns[self.id_column])

    def city(self, name: int | str) -> int:
        """The position of a city: that of an id where ``name`` is a string, else ``name`` itself."""
        if not isinstance(name, str):
            return name
        if self.ids is None:
            raise InputError(f"no city is called {name!r}: they have no ids, only positions 0..{self.n - 1}")
        found = [k for k, each in enumerate(self.ids) if str(each) == name]
        if len(found) != 1:
            many = f"cities {found[0]} and {found[1]} both have" if found else "no city has"
            given = ", ".join(map(str, self.ids[:3])) + (", ..." if self.n > 3 else "")
            raise InputError(f"{many} the {self.id_column} {name!r}; given: {given}")
        return found[0]

    def __repr__(self) -> str:
        return f"Instance({self.name!r}, n={self.n}, rule={self.rule.value})"

    def _repr_html_(self) -> str:
        """A picture of the cities in a notebook."""
        return sketch(repr(self), self.plane if self.has_coordinates else None)

    @property
    def unit(self) -> str | None:
        """Kilometers, where the distances are known to be such; what a matrix holds is its owner's."""
        return "km" if self.latlon is not None and self.matrix is None else None

    def distance(self, i: ArrayLike, j: ArrayLike) -> Any:
        """Distances between cities ``i`` and ``j`` (broadcast): int64 where all are whole, else float64."""
        i, j = np.asarray(i), np.asarray(j)
        if self.matrix is not None:
            distances = self.matrix[i, j]
        else:
            places = self.coordinates  # np.take is five times as fast as an index
            distances = self.rule.between(np.take(places, i, axis=0), np.take(places, j, axis=0))
        return distances.astype(np.int64) if self.is_integer else distances

    def distance_matrix(self) -> NDArray[Any]:
        """All distances, ``(n, n)``, with a zero diagonal. Takes ``8 n^2`` bytes."""
        cities = np.arange(self.n)
        matrix: NDArray[Any] = self.distance(cities[:, None], cities[None, :])
        np.fill_diagonal(matrix, 0)  # GEO gives 1 from a city to itself
        return matrix

    @property
    def plane(self) -> Float:
        """The cities on a flat map, as the network sees them: the coordinates, projected if degrees."""
        return project(self.coordinates) if self.rule is DistanceRule.GREAT_CIRCLE else self.coordinates

    @property
    def map_turn(self) -> float:
        """How wide once around the Earth is on ``plane``; infinite where no way leads around."""
        return map_turn(self.coordinates) if self.rule is DistanceRule.GREAT_CIRCLE else math.inf

    def normalized(self) -> Float:
        """``plane`` moved and scaled into the unit square, aspect ratio kept; all-equal points map to 0."""
        return normalize(self.plane)


def normalize(coordinates: Float) -> Float:
    """Subtract the minimum and divide by the larger range; works on ``(..., n, 2)``."""
    shifted = coordinates - coordinates.min(axis=-2, keepdims=True)
    span = shifted.max(axis=(-2, -1), keepdims=True)
    return np.divide(shifted, span, out=np.zeros_like(shifted), where=span > 0)


def fill_square(points: Tensor) -> Tensor:
    """``normalize`` of tensors ``(..., n, 2)``, on their device."""
    shifted = points - points.amin(dim=-2, keepdim=True)
    span = shifted.amax(dim=(-2, -1), keepdim=True)
    return shifted / span.masked_fill(span == 0, 1.0)
