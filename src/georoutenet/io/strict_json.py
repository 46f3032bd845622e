"""JSON from files that others may have written: refused where readers would disagree or break."""

from __future__ import annotations

import json
from typing import Any

from georoutenet.errors import InputError

DEEPEST = 64
"""How far tables and lists may be nested; beyond, working with the value can exhaust Python's stack."""


def parse_json(text: str | bytes) -> Any:
    """The value; text that is no JSON, repeats a key of a table or nests too deeply is an `InputError`."""
    try:
        value = json.loads(text, object_pairs_hook=_without_repeats)
    except RecursionError:
        raise InputError(f"JSON nested deeper than {DEEPEST} levels") from None
    except InputError:
        raise
    except ValueError as error:  # also bytes that are no UTF-8 and numbers of thousands of digits
        raise InputError(f"not JSON: {error}") from None
    level = [value]
    for _ in range(DEEPEST):
        level = [part for outer in level for part in _parts(outer)]
        if not level:
            return value
    raise InputError(f"JSON nested deeper than {DEEPEST} levels")


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for name, value in pairs:
        if name in table:
            raise InputError(f"JSON with {name!r} twice in one table")
        table[name] = value
    return table


def _parts(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []
