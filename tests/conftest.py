from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest
from hypothesis import settings

import georoutenet  # noqa: F401  (before torch, so that its threads do not spin: the tests share the cores)

# A background job of a shell ignores Ctrl-C, and so would its children; some tests send it.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A loaded machine is no reason to fail: property tests have no deadline of their own.
settings.register_profile("project", deadline=None)
settings.load_profile("project")


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
