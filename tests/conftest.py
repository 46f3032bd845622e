from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import settings

import georoutenet  # noqa: F401  (before torch, so that its threads do not spin: the tests share the cores)

# Imports and collecting leave nothing to free. `pytest_collection_finish` has it looked for again.
gc.disable()

# A background job of a shell ignores Ctrl-C, and so would its children; some tests send it.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A loaded machine is no reason to fail: property tests have no deadline of their own.
settings.register_profile("project", deadline=None)
settings.load_profile("project")


class FakeClock:
    """Goes on by ``step`` seconds with each look and by what ``advance`` says; no time passes otherwise."""

    def __init__(self) -> None:
        self.seconds = 1000.0
        self.step = 0.05
        """Above the slice of work after which a search looks at the clock, so that its slices do not grow."""

    def __call__(self) -> float:
        self.advance(self.step)
        return self.seconds

    def advance(self, seconds: float) -> None:
        self.seconds += seconds


@pytest.fixture
def fake_clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    """Takes the place of the clocks that the package reads: what a test finds does not depend on the load."""
    fake = FakeClock()
    for name in ("perf_counter", "monotonic"):
        monkeypatch.setattr(time, name, fake)
    return fake


@pytest.fixture
def interpret() -> Callable[[str], None]:
    """Runs a script whose Triton kernels are interpreted, in a process of its own; it ends with "agreed"."""
    pytest.importorskip("triton", reason="Triton is not installed")

    def run(script: str) -> None:
        done = subprocess.run(
            [sys.executable, "-c", script],
            env=os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "agreed" in done.stdout

    return run


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--record-gpu-run",
        action="store_true",
        help="write commit, date, device and counts of this run to tests/gpu_run.json (with -m gpu)",
    )


_running: set[str] = set()
"""Tests that began and have not ended: at the end of a run, those that a time limit's Ctrl-C broke off."""


def pytest_collection_finish() -> None:
    """Modules and tests stay to the end: nobody need look through them for garbage again and again."""
    gc.freeze()
    gc.enable()


def pytest_runtest_logstart(nodeid: str) -> None:
    _running.add(nodeid)


def pytest_runtest_logfinish(nodeid: str) -> None:
    _running.discard(nodeid)


def gpu_run(selected: str, device: str, reports: Mapping[str, Sequence[object]]) -> dict[str, object]:
    """What is recorded of a run: its counts, and which tests it did not come to the end of."""
    import torch

    from georoutenet.io.provenance import commit, today

    run = {"commit": commit(), "date": today(), "device": device, "torch": torch.__version__}
    counts = {name: len(reports.get(name, [])) for name in ("passed", "failed", "error", "skipped")}
    return run | {"selected": selected, **counts, "unfinished": sorted(_running)}


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Keep a record of the last run of the tests on a GPU; in the process that collects the results."""
    gc.unfreeze()
    if not session.config.getoption("--record-gpu-run") or hasattr(session.config, "workerinput"):
        return
    import torch

    from georoutenet.io.provenance import device_name

    if not torch.cuda.is_available():
        raise pytest.UsageError("--record-gpu-run needs a CUDA device")
    reports = session.config.pluginmanager.get_plugin("terminalreporter").stats
    record = gpu_run(session.config.getoption("-m"), device_name(torch.device("cuda", 0)), reports)
    path = Path(__file__).with_name("gpu_run.json")
    path.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
