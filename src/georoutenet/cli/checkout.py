"""Commands whose code lies in ``research/``: part of the repository, not of the installed package."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

from georoutenet.errors import GeoRouteNetError

BESIDE_SOURCE = Path(__file__).resolve().parents[3]
"""The repository, where the package runs from its ``src`` folder."""


def research(name: str, command: str) -> ModuleType:
    """The module ``research.NAME`` of the repository around this package, else of the working directory."""
    for root in (BESIDE_SOURCE, Path.cwd()):
        if (root / "research" / "report" / "page.py").is_file() and (root / "src" / "georoutenet").is_dir():
            if str(root) not in sys.path:
                sys.path.insert(0, str(root))
            return importlib.import_module(f"research.{name}")
    raise GeoRouteNetError(
        f"'georoutenet {command}' needs a checkout of the repository; run it in the checkout's folder"
    )
