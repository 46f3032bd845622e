from __future__ import annotations

import pytest
import torch

from georoutenet.device import memory_available


def test_memory_that_pytorch_keeps_for_itself_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a large batch the driver sees little of it: the next one must not be refused for that."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda place: (1_000, 100_000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda place: 80_000)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda place: 20_000)
    assert memory_available("cuda:0") == 54_900
