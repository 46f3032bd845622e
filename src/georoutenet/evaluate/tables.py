"""The paper's tables from per-instance files, with the paper's values beside ours.

Everything that is printed comes from the files of a folder or from ``paper.csv``, the numbers of the paper's
tables. What no file gives stays empty.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

import numpy as np

from georoutenet.errors import InputError
from georoutenet.evaluate.datasets import DATASETS, dataset
from georoutenet.evaluate.results import Results, read_results
from georoutenet.evaluate.statistics import RESAMPLES, SEED, bootstrap_mean
from georoutenet.tsplib import TSPLIB27, size_groups, tsplib_names

METHODS = {
    ("nar4tsp", "pg"): "NAR4TSP-PG",
    ("nar4tsp", "mcs"): "NAR4TSP-MCS",
    ("georoutenet", "pg"): "GeoRouteNet-PG",
    ("georoutenet", "mcs"): "GeoRouteNet-MCS",
}
"""The paper's four models by encoder and objective."""
DECODERS = ("Greedy", "Beam-100", "Beam-1000")
GROUPS = ("51-76", "99-101", "105-150", "159-299", "all")
TSPLIB = ("tsplib27", "tsplib36")


class PaperValue(NamedTuple):
    """One cell of the paper's tables; NaN where it gives no number."""

    length: float
    gap: float
    instances_per_second: float


@cache
def paper_values() -> dict[tuple[str, str, str, str], PaperValue]:
    """The paper's numbers by method, decoder, set and group; its ``tsplib27`` are 27 it does not name."""
    text = files("georoutenet.evaluate").joinpath("paper.csv").read_text(encoding="utf-8")

    def number(cell: str) -> float:
        return float(cell) if cell else math.nan

    return {
        (METHODS[row["encoder"], row["objective"]], row["decoder"], row["set"], row["group"]): PaperValue(
            number(row["length"]), number(row["gap"]), number(row["instances_per_second"])
        )
        for row in csv.DictReader(text.splitlines())
    }


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


def read_folder(folder: Path) -> tuple[list[File], list[str]]:
    """All complete files of results under a folder, and the names of those that cover only part of a set."""
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder")
    complete, partial = [], []
    for path in sorted(each for each in folder.rglob("*") if each.name.endswith((".csv", ".csv.gz"))):
        name = f"{folder.resolve().name}/{path.relative_to(folder).as_posix()}"
        results = read_results(path)
        missing = {"weights", "sha256", "encoder", "objective", "set", "decoder", "width"} - set(
            results.header
        )
        if missing:
            raise InputError(f"{path}: the header lacks {', '.join(sorted(missing))}")
        whole = len(results) == dataset(results.header["set"]).count
        if whole:
            complete.append(File(name, results))
        else:
            partial.append(name)
    hashes: dict[str, str] = {}
    for name, results in complete:
        weights, sha256 = results.header["weights"], results.header["sha256"]
        if hashes.setdefault(weights, sha256) != sha256:
            raise InputError(f"{name}: weights {weights!r} of another SHA-256 than in the files before it")
    return complete, partial


def method_name(header: dict[str, str]) -> str:
    """The paper's name of the model, or empty where encoder and objective are none of its four."""
    return METHODS.get((header["encoder"], header["objective"]), "")


def decoder_name(header: dict[str, str]) -> str:
    """As the paper writes it, with every setting that the paper does not have."""
    name = header["decoder"].capitalize() + (f"-{header['width']}" if header["width"] else "")
    if header.get("views", "1") != "1":
        name += f", {header['views']} views"
    if header.get("improve"):
        name += f", {header['improve']} s search"
    if header.get("statistics") == "batch":
        name += ", batch statistics"
    if header.get("precision", "float32") != "float32":
        name += f", {header['precision']}"
    return name


def make_cells(complete: Iterable[File]) -> list[Cell]:
    """A cell for each set and group that a file gives; of two files for one cell the first by name counts."""
    cells: dict[tuple[str, ...], Cell] = {}
    for name, results in complete:
        header = results.header
        method, decoder = method_name(header), decoder_name(header)
        for set_name, group, chosen in _parts(results):
            gaps = results.gaps[chosen]
            if not np.isfinite(gaps).all():
                continue
            random = dataset(set_name).is_random
            paper = paper_values().get((method, decoder, set_name, group))
            interval = bootstrap_mean(gaps) if random else None
            key = (header["weights"], decoder, set_name, group)
            if key not in cells:
                cells[key] = Cell(
                    method,
                    header["weights"],
                    decoder,
                    set_name,
                    group,
                    len(gaps),
                    float(results.lengths[chosen].mean()),
                    float(gaps.mean()),
                    interval.low if interval else math.nan,
                    interval.high if interval else math.nan,
                    paper.length if paper else math.nan,
                    paper.gap if paper else math.nan,
                    name,
                )
    return list(cells.values())


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


class _Table:
    """Cells looked up by what a table prints."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        self.by = {(c.weights, c.decoder, c.set, c.group): c for c in cells}
        # Each of the paper's models is there, with weights of ours or without.
        self.models = [
            (method, weights)
            for method in METHODS.values()
            for weights in sorted({c.weights for c in cells if c.method == method}) or [""]
        ] + [("", weights) for weights in sorted({c.weights for c in cells if not c.method})]

    def decoders(self, weights: str) -> list[str]:
        own = {c.decoder for c in self.by.values() if c.weights == weights}
        return [*DECODERS, *sorted(own - set(DECODERS))]

    def ours(self, weights: str, decoder: str, set_name: str, group: str, *, decimals: int) -> str:
        cell = self.by.get((weights, decoder, set_name, group))
        if cell is None:
            return ""
        text = f"{cell.gap:.{decimals}f}"
        if not math.isnan(cell.gap_low):
            text += f" ({cell.gap_low:.{decimals}f} to {cell.gap_high:.{decimals}f})"
        return text

    def length(self, weights: str, decoder: str, set_name: str) -> str:
        cell = self.by.get((weights, decoder, set_name, "all"))
        return "" if cell is None else f"{cell.length:.4f}"


def _paper(method: str, decoder: str, set_name: str, group: str = "all") -> PaperValue:
    return paper_values().get((method, decoder, set_name, group), PaperValue(math.nan, math.nan, math.nan))


def _shown(value: float, decimals: int) -> str:
    return "" if math.isnan(value) else f"{value:,.{decimals}f}"


def _markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]], words: int) -> list[str]:
    """A Markdown table whose first ``words`` columns are text and whose others are numbers."""
    line = "|" + "---|" * words + "---:|" * (len(heads) - words)
    return [f"| {' | '.join(heads)} |", line, *(f"| {' | '.join(row)} |" for row in rows), ""]


_INTRODUCTION = f"""\
Made by `georoutenet tables` from the per-instance files listed at the end; do not edit. How the numbers come
about is described in [protocol.md](protocol.md). Gaps are means over instances, in percent. Those of random
sets have 95 % bootstrap intervals ({RESAMPLES:,} resamples, seed {SEED}), which speak of other instances,
not of other training runs: each file of weights is one run. *Paper* is the paper's value for the same encoder
and objective, from one run as well. Our recipes are not the paper's (see the card of the weights), so the two
columns compare results, not training methods. An empty cell has not been measured.""".splitlines()

_ABOUT_TSPLIB = """\
EUC_2D instances of 51 to 299 cities, integer distances, gaps to the published optima. The paper gives only
the sizes of its groups. The first two groups are thereby fixed; the instances of the two larger ones are our
own choice by rule, so there the columns are about different instances. The groups are small and mixed: their
means are no estimates for other instances.""".splitlines()

_ABOUT_FILES = """\
Weights by the first digits of their SHA-256. Instances/s count network and decoding, not compilation;
*network %* is the network's share of the time. Speeds are those of the run, whatever else the machine was
doing; the paper's are those of its GPU.""".splitlines()


def format_markdown(complete: Sequence[File], cells: Sequence[Cell], partial: Sequence[str] = ()) -> str:
    """All tables as one page: ``complete`` files, the ``cells`` made of them, and files left out."""
    table = _Table(cells)
    lines = [
        "# Results",
        "",
        *_INTRODUCTION,
        "",
        "## Encoder and objective, Beam-1000",
        "",
        *_two_by_two(table),
        "## The paper's random sets",
        "",
        *_random(table),
        "## Held-out random sets",
        "",
        *_held_out(table),
        "## TSPLIB",
        "",
        *_ABOUT_TSPLIB,
        "",
        *_tsplib(table),
        "## Files",
        "",
        *_ABOUT_FILES,
        "",
        *_files(complete),
    ]
    if partial:
        lines += ["Not used, because they cover only part of their set: " + ", ".join(partial) + ".", ""]
    return "\n".join(lines)


def _two_by_two(table: _Table) -> list[str]:
    sets = ("val50", "diag100", "tsplib27")
    rows = []
    for method, weights in table.models:
        row = [method, weights]
        for each in sets:
            decimals = 2 if each in TSPLIB else 3  # as many as the paper's appendix gives
            row += [table.ours(weights, "Beam-1000", each, "all", decimals=decimals)]
            row += [_shown(_paper(method, "Beam-1000", each).gap, decimals)]
        rows.append(row)
    heads = ["model", "weights", *(head for each in sets for head in (each, "paper"))]
    return _markdown_table(heads, rows, 2)


def _random(table: _Table) -> list[str]:
    sets = ("val50", "diag100")
    rows = []
    for method, weights in table.models:
        for decoder in table.decoders(weights):
            row = [method, weights, decoder]
            for each in sets:
                paper = _paper(method, decoder, each)
                row += [table.length(weights, decoder, each), _shown(paper.length, 4)]
                row += [table.ours(weights, decoder, each, "all", decimals=3), _shown(paper.gap, 3)]
            rows.append(row)
    heads = [f"{each} {what}" for each in sets for what in ("length", "paper", "gap", "paper")]
    heads = [head.split()[-1] if head.endswith("paper") else head for head in heads]
    return _markdown_table(["model", "weights", "decoder", *heads], rows, 3)


def _held_out(table: _Table) -> list[str]:
    sets = [each for each in DATASETS.values() if each.is_random and each.name not in ("val50", "diag100")]
    lines = []
    for _, weights in table.models:
        if weights:
            decoders = table.decoders(weights)
            rows = [
                [each.name, f"{each.count:,}"]
                + [table.ours(weights, decoder, each.name, "all", decimals=3) for decoder in decoders]
                for each in sets
            ]
            lines += [f"`{weights}`:", "", *_markdown_table(["set", "instances", *decoders], rows, 1)]
    return lines


def _tsplib(table: _Table) -> list[str]:
    lines = []
    for set_name in TSPLIB:
        with_paper = set_name == "tsplib27"
        rows = []
        for method, weights in table.models:
            if not weights and not with_paper:
                continue
            for decoder in table.decoders(weights):
                row = [method, weights, decoder]
                for group in GROUPS:
                    row.append(table.ours(weights, decoder, set_name, group, decimals=2))
                    if with_paper:
                        row.append(_shown(_paper(method, decoder, set_name, group).gap, 2))
                rows.append(row)
        names = TSPLIB27 if with_paper else tsplib_names(set_name)
        counts = {**{g: len(each) for g, each in size_groups(names).items()}, "all": len(names)}
        heads = ["model", "weights", "decoder"]
        for group in GROUPS:
            heads += [f"{group} ({counts[group]})", "paper"] if with_paper else [f"{group} ({counts[group]})"]
        lines += [f"`{set_name}`:", "", *_markdown_table(heads, rows, 3)]
    return lines


def _files(complete: Sequence[File]) -> list[str]:
    """Where each number comes from and how fast it was made."""
    rows = []
    for name, results in complete:
        header = results.header
        seconds, network = float(results.seconds.sum()), float(results.network_seconds.sum())
        speed = len(results) / seconds if seconds > 0 else float(header.get("instances_per_second") or "nan")
        paper = _paper(method_name(header), decoder_name(header), header["set"])
        device = header.get("device", "")
        if header.get("threads") and header.get("peak_device_bytes", "") == "":
            device += f", {header['threads']} threads" if header["threads"] != "1" else ", 1 thread"
        memory = header.get("peak_device_bytes", "")
        rows.append(
            [
                f"`{name}`",
                header["sha256"][:8],
                header.get("commit", "")[:8],
                device,
                header.get("precision", ""),
                header.get("date", ""),
                header.get("batch", ""),
                _shown(speed, 1),
                f"{100 * network / seconds:.0f}" if seconds > 0 else "",
                _shown(paper.instances_per_second, 1),
                f"{int(memory) / 2**20:,.0f}" if memory else "",
            ]
        )
    heads = ["file", "weights", "commit", "device", "precision", "date", "batch", "instances/s"]
    heads += ["network %", "paper's instances/s", "peak MiB"]
    return _markdown_table(heads, rows, 6)
