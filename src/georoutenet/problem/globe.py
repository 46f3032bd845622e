"""Places on Earth, given as degrees ``(n, 2)``, latitude first: how far apart they are, and maps of them."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]

EARTH_RADIUS_KM = 6371.0088
"""Mean radius of the WGS 84 ellipsoid. Distances on the sphere of this radius are within 0.6 % of its own."""
POLAR = 75.0
"""Degrees of latitude beyond which a map by degrees is stretched by more than it is worth."""
WIDE = 1 / 3
"""Square of the radius up to which a stereographic map is drawn instead: 60 degrees from its middle."""
RANGES = "latitude must be in -90..90 and longitude in -180..360"


def are_degrees(latlon: Float) -> NDArray[np.bool_]:
    """Which rows lie within ``RANGES``."""
    latitude, longitude = latlon.T
    return (np.abs(latitude) <= 90) & (longitude >= -180) & (longitude <= 360)


def great_circle(a: Float, b: Float) -> Float:
    """Kilometers along the great circle between places ``(..., 2)``, by the haversine formula."""
    a, b = np.radians(a), np.radians(b)
    squares = np.sin(np.abs(a - b) / 2) ** 2
    haversine = squares[..., 0] + np.cos(a[..., 0]) * np.cos(b[..., 0]) * squares[..., 1]
    return 2 * EARTH_RADIUS_KM * np.arcsin(np.sqrt(np.minimum(haversine, 1.0)))


def on_sphere(latlon: Float) -> Float:
    """Points ``(n, 3)`` on the unit sphere, whose straight-line distances order as great-circle ones do."""
    latitude, longitude = np.radians(latlon).T
    ring = np.cos(latitude)
    return np.stack([ring * np.cos(longitude), ring * np.sin(longitude), np.sin(latitude)], axis=1)


def stereographic(latlon: Float, about: Float | None = None) -> Float:
    """Points ``(n, 2)`` of the plane from which great circles are measured without sines and cosines.

    The haversine of two places ``p`` and ``q`` is ``|p - q|^2 / ((1 + |p|^2) (1 + |q|^2))``, exactly. The map
    is seen from opposite the middle of the places (or of those ``about``), x east and y north of it, so it
    has no border; only that one point has no image, and a point next to it stands for it.
    """
    points = on_sphere(latlon)
    around = points if about is None else on_sphere(about)
    middle = around.sum(axis=0)
    length = float(np.linalg.norm(middle))
    middle = middle / length if length > 1e-9 * len(around) else around[0]
    east = np.array([-middle[1], middle[0], 0.0]) if abs(middle[2]) < 1 - 1e-9 else np.array([0.0, 1.0, 0.0])
    east -= middle * (east @ middle)
    east /= np.linalg.norm(east)
    toward, sideways = points @ middle, points @ np.column_stack([east, np.cross(middle, east)])
    squares = np.maximum(np.square(sideways).sum(axis=1), 1e-40)
    # Two forms of the same factor, each where it does not cancel.
    factor = np.where(toward < 0, (1 - toward) / squares, 1 / np.maximum(1 + toward, 1.0))
    return factor[:, None] * np.where(squares[:, None] > 1e-40, sideways, 1e-20)


def project(latlon: Float, about: Float | None = None) -> Float:
    """Equirectangular map about the mean latitude; x east, y north, in km. The network and pictures use it.

    Longitudes are cut at their widest gap, so cities on both sides of the antimeridian stay together. Places
    around a pole, where such a map is torn, are seen stereographically. Lengths are not measured on either:
    far from the middle they are stretched. With ``about`` it is the map of those places, which others go on.
    """
    places = latlon if about is None else about
    if _is_polar(places):
        return 2 * EARTH_RADIUS_KM * stereographic(latlon, about)
    middle, longitude = np.radians(places[:, 0]).mean(), _unwrapped(np.radians(places[:, 1]))
    center = (longitude.min() + longitude.max()) / 2
    if about is not None:
        longitude = np.radians(latlon[:, 1])
        longitude = longitude - 2 * np.pi * np.round((longitude - center) / (2 * np.pi))
    x = EARTH_RADIUS_KM * np.cos(middle) * (longitude - center)
    return np.column_stack([x, EARTH_RADIUS_KM * (np.radians(latlon[:, 0]) - middle)])


def map_turn(latlon: Float) -> float:
    """How wide once around the Earth is on the map by ``project``; infinite around a pole."""
    turn = 2 * np.pi * EARTH_RADIUS_KM * np.cos(np.radians(latlon[:, 0]).mean())
    return math.inf if _is_polar(latlon) else float(turn)


def cut_at_border(line: Float, turn: float) -> list[Float]:
    """A line on the map by ``project`` in parts: a leg of more than half a turn goes the other way around,
    out of the map at one side and in at the other."""
    parts, begin, first = [], line[:0], 0
    for k in np.flatnonzero(np.abs(np.diff(line[:, 0])) > turn / 2).tolist():
        a, b = line[k], line[k + 1]
        side = np.copysign(turn / 2, a[0] - b[0])
        height = a[1] + (b[1] - a[1]) * (side - a[0]) / (b[0] + 2 * side - a[0])
        parts.append(np.vstack([begin, line[first : k + 1], [side, height]]))
        begin, first = np.array([[-side, height]]), k + 1
    return [*parts, np.vstack([begin, line[first:]])]


def _is_polar(places: Float) -> bool:
    """Whether the map of these places is seen from a pole."""
    near = np.abs(places[:, 0]).max() > POLAR
    return bool(near and np.square(stereographic(places)).sum(axis=1).max() < WIDE)


def _unwrapped(longitude: Float) -> Float:
    """The same longitudes in radians, shifted by full turns so that they start after their widest gap."""
    turn = 2 * np.pi
    wrapped = longitude % turn
    ordered = np.sort(wrapped)
    gaps = np.diff(ordered, append=ordered[0] + turn)
    start = ordered[(int(np.argmax(gaps)) + 1) % len(ordered)]
    return np.where(wrapped < start, wrapped + turn, wrapped)
