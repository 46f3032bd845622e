from __future__ import annotations

import subprocess
import sys


def test_doctor() -> None:
    command = [sys.executable, "-m", "georoutenet", "doctor"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("georoutenet ")
    assert "The form in which GeoRouteNet runs on cpu" in done.stdout
    assert "    not cuda hopper: needs a GPU\n" in done.stdout
