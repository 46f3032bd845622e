"""The service as a description for programs (OpenAPI) and as a page for people, both from one source."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from html import escape
from typing import Any

from georoutenet.problem.instance import DistanceRule
from georoutenet.solver.options import HELP, SolveOptions
from georoutenet.web.limits import Limits
from georoutenet.web.messages import FORMATS, OPTIONS

Schema = dict[str, Any]

_NUMBERS: Schema = {"type": "array", "items": {"type": "number"}}
_ROWS: Schema = {"type": "array", "items": _NUMBERS}
_CITIES: Schema = {"type": "array", "items": {"type": "integer"}}
_TYPES = {"int": "integer", "float": "number", "bool": "boolean", "str": "string"}

INSTANCE: dict[str, Schema] = {
    "coordinates": _ROWS | {"description": "Pairs x, y; under GREAT_CIRCLE and GEO latitude, longitude."},
    "rule": {
        "type": "string",
        "enum": [rule.value for rule in DistanceRule],
        "description": "How distances follow. Default: EUCLIDEAN, with a matrix EXPLICIT.",
    },
    "matrix": _ROWS | {"description": "Distances (n, n), symmetric, instead of a rule."},
    "name": {"type": "string", "description": "What the instance and its files are called."},
    "ids": {
        "type": "array",
        "items": {},
        "description": "What the cities are called; start and end may be such.",
    },
    "columns": {"type": "object", "description": "What else is known of each city; exports hold it."},
}


def _options(limits: Limits) -> dict[str, Schema]:
    """Those of ``solve``, with its own help."""
    bounds = {
        "max_seconds": limits.seconds,
        "workers": limits.workers,
        "beam_width": limits.beam_width,
        "views": limits.views,
    }
    options: dict[str, Schema] = {}
    for each in fields(SolveOptions):
        if each.name in OPTIONS:
            kinds = [part.strip() for part in str(each.type).split("|")]
            named = [_TYPES[kind] for kind in kinds if kind in _TYPES]
            bound = {"maximum": bounds[each.name]} if each.name in bounds else {}
            options[each.name] = {
                "type": named[0] if len(named) == 1 else named,
                "description": HELP[each.name],
            } | bound
    options["workers"]["description"] = "Threads that search. Default: 1."
    options["weights"]["description"] = "Weights of this server by name; see /api/weights."
    options["initial_tour"] = _CITIES | {"description": "A tour to begin with."}
    return options


def _body(**more: Schema) -> dict[str, Any]:
    """An instance and what else a request holds, for ``openapi_extra``."""
    schema = {"type": "object", "properties": {**INSTANCE, **more}, "additionalProperties": False}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def solve_body(limits: Limits) -> dict[str, Any]:
    return _body(**_options(limits))


def scores_body() -> dict[str, Any]:
    return _body(weights={"type": "string", "description": "Weights of this server by name."})


def file_body() -> dict[str, Any]:
    return {
        "requestBody": {
            "required": True,
            "content": {"*/*": {"schema": {"type": "string", "format": "binary"}}},
        },
        "parameters": [_format(FORMATS)],
    }


def export_body(formats: tuple[str, ...]) -> dict[str, Any]:
    given = _body(tour=_CITIES, closed={"type": "boolean", "description": HELP["closed"]})
    return {**given, "parameters": [_format(formats)]}


def _format(allowed: tuple[str, ...]) -> Schema:
    return {
        "name": "format",
        "in": "query",
        "required": True,
        "schema": {"type": "string", "enum": list(allowed)},
    }


EXAMPLE = """curl -H 'Content-Type: application/json' \\
     -d '{"coordinates": [[0, 0], [0, 3], [4, 3], [4, 0]], "max_seconds": 0.1}' \\
     ADDRESS/api/solve"""


PAGE = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>GeoRouteNet: the service</title><link rel="stylesheet" href="static/api.css"></head>
<body><main>
<h1>GeoRouteNet {version}: the service</h1>
<p>Bodies and answers are JSON; <a href="openapi.json">openapi.json</a> describes them for programs. Errors
are problem details (RFC 9457). The page for people is <a href=".">the playground</a>.</p>
<pre>{example}</pre>
<h2>Limits of this server</h2>
<dl>{limits}</dl>
{operations}
</main></body></html>
"""


def page(description: dict[str, Any], limits: Limits, address: str) -> str:
    """The description as HTML without scripts."""
    listed = (f"<dt>{name}</dt><dd>{value:,}</dd>" for name, value in limits.to_dict().items())
    return PAGE.format(
        version=escape(description["info"]["version"]),
        example=escape(EXAMPLE.replace("ADDRESS", address)),
        limits="".join(listed),
        operations="\n".join(_operations(description)),
    )


def _operations(description: dict[str, Any]) -> Iterator[str]:
    for path, methods in description["paths"].items():
        for method, about in methods.items():
            yield f"<h2><code>{method.upper()} {escape(path)}</code></h2>"
            yield f"<p>{escape(about.get('description', ''))}</p>"
            rows = [(each["name"], each["schema"]) for each in about.get("parameters", ())]
            for content in about.get("requestBody", {}).get("content", {}).values():
                rows += content["schema"].get("properties", {}).items()
            if rows:
                yield "<table><thead><tr><th>name</th><th>type</th><th>meaning</th></tr></thead><tbody>"
                yield from (_row(name, schema) for name, schema in rows)
                yield "</tbody></table>"


def _row(name: str, schema: Schema) -> str:
    kind = schema.get("type", "")
    kind = " or ".join(kind) if isinstance(kind, list) else kind
    meaning = schema.get("description", "")
    if "enum" in schema:
        meaning += f" One of {', '.join(schema['enum'])}."
    if "maximum" in schema:
        meaning += f" At most {schema['maximum']:g}."
    return f"<tr><td><code>{escape(name)}</code></td><td>{kind}</td><td>{escape(meaning.strip())}</td></tr>"
