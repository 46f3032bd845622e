"""Where a measurement was made: the processor, the commit, the date."""

from __future__ import annotations

import os
import platform
import subprocess
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import torch


def device_name(device: torch.device) -> str:
    """The GPU's or processor's name as it calls itself."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


@cache
def commit() -> str:
    """The commit of the checkout this package runs from, with ``+`` where files differ; else empty.

    As it is at the first call: what is checked out or edited later is not what runs.
    """
    folder = Path(__file__).resolve().parent.parent
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            check=True,
            env=environment,
        )
        return done.stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "__init__.py")  # not some other project that an install lies in
        changed = git("status", "--porcelain", "--untracked-files=no", "--", ".")
        return git("rev-parse", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return ""


def today() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d")
