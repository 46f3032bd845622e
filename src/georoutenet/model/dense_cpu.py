"""Dense scores of GeoRouteNet on a CPU: small instances, one at a time, with one set of edge states.

Attention reads the near pairs' states from those of all pairs, and matrix products alternate with
`georoutenet.model.dense_numba` on blocks of pairs that stay in a core's cache. Distances are symmetric, so
the first states and their products with the first layer's weight are computed for pairs ``i <= j`` alone.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache, partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor

from georoutenet.model.geometry import Neighborhood
from georoutenet.model.georoutenet import GeoRouteNet, Layer
from georoutenet.model.layers import linear_maps

if TYPE_CHECKING:
    from georoutenet.model.layers import Linear

# Pairs of an instance: with fewer, it does not pay to load the kernels; with more, their states (512 bytes
# each) would take too much memory.
FEWEST, MOST = 1 << 13, 1 << 16
# Pairs that a thread takes at a time: their states and products are a megabyte.
BLOCK = 1024


def fits(net: object, coords: Tensor, dtype: torch.dtype) -> bool:
    """Whether these instances are for here."""
    fitting = FEWEST <= coords.shape[1] ** 2 <= MOST and coords.device.type == "cpu"
    return fitting and isinstance(net, GeoRouteNet) and dtype == torch.float32 == coords.dtype


@torch.no_grad()
def dense(net: GeoRouteNet, coords: Tensor, distance: Tensor, near: Neighborhood) -> tuple[Tensor, Tensor]:
    """Start log-probabilities ``(B, n)`` and all logits ``(B, n, n)``, without gradients."""
    scores = []
    with _threads() as pool:
        for b in range(len(coords)):
            one = [_array(x[b]) for x in (near.index, near.mask, near.distance)]
            scores.append(_Instance(net, distance[b], one, pool).scores(coords[b : b + 1]))
    return torch.cat([start for start, _ in scores]), torch.stack([logits for _, logits in scores])


class _Pool:
    """The calling thread and ``others``; each computes alone."""

    def __init__(self, others: ThreadPoolExecutor | None, count: int) -> None:
        self.others, self.count = others, count

    def ahead(self, work: Callable[[slice], None], blocks: Sequence[slice]) -> Callable[[], set[int]]:
        """Let the others begin with the blocks. The result makes them stop and says where those begin that
        are done."""
        if self.others is None:
            return set
        left, done, is_over = iter(blocks), set(), threading.Event()

        def some() -> None:
            while not is_over.is_set() and (block := next(left, None)) is not None:
                work(block)
                done.add(block.start)

        running = [self.others.submit(some) for _ in range(self.count - 1)]

        def stop() -> set[int]:
            is_over.set()
            for one in running:
                one.result()
            return done

        return stop

    def later(self, work: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Let another thread compute something that is asked for at the end."""
        return work if self.others is None else self.others.submit(work).result

    def run(self, work: Callable[[slice], None], blocks: Sequence[slice]) -> None:
        """Call a function for all blocks."""
        left = iter(blocks)

        def some() -> None:
            for block in left:
                work(block)

        running = [self.others.submit(some) for _ in range(self.count - 1)] if self.others else []
        some()
        for one in running:
            one.result()


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
        torch.set_num_threads(1)  # here and in threads whose first computation is from now on
        try:
            yield _Pool(_others(count - 1) if count > 1 else None, count)
        finally:
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


class _Instance:
    """The scores of one instance, from its distances ``(n, n)`` and neighborhoods: arrays ``(n, W)``."""

    def __init__(self, net: GeoRouteNet, distance: Tensor, near: list[Any], pool: _Pool) -> None:
        from georoutenet.model import dense_numba

        self.kernels, self.net, self.near, self.pool = dense_numba, net, near, pool
        self.n, self.d = len(distance), net.config.hidden
        upper = np.triu_indices(self.n)
        self.distance = distance.numpy()[upper]
        count = len(self.distance)
        memory = _scratch(2 * count + self.n**2, self.d, "states").split([count, count, self.n**2])
        self.first = memory[0]  # states of pairs i <= j, (T, d)
        self.products = memory[1]  # of these, and later of about half of all pairs
        self.states = memory[2].view(self.n, self.n, self.d)
        self.place = np.empty((self.n, self.n), np.int64)  # the number of every pair's first state
        self.place[upper] = self.place.T[upper] = np.arange(count)
        self.logits = torch.empty(self.n, self.n)

    def scores(self, coords: Tensor) -> tuple[Tensor, Tensor]:
        """Start log-probabilities ``(1, n)`` and logits ``(n, n)``."""
        layers, n = self.net.layers, self.n
        few = _blocks(len(self.first), BLOCK // 2)
        self.pool.run(self._begin(), few)
        multiply = partial(self._multiply, layers[0], self.first)
        stop = self.pool.ahead(multiply, few)  # other threads multiply while this one is at the nodes
        history, s, queries = self.net.begin(coords, coords.dtype)
        values, edges = torch.empty(1, n, self.d), torch.empty(1, n, layers[0].heads, self.d)
        e, place, blocks = self.first.numpy(), self.place, _blocks(n, max(1, BLOCK // n))
        all_states = self.states.view(-1, self.d)
        for layer, following in zip(layers, [*layers[1:], None], strict=True):
            bias, strength = _array(layer.edge_bias.weight), np.float32(layer.strength().item())
            found = values[0].numpy(), edges[0].numpy()
            together = np.concatenate([x.numpy() for x in queries])  # (3, n, d)
            self.kernels.attention(together, e, place, bias, strength, *self.near, *found)
            h = layer.node(layer.message(values, edges), history)
            history.append(h)
            maps = [*layer.ends(h.dtype), *(following.queries(h.dtype) if following else ())]
            source, target, *rest = linear_maps(h, maps)
            queries = tuple(rest)
            if following is None:
                start = self.pool.later(partial(self._start, s, history[1:]))
            done = stop()
            if layer is layers[0]:
                self.pool.run(multiply, [block for block in few if block.start not in done])
            self.pool.run(self._update(layer, source[0].numpy(), target[0].numpy(), done), blocks)
            e, place = all_states.numpy(), np.arange(n * n).reshape(n, n)
            if following is not None:
                some = [slice(rows.start * n, rows.stop * n) for rows in blocks]
                some = [pairs for pairs in some if pairs.stop <= len(self.products)]
                stop = self.pool.ahead(partial(self._multiply, following, all_states), some)
        return start(), self.logits

    @torch.no_grad()  # in another thread, too
    def _start(self, s: Tensor, nodes: list[Tensor]) -> Tensor:
        """The start distribution from the node states after every layer."""
        for layer, h in zip(self.net.layers, nodes, strict=True):
            if layer is not self.net.layers[-1]:
                s = layer.start(s, h)
        return layer.start_attention.distribution(s, h)

    def _multiply(self, layer: Layer, states: Tensor, pairs: slice) -> None:
        """Products of some pairs' states with a layer's weight."""
        torch.mm(states[pairs], layer.edge_update.weight.detach().T, out=self.products[pairs])

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

    def _update(self, layer: Layer, source: Any, target: Any, done: set[int]) -> Callable[[slice], None]:
        """Eqs. edge_proposal and edge_update of the pairs that leave some cities, at the end also logits;
        ``done`` are the blocks that are multiplied already."""
        kernels, norm = self.kernels, layer.edge_norm
        weight = layer.edge_update.weight.detach().T
        epsilon = np.full(self.d, norm.eps, np.float32)
        normal = np.stack((_array(norm.weight), _array(norm.bias), epsilon))
        is_first, is_last = layer is self.net.layers[0], layer is self.net.layers[-1]
        first, last = cast("Linear", self.net.edge_head[0]), cast("Linear", self.net.edge_head[2])
        enter = first.weight.detach().T
        head = _array(first.bias), _array(last.weight[0]), np.float32(last.bias.item())
        n, d, flat, arrays = self.n, self.d, self.states.view(-1, self.d), self.states.numpy()
        firsts, logits = (self.products.numpy(), self.first.numpy()), self.logits.view(-1).numpy()

        def update(rows: slice) -> None:
            pairs = slice(rows.start * n, rows.stop * n)
            e, states = flat[pairs], arrays[rows]
            if is_first:
                kernels.first_update(*firsts, self.place[rows], source[rows], target, normal, states)
            else:
                if pairs.start in done:
                    product = self.products[pairs]
                else:
                    product = torch.mm(e, weight, out=_scratch(pairs.stop - pairs.start, d))
                kernels.update(product.numpy().reshape(-1, n, d), states, source[rows], target, normal)
            if is_last:
                hidden = torch.mm(e, enter, out=_scratch(pairs.stop - pairs.start, d))
                kernels.logits(hidden.numpy(), *head, logits[pairs])

        return update
