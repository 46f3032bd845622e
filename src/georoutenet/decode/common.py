"""What all decoders share: their result, fixed ends, temperature, and the choice of a backend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self, get_args

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from georoutenet.errors import InputError
from georoutenet.model.scores import PairLogits, Scores

Backend = Literal["auto", "reference", "numba", "triton"]
City = int | Sequence[int] | Tensor | None
"""A city for all instances, one for each instance, or none."""

FLOOR = -1e30
"""Scores below this count as this: a city of probability zero can still be the only one left."""


@dataclass(frozen=True)
class Decoded:
    """``M`` tours for each of ``B`` instances and their log-probabilities, Eq. candidate_logprob."""

    tours: Tensor  # (B, M, n) int64
    log_probabilities: Tensor | None  # (B, M) float32; None when they were not asked for
    lengths: Tensor | None = None  # (B, M) float64, when the decoder was given a cost

    def best(self) -> Tensor:
        """The first tour of each instance, ``(B, n)``: the cheapest where lengths are known."""
        return self.tours[:, 0]

    def to(self, device: torch.device) -> Self:
        """The same result on another device."""
        parts = {name: part.to(device) for name, part in vars(self).items() if isinstance(part, Tensor)}
        return replace(self, **parts)


@dataclass(frozen=True)
class Task:
    """Scores with the settings of one call folded in, so that no decoder has to look at them again."""

    start: Tensor  # (B, n) float32 log-probabilities of the first city; -inf where it is forbidden
    logits: Tensor  # as in Scores, float32 and contiguous
    end: Tensor  # (B,) int64, the city kept for last, or -1
    neighbors: Tensor | None = None  # (B, n, K) int64 candidates in ascending order
    pair_logits: PairLogits | None = None
    coordinates: Tensor | None = None  # (B, n, 2) float64, where sparse scores look for the nearest cities
    keeps_last: bool = True  # whether there may be such a city

    @property
    def shape(self) -> tuple[int, int]:
        return self.start.shape[0], self.start.shape[1]

    def on_cpu(self) -> Self:
        """The same task in main memory; pairs on demand are still scored where the network is."""
        if self.start.device.type == "cpu":
            return self
        moved: dict[str, Any] = {
            name: part.cpu() for name, part in vars(self).items() if isinstance(part, Tensor)
        }
        pairs, home = self.pair_logits, self.start.device
        if pairs is not None:
            moved["pair_logits"] = lambda *pair: pairs(*(index.to(home) for index in pair)).cpu()
        return replace(self, **moved)


def choose_backend(backend: str, device: torch.device) -> str:
    """The backend that runs: ``auto`` is Triton on a CUDA device, Numba on the CPU, else the reference."""
    if backend not in get_args(Backend):
        raise InputError(f"unknown backend {backend!r}; allowed: {', '.join(get_args(Backend))}")
    if backend == "auto":
        return {"cpu": "numba", "cuda": "triton"}.get(device.type, "reference")
    if backend == "triton" and device.type != "cuda":
        raise InputError(f"backend 'triton' needs scores on a CUDA device; they are on {device}")
    return backend


def prepare(
    scores: Scores,
    *,
    start: City = None,
    end: City = None,
    temperature: float = 1.0,
    coordinates: Tensor | ArrayLike | None = None,
) -> Task:
    """Check a call's settings and fold them into the scores.

    A fixed start replaces the start distribution by certainty; a fixed end is kept out of it. The
    temperature divides the logits and the start's log-probabilities, which are normalized again.
    """
    batch, n = scores.batch_size, scores.n
    if n < 1:
        raise InputError("scores need at least one city, got none")
    if not temperature > 0:
        raise InputError(f"temperature must be greater than 0, got {temperature}")
    device = scores.start.device
    last = _cities(end, "end", batch, n, device)
    first = last if start is None and end is None else _cities(start, "start", batch, n, device)
    if start is not None and end is not None and n > 1 and _any_equal(start, end):
        raise InputError(f"start and end are the same city {start}; a tour visits each city once")
    if n == 1:
        last = torch.full_like(last, -1)

    log_start = scores.start.detach().float().clamp(min=FLOOR)
    if temperature != 1.0 or start is not None or end is not None:
        cities = torch.arange(n, device=device)
        forbidden = (cities == last[:, None]) | ((first >= 0)[:, None] & (cities != first[:, None]))
        log_start = (log_start / temperature).masked_fill(forbidden, -torch.inf)
        log_start = torch.log_softmax(log_start.double(), dim=1).float()
        log_start = log_start.clamp(min=FLOOR).masked_fill(forbidden, -torch.inf)

    logits, neighbors, pairs, points = scores.logits.detach().float(), scores.neighbors, None, None
    if neighbors is not None:
        # Ascending candidates make the lowest index win ties, and draws walk in the dense order.
        neighbors, order = torch.sort(neighbors, dim=2)
        logits = logits.gather(2, order)
        pairs = scores.pair_logits
        if coordinates is not None:
            points = torch.as_tensor(coordinates, dtype=torch.float64, device=device).detach()
            if points.shape != (batch, n, 2):
                raise InputError(f"coordinates must have shape {(batch, n, 2)}, got {tuple(points.shape)}")
    if temperature != 1.0:
        logits = logits / temperature
        if pairs is not None:
            cold = pairs

            def pairs(b: Tensor, i: Tensor, j: Tensor) -> Tensor:
                return cold(b, i, j) / temperature

    keeps_last = end is not None and n > 1
    return Task(log_start.contiguous(), logits.contiguous(), last, neighbors, pairs, points, keeps_last)


def _any_equal(start: City, end: City) -> bool:
    """Whether a start is also the end: asked where they are, a number needs no device."""
    if isinstance(start, int) and isinstance(end, int):
        return start == end
    first, last = torch.as_tensor(start), torch.as_tensor(end)
    return bool((first.reshape(-1) == last.reshape(-1).to(first.device)).any())


def _cities(city: City, name: str, batch: int, n: int, device: torch.device) -> Tensor:
    """One city for each instance as int64 ``(B,)``, -1 where none is fixed."""
    if city is None:
        return torch.full((batch,), -1, dtype=torch.int64, device=device)
    given = torch.as_tensor(city)  # checked where it is: the host has nothing to wait for
    if given.is_floating_point() or given.dtype == torch.bool or given.numel() not in (1, batch):
        raise InputError(f"{name} must be a city number or one for each of {batch} instances, got {city!r}")
    if bool(((given < 0) | (given >= n)).any()):
        raise InputError(f"{name} must be a city from 0 to {n - 1}, got {city!r}")
    return given.to(device, torch.int64).reshape(-1).expand(batch).contiguous()


def rolled(tours: Tensor, city: Tensor | int) -> Tensor:
    """Closed tours ``(B, n)`` begun at ``city``, or at this city ``(B,)`` of each."""
    begin = (tours == (city[:, None] if isinstance(city, Tensor) else city)).int().argmax(dim=1, keepdim=True)
    return tours.gather(1, (begin + torch.arange(tours.shape[1], device=tours.device)) % tours.shape[1])
