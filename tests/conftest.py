from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest
from hypothesis import settings

import georoutenet  # noqa: F401  (before torch, so that its threads do not spin: the tests share the cores)

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
