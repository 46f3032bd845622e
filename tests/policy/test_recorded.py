"""Graphs of the network's passes, without a GPU: what a replay waits for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from georoutenet.policy.recorded import Recording


def test_a_replay_waits_for_the_one_before_on_another_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[tuple[str, str]] = []

    class Stream:
        def __init__(self, name: str) -> None:
            self.name = name

        def wait_stream(self, other: Any) -> None:
            waited.append((self.name, other.name))

    a, b = Stream("a"), Stream("b")
    recording = Recording.__new__(Recording)
    recording.coords, recording.stream = torch.zeros(1, 3, 2), a  # type: ignore[assignment]
    recording.results = (recording.coords,)
    recording.graph = SimpleNamespace(replay=lambda: None)  # type: ignore[assignment]
    for stream in (a, b, b, a):
        monkeypatch.setattr(torch.cuda, "current_stream", lambda _, of=stream: of)
        given = torch.rand(1, 3, 2)
        assert torch.equal(recording(given)[0], given)
    assert waited == [("b", "a"), ("a", "b")]
