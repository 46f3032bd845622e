"""The record of the last run of the tests on a GPU, and the script that makes it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "benchmarks" / "gpu.sh"


def test_the_record_is_what_a_run_writes(request: pytest.FixtureRequest) -> None:
    conftest = request.config.pluginmanager.get_plugin(str(ROOT / "tests" / "conftest.py"))
    written = conftest.gpu_run("gpu", "a GPU", {"passed": ["one", "two"]})
    assert (written["passed"], written["failed"]) == (2, 0)
    assert written["unfinished"] == [request.node.nodeid]  # it is on its way
    kept = json.loads((ROOT / "tests" / "gpu_run.json").read_text(encoding="utf-8"))
    assert list(kept) == list(written)


@pytest.mark.skipif(not SCRIPT.exists(), reason="benchmarks are not part of this installation")
def test_the_script_runs_all_tests_that_need_a_gpu() -> None:
    """Each folder is named by a part of it, and the run is recorded."""
    text = SCRIPT.read_text(encoding="utf-8")
    recorded = " ".join(line for line in text.splitlines() if "--record-gpu-run" in line)
    named = set(re.findall(r"tests/(\w+)", recorded))
    needed = {
        path.relative_to(ROOT / "tests").parts[0]
        for path in (ROOT / "tests").rglob("test_*.py")
        if "pytest.mark.gpu" in path.read_text(encoding="utf-8") and path != Path(__file__)
    }
    assert needed
    assert needed <= named
