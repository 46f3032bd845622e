"""A tour for maps: GeoJSON."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from georoutenet.errors import InputError
from georoutenet.instance import DistanceRule, Instance
from georoutenet.tour import Tour, tour_length


def format_geojson(tour: Tour, instance: Instance, *, closed: bool = True) -> str:
    """A tour as a GeoJSON feature collection: one line, then a point per city in visiting order.

    Needs degrees: cities read as ``lat,lon``, or TSPLIB's GEO. Lengths are in kilometers.
    """
    degrees = latitude_longitude(instance)
    if degrees is None:
        raise InputError(
            "GeoJSON needs latitudes and longitudes: a table with the columns lat,lon, or TSPLIB's GEO rule"
        )
    places = degrees[tour][:, ::-1].tolist()  # GeoJSON puts the longitude first
    line = places + places[:1] if closed or len(places) == 1 else places
    about = {
        "name": instance.name,
        "cities": instance.n,
        "length_km": tour_length(instance, tour, closed=closed),
        "closed": closed,
    }
    features = [_feature("LineString", line, about)]
    for position, (city, place) in enumerate(zip(tour.tolist(), places, strict=True)):
        features.append(_feature("Point", place, {"position": position, "city": city}))
    return json.dumps({"type": "FeatureCollection", "features": features}) + "\n"


def latitude_longitude(instance: Instance) -> NDArray[np.float64] | None:
    """Degrees ``(n, 2)`` where the instance has them, else None."""
    if instance.rule is DistanceRule.GEO:  # TSPLIB writes degrees.minutes
        degrees = np.trunc(instance.coordinates)
        return degrees + 5.0 * (instance.coordinates - degrees) / 3.0
    return instance.latlon


def _feature(kind: str, coordinates: list[Any], properties: dict[str, Any]) -> dict[str, Any]:
    geometry = {"type": kind, "coordinates": coordinates}
    return {"type": "Feature", "geometry": geometry, "properties": properties}
