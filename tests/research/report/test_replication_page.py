"""``docs/replication.md``: its tables of figures are rows of the page that is made from the files."""

from __future__ import annotations

import csv
import gzip
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "replication.md"

if not PAGE.exists():
    pytest.skip("the documentation is not part of this installation", allow_module_level=True)


def test_rows_are_those_of_the_results() -> None:
    made = set((ROOT / "docs" / "results.md").read_text(encoding="utf-8").splitlines())
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    figures = [line for line in lines if line.startswith("|") and len(re.findall(r"\d\.\d\d", line)) >= 5]
    assert len(figures) == 12 + 2 * 9  # contrasts, and TSPLIB under both conventions
    for line in figures:
        assert line in made, line


def test_the_paper_is_passed_after_as_many_instances_as_it_says() -> None:
    with gzip.open(ROOT / "docs" / "runs" / "scratch-50.csv.gz", "rt", encoding="utf-8") as file:
        validated = [row for row in csv.DictReader(file) if row["validation"]]
    first = next(row for row in validated if float(row["validation"]) < 5.7491)
    text = PAGE.read_text(encoding="utf-8")
    assert f"after {int(first['instances']) / 1e6:.1f} million" in text
    assert f"({48 * int(first['instances']) / 1e6:.0f} million tours instead of {3 * 160}" in text


def test_the_picture_is_there() -> None:
    (name,) = re.findall(r"!\[.*\]\((.*)\)", PAGE.read_text(encoding="utf-8"))
    assert (PAGE.parent / name).exists()
