"""The examples in docs/many-instances.md run and do what the page says."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import georoutenet as grn

PAGE = Path(__file__).parent.parent / "docs" / "many-instances.md"
if not PAGE.exists():
    pytest.skip("the documentation is not part of this installation", allow_module_level=True)
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
MEASURED = PAGE.parent.parent / "benchmarks" / "results" / "gpu"


def test_kicks_per_second_are_those_of_the_files() -> None:
    def most(file: str, commit: str, **given: str) -> tuple[float, float]:
        """Millions of kicks a second at 100 cities, and the gap after 1,024 kicks, in percent."""
        with (MEASURED / file).open(encoding="utf-8", newline="") as lines:
            rows = [row for row in csv.DictReader(lines) if row["n"] == "100"]
        rows = [row for row in rows if given.items() <= row.items()]
        assert {row["commit"] for row in rows} == {commit}
        (last,) = (row for row in rows if row["kicks"] == "1024" and row["first"] == "curve")
        return max(float(row["kicks_per_second"]) for row in rows) / 1e6, float(last["mean_gap_percent"])

    now, gap = most("gpu_search.csv", "4df4070", count="10000")
    near, _ = most("gpu_search_lists.csv", "b6f1f49", count="20000", iterations="0")
    alpha, before = most("gpu_search_lists.csv", "b6f1f49", count="20000", iterations="20")
    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    assert f"at 100 cities up to {now:.1f} million with 10,000 instances (commit 4df4070" in text
    assert f"{near:.1f} million with lists of the nearest cities and {alpha:.1f} million with those" in text
    assert f"a gap of {before:.4f} % instead of {gap:.4f} %" in text


def test_from_array_to_array() -> None:
    names: dict[str, Any] = {}
    exec(BLOCKS[0].replace("1000, 50", "10, 20"), names)
    assert names["tours"].shape == (10, 20)
    assert names["lengths"].shape == (10,)


def test_the_cost_oracle(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    exec(BLOCKS[1], names)
    said = re.search(r"^(\d+\.\d+) -> (\d+\.\d+) *$", capsys.readouterr().out, re.MULTILINE)
    assert said is not None
    before, after = map(float, said.groups())
    claimed = re.search(r"# (\d+\.\d+) -> (\d+\.\d+)", BLOCKS[1])
    assert claimed is not None
    assert [before, after] == pytest.approx([float(each) for each in claimed.groups()], rel=0.01)
    zones = names["zones"]
    assert sorted(zones.ravel()) == list(range(48))
    exact = [grn.solve(np.insert(names["stops"][zone], 0, names["depot"], axis=0)).length for zone in zones]
    assert sum(exact) == pytest.approx(after, abs=0.02)
