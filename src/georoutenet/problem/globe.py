"""Places on Earth, given as degrees ``(n, 2)``, latitude first: how far apart they are, and maps of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]

EARTH_RADIUS_KM = 6371.0088
"""Mean radius of the WGS 84 ellipsoid. Distances on the sphere of this radius are within 0.6 % of its own."""
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


def project(latlon: Float) -> Float:
    """Equirectangular map about the mean latitude; x east, y north, in km. The network and pictures use it.

    Longitudes are cut at their widest gap, so cities on both sides of the antimeridian stay together. Lengths
    are not measured on it: far from the mean latitude it is stretched.
    """
    latitude, longitude = np.radians(latlon[:, 0]), unwrapped(np.radians(latlon[:, 1]))
    middle = latitude.mean()
    center = (longitude.min() + longitude.max()) / 2
    x = EARTH_RADIUS_KM * np.cos(middle) * (longitude - center)
    return np.column_stack([x, EARTH_RADIUS_KM * (latitude - middle)])


def unwrapped(longitude: Float) -> Float:
    """The same longitudes in radians, shifted by full turns so that they start after their widest gap."""
    turn = 2 * np.pi
    wrapped = longitude % turn
    ordered = np.sort(wrapped)
    gaps = np.diff(ordered, append=ordered[0] + turn)
    start = ordered[(int(np.argmax(gaps)) + 1) % len(ordered)]
    return np.where(wrapped < start, wrapped + turn, wrapped)
