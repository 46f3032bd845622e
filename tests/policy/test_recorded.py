"""Graphs of the network's passes, without a GPU: what a replay waits for."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from georoutenet.errors import GeoRouteNetWarning
from georoutenet.policy import recorded
from georoutenet.policy.recorded import Recording, replayed


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


def broken_off() -> None:
    """A capture in which memory runs out: it cannot be ended either."""
    try:
        raise torch.OutOfMemoryError("CUDA out of memory")
    finally:
        raise RuntimeError("CUDA error: operation failed due to a previous error during capture")


def without_memory_for_the_graph() -> None:
    raise RuntimeError("CUDA error: out of memory")


def not_allowed() -> None:
    raise RuntimeError("CUDA error: operation not permitted when stream is capturing")


@pytest.mark.parametrize(
    ("capture", "refused"), [(broken_off, False), (without_memory_for_the_graph, False), (not_allowed, True)]
)
def test_a_device_short_of_memory_is_tried_again(
    capture: Any, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What else cannot be recorded is not recorded again, and that is said once."""

    class OnGpu(torch.Tensor):
        is_cuda = True

    tries: list[int] = []

    def record(*_: Any) -> None:
        tries.append(1)
        capture()

    monkeypatch.setattr(recorded, "Recording", record)
    monkeypatch.setattr(recorded, "_refused", set())
    network, coords = torch.nn.Linear(2, 2), torch.rand(1, 5, 2).as_subclass(OnGpu)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(4):  # at the first it is not tried
            assert replayed(network, lambda points: (points,), coords)[0] is coords
    assert len(tries) == (1 if refused else 3)
    assert [each.category for each in said] == [GeoRouteNetWarning] * refused
    assert recorded._refused == ({coords.device} if refused else set())
