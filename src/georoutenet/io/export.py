"""A tour for maps: GeoJSON."""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from georoutenet.errors import InputError
from georoutenet.problem.instance import DistanceRule, Instance
from georoutenet.problem.tour import Tour, tour_length


def format_geojson(tour: Tour, instance: Instance, *, closed: bool = True) -> str:
    """A tour as a GeoJSON feature collection: one line, then a point per city in visiting order.

    Needs degrees: cities read as ``lat,lon``, or TSPLIB's GEO. Lengths are in kilometers, and under a matrix
    in its unit. A line across the antimeridian is cut there into several (RFC 7946, section 3.1.9); each leg
    goes the shorter way around.
    """
    places = degrees(instance)[tour][:, ::-1]  # GeoJSON puts the longitude first
    line = np.concatenate([places, places[:1]]) if closed or len(places) == 1 else places
    about = {
        "name": instance.name,
        "cities": instance.n,
        "length_km" if instance.matrix is None else "length": tour_length(instance, tour, closed=closed),
        "closed": closed,
    }
    parts = cut_at_antimeridian(line)
    whole = len(parts) == 1
    features = [_feature("LineString" if whole else "MultiLineString", parts[0] if whole else parts, about)]
    for position, (city, place) in enumerate(zip(tour.tolist(), places.tolist(), strict=True)):
        features.append(_feature("Point", place, {"position": position, "city": city}))
    return json.dumps({"type": "FeatureCollection", "features": features}) + "\n"


def degrees(instance: Instance) -> NDArray[np.float64]:
    """Degrees ``(n, 2)``, latitude first, longitudes in -180..180."""
    places = latitude_longitude(instance)
    if places is None:
        raise InputError(
            "GeoJSON needs latitudes and longitudes: a table with the columns lat,lon, TSPLIB's GEO rule, or "
            "Instance(..., latlon=...)"
        )
    outside = np.abs(places[:, 1]) > 180.0
    wrapped = np.where(outside, (places[:, 1] + 180.0) % 360.0 - 180.0, places[:, 1])
    return np.column_stack([places[:, 0], wrapped])


def cut_at_antimeridian(line: NDArray[np.float64]) -> list[list[list[float]]]:
    """A line of ``(longitude, latitude)`` in parts, none of which crosses the meridian of +-180 degrees."""
    parts = [[line[0].tolist()]]
    for (x1, y1), (x2, y2) in itertools.pairwise(line.tolist()):
        if abs(x2 - x1) > 180.0:
            side = math.copysign(180.0, x1)
            to_border, beyond = abs(side - x1), abs(-side - x2)
            y = y1 + (y2 - y1) * (to_border / (to_border + beyond) if to_border + beyond > 0 else 0.0)
            if to_border > 0:
                parts[-1].append([side, y])
            parts.append([[-side, y]] if beyond > 0 else [])
        parts[-1].append([x2, y2])
    return [part if len(part) > 1 else part * 2 for part in parts]


def latitude_longitude(instance: Instance) -> NDArray[np.float64] | None:
    """Degrees ``(n, 2)`` where the instance has them, else None."""
    if instance.rule is DistanceRule.GEO:  # TSPLIB writes degrees.minutes
        degrees = np.trunc(instance.coordinates)
        return degrees + 5.0 * (instance.coordinates - degrees) / 3.0
    return instance.latlon


def _feature(kind: str, coordinates: list[Any], properties: dict[str, Any]) -> dict[str, Any]:
    geometry = {"type": kind, "coordinates": coordinates}
    return {"type": "Feature", "geometry": geometry, "properties": properties}
