"""The figures of docs/network.md are those of the files of results, and the README's table is that page's."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from georoutenet.evaluate.packed import Packed
from georoutenet.evaluate.results import Results
from georoutenet.io.tsplib import TSPLIB27
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


def test_the_readme_shows_the_same_table() -> None:
    shown = (ROOT / "README.md").read_text(encoding="utf-8")
    lines = [line for line in section().splitlines() if line.startswith("|")]
    assert len(lines) > 6
    assert "\n".join(lines) in shown
