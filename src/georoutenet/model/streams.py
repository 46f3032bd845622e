"""Work that runs beside other work on a GPU: many small kernels next to a few large ones.

    with beside(x):
        y = small(x)        # its backward pass runs beside, too
    z = large(x)
    rejoin(y)

Without a GPU everything runs as it is written.
"""

from __future__ import annotations

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
