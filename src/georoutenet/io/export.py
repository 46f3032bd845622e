"""A tour for maps and navigation devices, GeoJSON and GPX, and for spreadsheets."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import re
from typing import Any
from xml.sax.saxutils import escape

import numpy as np
from numpy.typing import NDArray

from georoutenet.errors import InputError
from georoutenet.io.columns import written_columns
from georoutenet.problem.instance import DistanceRule, Instance
from georoutenet.problem.tour import Tour, tour_length


def visits(tour: Tour, instance: Instance) -> list[dict[str, Any]]:
    """The cities in visiting order, each with its number, its place and the caller's columns."""
    written = written_columns(instance, tour.tolist())
    return [dict(zip(written, row, strict=True)) for row in zip(*written.values(), strict=True)]


def format_csv(tour: Tour, instance: Instance) -> str:
    """A tour as a table in visiting order; what is not ASCII has the mark by which Excel knows UTF-8.

    Where the cities came with decimal commas, so does the tour, with semicolons between: such an Excel reads
    no other table.
    """
    written = written_columns(instance, tour.tolist())
    stream = io.StringIO()
    table = csv.writer(stream, delimiter=";" if instance.decimal_commas else ",", lineterminator="\n")
    table.writerow(written)
    # csv writes floats by repr, so that they are read back as they are.
    rows = zip(*written.values(), strict=True)
    table.writerows([map(_with_comma, row) for row in rows] if instance.decimal_commas else rows)
    text = stream.getvalue()
    return text if text.isascii() else "\ufeff" + text


def _with_comma(value: object) -> object:
    return repr(value).replace(".", ",") if isinstance(value, float) else value


def format_geojson(tour: Tour, instance: Instance, *, closed: bool = True) -> str:
    """A tour as a GeoJSON feature collection: one line, then a point per city in visiting order.

    Needs degrees: cities read as ``lat,lon``, or TSPLIB's GEO. Lengths are in kilometers, and under a matrix
    in its unit. A line across the antimeridian is cut there into several (RFC 7946, section 3.1.9); each leg
    goes the shorter way around. Points have the caller's columns as properties.
    """
    where = degrees(instance)
    places = where[tour][:, ::-1]  # GeoJSON puts the longitude first
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
    written = written_columns(instance, tour.tolist(), degrees=where)
    del written["lat"], written["lon"]  # the point says it
    for place, row in zip(places.tolist(), zip(*written.values(), strict=True), strict=True):
        features.append(_feature("Point", place, dict(zip(written, row, strict=True))))
    return json.dumps({"type": "FeatureCollection", "features": features}) + "\n"


def format_gpx(tour: Tour, instance: Instance, *, closed: bool = True) -> str:
    """A tour as a GPX 1.1 route for navigation devices: its points in visiting order, back to the first.

    Points are called by their ids, else by their numbers; their other columns are the description.
    """
    where = degrees(instance, "GPX").tolist()
    order = tour.tolist()
    points = []
    for city in [*order, order[0]] if closed and len(order) > 1 else order:
        latitude, longitude = where[city]
        label = city if instance.ids is None else instance.ids[city]
        about = [
            f"{name}: {values[city]}"
            for name, values in instance.columns.items()
            if name != instance.id_column and values[city] not in (None, "")
        ]
        described = f"<desc>{_xml(', '.join(about))}</desc>" if about else ""
        points.append(
            f'<rtept lat="{latitude!r}" lon="{longitude!r}"><name>{_xml(label)}</name>{described}</rtept>'
        )
    lines = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        '<gpx version="1.1" creator="GeoRouteNet" xmlns="http://www.topografix.com/GPX/1/1">',
        f"<rte><name>{_xml(instance.name)}</name>",
        *points,
        "</rte>",
        "</gpx>",
    ]
    return "\n".join([*lines, ""])


def _xml(value: object) -> str:
    """Text without the characters that XML cannot hold."""
    return escape(re.sub("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "", str(value)))


def degrees(instance: Instance, what: str = "GeoJSON") -> NDArray[np.float64]:
    """Degrees ``(n, 2)``, latitude first, longitudes in -180..180."""
    places = latitude_longitude(instance)
    if places is None:
        raise InputError(
            f"{what} needs latitudes and longitudes: a table with the columns lat,lon, TSPLIB's GEO rule, or "
            'Instance(degrees, rule="GREAT_CIRCLE")'
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
