"""Dense scores of GeoRouteNet on a CPU: small instances, one at a time, with one set of edge states.

Attention reads the near pairs' states from those of all pairs, and matrix products alternate with
`georoutenet.model.dense_numba` on blocks of pairs that stay in a core's cache. Distances are symmetric, so
the first states and their products with the first layer's weight are computed for pairs ``i <= j`` alone.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor

from georoutenet.model.geometry import Neighborhood
from georoutenet.model.georoutenet import GeoRouteNet, Layer

if TYPE_CHECKING:
    from georoutenet.model.layers import Linear

# Pairs of an instance: with fewer, it does not pay to load the kernels; with more, their states (512 bytes
# each) would take too much memory.
FEWEST, MOST = 1 << 13, 1 << 16
# Pairs that a thread takes at a time: states and products together are half of a cache of a megabyte.
BLOCK = 512

Run = Callable[[Callable[[slice], None], Sequence[slice]], None]
"""Calls a function for all blocks."""


def fits(net: object, coords: Tensor, dtype: torch.dtype) -> bool:
    """Whether these instances are for here."""
    fitting = FEWEST <= coords.shape[1] ** 2 <= MOST and coords.device.type == "cpu"
    return fitting and isinstance(net, GeoRouteNet) and dtype == torch.float32 == coords.dtype


@torch.no_grad()
def dense(net: GeoRouteNet, coords: Tensor, distance: Tensor, near: Neighborhood) -> tuple[Tensor, Tensor]:
    """Start log-probabilities ``(B, n)`` and all logits ``(B, n, n)``, without gradients."""
    scores = []
    with _threads() as run:
        for b in range(len(coords)):
            one = [_array(x[b]) for x in (near.index, near.mask, near.distance)]
            scores.append(_Instance(net, distance[b], one, run).scores(coords[b : b + 1]))
    return torch.cat([start for start, _ in scores]), torch.stack([logits for _, logits in scores])


@contextmanager
def _threads() -> Iterator[Run]:
    """What calls a function for blocks in as many threads as PyTorch uses, each of which computes alone."""
    count = torch.get_num_threads()
    torch.set_num_threads(1)  # here and in the threads that are started from now on
    try:
        if count == 1:
            yield lambda work, blocks: deque(map(work, blocks), 0).clear()
        else:
            with ThreadPoolExecutor(count) as pool:
                yield lambda work, blocks: deque(pool.map(work, blocks), 0).clear()
    finally:
        torch.set_num_threads(count)


def _blocks(count: int, size: int) -> list[slice]:
    return [slice(first, min(first + size, count)) for first in range(0, count, size)]


def _array(x: Tensor) -> Any:
    return x.detach().contiguous().numpy()


_local = threading.local()


def _scratch(rows: int, d: int) -> Tensor:
    """The same memory in every call of a thread: fresh memory would have to be fetched into its cache."""
    if not hasattr(_local, "memory") or len(_local.memory) < rows * d:
        _local.memory = torch.empty(rows * d)
    return _local.memory[: rows * d].view(rows, d)


class _Instance:
    """The scores of one instance, from its distances ``(n, n)`` and neighborhoods: arrays ``(n, W)``."""

    def __init__(self, net: GeoRouteNet, distance: Tensor, near: list[Any], run: Run) -> None:
        from georoutenet.model import dense_numba

        self.kernels, self.net, self.near, self.run = dense_numba, net, near, run
        self.n, self.d = len(distance), net.config.hidden
        upper = np.triu_indices(self.n)
        self.distance = distance.numpy()[upper]
        self.first = torch.empty(len(self.distance), self.d)  # states of pairs i <= j, (T, d)
        self.product = torch.empty_like(self.first)
        self.place = np.empty((self.n, self.n), np.int64)  # the number of every pair's first state
        self.place[upper] = self.place.T[upper] = np.arange(len(self.first))
        self.states = torch.empty(self.n, self.n, self.d)
        self.logits = torch.empty(self.n, self.n)

    def scores(self, coords: Tensor) -> tuple[Tensor, Tensor]:
        """Start log-probabilities ``(1, n)`` and logits ``(n, n)``."""
        layers, n = self.net.layers, self.n
        self.run(self._begin(), _blocks(len(self.first), BLOCK))
        history, s, (q, k, v) = self.net.begin(coords, coords.dtype)
        values, edges = torch.empty(1, n, self.d), torch.empty(1, n, layers[0].heads, self.d)
        e, place = self.first.numpy(), self.place
        for layer, following in zip(layers, [*layers[1:], None], strict=True):
            queries = np.stack([x[0].numpy() for x in (q, k, v)])
            bias, strength = _array(layer.edge_bias.weight), np.float32(layer.strength().item())
            given = (queries, e, place, bias, strength, *self.near)
            self.run(partial(self._attend, given, values[0], edges[0]), _blocks(n, 32))
            if following is None:
                s, source, target = layer.conclude(values, edges, history, s)
            else:
                h, s, source, target, q, k, v = layer.advance(values, edges, history, s, following)
                history.append(h)
            self.run(
                self._update(layer, source[0].numpy(), target[0].numpy()), _blocks(n, max(1, BLOCK // n))
            )
            e, place = self.states.view(-1, self.d).numpy(), np.arange(n * n).reshape(n, n)
        return s, self.logits

    def _begin(self) -> Callable[[slice], None]:
        """Eq. edge_embedding of pairs ``i <= j``, and their products with the first layer's weight."""
        net, kernels = self.net, self.kernels
        first, second = cast("Linear", net.edge_input[0]), cast("Linear", net.edge_input[2])
        centers, bandwidth = net.rbf.parameters_of_bases()
        given = _array(centers), np.float32(bandwidth.item())
        enter, leave, offset = first.weight.detach().T, second.weight.detach().T, second.bias.detach()
        bias, weight = _array(first.bias), net.layers[0].edge_update.weight.detach().T

        def begin(block: slice) -> None:
            basis = torch.empty(block.stop - block.start, len(centers))
            kernels.bases(self.distance[block], *given, basis.numpy())
            hidden = torch.mm(basis, enter, out=_scratch(len(basis), self.d))
            kernels.silu(hidden.numpy(), bias)
            e = torch.addmm(offset, hidden, leave, out=self.first[block])
            torch.mm(e, weight, out=self.product[block])

        return begin

    def _attend(self, given: tuple[Any, ...], values: Tensor, edges: Tensor, cities: slice) -> None:
        self.kernels.attention(*given, cities.start, values[cities].numpy(), edges[cities].numpy())

    def _update(self, layer: Layer, source: Any, target: Any) -> Callable[[slice], None]:
        """Eqs. edge_proposal and edge_update of the pairs that leave some cities, at the end also logits."""
        kernels, norm = self.kernels, layer.edge_norm
        weight = layer.edge_update.weight.detach().T
        epsilon = np.full(self.d, norm.eps, np.float32)
        normal = np.stack((_array(norm.weight), _array(norm.bias), epsilon))
        is_first, is_last = layer is self.net.layers[0], layer is self.net.layers[-1]
        first, last = cast("Linear", self.net.edge_head[0]), cast("Linear", self.net.edge_head[2])
        enter = first.weight.detach().T
        head = _array(first.bias), _array(last.weight[0]), np.float32(last.bias.item())

        def update(rows: slice) -> None:
            part = self.states[rows]
            e, u = part.view(-1, self.d), _scratch(part[..., 0].numel(), self.d)
            if is_first:
                both = self.product.numpy(), self.first.numpy(), self.place[rows]
                kernels.first_update(*both, source[rows], target, normal, part.numpy())
            else:
                torch.mm(e, weight, out=u)
                kernels.update(u.view_as(part).numpy(), part.numpy(), source[rows], target, normal)
            if is_last:
                torch.mm(e, enter, out=u)
                kernels.logits(u.numpy(), *head, self.logits[rows].view(-1).numpy())

        return update
