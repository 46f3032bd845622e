"""Runs of the command that are killed, again and again, at random moments."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from made import contents


def command(source: Path, out: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "georoutenet", "bulk", str(source), str(out), *options]


def start(source: Path, out: Path, *options: str, **environment: str) -> subprocess.Popen[str]:
    """The command as the first of a group of processes of its own."""
    paths = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.Popen(
        command(source, out, *options),
        env={**os.environ, **paths, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def finish(source: Path, out: Path, *options: str) -> str:
    """Let the command run to its end."""
    process = start(source, out, *options)
    printed, _ = process.communicate(timeout=600)
    assert process.returncode == 0, printed
    return printed


def kill_again_and_again(
    source: Path, out: Path, undisturbed: dict[str, bytes], kills: int, longest: float, *options: str
) -> None:
    """Kill all processes of the command ``kills`` times within ``longest`` seconds, then let it finish.

    Whatever is there afterwards must be as in the undisturbed run. Half of it is then removed, so that there
    is always something left to do. A run that ends before it is killed does not count.
    """
    draw, killed = random.Random(kills), 0
    while killed < kills:
        there = contents(out)
        assert there.items() <= undisturbed.items()
        for name in sorted(there):
            if draw.random() < 0.5:
                (out / name).unlink()
        process = start(source, out, *options)
        time.sleep(draw.uniform(0.0, 0.7 * longest))
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=60)
        killed += process.returncode == -signal.SIGKILL
    finish(source, out, *options)
    assert contents(out) == undisturbed
