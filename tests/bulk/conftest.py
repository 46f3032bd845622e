from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bulk runs in this process: what is tested is not the engine."""
    from made import run_here

    monkeypatch.setattr("georoutenet.bulk.api.run_local", run_here)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """21 instances with whole numbers as ids."""
    from made import random_cities, write_form

    return write_form("wide", tmp_path, list(range(100, 121)), random_cities(21))
