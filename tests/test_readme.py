"""The figures of docs/network.md and of the README are those of the files of results."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from georoutenet.evaluate.packed import Packed
from georoutenet.evaluate.results import Results
from georoutenet.io.tsplib import TSPLIB27
from research.report.efficiency import read_measurements
from research.report.tables import paper_values

ROOT = Path(__file__).parent.parent
if not (ROOT / "docs" / "network.md").exists() or not (ROOT / "results").exists():
    pytest.skip("docs or results are not part of this installation", allow_module_level=True)


@cache
def section() -> str:
    return (ROOT / "docs" / "network.md").read_text(encoding="utf-8")


@cache
def packed(weights: str) -> dict[str, Results]:
    return Packed(ROOT / "results" / f"{weights}.npz").results()


def results(weights: str, set_name: str, decoder: str) -> Results:
    return packed(weights)[f"{set_name}-{decoder}"]


def table() -> Iterator[tuple[str, list[str]]]:
    for line in section().splitlines():
        name, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        if cells and cells[0].endswith("%"):
            yield ("tsplib36" if "TSPLIB" in name else name), cells


@pytest.mark.parametrize(("set_name", "cells"), list(table()))
def test_the_table(set_name: str, cells: list[str]) -> None:
    expected = [
        f"{results(weights, set_name, decoder).gaps.mean():.2f} %"
        for weights in ("georoutenet", "georoutenet-50")
        for decoder in ("greedy", "beam-1000")
    ]
    assert cells == expected


def test_percentages_in_the_text_are_in_a_file_or_in_the_paper() -> None:
    known = [float(each.gap) for each in paper_values().values()]
    for found in [*packed("georoutenet").values(), *packed("georoutenet-50").values()]:
        known.append(found.gaps.mean())
        if found.header["set"] == "tsplib36":
            own = [row.instance in TSPLIB27 for row in found.rows]
            known.append(found.gaps[own].mean())
    text = re.sub(r"\s+", " ", section())
    numbers = re.findall(r"(\d+\.\d+)(?= and \d+\.\d+ %| %)", text)
    assert len(numbers) > 30
    for number in numbers:
        decimals = len(number.partition(".")[2])
        assert np.isclose(np.round(known, decimals), float(number)).any(), number


def test_throughput() -> None:
    found = re.search(
        r"solves ([\d,]+) instances of 50 cities a second on that GPU and ([\d,]+) of 100",
        re.sub(r"\s+", " ", section()),
    )
    assert found is not None
    for number, set_name in zip(found.groups(), ("val50", "diag100"), strict=True):
        seconds = results("georoutenet", set_name, "beam-1000").seconds
        assert number == f"{round(len(seconds) / seconds.sum(), -2):,.0f}"


@pytest.mark.parametrize(
    ("row", "file"),
    [
        ("Concorde", "cpu-one-thread"),
        ("LKH-3, one run", "cpu-one-thread"),
        ("fast-tsp, 0.03 s", "cpu-one-thread"),
        ("PyVRP, 1 s", "cpu-routing"),
        ("OR-Tools routing, 1 s", "cpu-one-thread"),
    ],
)
def test_the_classical_solvers_of_the_readme(row: str, file: str) -> None:
    """Gaps and seconds at 50 and 100 cities are those of the first set's rows of this solver and limit."""
    shown = (ROOT / "README.md").read_text(encoding="utf-8")
    (line,) = (each for each in shown.splitlines() if each.startswith(f"| {row} |"))
    cells = [cell.strip() for cell in line.strip("|").split("|")][2:4]
    name, _, limit = row.partition(", ")
    rows = read_measurements(ROOT / "results" / "efficiency" / f"{file}.csv")
    for cell, set_name in zip(cells, ("val50", "diag100"), strict=True):
        (found,) = (
            each
            for each in rows
            if each.set == set_name
            and each.method == name.removesuffix(" routing")
            and each.decoder == (f"at most {limit}" if limit.endswith(" s") else "")
        )
        gap, _, seconds = cell.partition(", ")
        assert gap == ("exact" if name == "Concorde" else f"{found.gap:.3f} %")
        if seconds:
            each_took = found.seconds / found.instances
            assert seconds == f"{each_took:.{3 if each_took < 0.1 else 2}f} s"


def rows(file: str) -> list[dict[str, str]]:
    with open(ROOT / "benchmarks" / "results" / file, newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def test_our_own_search_in_the_readme() -> None:
    """Gap and seconds are those of the newest rows of each size."""
    shown = (ROOT / "README.md").read_text(encoding="utf-8")
    (line,) = (each for each in shown.splitlines() if each.startswith("| this package"))
    cells = [cell.strip() for cell in line.strip("|").split("|")][2:]
    kept = [row for row in rows("solve_bulk.csv") if "solve_batch" not in row["command"]]
    for cell, n in zip(cells, ("50", "100", "200"), strict=True):
        newest = [row for row in kept if row["n"] == n][-1]
        seconds = 1 / float(newest["per_cpu_second"])
        gap = abs(float(newest["mean_gap_percent"]))
        assert cell == f"{gap:.3f} %, {seconds:.{2 if n == '200' else 3}f} s"


@pytest.mark.parametrize("page", ["README.md", "docs/many-instances.md"])
def test_fast_tsp_beside_our_search_of_many(page: str) -> None:
    shown = re.sub(r"\s+", " ", (ROOT / page).read_text(encoding="utf-8"))
    found = re.search(
        r"([\d,]+) instances of 50 cities a second to ([\d.]+) %, (?:where|ours)\D*(\d+) to ([\d.]+) %", shown
    )
    assert found is not None
    fast, ours = (
        next(row for row in rows("gpu/solve_gpu.csv") if row["what"] == solver and row["set"] == "test50")
        for solver in ("fast-tsp", "ours")
    )
    expected = [
        f"{float(row['instances_per_second']):,.0f}" if name else f"{float(row['mean_gap_percent']):.4f}"
        for row in (fast, ours)
        for name in (True, False)
    ]
    assert list(found.groups()) == expected


def test_the_readme_shows_the_same_table() -> None:
    shown = (ROOT / "README.md").read_text(encoding="utf-8")
    lines = [line for line in section().splitlines() if line.startswith("|")]
    assert len(lines) > 6
    assert "\n".join(lines) in shown
