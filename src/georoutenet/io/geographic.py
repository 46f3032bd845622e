"""Latitudes and longitudes as a plane map in kilometers."""

from __future__ import annotations

import warnings

import numpy as np
from numpy.typing import NDArray

from georoutenet.errors import GeoRouteNetWarning

EARTH_RADIUS_KM = 6371.0088  # mean radius of the WGS 84 ellipsoid


def project(latlon: NDArray[np.float64]) -> NDArray[np.float64]:
    """Equirectangular projection of degrees ``(n, 2)`` about the mean latitude; x east, y north, in km.

    Distances are right within a city or a region; where the map is stretched by more than 5 % at its
    northern or southern edge a warning says so. Longitudes are cut at their widest gap, so cities on both
    sides of the antimeridian stay together.
    """
    latitude, longitude = np.radians(latlon[:, 0]), _unwrapped(np.radians(latlon[:, 1]))
    middle = latitude.mean()
    stretch = np.cos(latitude) / max(np.cos(middle), 1e-12)
    if np.ptp(longitude) > 0 and np.abs(stretch - 1.0).max() > 0.05:
        warnings.warn(
            f"latitudes {latlon[:, 0].min():g} to {latlon[:, 0].max():g} span too much for a local map: "
            f"east-west distances are off by up to {100 * np.abs(stretch - 1.0).max():.0f} %",
            GeoRouteNetWarning,
            stacklevel=2,
        )
    center = (longitude.min() + longitude.max()) / 2
    x = EARTH_RADIUS_KM * np.cos(middle) * (longitude - center)
    return np.column_stack([x, EARTH_RADIUS_KM * (latitude - middle)])


def _unwrapped(longitude: NDArray[np.float64]) -> NDArray[np.float64]:
    """The same longitudes, shifted by full turns so that they start after their widest gap."""
    turn = 2 * np.pi
    wrapped = longitude % turn
    ordered = np.sort(wrapped)
    gaps = np.diff(ordered, append=ordered[0] + turn)
    start = ordered[(int(np.argmax(gaps)) + 1) % len(ordered)]
    return np.where(wrapped < start, wrapped + turn, wrapped)
