"""Cities as a table: the text of ``.csv``, ``.tsv`` and ``.txt`` files."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator

from georoutenet.errors import InputError, warn
from georoutenet.io.columns import find_coordinates, named_columns, numbers_where_exact, to_instance
from georoutenet.problem.instance import Instance

WORKBOOKS = (".xlsx", ".xlsm", ".xls", ".ods")
A_WORKBOOK = "a spreadsheet's own format; save it there as CSV UTF-8"
_LONGEST = 200
"""Lines that one row may take through line breaks within quotes."""


def decoded_table(data: bytes, source: str) -> str:
    """Text as spreadsheets save it: UTF-8, UTF-16 with its mark, else Windows-1252, which a warning names."""
    if data.startswith((b"PK\x03\x04", b"\xd0\xcf\x11\xe0")):  # whatever the file is called
        raise InputError(f"{source}: {A_WORKBOOK}")
    marked = data[:2] in (b"\xff\xfe", b"\xfe\xff")
    for encoding in ["utf-16"] if marked else ["utf-8-sig", "cp1252"]:
        try:
            text = data.decode(encoding)
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            continue
        if encoding == "cp1252":
            warn("not UTF-8 text: read as Windows-1252")
        return text
    raise InputError(f"{source}:{line}: not text in UTF-8 or Windows-1252")


def split_rows(text: str, source: str) -> Iterator[tuple[int, list[str]]]:
    """Line number and fields of each row; the first row decides the separator: tab, ``;``, ``,`` or blanks.

    Tabs separate where each row has as many of them; otherwise they are blanks.
    """
    lines = _lines(text, source)
    return _split(lines, _delimiter([line for _, line in lines]), source)


def _lines(text: str, source: str) -> list[tuple[int, str]]:
    """The lines that are neither empty nor comments, with their numbers."""
    lines = [(k, line) for k, line in enumerate(text.splitlines(), 1) if line.strip()]
    lines = [(k, line) for k, line in lines if not line.lstrip().startswith("#")]
    if lines and re.fullmatch(r"sep=[;,\t]?", lines[0][1].strip(' "\r')):
        lines = lines[1:]  # for Excel; the header shows the separator too
    if not lines:
        raise InputError(f"{source}: no cities: the file has no rows")
    return lines


def _split(
    lines: list[tuple[int, str]], delimiter: str | None, source: str
) -> Iterator[tuple[int, list[str]]]:
    at = 0
    while at < len(lines):
        k, line = lines[at]
        at += 1
        if delimiter is None:
            yield k, line.split()
        elif '"' not in line:
            yield k, [field.strip() for field in line.split(delimiter)]
        else:
            following = (f"{each}\n" for _, each in lines[at - 1 : at + _LONGEST])
            # strict: a quote that is never closed is an error, not a field with a quote in it
            row = csv.reader(following, delimiter=delimiter, strict=True)
            try:
                fields = [field.strip() for field in next(row)]
            except csv.Error as error:
                raise InputError(f"{source}:{k}: {error}") from None
            at += row.line_num - 1
            yield k, fields


def _delimiter(lines: list[str]) -> str | None:
    first = lines[0]
    if '"' in "".join(lines):  # what stands in quotes separates nothing
        lines = re.sub('"[^"]*"', "", "\n".join(lines)).split("\n")
    tabs = first.count("\t")
    fields = [field.strip() for field in first.split("\t")]
    alone = all(fields) and not any(field[0] in ",;" or field[-1] in ",;" for field in fields)
    if tabs and alone and all(line.count("\t") == tabs for line in lines):
        return "\t"
    return ";" if ";" in first else "," if "," in first else None


def parse_number(field: str) -> float | None:
    try:
        return float(field) if field.isascii() and "_" not in field else None
    except ValueError:
        return None


def parse_table(
    text: str,
    source: str = "text",
    *,
    name: str = "instance",
    id_column: str | None = None,
    tabs: bool = False,
) -> Instance:
    """Cities from rows ``x,y``, separated by commas, semicolons, tabs or blanks; ``#`` starts a comment line.

    A header names the columns: ``x``/``y``, or ``lat``/``lon`` in degrees, whose distances are great-circle
    kilometers (``georoutenet.problem.globe``). With a header, other columns become
    ``Instance.columns``, one of them the ids (``id_column``, see ``georoutenet.io.columns.to_instance``).
    Between semicolons or tabs, decimals may be written with a comma. ``source`` is named in errors.
    """
    lines = _lines(text, source)
    delimiter = "\t" if tabs else _delimiter([line for _, line in lines])
    rows = list(_split(lines, delimiter, source))
    commas = delimiter in (";", "\t")
    line, fields = rows[0]
    columns, geographic, names = [0, 1], False, ["x", "y"]
    others: list[int] = []
    if all(_number(field, commas) is None for field in fields):
        columns, geographic, others = find_coordinates(fields, f"{source}:{line}")
        names = fields
        rows = rows[1:]
    elif id_column is not None:
        raise InputError(f"{source}:{line}: there is no column {id_column!r} of ids: the table has no header")
    if not rows:
        raise InputError(f"{source}: no cities: there is nothing below the header")
    pairs = [_city(fields, columns, len(names), commas, f"{source}:{line}") for line, fields in rows]
    if commas:
        _check_one_way(rows, columns, source)
    cells = [numbers_where_exact([fields[k] for _, fields in rows]) for k in others]
    return to_instance(
        pairs,
        geographic=geographic,
        source=source,
        where=lambda k: f"{source}:{rows[k][0]}",
        name=name,
        columns=named_columns([names[k] for k in others], cells),
        id_column=id_column,
        decimal_commas=commas and any("," in fields[k] for _, fields in rows for k in columns),
    )


def _number(field: str, commas: bool) -> float | None:
    return parse_number(field.replace(",", ".") if commas and "." not in field else field)


def _city(fields: list[str], columns: list[int], width: int, commas: bool, where: str) -> tuple[float, float]:
    if len(fields) != width:
        hint = "; a header naming x and y is needed to skip other columns" if width == 2 < len(fields) else ""
        hint += ", and distances are read with matrix=True (--matrix)" if hint else ""
        raise InputError(f"{where}: expected {width} columns, got {len(fields)}{hint}")
    first, second = (_number(fields[column], commas) for column in columns)
    if first is None or second is None:
        wrong = fields[columns[0] if first is None else columns[1]]
        hint = "thousands are not separated" if commas else "decimals are written with a point"
        hint = f"; {hint}" if "," in wrong else ""
        raise InputError(f"{where}: expected a number, got {wrong[:40]!r}{hint}")
    return first, second


def _check_one_way(rows: list[tuple[int, list[str]]], columns: list[int], source: str) -> None:
    """A table with both decimal points and commas has a thousand too many somewhere."""
    seen: dict[str, int] = {}
    for line, fields in rows:
        for column in columns:
            seen.update({mark: line for mark in ".," if mark in fields[column] and mark not in seen})
    if len(seen) == 2:
        raise InputError(
            f"{source}:{max(seen.values())}: decimals are written with a comma or with a point, not both: "
            f"the other is in line {min(seen.values())}"
        )
