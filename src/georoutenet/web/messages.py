"""JSON to instances and options of ``solve``, and back."""

from __future__ import annotations

import math
import threading
import warnings
from dataclasses import dataclass, fields, replace
from typing import Any, cast

from georoutenet.decode.decoding import RECOMMENDED, Decoding
from georoutenet.errors import GeoRouteNetWarning, InputError
from georoutenet.io.columns import plain_value
from georoutenet.io.files import format_route, parse_instance
from georoutenet.io.names import safe_name
from georoutenet.io.packaged import packaged_weights
from georoutenet.io.strict_json import parse_json
from georoutenet.problem.instance import Instance
from georoutenet.solver.options import SolveKeywords, SolveOptions, read_options
from georoutenet.solver.result import Result
from georoutenet.web.limits import Limits

GIVEN = ("name", "rule", "coordinates", "ids", "columns", "id_column", "matrix")
"""What a request says of its instance."""
SHOWN = ("plane", "optimum", "unit", "notes")
"""What the service says of an instance beside that; ignored in requests."""
OWN = ("stop", "progress", "device", "precision")
"""Options of ``solve`` that are not a client's to choose."""
OPTIONS = tuple(each.name for each in fields(SolveOptions) if each.name not in OWN)
FORMATS = ("tsp", "csv", "tsv", "txt", "json", "geojson")
EXPORTS = {
    "tour": "text/plain",
    "csv": "text/csv",
    "geojson": "application/geo+json",
    "gpx": "application/gpx+xml",
    "json": "application/json",
}
PATIENCE = 0.3
"""Seconds that the page waits for the network, about: more views of what is small."""
LONGEST_NAME = 200
_one_at_a_time = threading.Lock()
"""Warnings are caught for the whole process."""


@dataclass(frozen=True)
class Work:
    """An instance and what is to be done with it."""

    instance: Instance
    options: SolveOptions
    initial_tour: Any = None


def _check_lists(body: bytes, limits: Limits) -> None:
    """Refuse what holds far more than an instance does before it is parsed: that would hold up all others."""
    lists, most = body.count(b"[") + body.count(b"{"), 8 * limits.cities + 1_000
    if lists > most:
        raise InputError(
            f"{lists:,} lists and objects; an instance of {limits.cities:,} cities has at most {most:,}"
        )


def read_object(body: bytes, allowed: tuple[str, ...], what: str, limits: Limits) -> dict[str, Any]:
    """A body as a table with none but the allowed names."""
    _check_lists(body, limits)
    content = parse_json(body)
    if not isinstance(content, dict):
        raise InputError(f"expected a JSON object, got {type(content).__name__}")
    unknown = sorted(set(content) - {*GIVEN, *SHOWN, *allowed})
    if unknown:
        names = ", ".join((*allowed, *GIVEN))
        raise InputError(f"{what} has no option {unknown[0][:40]!r}; allowed: {names}")
    return content


def read_work(body: bytes, limits: Limits) -> Work:
    """What ``/api/solve`` is asked for."""
    content = read_object(body, (*OPTIONS, "initial_tour"), "solve", limits)
    options = {name: content[name] for name in OPTIONS if name in content}
    _check_weights(options.get("weights", "georoutenet"))
    for name in ("decoder", "first"):
        if not isinstance(options.get(name, ""), str | None):
            raise InputError(f"{name} must be text, got {options[name]!r:.40}")
    if options.get("workers") is None:  # which would be all cores
        options["workers"] = 1
    checked = read_options("solve", cast(SolveKeywords, options))
    instance = read_given(content, limits)
    _check_limits(checked, limits, instance.n)
    checked = _fitting(checked, limits, instance.n)
    return Work(instance, checked, content.get("initial_tour"))


def read_given(content: dict[str, Any], limits: Limits) -> Instance:
    """The instance of a request."""
    coordinates, matrix = content.get("coordinates"), content.get("matrix")
    for name, rows in (("coordinates", coordinates), ("matrix", matrix)):
        if rows is not None:
            if not isinstance(rows, list):
                raise InputError(f"{name} must be a list of rows, got {type(rows).__name__}")
            check_cities(len(rows), limits)
    name, columns = content.get("name", "instance"), content.get("columns") or {}
    if not isinstance(name, str):
        raise InputError(f"name must be text, got {name!r:.40}")
    if not isinstance(columns, dict) or not all(isinstance(each, list) for each in columns.values()):
        raise InputError("columns must be an object of lists")
    ids, id_column = content.get("ids"), content.get("id_column")
    if ids is not None:
        if not isinstance(ids, list):
            raise InputError(f"ids must be a list, got {type(ids).__name__}")
        id_column = id_column or "id"
        columns = {**columns, id_column: ids}
    if id_column is not None and not isinstance(id_column, str):
        raise InputError(f"id_column must be text, got {id_column!r:.40}")
    rule = content.get("rule")
    if rule is not None and not isinstance(rule, str):
        raise InputError(f"rule must be text, got {rule!r:.40}")
    return Instance(
        coordinates,
        name=name[:LONGEST_NAME] or "instance",
        rule=rule,
        matrix=matrix,
        columns=columns,
        id_column=id_column,
    )


def check_cities(n: int, limits: Limits) -> None:
    if n > limits.cities:
        raise InputError(f"{n:,} cities; this server allows {limits.cities:,}")


def _check_weights(name: Any) -> None:
    """Packaged weights only: a request names no file."""
    if not isinstance(name, str) or name not in packaged_weights():
        allowed = ", ".join(packaged_weights())
        raise InputError(f"no weights {str(name)[:40]!r}; this server has: {allowed}")


def _check_limits(options: SolveOptions, limits: Limits, n: int) -> None:
    asked = options.decoding or Decoding("greedy", width=1)
    widest = min(limits.beam_width, limits.decoded // n)
    for name, given, most in (
        ("max_seconds", options.max_seconds, limits.seconds),
        ("workers", options.workers, limits.workers),
        (f"beam_width over {n:,} cities", options.beam_width or asked.width, widest),
        ("views", options.views or asked.views, limits.views),
        ("candidates", asked.candidates, limits.candidates),
    ):
        if given is not None and not given <= most:
            raise InputError(f"{name} is {given}; this server allows {most:,g}")
    if asked.precision != "float32":
        raise InputError(f"precision {asked.precision} is not for servers; allowed: float32")


def _fitting(options: SolveOptions, limits: Limits, n: int) -> SolveOptions:
    """With a width that the server allows where the client left it to the decoder."""
    widest = max(1, min(limits.beam_width, limits.decoded // n))
    asked = options.names_network or options.first == "network"
    asked |= options.first == "auto" and not options.improve
    beam = options.decoding is None and options.decoder in (None, "beam")
    if asked and beam and options.beam_width is None and widest < RECOMMENDED.width:
        return replace(options, beam_width=widest)
    return options


def read_weights(content: dict[str, Any]) -> str:
    weights = content.get("weights", "georoutenet")
    _check_weights(weights)
    return str(weights)


def read_file(data: bytes, form: str, limits: Limits) -> dict[str, Any]:
    """A dropped file as an instance object, with what its reader had to remark."""
    if form not in FORMATS:
        raise InputError(f"unknown format {form[:40]!r}; allowed: {', '.join(FORMATS)}")
    if form in ("json", "geojson"):
        _check_lists(data, limits)
    with _one_at_a_time, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", GeoRouteNetWarning)
        instance = parse_instance(data, f".{form}", "the file")
    check_cities(instance.n, limits)
    if (cells := instance.n * len(instance.columns)) > limits.body_bytes:
        raise InputError(f"{cells:,} cells in columns; this server allows {limits.body_bytes:,}")
    notes = [str(each.message) for each in caught if issubclass(each.category, GeoRouteNetWarning)]
    return instance_object(instance, notes)


def instance_object(instance: Instance, notes: list[str] | None = None) -> dict[str, Any]:
    located = instance.has_coordinates
    return {
        "name": instance.name,
        "rule": instance.rule.value,
        "coordinates": instance.coordinates.tolist() if located else None,
        "plane": instance.plane.tolist() if located else None,
        "ids": None if instance.ids is None else list(map(plain_value, instance.ids)),
        "id_column": instance.id_column,
        "columns": {name: list(map(plain_value, values)) for name, values in instance.columns.items()},
        "matrix": None if instance.matrix is None else instance.distance_matrix().tolist(),
        "optimum": instance.optimum,
        "unit": instance.unit,
        "notes": notes or [],
    }


def result_object(result: Result) -> dict[str, Any]:
    """What ``/api/solve`` answers: all of ``Result.to_dict`` but the visits, which the client can tell."""
    content = result.to_dict()
    content.pop("visits", None)
    bound = result.gap_bound
    return {**content, "gap": result.gap, "gap_bound": None if bound is None or math.isinf(bound) else bound}


def read_scored(body: bytes, limits: Limits) -> tuple[Instance, str]:
    """What ``/api/scores`` is asked for."""
    content = read_object(body, ("weights",), "scores", limits)
    return read_given(content, limits), read_weights(content)


def scores_object(instance: Instance, weights: str, most: int) -> dict[str, Any]:
    """What the network says of the edges, the most probable first, and of the first city."""
    from georoutenet.solver.network import edge_marginals

    found = edge_marginals(instance, weights, seconds=PATIENCE)
    listed = zip(found.edges[:most].tolist(), found.probabilities[:most].tolist(), strict=True)
    return {
        "edges": [[i, j, round(p, 6)] for (i, j), p in listed],
        "start": [round(p, 6) for p in found.start.tolist()],
    }


def exported(body: bytes, form: str, limits: Limits) -> tuple[str, str]:
    """The text of a file and its name."""
    if form not in EXPORTS:
        raise InputError(f"unknown format {form[:40]!r}; allowed: {', '.join(EXPORTS)}")
    content = read_object(body, ("tour", "closed"), "export", limits)
    instance, closed = read_given(content, limits), content.get("closed", True)
    if not isinstance(closed, bool):
        raise InputError(f"closed must be true or false, got {closed!r:.40}")
    text = format_route(content.get("tour", []), instance, f".{form}", closed=closed)
    return text, f"{safe_name(instance.name)}.{form}"
