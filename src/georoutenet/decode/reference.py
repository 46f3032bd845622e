"""The decoders as plain PyTorch step loops: slow, on any device, and meant to be obviously right.

Every fast kernel is tested against these. The arithmetic is fixed here so that devices agree: normalizers
are summed in float64 and rounded to float32 once, log-probabilities add up in float32.
"""

from __future__ import annotations

import torch
from torch import Tensor

from georoutenet.decode.beam_task import BeamTask, cheapest, stacked
from georoutenet.decode.common import FLOOR, Decoded, Task
from georoutenet.decode.randomness import tour_keys, uniforms


def unvisited_logits(task: Task, instance: Tensor, city: Tensor, allowed: Tensor) -> Tensor:
    """Logits ``(R, n)`` of the next city for ``R`` partial tours, -inf where it is not allowed."""
    return task.logits[instance, city].clamp(min=FLOOR).masked_fill(~allowed, -torch.inf)


def log_normalizer(rows: Tensor) -> Tensor:
    """Log of the denominator of Eq. masked_transition for each row, float32."""
    return torch.logsumexp(rows.double(), dim=1).float()


def _rows(task: Task, tours_per_instance: int) -> tuple[Tensor, Tensor, Tensor]:
    """Instance and end city of every tour, and the cities it may visit before its last step."""
    batch, n = task.shape
    device = task.start.device
    instance = torch.arange(batch, device=device).repeat_interleave(tours_per_instance)
    end = task.end[instance]
    allowed = torch.arange(n, device=device)[None, :] != end[:, None]
    return instance, end, allowed


def construct(task: Task, tours_per_instance: int, seed: int | None) -> Decoded:
    """Build tours step by step: by arg-max when ``seed`` is None, else by draws from the policy."""
    batch, n = task.shape
    device = task.start.device
    instance, end, allowed = _rows(task, tours_per_instance)
    every = torch.arange(len(instance), device=device)
    if seed is not None:
        keys = tour_keys(seed, batch, tours_per_instance, device).reshape(-1)
    tours = torch.empty(len(instance), n, dtype=torch.int64, device=device)
    log_probability = torch.zeros(len(instance), device=device)
    for step in range(n):
        if step == 0:
            rows, normalizer = task.start[instance], torch.zeros(len(instance), device=device)
        else:
            if step == n - 1:
                allowed[every[end >= 0], end[end >= 0]] = True
            rows = unvisited_logits(task, instance, tours[:, step - 1], allowed)
            normalizer = log_normalizer(rows)
        city = rows.argmax(dim=1) if seed is None else draw(rows, uniforms(keys, step))
        tours[:, step] = city
        allowed[every, city] = False
        log_probability += rows[every, city] - normalizer
    shape = (batch, tours_per_instance)
    return Decoded(tours.reshape(*shape, n), log_probability.reshape(shape))


def draw(rows: Tensor, uniform: Tensor) -> Tensor:
    """The city where the running sum of probabilities passes ``uniform``; -inf rows entries never win."""
    weights = (rows.double() - rows.double().amax(dim=1, keepdim=True)).exp()
    running = weights.cumsum(dim=1)
    target = uniform[:, None] * running[:, -1:]
    # The first index with running > target; it has positive weight because the sum rose there.
    return (running <= target).sum(dim=1).clamp(max=rows.shape[1] - 1)


def greedy(task: Task) -> Decoded:
    """Arg-max start, then the arg-max over unvisited cities; the lowest index wins ties."""
    return construct(task, 1, None)


def sample(task: Task, samples: int, seed: int) -> Decoded:
    """Independent tours from Eq. tour_factorization."""
    return construct(task, samples, seed)


def beam(task: BeamTask) -> Decoded:
    """Beam search over all unvisited cities, one instance after the other."""
    return stacked([_beam(task, b) for b in range(task.shape[0])])


def _beam(task: BeamTask, b: int) -> Decoded:
    n, width = task.shape[1], task.width
    start, end, values = task.start[b], int(task.end[b]), task.values(b)
    distances = None if task.costs is None else task.costs.matrix(b)
    starts = int((start > -torch.inf).sum())
    first = torch.sort(start, descending=True, stable=True).indices[:starts][:width].sort().values
    tours = first[:, None]  # (W', t): the partial tours
    rank = start[first]
    log_probability = rank
    length = torch.zeros(len(first), dtype=torch.float64, device=start.device)
    for step in range(1, n):
        city = tours[:, -1]
        allowed = torch.ones(len(tours), n, dtype=torch.bool, device=start.device).scatter(1, tours, False)
        if end >= 0 and step < n - 1:
            allowed[:, end] = False
        logits = unvisited_logits(task, torch.full_like(city, b), city, allowed)
        normalizer = log_normalizer(logits)[:, None]
        ranks = rank[:, None] + (values[city].masked_fill(~allowed, -torch.inf) - normalizer)
        order = torch.sort(ranks.reshape(-1), descending=True, stable=True).indices[: int(allowed.sum())]
        if task.dominance:
            assert distances is not None
            order = _undominated(task, order, tours, length, distances)
        # Partial tours stand in the order of (parent, city): cheaper than by rank, and the same everywhere.
        order = order[:width].sort().values
        parent, chosen = order // n, order % n
        if distances is not None:
            length = length[parent] + distances[city[parent], chosen]
        rank = ranks[parent, chosen]
        log_probability = log_probability[parent] + (logits - normalizer)[parent, chosen]
        tours = torch.cat([tours[parent], chosen[:, None]], dim=1)
    by_rank = torch.sort(rank, descending=True, stable=True).indices
    return cheapest(task, tours[None, by_rank], log_probability[None, by_rank], b)


def _undominated(task: BeamTask, order: Tensor, tours: Tensor, length: Tensor, distances: Tensor) -> Tensor:
    """Children from best to worst rank, each state once: the shortest of those seen stands for it.

    A state is what the rest of a tour depends on: the visited set, the last city and, when the tour has to
    return there, the first. The walk ends at the first child that would open one state too many.
    """
    n = task.shape[1]
    kept: dict[tuple[int, frozenset[int], int], tuple[float, int]] = {}
    for child in order.tolist():
        path = tours[child // n].tolist()
        city = child % n
        state = (path[0] if task.closed else -1, frozenset(path), city)
        total = float(length[child // n] + distances[path[-1], city])
        if state not in kept and len(kept) == task.width:
            break
        if state not in kept or total < kept[state][0]:
            kept[state] = (total, child)
    return torch.tensor([child for _, child in kept.values()], device=order.device)
