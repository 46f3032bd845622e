"""Work that runs beside other work on a GPU: many small kernels next to a few large ones.

    with beside(x):
        y = small(x)        # its backward pass runs beside, too
    z = large(x)
    rejoin(y)

    with postponing():
        ...
        with later(x):      # somewhere in a backward pass: a result that nobody wants before the end
            g = gradient(x)
    optimize(g)

Without a GPU everything runs as it is written.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor


@cache
def _side_of(stream: torch.cuda.Stream) -> torch.cuda.Stream:
    """The stream for work beside that of ``stream``. Each has one of its own: matrix products on one stream
    share a workspace, in recorded graphs as well, and those of different streams may run at the same time."""
    return torch.cuda.Stream(stream.device)


@contextmanager
def beside(x: Tensor) -> Iterator[None]:
    """Work on ``x`` beside what follows."""
    if not x.is_cuda:
        yield
        return
    current = torch.cuda.current_stream(x.device)
    side = _side_of(current)
    side.wait_stream(current)
    with torch.cuda.stream(side):
        yield


def mark(x: Tensor) -> torch.cuda.Event | None:
    """Where the current stream is, for `wait_for`."""
    return torch.cuda.current_stream(x.device).record_event() if x.is_cuda else None


def wait_for(event: torch.cuda.Event | None, x: Tensor) -> None:
    """Wait for work `beside`, up to where the event was marked."""
    if event is not None:
        torch.cuda.current_stream(x.device).wait_event(event)


def rejoin(x: Tensor) -> None:
    """Wait for all work `beside`, which made ``x``."""
    if x.is_cuda:
        current = torch.cuda.current_stream(x.device)
        current.wait_stream(_side_of(current))
        reserve(x)


def reserve(*tensors: Tensor) -> None:
    """The current stream reads these: another one that made them shall not use their memory again before."""
    for tensor in tensors:
        if tensor.is_cuda:
            tensor.record_stream(torch.cuda.current_stream(tensor.device))


HELD = 2  # an edge update and a layer at the nodes: what they read is held until the next ones are begun
_postponed: dict[torch.cuda.Stream, deque[tuple[torch.cuda.Event, tuple[Tensor, ...]]]] | None = None


@cache
def _late_of(stream: torch.cuda.Stream) -> torch.cuda.Stream:
    """The stream for work that those of ``stream`` and beside it do not wait for."""
    return torch.cuda.Stream(stream.device)


@contextmanager
def postponing() -> Iterator[None]:
    """Within, what runs `later` is done only at the end: nobody may read its results before. For one
    backward pass at a time, in whatever thread."""
    global _postponed
    _postponed = {}
    try:
        yield
    finally:
        for stream in _postponed:
            torch.cuda.current_stream(stream.device).wait_stream(_late_of(stream))
        _postponed = None


@contextmanager
def later(*reads: Tensor) -> Iterator[None]:
    """Work that reads these tensors, alongside what follows if somebody is `postponing`.

    They are held meanwhile: their memory belongs to the current stream, which would use it again."""
    if _postponed is None or not reads[0].is_cuda:
        yield
        return
    current = torch.cuda.current_stream(reads[0].device)
    late, held = _late_of(current), _postponed.setdefault(current, deque())
    late.wait_stream(current)
    with torch.cuda.stream(late):
        yield
    held.append((late.record_event(), reads))
    if len(held) > HELD:
        current.wait_event(held[0][0])
        held.popleft()
