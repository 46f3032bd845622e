from __future__ import annotations

import pytest


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bulk runs in this process: what is tested is not the engine."""
    from made import run_here

    monkeypatch.setattr("georoutenet.bulk.api.run_local", run_here)
