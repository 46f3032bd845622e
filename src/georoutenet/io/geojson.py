"""Cities from JSON: places as lists or objects, the tours that are written here, and GeoJSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from georoutenet.errors import InputError, warn
from georoutenet.io.columns import columns_of, find_coordinates, named_columns, to_instance
from georoutenet.io.strict_json import parse_json
from georoutenet.problem.instance import DistanceRule, Instance

_DEGREES = ("CRS84", "4326")


def parse_places_json(
    text: str, source: str = "text", *, name: str = "instance", id_column: str | None = None
) -> Instance:
    """Cities from a list of pairs ``[x, y]``, from a list of objects, from a tour's file, or from GeoJSON.

    Objects name their coordinates as the columns of a table do, and all else they hold becomes
    ``Instance.columns``. An object may hold the list as ``visits``, as the files of tours do: the cities are
    then in visiting order, under the tour's ``rule``. ``source`` is named in errors.
    """
    try:
        content = parse_json(text)
    except InputError as error:
        raise InputError(f"{source}: {error}") from None
    rule = None
    if isinstance(content, dict):
        if content.get("type") == "FeatureCollection":
            return _parse_features(content, source, name, id_column)
        if "durations" in content or "distances" in content:
            raise InputError(f"{source}: .json with distances is read with matrix=True (--matrix)")
        rule = _rule(content.get("rule"), source)
        given = content.get("name")
        name = given if isinstance(given, str) and given else name
        content = content.get("visits")
    if not isinstance(content, list) or not content:
        raise InputError(
            f"{source}: expected a list of [x, y], a list of objects with x,y or lat,lon, an object with "
            "such a list as 'visits', or a GeoJSON FeatureCollection; distances need matrix=True (--matrix)"
        )
    if all(isinstance(row, list) for row in content):
        if id_column is not None:
            raise InputError(f"{source}: there is no column {id_column!r} of ids: the cities have no columns")
        for k, row in enumerate(content):
            if len(row) != 2:
                hint = "; distances are read with matrix=True (--matrix)" if len(row) == len(content) else ""
                raise InputError(f"{source}: place {k} has {len(row)} numbers, expected x and y{hint}")
        content = [{"x": x, "y": y} for x, y in content]
    return _parse_objects(content, source, name, id_column, rule)


def _rule(given: object, source: str) -> DistanceRule | None:
    if given is None:
        return None
    if given not in list(DistanceRule):
        raise InputError(f"{source}: unknown distance rule {given!r}; allowed: {', '.join(DistanceRule)}")
    rule = DistanceRule(str(given))
    if rule is DistanceRule.EXPLICIT:
        raise InputError(f"{source}: a tour under a matrix, whose distances the file does not hold")
    return rule


def _parse_objects(
    rows: list[Any], source: str, name: str, id_column: str | None, rule: DistanceRule | None
) -> Instance:
    for k, row in enumerate(rows):
        if not isinstance(row, dict):
            raise InputError(f"{source}: place {k} is not an object with coordinates: {row!r:.40}")
    names, values = columns_of(rows, source)
    coordinates, geographic, others = find_coordinates(names, source)
    if rule is DistanceRule.GREAT_CIRCLE and not geographic:
        raise InputError(f"{source}: the rule {rule.value} needs places with lat and lon, got x and y")
    first, second = (names[k] for k in coordinates)
    return to_instance(
        [_pair((row.get(first), row.get(second)), k, source) for k, row in enumerate(rows)],
        geographic=geographic,
        source=source,
        where=lambda k: f"{source}: place {k}",
        name=name,
        columns=named_columns([names[k] for k in others], [values[k] for k in others]),
        id_column=id_column,
        rule=rule,
    )


def _pair(values: Sequence[object], k: int, source: str) -> tuple[float, float]:
    """Two numbers of JSON as such; True is none."""
    numbers = []
    for value in values:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise InputError(f"{source}: place {k}: expected a number, got {value!r:.40}")
        try:
            numbers.append(float(value))
        except OverflowError:
            numbers.append(float("inf"))
    return numbers[0], numbers[1]


def _table(value: Any) -> dict[str, Any]:
    """The value where it is an object; GeoJSON may have null for one."""
    return value if isinstance(value, dict) else {}


def _parse_features(content: dict[str, Any], source: str, name: str, id_column: str | None) -> Instance:
    """The points of a GeoJSON feature collection; other shapes and heights are named as ignored."""
    crs = content.get("crs")
    if crs is not None and not any(str(crs).rstrip("'}").endswith(known) for known in _DEGREES):
        raise InputError(
            f"{source}: GeoJSON is in degrees (RFC 7946), not in the reference system {crs!r:.120}"
        )
    features = content.get("features")
    rows: list[dict[str, Any]] = []
    pairs: list[tuple[float, float]] = []
    ignored: set[str] = set()
    for feature in features if isinstance(features, list) else []:
        if not isinstance(feature, dict):
            raise InputError(f"{source}: expected a GeoJSON feature, got {feature!r:.40}")
        geometry, properties = _table(feature.get("geometry")), _table(feature.get("properties"))
        kind = geometry.get("type")
        if kind != "Point":
            if not {"cities", "closed"} <= set(properties):  # the line of a tour that was written here
                ignored.add(f"features that are {kind or 'no geometry'}")
            continue
        place = geometry.get("coordinates")
        if not isinstance(place, list) or len(place) < 2:
            raise InputError(
                f"{source}: point {len(pairs)}: expected [longitude, latitude], got {place!r:.40}"
            )
        if len(place) > 2:
            ignored.add("heights")
        longitude, latitude = _pair(place[:2], len(pairs), source)
        pairs.append((latitude, longitude))
        rows.append(({"id": feature["id"]} if "id" in feature else {}) | properties)
    if not pairs:
        raise InputError(f"{source}: no cities: the GeoJSON has no features that are points")
    if ignored:
        warn(f"ignored: {', '.join(sorted(ignored))}")
    names, values = columns_of(rows, source)
    return to_instance(
        pairs,
        geographic=True,
        source=source,
        where=lambda k: f"{source}: point {k}",
        name=name,
        columns=named_columns(names, values),
        id_column=id_column,
    )
