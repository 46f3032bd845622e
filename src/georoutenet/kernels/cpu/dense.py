"""Dense scores of GeoRouteNet on a CPU: small instances, a few at a time, with one set of edge states.

Attention reads the near pairs' states from those of all pairs, and matrix products alternate with
`dense_numba` on blocks of pairs that stay in a core's cache. Distances are symmetric, so
the first states and their products with the first layer's weight are computed for pairs ``i <= j`` alone.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import cache, lru_cache, partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor

from georoutenet.clock import look
from georoutenet.model.geometry import Neighborhood
from georoutenet.model.georoutenet import GeoRouteNet, Layer
from georoutenet.model.layers import linear_maps, split_heads

if TYPE_CHECKING:
    from georoutenet.model.layers import Linear

# Pairs of all instances: with fewer, it does not pay to load the kernels.
FEWEST = 1 << 13
# Pairs of one instance: with more, their states (512 bytes each) would take too much memory.
MOST = 1 << 16
# Pairs of the instances that are computed together.
TOGETHER = 1 << 14
# Pairs that a thread takes at a time: their states and products are a megabyte.
BLOCK = 1024


@torch.no_grad()
def dense(net: GeoRouteNet, coords: Tensor, distance: Tensor, near: Neighborhood) -> tuple[Tensor, Tensor]:
    """Start log-probabilities ``(B, n)`` and all logits ``(B, n, n)``, without gradients."""
    scores = []
    with _threads() as pool:
        for some in _blocks(len(coords), max(1, TOGETHER // coords.shape[1] ** 2)):
            rows = [_array(x[some].flatten(0, 1)) for x in (near.index, near.mask, near.distance)]
            scores.append(_Group(net, distance[some], rows, pool).scores(coords[some]))
    return torch.cat([start for start, _ in scores]), torch.cat([logits for _, logits in scores])


class _Step:
    """Blocks on their way through a layer: first multiplied, then updated, each by any thread."""

    def __init__(self, multiply: Callable[[slice], None], total: int, blocks: Iterable[slice] = ()) -> None:
        self.multiply, self.left = multiply, total
        self.given, self.multiplied = deque(blocks), deque[slice]()
        self.update: Callable[[slice], None] | None = None  # when its turn has come
        self.following: _Step | None = None
        self.lock, self.done = threading.Lock(), threading.Event()
        self.error: BaseException | None = None

    def open(self, update: Callable[[slice], None], following: _Step | None) -> None:
        """Let updates begin; what is updated goes to the following step."""
        self.following = following
        self.update = update

    def ahead(self) -> None:
        """Multiply until updates may begin, then help with them."""
        with self._noting_errors():
            while self.update is None:
                block = _taken(self.given)
                if block is None:
                    return
                self.multiply(block)
                self.multiplied.append(block)
        self.help_out()

    def help_out(self) -> None:
        """Update what no other thread has taken, and go ahead with the following step."""
        self.complete()
        if self.following is not None:
            self.following.ahead()

    def complete(self) -> None:
        """Update what no other thread has taken."""
        assert self.update is not None
        with self._noting_errors():
            while True:
                block = _taken(self.multiplied)
                if block is None:
                    block = _taken(self.given)
                    if block is None:
                        return
                    self.multiply(block)
                self.update(block)
                if self.following is not None:
                    self.following.given.append(block)
                with self.lock:
                    self.left -= 1
                    if self.left == 0:
                        self.done.set()

    def wait(self) -> None:
        """Until all blocks are updated, or one has failed in any thread."""
        self.done.wait()
        if self.error is not None:
            raise self.error

    @contextmanager
    def _noting_errors(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self.error = error
            self.done.set()
            raise


def _taken(blocks: deque[slice]) -> slice | None:
    try:
        return blocks.popleft()
    except IndexError:
        return None


def _nothing(block: slice) -> None:
    pass


class _Pool:
    """The calling thread and ``others``; each computes alone."""

    def __init__(self, others: ThreadPoolExecutor | None, count: int) -> None:
        self.others, self.count = others, count
        self.jobs: list[Future[None]] = []

    def submit(self, job: Callable[[], None]) -> None:
        """Let each of the others do this."""
        if self.others is not None:
            self.jobs += [self.others.submit(job) for _ in range(self.count - 1)]

    def later(self, work: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Let another thread compute something that is asked for at the end."""
        return work if self.others is None else self.others.submit(work).result

    def run(self, work: Callable[[slice], None], blocks: Sequence[slice]) -> None:
        """Call a function for all blocks."""
        self.complete(_Step(work, len(blocks), blocks), _nothing)

    def complete(self, step: _Step, update: Callable[[slice], None], following: _Step | None = None) -> None:
        """Update all blocks of a step. The others then multiply for the following one until its turn."""
        step.open(update, following)
        self.submit(step.help_out)
        step.complete()
        step.wait()


@cache
def _others(count: int) -> ThreadPoolExecutor:
    """Threads that stay: PyTorch's products take milliseconds to begin in a new one."""
    return ThreadPoolExecutor(count, "georoutenet-dense")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_others.cache_clear)  # no thread survives a fork


_turns = threading.Lock()


@contextmanager
def _threads() -> Iterator[_Pool]:
    """As many threads as PyTorch uses, for one caller at a time."""
    with _turns:
        count = torch.get_num_threads()
        pool = _Pool(_others(count - 1) if count > 1 else None, count)
        torch.set_num_threads(1)  # here and in threads whose first computation is from now on
        try:
            yield pool
            for job in pool.jobs:
                job.result()
        finally:
            wait(pool.jobs)
            torch.set_num_threads(count)


def _blocks(count: int, size: int) -> list[slice]:
    return [slice(first, min(first + size, count)) for first in range(0, count, size)]


def _array(x: Tensor) -> Any:
    return x.detach().contiguous().numpy()


_kept = threading.local()


def _scratch(rows: int, d: int, use: str = "products") -> Tensor:
    """``(rows, d)`` in the same memory in every call of a thread: fresh memory would have to be fetched into
    its cache, and allocators leave holes between large pieces."""
    memory: Tensor | None = getattr(_kept, use, None)
    if memory is None or memory.shape[0] < rows or memory.shape[1] != d:
        memory = torch.empty(rows, d)
        setattr(_kept, use, memory)
    return memory if memory.shape[0] == rows else memory[:rows]


@lru_cache(8)
def _numbers(n: int) -> tuple[Any, Any]:
    """The pairs ``i <= j``, and for every pair ``(n, n)`` which of these has its first state."""
    upper, place = np.triu_indices(n), np.empty((n, n), np.int64)
    place[upper] = place.T[upper] = np.arange(len(upper[0]))
    return upper, place


class _Group:
    """Scores of G instances, from their distances ``(G, n, n)`` and neighborhoods: arrays ``(G n, W)``."""

    def __init__(self, net: GeoRouteNet, distance: Tensor, near: list[Any], pool: _Pool) -> None:
        from georoutenet.kernels.cpu import dense_numba

        self.kernels, self.net, self.near, self.pool = dense_numba, net, near, pool
        (self.count, self.n, _), self.d = distance.shape, net.config.hidden
        upper, place = _numbers(self.n)
        self.distance = np.ascontiguousarray(distance.numpy()[:, upper[0], upper[1]]).reshape(-1)
        half, pairs = len(self.distance), self.count * self.n**2
        offsets = np.arange(0, half, half // self.count)
        self.place = (place + offsets[:, None, None]).reshape(-1, self.n)  # (G n, n)
        memory = _scratch(2 * half + pairs, self.d, "states")
        self.first, self.first_products, self.states = memory.split([half, half, pairs])  # of pairs i <= j
        self.products = memory[:pairs]  # of all pairs, when the first states are not needed any more
        self.logits = torch.empty(self.count, self.n, self.n)

    def scores(self, coords: Tensor) -> tuple[Tensor, Tensor]:
        """Start log-probabilities ``(G, n)`` and logits ``(G, n, n)``."""
        layers, n, heads = self.net.layers, self.n, self.net.config.heads
        few = _blocks(len(self.first), BLOCK)
        self.pool.run(self._begin(), few)
        step = _Step(self._multiplication(layers[0], self.first, self.first_products), len(few), few)
        self.pool.submit(step.ahead)  # the others multiply while this thread is at the nodes
        history, s, queries = self.net.begin(coords, coords.dtype)
        values, edges = torch.empty(self.count, n, self.d), torch.empty(self.count, n, heads, self.d)
        found = values.view(-1, self.d).numpy(), edges.view(-1, heads, self.d).numpy()
        e, place = self.first.numpy(), self.place
        rows = _blocks(self.count * n, max(1, BLOCK // n))
        for layer, following in zip(layers, [*layers[1:], None], strict=True):
            look()
            bias, strength = _array(layer.edge_bias.weight), np.float32(layer.strength().item())
            q, k = (split_heads(x, heads).transpose(1, 2) for x in queries[:2])  # (G, H, n, q)
            scores, nodes = (q @ k.mT).numpy(), queries[2].view(-1, self.d).numpy()
            self.kernels.attention(scores, nodes, e, place, bias, strength, *self.near, *found)
            h = layer.node(layer.message(values, edges), history)
            history.append(h)
            maps = [*layer.ends(h.dtype), *(following.queries(h.dtype) if following else ())]
            source, target, *rest = linear_maps(h, maps)
            queries = tuple(rest)
            update = self._update(layer, source.view(-1, self.d).numpy(), target.view(-1, self.d).numpy())
            upcoming = None
            if following is None:
                start = self.pool.later(partial(self._start, s, history[1:]))
            else:
                multiply = self._multiplication(following, self.states, self.products, n)
                upcoming = _Step(multiply, len(rows))
            if layer is layers[0]:  # its products are of pairs i <= j, and their memory is used again
                self.pool.complete(step, _nothing)
                self.pool.run(update, rows)
                if upcoming is not None:
                    upcoming.given.extend(rows)
                    self.pool.submit(upcoming.ahead)
            else:
                self.pool.complete(step, update, upcoming)
            if upcoming is not None:
                step = upcoming
            e, place = self.states.numpy(), np.arange(len(self.states)).reshape(-1, n)
        return start(), self.logits

    @torch.no_grad()  # in another thread, too
    def _start(self, s: Tensor, nodes: list[Tensor]) -> Tensor:
        """The start distribution from the node states after every layer."""
        for layer, h in zip(self.net.layers, nodes, strict=True):
            if layer is not self.net.layers[-1]:
                s = layer.start(s, h)
        return layer.start_attention.distribution(s, h)

    def _multiplication(
        self, layer: Layer, states: Tensor, out: Tensor, pairs: int = 1
    ) -> Callable[[slice], None]:
        """Products of states with a layer's weight; a block counts so many ``pairs``."""
        weight = layer.edge_update.weight.detach().T

        def multiply(block: slice) -> None:
            some = slice(block.start * pairs, block.stop * pairs)
            torch.mm(states[some], weight, out=out[some])

        return multiply

    def _begin(self) -> Callable[[slice], None]:
        """Eq. edge_embedding of pairs ``i <= j``."""
        net, kernels = self.net, self.kernels
        first, second = cast("Linear", net.edge_input[0]), cast("Linear", net.edge_input[2])
        centers, bandwidth = net.rbf.parameters_of_bases()
        given = _array(centers), np.float32(bandwidth.item())
        enter, leave, offset = first.weight.detach().T, second.weight.detach().T, second.bias.detach()
        bias = _array(first.bias)

        def begin(block: slice) -> None:
            basis = torch.empty(block.stop - block.start, len(centers))
            kernels.bases(self.distance[block], *given, basis.numpy())
            hidden = torch.mm(basis, enter, out=_scratch(len(basis), self.d))
            kernels.silu(hidden.numpy(), bias)
            torch.addmm(offset, hidden, leave, out=self.first[block])

        return begin

    def _update(self, layer: Layer, source: Any, target: Any) -> Callable[[slice], None]:
        """Eqs. edge_proposal and edge_update of all pairs that leave some cities, at the end also logits."""
        kernels, norm = self.kernels, layer.edge_norm
        epsilon = np.full(self.d, norm.eps, np.float32)
        normal = np.stack((_array(norm.weight), _array(norm.bias), epsilon))
        is_first, is_last = layer is self.net.layers[0], layer is self.net.layers[-1]
        n, d, place = self.n, self.d, self.place
        products, states, logits = self.products.numpy(), self.states.numpy(), self.logits.view(-1).numpy()
        firsts = self.first_products.numpy(), self.first.numpy()
        if is_last:
            first, last = cast("Linear", self.net.edge_head[0]), cast("Linear", self.net.edge_head[2])
            enter = first.weight.detach().T
            head = _array(first.bias), _array(last.weight[0]), np.float32(last.bias.item())

        def update(rows: slice) -> None:
            pairs = slice(rows.start * n, rows.stop * n)
            if is_first:
                kernels.first_update(*firsts, place[rows], rows.start, source, target, normal, states[pairs])
            else:
                kernels.update(products[pairs], states[pairs], rows.start, n, source, target, normal)
            if is_last:
                hidden = torch.mm(self.states[pairs], enter, out=_scratch(pairs.stop - pairs.start, d))
                kernels.logits(hidden.numpy(), *head, logits[pairs])

        return update
