from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from emulated import emulate

from georoutenet.kernels.cuda.compile import Kernel


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Kernel]]:
    """Kernels are emulated, and what they leave unwritten is not a number; those that ran."""
    torch.use_deterministic_algorithms(True)  # fills new memory with NaN
    yield emulate(monkeypatch)
    torch.use_deterministic_algorithms(False)
