"""Work that is postponed: what waits for what, on streams that only take notes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import pytest
import torch
from torch import Tensor

from georoutenet.kernels import streams
from georoutenet.kernels.streams import deferred, postponing


class Stream:
    """Notes of what would be done on the GPU."""

    def __init__(self, name: str, notes: list[str]) -> None:
        self.name, self.notes, self.events = name, notes, 0
        self.device = "cuda"

    def wait_stream(self, other: Stream) -> None:
        self.notes.append(f"{self.name} waits for {other.name}")

    def record_event(self) -> str:
        self.events += 1
        self.notes.append(f"{self.name} marks {self.events}")
        return f"{self.name}{self.events}"

    def wait_event(self, event: str) -> None:
        self.notes.append(f"{self.name} waits for {event}")


class OnGPU:
    is_cuda, device = True, "cuda"

    def __init__(self, name: str, notes: list[str]) -> None:
        self.name, self.notes = name, notes

    def __del__(self) -> None:
        self.notes.append(f"{self.name} goes")


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    notes: list[str] = []
    main, late = Stream("main", notes), Stream("late", notes)

    @contextmanager
    def on(stream: Stream) -> Iterator[None]:
        notes.append(f"on {stream.name}:")
        yield
        notes.append("back")

    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: main)
    monkeypatch.setattr(torch.cuda, "stream", on)
    monkeypatch.setattr(streams, "_late_of", lambda stream: late)
    return notes


LOSS = cast("Tensor", OnGPU("loss", []))


def work(name: str, notes: list[str]) -> None:
    with deferred(cast("Tensor", OnGPU(name, notes))):
        notes.append(name)


def begun(name: str, mark: int) -> list[str]:
    return ["late waits for main", "on late:", name, "back", f"late marks {mark}"]


def test_what_is_read_is_held_until_it_has_been_read(notes: list[str]) -> None:
    with postponing(LOSS):
        for name in ("a", "b", "c"):
            work(name, notes)
        notes.append("end")
    assert notes == [
        *begun("a", 1),
        *begun("b", 2),
        *begun("c", 3),
        *("main waits for late1", "a goes"),
        *("end", "main waits for late", "b goes", "c goes"),
    ]


def test_after_an_error_nothing_runs_on(notes: list[str]) -> None:
    def break_down() -> None:
        with postponing(LOSS):
            work("a", notes)
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        break_down()
    assert notes[:6] == [*begun("a", 1), "main waits for late"]
    notes.clear()
    work("b", notes)
    assert notes == ["b", "b goes"]


def test_nothing_is_postponed_unless_somebody_waits_at_the_end(notes: list[str]) -> None:
    work("a", notes)
    with postponing(LOSS):
        pass
    work("b", notes)
    assert notes == ["a", "a goes", "b", "b goes"]


def test_on_a_cpu_everything_happens_at_once() -> None:
    done = []
    with postponing(torch.ones(1)), deferred(torch.ones(1)):
        done.append(1)
    assert done == [1]
