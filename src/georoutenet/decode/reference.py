"""The decoders as plain PyTorch step loops: slow, on any device, and meant to be obviously right.

Every fast kernel is tested against these. The arithmetic is fixed here so that devices agree: normalizers
are summed in float64 and rounded to float32 once, log-probabilities add up in float32.
"""

from __future__ import annotations

import torch
from torch import Tensor

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
