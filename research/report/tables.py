"""The cells of the paper's tables from per-instance files, with the paper's values beside ours.

Every number comes from the files of a folder or from ``paper.csv``, the numbers of the paper's
tables. What no file gives stays empty.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from georoutenet.errors import InputError
from georoutenet.evaluate.names import BATCH_STATISTICS, METHODS, decoder_name, method_name
from georoutenet.evaluate.packed import SUFFIX, Packed
from georoutenet.evaluate.results import Results, read_results
from georoutenet.evaluate.statistics import Interval, bootstrap_all
from georoutenet.io.datasets import dataset
from georoutenet.io.tsplib import TSPLIB27, size_groups, tsplib_names
from research.report.efficiency import Measurement, is_measurements, read_measurements

DECODERS = ("Greedy", "Beam-100", "Beam-1000")
GROUPS = ("51-76", "99-101", "105-150", "159-299", "all")
TSPLIB = ("tsplib27", "tsplib36")
PAPERS_SOLVERS = ("Concorde", "LKH-3")


class PaperValue(NamedTuple):
    """One cell of the paper's tables; NaN where it gives no number."""

    length: float
    gap: float


@cache
def paper_values() -> dict[tuple[str, str, str, str], PaperValue]:
    """The paper's numbers by method, decoder, set and group; its ``tsplib27`` are 27 it does not name."""
    text = Path(__file__).with_name("paper.csv").read_text(encoding="utf-8")

    def number(cell: str) -> float:
        return float(cell) if cell else math.nan

    return {
        (_method(row), row["decoder"], row["set"], row["group"]): PaperValue(
            number(row["length"]), number(row["gap"])
        )
        for row in csv.DictReader(text.splitlines())
    }


def _method(row: dict[str, str]) -> str:
    """The model's name, or the solver's, which stands in place of an encoder."""
    return METHODS.get((row["encoder"], row["objective"]), row["encoder"])


def papers_decoder(decoder: str) -> str:
    """The decoder without what the paper does not say: which statistics its norms use, which precision."""
    parts = decoder.split(", ")
    return ", ".join(part for part in parts if part not in (BATCH_STATISTICS, "bfloat16"))


def paper_value(method: str, decoder: str, set_name: str, group: str = "all") -> PaperValue:
    """The paper's cell."""
    key = (method, papers_decoder(decoder), set_name, group)
    return paper_values().get(key, PaperValue(math.nan, math.nan))


@dataclass(frozen=True)
class Cell:
    """One number of ours and, where the paper has it, the paper's."""

    method: str
    weights: str
    decoder: str
    set: str
    group: str
    instances: int
    length: float
    gap: float
    gap_low: float
    """Of the 95 % interval; NaN on TSPLIB, whose instances are no sample."""
    gap_high: float
    paper_length: float
    paper_gap: float
    file: str


class File(NamedTuple):
    name: str
    results: Results


class Folder(NamedTuple):
    """What lies in a folder of results."""

    complete: list[File]
    partial: list[File]
    """Those that cover only part of their set; the table of shifts alone uses them."""
    efficiency: dict[str, list[Measurement]]
    """Measurements by the name of their file."""
    studies: Sequence[File] = ()
    """Results in ``studies``, which have tables of their own."""

    @property
    def measurements(self) -> list[Measurement]:
        return [each for file in self.efficiency.values() for each in file]


def read_folder(folder: Path) -> Folder:
    """All results under a folder, from packed files and from CSV files."""
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder")
    complete, partial, studies, efficiency = [], [], [], {}
    for path in sorted(folder.rglob("*"), key=lambda each: each.relative_to(folder).with_suffix("").parts):
        name = f"{folder.resolve().name}/{path.relative_to(folder).as_posix()}"
        if path.name.endswith((".csv", ".csv.gz")) and is_measurements(path):
            efficiency[name] = read_measurements(path)
            continue
        for cell, results in _read(path).items():
            missing = {"weights", "sha256", "encoder", "objective", "set", "decoder", "width"} - set(
                results.header
            )
            if missing:
                raise InputError(f"{name}{cell}: the header lacks {', '.join(sorted(missing))}")
            if path.relative_to(folder).parts[0] == "studies":
                studies.append(File(f"{name}{cell}", results))
            elif len(results) == dataset(results.header["set"]).count:
                complete.append(File(f"{name}{cell}", results))
            else:
                partial.append(File(f"{name}{cell}", results))
    hashes: dict[str, str] = {}
    for name, results in [*complete, *partial, *studies]:
        weights, sha256 = results.header["weights"], results.header["sha256"]
        if hashes.setdefault(weights, sha256) != sha256:
            raise InputError(f"{name}: weights {weights!r} of another SHA-256 than in the files before it")
    return Folder(complete, partial, efficiency, studies)


def _read(path: Path) -> dict[str, Results]:
    """The results in a file, by what follows its name; none in a file of another kind."""
    if path.suffix == SUFFIX:
        return {f":{name}": each for name, each in Packed(path).results().items()}
    return {"": read_results(path)} if path.name.endswith((".csv", ".csv.gz")) else {}


def make_cells(complete: Iterable[File]) -> list[Cell]:
    """A cell for each set and group that a file gives; of two files for one cell the first by name counts."""
    parts: dict[tuple[str, str, str, str], tuple[File, list[int]]] = {}
    for file in complete:
        for set_name, group, chosen in _parts(file.results):
            if np.isfinite(file.results.gaps[chosen]).all():
                key = (file.results.header["weights"], decoder_name(file.results.header), set_name, group)
                parts.setdefault(key, (file, chosen))
    gaps = {key: file.results.gaps[chosen] for key, (file, chosen) in parts.items()}
    random = [key for key in parts if dataset(key[2]).is_random]
    intervals = dict(zip(random, bootstrap_all([gaps[key] for key in random]), strict=True))
    unknown = Interval(math.nan, math.nan, math.nan)
    cells = []
    for key, ((name, results), chosen) in parts.items():
        weights, decoder, set_name, group = key
        method, interval = method_name(results.header), intervals.get(key, unknown)
        paper = paper_value(method, decoder, set_name, group)
        cells.append(
            Cell(
                method,
                weights,
                decoder,
                set_name,
                group,
                len(chosen),
                float(results.lengths[chosen].mean()),
                float(gaps[key].mean()),
                interval.low,
                interval.high,
                paper.length,
                paper.gap,
                name,
            )
        )
    return cells


def _parts(results: Results) -> list[tuple[str, str, list[int]]]:
    """Set, group and positions of each part of a file that gives a cell; tsplib36 holds tsplib27."""
    own = results.header["set"]
    if own not in TSPLIB:
        return [(own, "all", list(range(len(results))))]
    place = {row.instance: position for position, row in enumerate(results.rows)}
    parts = []
    for set_name in TSPLIB[: TSPLIB.index(own) + 1]:
        names = TSPLIB27 if set_name == "tsplib27" else tsplib_names(set_name)
        groups = {**size_groups(names), "all": list(names)}
        parts += [(set_name, group, [place[name] for name in groups[group]]) for group in GROUPS]
    return parts


def format_csv(cells: Sequence[Cell]) -> str:
    """All cells, one in a line."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(field.name for field in fields(Cell))
    for cell in cells:
        writer.writerow(_plain(value) for value in astuple(cell))
    return text.getvalue()


def _plain(value: str | int | float) -> str:
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.6f}"
    return str(value)
