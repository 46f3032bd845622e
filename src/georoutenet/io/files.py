"""Files of cities, distances and tours: the extension decides the format, and every format may be gzipped."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import stat
import sys
from pathlib import PurePath
from typing import Any

from numpy.typing import ArrayLike, NDArray

from georoutenet.errors import InputError, path_name, whole
from georoutenet.io.atomic import atomic_write
from georoutenet.io.distances import matrix_instance, parse_matrix_json, parse_matrix_table
from georoutenet.io.export import format_csv, format_geojson, format_gpx, visits
from georoutenet.io.geojson import parse_places_json
from georoutenet.io.npy import MAGIC, read_npy
from georoutenet.io.table import A_WORKBOOK, WORKBOOKS, decoded_table, parse_table
from georoutenet.io.tsplib_format import format_tour, format_tsp, parse_tour, parse_tsp
from georoutenet.io.unpack import MAX_BYTES, is_gzip, read_bounded, read_file, reading, refuse_many
from georoutenet.problem.instance import Instance, needs_instance
from georoutenet.problem.tour import Tour, check_tour, tour_length

PathLike = str | os.PathLike[str]

INSTANCE_EXTENSIONS = (".tsp", ".csv", ".tsv", ".txt", ".npy", ".json", ".geojson")
TOUR_EXTENSIONS = (".tour", ".csv", ".json")
WRITTEN_TOUR_EXTENSIONS = (*TOUR_EXTENSIONS, ".geojson", ".gpx")

_STANDARD_INPUT = "standard input"
_LOOKS_LIKE_TSPLIB = re.compile(  # blanks of one line only: a search of blank lines takes linear time
    r"^[^\S\n]*(?:(?:NAME|TYPE|COMMENT|DIMENSION|EDGE_WEIGHT_TYPE)[^\S\n]*:|(?:NODE_COORD|EDGE_WEIGHT)_SECTION)",
    re.I | re.M,
)


def _extension(path: str, allowed: tuple[str, ...], what: str, *, gzipped: bool = True) -> tuple[str, str]:
    """The name without its extension, and the extension (in lower case, without ``.gz``)."""
    name = PurePath(path).name
    plain = name[:-3] if gzipped and name.lower().endswith(".gz") else name
    for extension in allowed:
        if plain.lower().endswith(extension):
            return plain[: -len(extension)] or "instance", extension
    if plain.lower().endswith(WORKBOOKS):
        raise InputError(f"{path}: {A_WORKBOOK}")
    also = " (each may end in .gz)" if gzipped else ""
    raise InputError(f"{path}: unknown extension for {what}; allowed: {', '.join(allowed)}{also}")


def _read_bytes(path: str, max_bytes: int) -> bytes:
    """All that a file or standard input holds, unpacked."""
    source = _STANDARD_INPUT if path == "-" else path
    if path == "-":
        with reading(source):
            data = read_bounded(sys.stdin.buffer, max_bytes)
    else:
        data = read_file(path, max_bytes)
    _refuse_empty(data, source)
    return data


def _refuse_empty(data: bytes, source: str) -> None:
    if not data.strip():
        raise InputError(f"{source}: empty")


def _decoded(data: bytes, source: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(f"{source}:{line}: not UTF-8 text") from None


def _decoded_tsplib(data: bytes) -> str:
    """TSPLIB is ASCII but for comments, which old files hold in any encoding; the parser sees to the rest."""
    return data.decode("utf-8-sig", errors="replace")


def _read_npy(path: str, *, matrix: bool, max_bytes: int) -> NDArray[Any]:
    """The array in a file, of which nothing but the header is read before that fits."""
    with reading(path), open(path, "rb") as file:
        status = os.fstat(file.fileno())
        if stat.S_ISREG(status.st_mode) and not is_gzip(file.read(2)):
            file.seek(0)
            return read_npy(file, status.st_size, matrix=matrix, max_bytes=max_bytes)
    return _parse_npy(_read_bytes(path, max_bytes), path, matrix=matrix)


def _parse_npy(data: bytes, source: str, *, matrix: bool) -> NDArray[Any]:
    with reading(source):
        return read_npy(io.BytesIO(data), len(data), matrix=matrix, max_bytes=None)


def read_instance(
    path: PathLike, *, matrix: bool = False, id_column: str | None = None, max_bytes: int = MAX_BYTES
) -> Instance:
    """Cities from a file, or from standard input for ``"-"``.

    ``.tsp`` (TSPLIB), ``.csv``, ``.tsv`` and ``.txt`` (``x,y`` or, with a header, ``lat,lon``), ``.json`` and
    ``.geojson`` (places; see ``georoutenet.io.geojson``), ``.npy`` (an array ``(n, 2)``), each also with
    ``.gz``. Other columns and properties are kept, and ``id_column`` names the one by which cities are called
    (by default ``id``, ``..._id`` or ``name``). Tables that are not UTF-8 are read as Windows-1252. The
    published optimum is filled in for TSPLIB's own instances. On standard input the content decides. Anything
    that is not a whole, valid file raises ``InputError``.

    ``matrix=True`` reads distances instead: ``n`` rows of ``n`` numbers, an array ``(n, n)``, or ``.json``
    (see ``georoutenet.io.distances``). Two rows of two numbers may be either, so the content never decides
    this. A ``.tsp`` file says itself which of the two it holds.

    At most ``max_bytes`` are read, counted after unpacking: what a small gzip file unpacks to must not fill
    the memory. Tables and lists may have a value for every 16 of these bytes. A ``.npy`` file of distances is
    bounded by the largest matrix instead.
    """
    path, max_bytes = path_name(path), whole("max_bytes", max_bytes)
    if path == "-":
        data = _read_bytes(path, max_bytes)
        source, name, extension = _STANDARD_INPUT, "instance", _looks_like(data, matrix)
    else:
        source = path
        name, extension = _extension(path, INSTANCE_EXTENSIONS, "cities")
        data = b"" if extension == ".npy" else _read_bytes(path, max_bytes)
    if id_column is not None and (matrix or extension in (".npy", ".tsp")):
        kind = "a matrix" if matrix else f"a {extension} file"
        raise InputError(f"{source}: there is no column {id_column!r} of ids: {kind} has no columns")
    if not matrix and extension not in (".npy", ".tsp"):
        refuse_many(data, source, max_bytes, json=extension in (".json", ".geojson"))
    if extension == ".npy":
        if path == "-":
            array = _parse_npy(data, source, matrix=matrix)
        else:
            array = _read_npy(path, matrix=matrix, max_bytes=max_bytes)
        if matrix:
            return matrix_instance(array, source, name)
        try:
            return Instance(array, name=name)
        except InputError as error:
            raise InputError(f"{source}: {error}") from None
    return parse_instance(data, extension, source, name=name, matrix=matrix, id_column=id_column)


def parse_instance(
    data: bytes,
    extension: str,
    source: str = "text",
    *,
    name: str = "instance",
    matrix: bool = False,
    id_column: str | None = None,
) -> Instance:
    """Cities from the content of a file of any extension but ``.npy``; ``source`` is named in errors."""
    _refuse_empty(data, source)
    if extension == ".tsp":
        return parse_tsp(_decoded_tsplib(data), source, name=name)
    if extension in (".json", ".geojson"):
        text = _decoded(data, source)
        if matrix:
            return parse_matrix_json(text, source, name=name)
        return parse_places_json(text, source, name=name, id_column=id_column)
    text = decoded_table(data, source)
    if matrix:
        return parse_matrix_table(text, source, name=name)
    return parse_table(text, source, name=name, id_column=id_column, tabs=extension == ".tsv")


def _looks_like(data: bytes, matrix: bool) -> str:
    """The extension that fits what came from standard input."""
    if data.startswith(MAGIC):
        return ".npy"
    if data.lstrip()[:1] in (b"{", b"["):
        return ".json"
    return ".tsp" if _LOOKS_LIKE_TSPLIB.search(_decoded_tsplib(data)) else ".csv"


def read_tour(path: PathLike, n: int, *, max_bytes: int = MAX_BYTES) -> Tour:
    """A tour of ``n`` cities, counting from 0, from a ``.tour``/``.opt.tour``, ``.csv`` or ``.json`` file.

    ``.csv`` holds the column ``city`` in visiting order, ``.json`` a list or an object with the list
    ``tour``; both count from 0. Each may end in ``.gz``. ``max_bytes`` as in
    ``read_instance``.
    """
    path, max_bytes = path_name(path), whole("max_bytes", max_bytes)
    _, extension = _extension(path, TOUR_EXTENSIONS, "a tour")
    data = _read_bytes(path, max_bytes)
    if extension != ".tour":
        refuse_many(data, path, max_bytes, json=extension == ".json")
    cities: Any
    if extension == ".tour":
        cities = parse_tour(_decoded_tsplib(data), path)
    elif extension == ".csv":
        cities = _parse_csv_tour(_decoded(data, path), path)
    else:
        cities = _parse_json_tour(_decoded(data, path), path)
    try:
        return check_tour(cities, n)
    except (InputError, OverflowError) as error:
        raise InputError(f"{path}: {error}") from None


def _parse_csv_tour(text: str, source: str) -> list[int]:
    cities = []
    names = text.partition("\n")[0]
    separator = ";" if names.count(";") > names.count(",") else ","  # as written for decimal commas
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
    try:
        header = [field.strip().lower() for field in next(rows, [])]
        if header.count("city") != 1:
            raise InputError(
                f"{source}:1: the header must name the column city, got {', '.join(header)[:80]!r}"
            )
        column = header.index("city")
        for row in rows:
            if not row:
                continue
            field = row[column].strip() if column < len(row) else ""
            if not (field.isascii() and field.isdigit() and len(field) < 16):
                raise InputError(f"{source}:{rows.line_num}: expected a city's number, got {field[:40]!r}")
            cities.append(int(field))
    except csv.Error as error:
        raise InputError(f"{source}:{rows.line_num}: {error}") from None
    return cities


def _parse_json_tour(text: str, source: str) -> list[int]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{source}: not JSON: {error}") from None
    cities = content.get("tour") if isinstance(content, dict) else content
    if not isinstance(cities, list) or not all(type(city) is int for city in cities):
        raise InputError(
            f"{source}: expected a list of city numbers, or an object with such a list as 'tour'"
        )
    return cities


def write_tour(path: PathLike, tour: ArrayLike, instance: Instance, *, closed: bool = True) -> None:
    """Write a tour: ``.tour`` (TSPLIB, from 1), ``.csv`` (visiting order), ``.json``, ``.geojson``, ``.gpx``.

    All but the first hold the instance's columns; the last two need latitudes and longitudes.
    ``closed=False`` measures the path without the edge back to its start. The file appears whole or not
    at all.
    """
    needs_instance(instance)
    path = path_name(path)
    _, extension = _extension(path, WRITTEN_TOUR_EXTENSIONS, "a tour", gzipped=False)
    text = format_route(tour, instance, extension, closed=closed)
    with atomic_write(path) as file:
        file.write(text)


def format_route(tour: ArrayLike, instance: Instance, extension: str, *, closed: bool = True) -> str:
    """The text that ``write_tour`` writes to a file of this extension."""
    cities = check_tour(tour, instance.n)
    length = tour_length(instance, cities, closed=closed)
    if extension == ".tour":
        kind = "" if closed else "open path, "
        comment = f"{kind}length {length} ({instance.rule.value})"
        return format_tour(cities, name=f"{instance.name}.tour", comment=comment)
    if extension == ".csv":
        return format_csv(cities, instance)
    if extension == ".geojson":
        return format_geojson(cities, instance, closed=closed)
    if extension == ".gpx":
        return format_gpx(cities, instance, closed=closed)
    content = {
        "name": instance.name,
        "n": instance.n,
        "rule": instance.rule.value,
        "length": length,
        "closed": closed,
        "tour": cities.tolist(),
        "visits": visits(cities, instance),
    }
    return json.dumps(content) + "\n"


def write_instance(path: PathLike, instance: Instance, *, scale: float | None = None) -> None:
    """Write cities to ``.tsp`` (``scale`` as in ``format_tsp``) or ``.csv`` (``x,y``, or ``lat,lon``).

    A matrix is written with its coordinates to ``.tsp``, and as it is to ``.csv``, from where
    ``read_instance(path, matrix=True)`` reads it.
    """
    needs_instance(instance)
    path = path_name(path)
    _, extension = _extension(path, (".tsp", ".csv"), "cities to write", gzipped=False)
    if extension == ".tsp":
        text = format_tsp(instance, scale=scale)
    else:
        header = [] if instance.matrix is not None else ["x,y" if instance.latlon is None else "lat,lon"]
        if instance.matrix is not None:
            values: NDArray[Any] = instance.distance_matrix()
        else:
            values = instance.coordinates if instance.latlon is None else instance.latlon
        text = "\n".join([*header, *(",".join(map(repr, row)) for row in values.tolist()), ""])
    with atomic_write(path) as file:
        file.write(text)
