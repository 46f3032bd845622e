"""The TSPLIB file format: ``.tsp`` and ``.tour`` text to and from instances and tours.

A file is a list of ``KEY : value`` lines and of sections whose numbers are read as tokens, so line breaks
inside a section do not matter. A file that cannot be read in full is refused with its name and the line.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from georoutenet.errors import InputError
from georoutenet.io.optima import known_optimum
from georoutenet.problem.instance import DistanceRule, Instance
from georoutenet.problem.matrix import LARGEST_MATRIX
from georoutenet.problem.tour import check_tour

_RULES = [rule.value for rule in DistanceRule if rule.is_tsplib]
_LINE = re.compile(r"(\w+)\s*:?\s*(.*)", re.DOTALL)
_NEXT_KEYWORD = re.compile(r"\n[^\S\n]*[A-Za-z]")

_TSP_KEYS = {"NAME", "TYPE", "DIMENSION", "EDGE_WEIGHT_TYPE"}
# What only says how to draw the cities, or repeats what most rules imply.
_TSP_HARMLESS = {"EDGE_WEIGHT_FORMAT", "NODE_COORD_TYPE", "DISPLAY_DATA_TYPE"}
_TSP_SECTIONS = {"NODE_COORD_SECTION", "DISPLAY_DATA_SECTION", "EDGE_WEIGHT_SECTION"}

# The part of the matrix whose rows a file holds. The columns of one triangle are the rows of the other.
_LAYOUTS = {
    "FULL_MATRIX": "full",
    "UPPER_ROW": "upper",
    "LOWER_ROW": "lower",
    "UPPER_DIAG_ROW": "upper with diagonal",
    "LOWER_DIAG_ROW": "lower with diagonal",
    "UPPER_COL": "lower",
    "LOWER_COL": "upper",
    "UPPER_DIAG_COL": "lower with diagonal",
    "LOWER_DIAG_COL": "upper with diagonal",
}
_ALLOWED = {
    "coordinates": {"EDGE_WEIGHT_FORMAT": ["FUNCTION"], "NODE_COORD_TYPE": ["TWOD_COORDS"]},
    "matrix": {"EDGE_WEIGHT_FORMAT": list(_LAYOUTS), "NODE_COORD_TYPE": ["TWOD_COORDS", "NO_COORDS"]},
}


class _Entry(NamedTuple):
    value: str
    line: int


class _Problem(Exception):
    """Something wrong at a line; turned into an ``InputError`` with the file's name."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")


def _split(text: str, keys: set[str], sections: set[str]) -> dict[str, _Entry]:
    """Keys with their values and sections with their bodies, each with its line, as far as ``EOF``."""
    text = text.removeprefix("\ufeff")
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    found: dict[str, _Entry] = {}
    position, line = 0, 0
    while position < len(text):
        line += 1
        end = text.find("\n", position)
        end = len(text) if end < 0 else end
        content = text[position:end].strip()
        position = end + 1
        match = _LINE.match(content)
        word, value = (match[1].upper(), match[2]) if match else (content, "")
        if word == "" or word == "COMMENT":
            continue
        if word == "EOF":
            break
        if word in found:
            raise _Problem(line, f"{word} appears twice, first in line {found[word].line}")
        if word.endswith("_SECTION"):
            if word not in sections:
                raise _Problem(line, f"{word} is not supported; allowed: {', '.join(sorted(sections))}")
            if value:
                raise _Problem(line, f"{word} must stand alone on its line, got {_shown(value)} after it")
            following = _NEXT_KEYWORD.search(text, end)
            position = following.start() + 1 if following else len(text)
            body = text[end + 1 : position]
            found[word] = _Entry(body, line)
            line += body.count("\n")
        elif word in keys:
            found[word] = _Entry(value, line)
        else:
            allowed = ", ".join(sorted(keys | sections | {"COMMENT", "EOF"}))
            raise _Problem(line, f"unknown keyword {_shown(word)}; allowed: {allowed}")
    return found


def _dimension(found: dict[str, _Entry]) -> int:
    value, line = found["DIMENSION"]
    if not (value.isascii() and value.isdigit() and len(value) < 16 and int(value) > 0):
        raise _Problem(line, f"DIMENSION must be a whole number from 1, got {_shown(value)}")
    return int(value)


def _require(found: dict[str, _Entry], key: str) -> _Entry:
    if key not in found:
        last = max((entry.line for entry in found.values()), default=1)
        raise _Problem(last, f"{key} is missing")
    return found[key]


def _is_plain(text: str) -> bool:
    """Python reads ``1_000`` and non-ASCII digits as numbers; TSPLIB does not."""
    return text.isascii() and "_" not in text


def _coordinates(section: _Entry, n: int) -> NDArray[np.float64]:
    """Rows ``id x y`` as coordinates in the order of the ids, which must be 1..n in any order."""
    tokens = section.value.split()
    if len(tokens) == 3 * n and _is_plain("".join(tokens)):
        try:
            rows = np.array(list(map(float, tokens))).reshape(n, 3)
        except ValueError:
            raise _coordinate_problem(section, n) from None
        ids, expected = rows[:, 0], np.arange(1, n + 1)
        if not np.array_equal(ids, expected):
            rows = rows[np.argsort(ids)]
        if np.array_equal(rows[:, 0], expected) and np.isfinite(rows).all():
            return rows[:, 1:]
    raise _coordinate_problem(section, n)


def _tokens(section: _Entry) -> list[tuple[str, int]]:
    """The words of a section, each with its line."""
    lines = enumerate(section.value.split("\n"), section.line + 1)
    return [(token, line) for line, row in lines for token in row.split()]


def _number_problem(tokens: list[tuple[str, int]], what: str) -> _Problem | None:
    """The first word that is not a finite number."""
    for token, line in tokens:
        try:
            number = float(token) if _is_plain(token) else None
        except ValueError:
            number = None
        if number is None:
            return _Problem(line, f"expected a number, got {_shown(token)}")
        if not np.isfinite(number):
            return _Problem(line, f"{what} must be finite, got {_shown(token)}")
    return None


def _coordinate_problem(section: _Entry, n: int) -> _Problem:
    """What is wrong with a coordinate section, and where: the slow path that only a broken file takes."""
    tokens = _tokens(section)
    problem = _number_problem(tokens, "coordinates")
    if problem is not None:
        return problem
    if len(tokens) != 3 * n:
        for line, row in enumerate(section.value.split("\n"), section.line + 1):
            if len(row.split()) not in (0, 3):
                return _Problem(line, f"expected a city's number, x and y, got {len(row.split())} values")
        found = len(tokens) // 3
        return _Problem(tokens[-1][1] if tokens else section.line, f"DIMENSION is {n}, found {found} cities")
    first: dict[float, int] = {}
    for token, line in tokens[0::3]:
        number = float(token)
        if not (number.is_integer() and 1 <= number <= n):
            return _Problem(line, f"cities are numbered 1..{n}, got {_shown(token)}")
        if number in first:
            return _Problem(line, f"city {token} appears twice, first in line {first[number]}")
        first[number] = line
    raise AssertionError("the section is in order")


def _weights(section: _Entry, n: int, form: str) -> NDArray[Any]:
    """The matrix in a weight section: integers, unless a number is written with a point or an exponent.

    What the file does not hold of it is filled in by symmetry.
    """
    layout = _LAYOUTS[form]
    without = 0 if layout.endswith("diagonal") else 1  # entries of the diagonal, per city, that are left out
    expected = n * n if layout == "full" else n * (n + 1) // 2 - without * n
    words = section.value.split()
    if len(words) != expected:
        tokens = _tokens(section)
        line = tokens[-1][1] if tokens else section.line
        raise _number_problem(tokens, "distances") or _Problem(
            line, f"{form} of {n} cities has {expected} numbers, found {len(words)}"
        )
    numbers = _whole(words)
    if numbers is None:
        problem = _number_problem(_tokens(section), "distances")
        if problem is not None:
            raise problem
        numbers = np.array(list(map(float, words)))
    if layout == "full":
        return numbers.reshape(n, n)
    matrix = np.zeros((n, n), dtype=numbers.dtype)
    rows, columns = np.triu_indices(n, without) if "upper" in layout else np.tril_indices(n, -without)
    matrix[rows, columns] = numbers
    matrix[columns, rows] = numbers
    return matrix


def _whole(words: list[str]) -> NDArray[np.int64] | None:
    """The numbers if all are written as integers of 64 bits."""
    try:
        return np.array(list(map(int, words)), dtype=np.int64) if _is_plain("".join(words)) else None
    except (ValueError, OverflowError):
        return None


def _rule(found: dict[str, _Entry]) -> DistanceRule:
    """The file's rule, where this and all that the file says about its form is supported."""
    if "TYPE" in found and found["TYPE"].value.upper().split()[:1] != ["TSP"]:
        kind = found["TYPE"]
        hint = "; give its matrix to georoutenet.Asymmetric" if kind.value.upper() == "ATSP" else ""
        raise _Problem(kind.line, f"TYPE {_shown(kind.value)} is not supported; allowed: TSP{hint}")
    weight = _require(found, "EDGE_WEIGHT_TYPE")
    if weight.value.upper() not in _RULES:
        hint = "; cities in space: give their distances as Instance(matrix=...)"
        raise _Problem(
            weight.line,
            f"EDGE_WEIGHT_TYPE {_shown(weight.value)} is not supported; allowed: {', '.join(_RULES)}"
            + (hint if weight.value.upper().endswith("_3D") else ""),
        )
    rule = DistanceRule(weight.value.upper())
    explicit = rule is DistanceRule.EXPLICIT
    for key, allowed in _ALLOWED["matrix" if explicit else "coordinates"].items():
        if key in found and found[key].value.upper() not in allowed:
            raise _Problem(
                found[key].line, f"{key} must be {' or '.join(allowed)}, got {_shown(found[key].value)}"
            )
    if not explicit and "EDGE_WEIGHT_SECTION" in found:
        line = found["EDGE_WEIGHT_SECTION"].line
        raise _Problem(line, f"EDGE_WEIGHT_SECTION goes with EDGE_WEIGHT_TYPE EXPLICIT, not {rule.value}")
    return rule


def parse_tsp(text: str, source: str = "text", *, name: str = "instance") -> Instance:
    """The instance in the text of a ``.tsp`` file; ``name`` stands in where the file has no NAME.

    TYPE must be TSP and EDGE_WEIGHT_TYPE one of TSPLIB's rules for the plane, GEO, or EXPLICIT in any of its
    formats. An EXPLICIT file's NODE_COORD_SECTION or else DISPLAY_DATA_SECTION, where it has one, gives the
    coordinates. The published optimum is filled in for TSPLIB's own instances. ``source`` is named in errors.
    """
    coordinates: Any = None
    matrix: Any = None
    try:
        found = _split(text, _TSP_KEYS | _TSP_HARMLESS, _TSP_SECTIONS)
        rule = _rule(found)
        _require(found, "DIMENSION")
        n = _dimension(found)
        if rule is DistanceRule.EXPLICIT:
            if n > LARGEST_MATRIX:
                line = found["DIMENSION"].line
                raise _Problem(line, f"a matrix may have at most {LARGEST_MATRIX:,} cities, got {n:,}")
            form = _require(found, "EDGE_WEIGHT_FORMAT").value.upper()
            matrix = _weights(_require(found, "EDGE_WEIGHT_SECTION"), n, form)
            places = found.get("NODE_COORD_SECTION") or found.get("DISPLAY_DATA_SECTION")
        else:
            places = _require(found, "NODE_COORD_SECTION")
        if places is not None:
            coordinates = _coordinates(places, n)
    except _Problem as problem:
        raise InputError(f"{source}:{problem.line}: {problem}") from None
    if "NAME" in found:
        name = found["NAME"].value.removesuffix(".tsp") or name
    optimum = known_optimum(name, n, rule)
    try:
        return Instance(coordinates, name=name, rule=rule, optimum=optimum, matrix=matrix)
    except InputError as error:
        raise InputError(f"{source}: {error}") from None


def parse_tour(text: str, source: str = "text") -> list[int]:
    """The visiting order in the text of a ``.tour`` file; cities count from 0, in the file from 1.

    The tour ends at -1 or with its section; it must visit each of its cities 1..n once.
    """
    try:
        found = _split(text, {"NAME", "TYPE", "DIMENSION"}, {"TOUR_SECTION"})
        if "TYPE" in found and found["TYPE"].value.upper() != "TOUR":
            kind = found["TYPE"]
            raise _Problem(kind.line, f"TYPE {_shown(kind.value)} is not supported; allowed: TOUR")
        section = _require(found, "TOUR_SECTION")
        n = _dimension(found) if "DIMENSION" in found else None
        return _cities(section, n)
    except _Problem as problem:
        raise InputError(f"{source}:{problem.line}: {problem}") from None


def _cities(section: _Entry, n: int | None) -> list[int]:
    tokens = _tokens(section)
    cities: list[int] = []
    # A tour of so many words has no larger number, and none may be kept: a dictionary of numbers that
    # a stranger chooses can take quadratic time.
    words = [token for token, _ in tokens]
    most = n if n is not None else words.index("-1") if "-1" in words else len(words)
    first: dict[int, int] = {}
    for k, (token, line) in enumerate(tokens):
        try:
            city = int(token) if _is_plain(token) else 0
        except ValueError:
            city = 0
        if city == -1:
            # A second -1 ends the list of tours; anything else would be a second tour.
            if any(rest != "-1" for rest, _ in tokens[k + 1 :]):
                raise _Problem(tokens[k + 1][1], "numbers after the -1 that ends the tour")
            break
        if not 1 <= city <= most:
            allowed = f"1..{most}"
            raise _Problem(line, f"cities are numbered {allowed}, got {_shown(token)}")
        if city in first:
            raise _Problem(line, f"city {city} appears twice, first in line {first[city]}")
        first[city] = line
        cities.append(city - 1)
    expected = len(cities) if n is None else n
    if len(cities) != expected:
        raise _Problem(section.line, f"DIMENSION is {n}, the tour has {len(cities)} cities")
    if not cities:
        raise _Problem(section.line, "the tour is empty")
    return cities


def _one_line(name: str) -> str:
    return " ".join(name.split())


def format_tour(tour: ArrayLike, *, name: str = "tour", comment: str | None = None) -> str:
    """The text of a ``.tour`` file for a tour with cities counted from 0."""
    cities = check_tour(tour, np.size(tour)) + 1
    lines = [f"NAME : {_one_line(name)}"]
    if comment:
        lines.append(f"COMMENT : {_one_line(comment)}")
    lines += ["TYPE : TOUR", f"DIMENSION : {len(cities)}", "TOUR_SECTION"]
    return "\n".join([*lines, *map(str, cities.tolist()), "-1", "EOF", ""])


def format_tsp(instance: Instance, *, scale: float | None = None, comment: str | None = None) -> str:
    """The text of a ``.tsp`` file; reading it back gives the same coordinates and matrix bit for bit.

    TSPLIB has no rule for plain Euclidean lengths. With ``scale`` such an instance is multiplied by it and
    written as EUC_2D, whose distances are rounded to integers; without it the instance is refused. A matrix
    is written as EXPLICIT in full, with the coordinates to draw where there are any.
    """
    rule = instance.rule
    if scale is not None:
        if rule is not DistanceRule.EUCLIDEAN or not (np.isfinite(scale) and scale > 0):
            raise InputError(f"scale is a number > 0 for EUCLIDEAN instances, got {scale} for {rule.value}")
        rule = DistanceRule.EUC_2D
    elif rule is DistanceRule.EUCLIDEAN:
        raise InputError(
            "TSPLIB has no rule for unrounded Euclidean lengths: give a scale (for the unit square, say 1e6) "
            "to write the instance as EUC_2D, whose distances are rounded to integers"
        )
    elif rule is DistanceRule.GREAT_CIRCLE:
        raise InputError(
            "TSPLIB has no rule for unrounded great-circle lengths: write the cities as .csv, or the matrix "
            "of their distances, Instance(matrix=instance.distance_matrix())"
        )
    lines = [f"NAME : {_one_line(instance.name)}"]
    if comment:
        lines.append(f"COMMENT : {_one_line(comment)}")
    lines += ["TYPE : TSP", f"DIMENSION : {instance.n}", f"EDGE_WEIGHT_TYPE : {rule.value}"]
    if rule is DistanceRule.EXPLICIT:
        display = "TWOD_DISPLAY" if instance.has_coordinates else "NO_DISPLAY"
        lines += ["EDGE_WEIGHT_FORMAT : FULL_MATRIX", f"DISPLAY_DATA_TYPE : {display}", "EDGE_WEIGHT_SECTION"]
        lines += (" ".join(map(repr, row)) for row in instance.distance_matrix().tolist())
    if instance.has_coordinates:
        coordinates = instance.coordinates * (1.0 if scale is None else scale)
        lines.append("DISPLAY_DATA_SECTION" if rule is DistanceRule.EXPLICIT else "NODE_COORD_SECTION")
        lines += (f"{city} {x!r} {y!r}" for city, (x, y) in enumerate(coordinates.tolist(), 1))
    return "\n".join([*lines, "EOF", ""])
