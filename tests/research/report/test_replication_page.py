"""``docs/replication.md``: its tables of figures are rows of the page that is made from the files."""

from __future__ import annotations

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


def test_the_picture_is_there() -> None:
    (name,) = re.findall(r"!\[.*\]\((.*)\)", PAGE.read_text(encoding="utf-8"))
    assert (PAGE.parent / name).exists()
