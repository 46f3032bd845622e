"""One signature for all decoders: scores in, tours out, on whatever device the scores are."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from georoutenet.decode.beam_task import BeamTask, prepare_beam
from georoutenet.decode.common import FLOOR, Backend, City, Decoded, Task, choose_backend, prepare
from georoutenet.decode.costs import as_costs
from georoutenet.decode.randomness import check_seed
from georoutenet.decode.replay import replay
from georoutenet.decode.sparse import check_fallback
from georoutenet.errors import whole
from georoutenet.model.scores import Scores
from georoutenet.problem.instance import Instance


def greedy(
    scores: Scores,
    *,
    start: City = None,
    end: City = None,
    closed: bool = True,
    coordinates: Tensor | ArrayLike | None = None,
    backend: Backend = "auto",
    log_probabilities: bool = True,
) -> Decoded:
    """The arg-max start, then the arg-max over unvisited cities; ``tours (B, 1, n)``.

    ``start`` and ``end`` fix the first and the last city. ``closed`` is accepted by every decoder; here it
    changes nothing, because no cost is involved. ``coordinates (B, n, 2)`` serve sparse scores alone: they
    say which unvisited cities are near when a city has no candidate left.
    """
    task = prepare(scores, start=start, end=end, coordinates=coordinates)
    return _construct(task, None, None, backend, log_probabilities)


def sample(
    scores: Scores,
    samples: int,
    *,
    seed: int | Tensor,
    temperature: float = 1.0,
    start: City = None,
    end: City = None,
    closed: bool = True,
    coordinates: Tensor | ArrayLike | None = None,
    backend: Backend = "auto",
    log_probabilities: bool = True,
) -> Decoded:
    """``samples`` tours drawn independently from the policy, Eq. tour_factorization; ``tours (B, M, n)``.

    On one kind of device the same seed gives the same tours, whatever the batch and the number of threads;
    CPU and GPU draw different ones.
    """
    samples = whole("samples", samples)
    task = prepare(scores, start=start, end=end, temperature=temperature, coordinates=coordinates)
    return _construct(task, samples, seed, backend, log_probabilities)


@torch.no_grad()
def _construct(
    task: Task, samples: int | None, seed: int | Tensor | None, backend: str, log_probabilities: bool
) -> Decoded:
    """Greedy tours (``samples`` is None) or sampled ones, on the backend asked for."""
    check_fallback(task)
    home = task.start.device
    which = choose_backend(backend, home)
    if which == "triton" and task.neighbors is None:
        return _construct_triton(task, samples, seed, log_probabilities)
    number = None if seed is None else check_seed(seed)
    if which == "reference":
        from georoutenet.decode import reference

        return reference.construct(task, samples or 1, number)
    task = task.on_cpu()
    if task.neighbors is not None:
        from georoutenet.decode.cpu import sparse as numba_sparse

        return numba_sparse.construct(task, samples or 1, number).to(home)
    from georoutenet.decode.cpu import tours as numba_tours

    if number is None or samples is None:
        return numba_tours.greedy(task, log_probabilities=log_probabilities)
    return numba_tours.sample(task, samples, number)


def _construct_triton(
    task: Task, samples: int | None, seed: int | Tensor | None, log_probabilities: bool
) -> Decoded:
    from georoutenet.decode.gpu import rollout as kernels_triton

    logits = task.logits
    if task.keeps_last:
        # A city of probability zero comes last: so the kernel needs to know nothing of fixed ends.
        cities = torch.arange(logits.shape[2], device=logits.device)
        logits = logits.masked_fill((cities == task.end[:, None])[:, None], FLOOR)
    drawn = kernels_triton.rollout(task.start, logits, samples=samples or 0, seed=0 if seed is None else seed)
    tours = drawn if samples is None else drawn[:, :-1].contiguous()
    return Decoded(tours, replay(task.start, logits, tours)[0] if log_probabilities else None)


@torch.no_grad()
def beam(
    scores: Scores,
    width: int,
    *,
    coordinates: Tensor | ArrayLike | None = None,
    instances: Sequence[Instance] | None = None,
    keep: int = 1,
    dominance: bool = False,
    temperature: float = 1.0,
    length_weight: float = 0.0,
    start: City = None,
    end: City = None,
    closed: bool = True,
    backend: Backend = "auto",
) -> Decoded:
    """The cheapest of the ``width`` most probable tours that a beam finds; ``tours (B, keep, n)``.

    The first step takes the ``min(width, n)`` most probable start cities; every later step keeps the
    ``width`` best children over all unvisited cities by cumulative log-probability, in float32. Ties go
    to the lower (parent, city). The cost is the Euclidean length in ``coordinates (B, n, 2)`` or each
    instance's own rule; without a cost the most probable tours are returned. ``keep`` asks for that many
    tours, best first (fewer where the beam holds fewer).

    Settings beyond the paper: ``dominance`` keeps, of partial tours with the same first city, visited set
    and last city, the shortest; ``temperature`` divides the logits; ``length_weight`` ranks by
    log-probability minus that many times the length so far (larger side of the instance = 1).
    """
    width, keep = whole("width", width), whole("keep", keep)
    costs = as_costs(
        scores.batch_size,
        scores.n,
        scores.start.device,
        coordinates=coordinates,
        instances=instances,
        closed=closed,
    )
    where = None if costs is None else costs.coordinates
    task = prepare_beam(
        prepare(scores, start=start, end=end, temperature=temperature, coordinates=where),
        costs,
        width=width,
        keep=keep,
        dominance=dominance,
        length_weight=length_weight,
    )
    return search(task, backend)


def search(task: BeamTask, backend: str) -> Decoded:
    """Run a prepared beam search on the backend asked for.

    On a GPU, sparse scores and searches larger than the Triton kernel takes run on the CPU.
    """
    check_fallback(task)
    home = task.start.device
    which = choose_backend(backend, home)
    if which == "triton":
        from georoutenet.decode.gpu import beam as beam_triton

        if beam_triton.supports(task):
            return beam_triton.beam(task)
    if which == "reference":
        from georoutenet.decode import reference

        return reference.beam(task)
    if task.neighbors is not None:
        from georoutenet.decode.cpu import sparse_beam as numba_sparse_beam

        return numba_sparse_beam.beam(task.on_cpu()).to(home)
    from georoutenet.decode.cpu import beam as numba_beam

    return numba_beam.beam(task.on_cpu()).to(home)


@torch.no_grad()
def rollout(start: Tensor, logits: Tensor, samples: int, seed: int | Tensor) -> Tensor:
    """The tours of one training step, int64 ``(B, M + 1, n)``: ``samples`` drawn ones, then the greedy one.

    ``start (B, n)`` are log-probabilities, ``logits (B, n, n)`` edge logits. No gradients; the gradient
    comes from ``replay``. On a CUDA device ``seed`` may be a one-element tensor there; it is not read back.
    """
    if start.device.type == "cuda":
        from georoutenet.decode.gpu import rollout as kernels_triton

        tours: Tensor = kernels_triton.rollout(start, logits, samples=samples, seed=seed)
        return tours
    scores = Scores(start, logits)
    best = greedy(scores, log_probabilities=False).tours
    if whole("samples", samples, least=0) == 0:
        return best
    return torch.cat([sample(scores, samples, seed=seed).tours, best], dim=1)


def compile_decoders() -> None:
    """Decode four cities, so that the CPU kernels are compiled or read from their cache."""
    scores = Scores(torch.zeros(1, 4).log_softmax(1), torch.zeros(1, 4, 4))
    square = torch.tensor([[[0.0, 0.0], [0.0, 1.0], [1.0, 1.0], [1.0, 0.0]]], dtype=torch.float64)
    greedy(scores)
    beam(scores, 2, coordinates=square)
    beam(scores, 2, coordinates=square, dominance=True, length_weight=1.0)
    next_city = ((torch.arange(4) + 1) % 4).view(1, 4, 1)
    ahead = Scores(scores.start, torch.zeros(1, 4, 1), next_city, lambda b, i, j: torch.zeros(len(b)))
    greedy(ahead, coordinates=square)
