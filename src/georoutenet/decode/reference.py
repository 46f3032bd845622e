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
from georoutenet.decode.sparse import fallback_cities, pair_scores


def choices(task: Task, instance: Tensor, city: Tensor, allowed: Tensor) -> tuple[Tensor, Tensor]:
    """Where ``R`` partial tours may go: cities ``(R, C)``, ascending, and logits, -inf where not allowed."""
    logits = task.logits[instance, city].clamp(min=FLOOR)
    if task.neighbors is None:
        targets = torch.arange(allowed.shape[1], device=city.device).expand(allowed.shape)
        return targets, logits.masked_fill(~allowed, -torch.inf)
    targets = task.neighbors[instance, city]
    logits = logits.masked_fill(~allowed.gather(1, targets), -torch.inf)
    for row in torch.nonzero((logits == -torch.inf).all(dim=1)).flatten().tolist():
        b, i = instance[row], city[row]
        further = fallback_cities(task, int(b), int(i), allowed[row])
        if len(further) > targets.shape[1]:  # wider rows: the new columns are no choice for the others
            extra = (0, len(further) - targets.shape[1])
            targets = torch.nn.functional.pad(targets, extra)
            logits = torch.nn.functional.pad(logits, extra, value=-torch.inf)
        columns = slice(0, len(further))
        targets[row, columns] = further
        logits[row, columns] = pair_scores(task, b.expand_as(further), i.expand_as(further), further)
    return targets, logits


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
            targets = torch.arange(n, device=device).expand(rows.shape)
        else:
            if step == n - 1:
                allowed[every[end >= 0], end[end >= 0]] = True
            targets, rows = choices(task, instance, tours[:, step - 1], allowed)
            normalizer = log_normalizer(rows)
        column = rows.argmax(dim=1) if seed is None else draw(rows, uniforms(keys, step))
        city = targets[every, column]
        tours[:, step] = city
        allowed[every, city] = False
        log_probability += rows[every, column] - normalizer
    shape = (batch, tours_per_instance)
    return Decoded(tours.reshape(*shape, n), log_probability.reshape(shape))


def draw(rows: Tensor, uniform: Tensor) -> Tensor:
    """The column where the running sum of probabilities passes ``uniform``; -inf entries never win."""
    weights = (rows.double() - rows.double().amax(dim=1, keepdim=True)).exp()
    running = weights.cumsum(dim=1)
    target = uniform[:, None] * running[:, -1:]
    # The first place with running > target; it has positive weight because the sum rose there.
    return (running <= target).sum(dim=1).clamp(max=rows.shape[1] - 1)


def greedy(task: Task) -> Decoded:
    """Arg-max start, then the arg-max over unvisited cities; the lowest index wins ties."""
    return construct(task, 1, None)


def sample(task: Task, samples: int, seed: int) -> Decoded:
    """Independent tours from Eq. tour_factorization."""
    return construct(task, samples, seed)


def beam(task: BeamTask) -> Decoded:
    """Beam search over all unvisited cities, one instance after the other."""
    return stacked([_beam(task, b) for b in range(task.shape[0])], filled=task.filled)


def _beam(task: BeamTask, b: int) -> Decoded:
    n, width, costs = task.shape[1], task.width, task.costs
    start, end = task.start[b], int(task.end[b])
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
        targets, logits = choices(task, torch.full_like(city, b), city, allowed)  # (W', C)
        normalizer = log_normalizer(logits)[:, None]
        values = task.weighted(logits, b, city[:, None], targets)
        ranks = rank[:, None] + (values - normalizer)
        order = torch.sort(ranks.reshape(-1), descending=True, stable=True).indices
        order = order[: int((logits > -torch.inf).sum())]
        if task.dominance:
            order = _undominated(task, b, order, tours, length, targets)
        # Partial tours stand in the order of (parent, city): cheaper than by rank, and the same everywhere.
        order = order[:width].sort().values
        parent, column = order // targets.shape[1], order % targets.shape[1]
        chosen = targets[parent, column]
        if costs is not None:
            length = length[parent] + costs.distances(b, city[parent], chosen)
        rank = ranks[parent, column]
        log_probability = log_probability[parent] + (logits - normalizer)[parent, column]
        tours = torch.cat([tours[parent], chosen[:, None]], dim=1)
    by_rank = torch.sort(rank, descending=True, stable=True).indices
    return cheapest(tours[None, by_rank], log_probability[None, by_rank], costs, task.keep, b)


def _undominated(
    task: BeamTask, b: int, order: Tensor, tours: Tensor, length: Tensor, targets: Tensor
) -> Tensor:
    """Children from best to worst rank, each state once: the shortest of those seen stands for it.

    A state is what the rest of a tour depends on: the visited set, the last city and, when the tour has to
    return there, the first. The walk ends at the first child that would open one state too many.
    """
    assert task.costs is not None
    totals = length[:, None] + task.costs.distances(b, tours[:, -1:], targets)
    paths = [(path[0] if task.closed else -1, frozenset(path)) for path in tours.tolist()]
    kept: dict[tuple[int, frozenset[int], int], tuple[float, int]] = {}
    for child in order.tolist():
        parent, column = divmod(child, targets.shape[1])
        state = (*paths[parent], int(targets[parent, column]))
        total = float(totals[parent, column])
        if state not in kept and len(kept) == task.width:
            break
        if state not in kept or total < kept[state][0]:
            kept[state] = (total, child)
    return torch.tensor([child for _, child in kept.values()], device=order.device)
