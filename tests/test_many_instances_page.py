"""The examples in docs/many-instances.md run and do what the page says."""

from __future__ import annotations

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
