"""Dense scores of a few instances as one CUDA graph: a pass is some hundred launches, each short.

A shape is recorded when it comes for the second time. What a graph reads are the weights where they are, so
an optimizer may change them in place; another dtype or other memory is another graph.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from georoutenet.errors import warn

PAIRS = 1 << 19
"""Pairs of cities of a batch, at most: above, launching takes less time than computing."""
SHAPES = 4
"""Graphs of one network; each keeps the memory of its edge states."""
SEEN = 64
"""Shapes that are remembered."""
WARMUP = 2

Pass = Callable[[Tensor], tuple[Tensor, ...]]


class Recording:
    """One pass over coordinates of one shape."""

    def __init__(self, run: Pass, coords: Tensor, held: Callable[[], object]) -> None:
        self.coords = torch.empty_like(coords).copy_(coords)
        self.stream = torch.cuda.current_stream(coords.device)
        stream = torch.cuda.Stream(coords.device)
        stream.wait_stream(torch.cuda.current_stream(coords.device))
        with torch.cuda.stream(stream):
            for _ in range(WARMUP):
                run(self.coords)
        torch.cuda.synchronize(coords.device)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, stream=stream, capture_error_mode="thread_local"):
            self.results = run(self.coords)
        self.held = held()

    def __call__(self, coords: Tensor) -> tuple[Tensor, ...]:
        stream = torch.cuda.current_stream(self.coords.device)
        if stream != self.stream:  # a pass on another one may still be reading and writing
            stream.wait_stream(self.stream)
            self.stream = stream
        self.coords.copy_(coords)
        self.graph.replay()
        return tuple(result.clone() for result in self.results)


_lock = threading.Lock()
_recordings: WeakKeyDictionary[nn.Module, OrderedDict[Hashable, Recording | None]] = WeakKeyDictionary()
_refused: set[torch.device] = set()
"""Where a pass could not be recorded; passes are launched there."""


def replayed(
    network: nn.Module, run: Pass, coords: Tensor, *kind: Hashable, held: Callable[[], object] = lambda: None
) -> tuple[Tensor, ...]:
    """``run(coords)``, from a graph where the same ``network`` had the same shape and ``kind`` before.

    ``held()`` is what ``run`` reads beside weights: a graph keeps it.
    """
    batch, n, _ = coords.shape
    if not coords.is_cuda or batch * n * n > PAIRS or coords.device in _refused:
        return run(coords)
    if torch.is_inference_mode_enabled():  # its tensors cannot be written to outside
        return run(coords)
    weights = tuple((each.data_ptr(), each.dtype) for each in network.parameters())
    key = (batch, n, coords.device, weights, *kind)
    with _lock:  # what a graph reads and writes is its own
        recording = _recording(network, run, coords, key, held)
        return run(coords) if recording is None else recording(coords)


def _recording(
    network: nn.Module, run: Pass, coords: Tensor, key: Hashable, held: Callable[[], object]
) -> Recording | None:
    known = _recordings.setdefault(network, OrderedDict())
    if key not in known:
        known[key] = None
    elif known[key] is None:
        try:
            known[key] = Recording(run, coords, held)
        except RuntimeError as error:
            if _is_memory(error):
                torch.cuda.empty_cache()
            else:
                _refused.add(coords.device)
                message = "a pass of the network cannot be recorded as a CUDA graph; it is launched as it is"
                warn(f"{message} ({error})")
    known.move_to_end(key)
    while len(known) > SEEN or sum(each is not None for each in known.values()) > SHAPES:
        known.popitem(last=False)
    return known[key]


def _is_memory(error: BaseException | None) -> bool:
    """Whether memory ran out: a capture that this breaks off ends with an error of its own, and what is not
    taken through PyTorch's allocator, such as the graph itself, says so in words alone."""
    while error is not None:
        if isinstance(error, torch.OutOfMemoryError) or "out of memory" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False
