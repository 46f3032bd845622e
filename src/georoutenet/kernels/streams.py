"""A side stream for many small kernels next to a few large ones, and one for work that can be deferred.

    with side_stream(x):
        y = small(x)        # its backward pass runs on the side stream, too
    z = large(x)
    join(y)

    with postponing(loss):
        ...
        with deferred(x):   # somewhere in a backward pass: a result that nobody wants before the end
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
    """The side stream of ``stream``. Each has one of its own: matrix products on one stream
    share a workspace, in recorded graphs as well, and those of different streams may run at the same time."""
    return torch.cuda.Stream(stream.device)


@contextmanager
def side_stream(x: Tensor) -> Iterator[None]:
    """Work on ``x`` on the side stream of the current one."""
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
    """Wait for work on a `side_stream`, up to where the event was marked."""
    if event is not None:
        torch.cuda.current_stream(x.device).wait_event(event)


def join(x: Tensor) -> None:
    """Wait for all work on the `side_stream`, which made ``x``."""
    if x.is_cuda:
        current = torch.cuda.current_stream(x.device)
        current.wait_stream(_side_of(current))
        keep_alive(x)


def keep_alive(*tensors: Tensor) -> None:
    """The memory of these tensors is not reused before the current stream has read them."""
    for tensor in tensors:
        if tensor.is_cuda:
            tensor.record_stream(torch.cuda.current_stream(tensor.device))


# Usually an edge update and a layer at the nodes, each held until the next of its kind is begun. Where an
# update leaves parts that are wanted at once, two layers.
HELD = 2
_postponed: dict[torch.cuda.Stream, deque[tuple[torch.cuda.Event, tuple[Tensor, ...]]]] = {}


@cache
def _late_of(stream: torch.cuda.Stream) -> torch.cuda.Stream:
    """The stream for work of ``stream`` that nobody waits for before the end."""
    return torch.cuda.Stream(stream.device)


@contextmanager
def postponing(x: Tensor) -> Iterator[None]:
    """Within, what is `deferred` on the current stream of ``x`` is done only at the end, so nobody may read
    its results before. In a backward pass: they are gradients of leaves that are used once, in their dtype
    and shape, since autograd would add them up or cast them at once."""
    if not x.is_cuda:
        yield
        return
    current = torch.cuda.current_stream(x.device)
    held = _postponed[current] = deque()
    try:
        yield
    finally:
        if held:  # otherwise the late stream may be none of those that are recorded
            current.wait_stream(_late_of(current))
        del _postponed[current]


@contextmanager
def deferred(*reads: Tensor) -> Iterator[None]:
    """Work that reads these tensors, on a stream of its own if somebody is `postponing`.

    They are held meanwhile: their memory belongs to the current stream, which would use it again."""
    current = torch.cuda.current_stream(reads[0].device) if reads[0].is_cuda else None
    held = _postponed.get(current) if current else None
    if current is None or held is None:
        yield
        return
    late = _late_of(current)
    late.wait_stream(current)
    with torch.cuda.stream(late):
        yield
    held.append((late.record_event(), reads))
    if len(held) > HELD:
        current.wait_event(held[0][0])
        held.popleft()
