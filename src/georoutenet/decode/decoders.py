"""One signature for all decoders: scores in, tours out, on whatever device the scores are."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from georoutenet.decode.beam_task import BeamTask, prepare_beam
from georoutenet.decode.common import Backend, City, Decoded, choose_backend, prepare, whole
from georoutenet.decode.costs import as_costs
from georoutenet.decode.randomness import check_seed
from georoutenet.instance import Instance
from georoutenet.model.scores import Scores


def greedy(
    scores: Scores,
    *,
    start: City = None,
    end: City = None,
    closed: bool = True,
    backend: Backend = "auto",
    log_probabilities: bool = True,
) -> Decoded:
    """The arg-max start, then the arg-max over unvisited cities; ``tours (B, 1, n)``.

    ``start`` and ``end`` fix the first and the last city. ``closed`` is accepted by every decoder; here it
    changes nothing, because no cost is involved.
    """
    which = choose_backend(backend, scores.start.device, sparse=not scores.is_dense)
    task = prepare(scores, start=start, end=end)
    if which == "numba":
        from georoutenet.decode import numba_tours

        return numba_tours.greedy(task, log_probabilities=log_probabilities)
    from georoutenet.decode import reference

    return reference.greedy(task)


def sample(
    scores: Scores,
    samples: int,
    *,
    seed: int | Tensor,
    temperature: float = 1.0,
    start: City = None,
    end: City = None,
    closed: bool = True,
    backend: Backend = "auto",
) -> Decoded:
    """``samples`` tours drawn independently from the policy, Eq. tour_factorization; ``tours (B, M, n)``.

    The same seed gives the same tours, whatever the number of threads.
    """
    samples = whole("samples", samples)
    which = choose_backend(backend, scores.start.device, sparse=not scores.is_dense)
    task = prepare(scores, start=start, end=end, temperature=temperature)
    if which == "numba":
        from georoutenet.decode import numba_tours

        return numba_tours.sample(task, samples, check_seed(seed))
    from georoutenet.decode import reference

    return reference.sample(task, samples, check_seed(seed))


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
    device = scores.start.device
    costs = as_costs(
        scores.batch_size, scores.n, device, coordinates=coordinates, instances=instances, closed=closed
    )
    which = choose_backend(backend, device, sparse=not scores.is_dense)
    task = prepare_beam(
        prepare(scores, start=start, end=end, temperature=temperature),
        costs,
        width=width,
        keep=keep,
        dominance=dominance,
        length_weight=length_weight,
    )
    return search(task, which)


def search(task: BeamTask, backend: str) -> Decoded:
    """Run a prepared beam search on the backend chosen for it."""
    if backend == "numba":
        from georoutenet.decode import numba_beam

        return numba_beam.beam(task)
    from georoutenet.decode import reference

    return reference.beam(task)


@torch.no_grad()
def rollout(start: Tensor, logits: Tensor, samples: int, seed: int | Tensor) -> Tensor:
    """The tours of one training step, int64 ``(B, M + 1, n)``: ``samples`` drawn ones, then the greedy one.

    ``start (B, n)`` are log-probabilities, ``logits (B, n, n)`` edge logits. No gradients; the gradient
    comes from ``replay``. On a CUDA device ``seed`` may be a one-element tensor there; it is not read back.
    """
    if start.device.type == "cuda":
        from georoutenet.decode import kernels_triton

        tours: Tensor = kernels_triton.rollout(start, logits, samples=samples, seed=seed)
        return tours
    scores = Scores(start, logits)
    best = greedy(scores, log_probabilities=False).tours
    if whole("samples", samples, least=0) == 0:
        return best
    return torch.cat([sample(scores, samples, seed=seed).tours, best], dim=1)
