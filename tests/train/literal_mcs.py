"""Algorithm 1 of the paper as written: one loop per symbol, no vectorization. A reference for tests only."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def literal_replay(start: Tensor, logits: Tensor, tour: list[int]) -> tuple[Tensor, Tensor]:
    """Eqs. candidate_logprob and path_entropy of one tour, decision by decision."""
    n = len(tour)
    log_probability = start[tour[0]]
    entropy = -sum(start[j].exp() * start[j] for j in range(n))
    for t in range(1, n):
        current, unvisited = tour[t - 1], [j for j in range(n) if j not in tour[:t]]
        total = sum(logits[current, j].exp() for j in unvisited)
        for j in unvisited:
            p = logits[current, j].exp() / total
            entropy = entropy - p * p.log()
        log_probability = log_probability + (logits[current, tour[t]].exp() / total).log()
    return log_probability, entropy


def literal_cost(coords: Tensor, tour: list[int]) -> float:
    """Eq. tour_cost."""
    points = [(float(x), float(y)) for x, y in coords]
    return sum(math.dist(points[tour[t]], points[tour[(t + 1) % len(tour)]]) for t in range(len(tour)))


def literal_single_pg(costs: list[list[float]], greedy: list[float], log_probability: Tensor) -> Tensor:
    """Eq. single_pg."""
    size = len(costs)
    difference = [costs[b][0] - greedy[b] for b in range(size)]
    mean = sum(difference) / size
    return sum((difference[b] - mean) * log_probability[b, 0] for b in range(size)) / size


def literal_mcs(
    costs: list[list[float]],
    greedy: list[float],
    log_probability: Tensor,
    entropy: Tensor,
    *,
    n: int,
    guidance: float,
    step: int,
    total_steps: int,
    entropy_first: float = 0.0125,
    entropy_last: float = 0.0,
) -> Tensor:
    """The loss of Algorithm 1 from costs, log-probabilities and entropies of ``B`` x ``M`` candidates."""
    batch, size = len(costs), len(costs[0])
    advantage = [[0.0] * size for _ in range(batch)]
    winner, gain = [0] * batch, [0.0] * batch
    for b in range(batch):
        for m in range(size):
            baseline = greedy[b]
            for r in range(size):
                if r != m:
                    baseline = min(baseline, costs[b][r])
            advantage[b][m] = costs[b][m] - baseline
        for m in range(size):
            if costs[b][m] < costs[b][winner[b]]:
                winner[b] = m
        gain[b] = sum(costs[b]) / size - costs[b][winner[b]]

    everything = [a for row in advantage for a in row]
    mean = sum(everything) / len(everything)
    deviation = math.sqrt(sum((a - mean) ** 2 for a in everything) / len(everything))

    policy_gradient: Tensor = torch.zeros((), dtype=log_probability.dtype)
    lead: Tensor = torch.zeros((), dtype=log_probability.dtype)
    mean_entropy: Tensor = torch.zeros((), dtype=log_probability.dtype)
    for b in range(batch):
        for m in range(size):
            standardized = (advantage[b][m] - mean) / max(deviation, 1e-6)
            policy_gradient = policy_gradient + standardized * log_probability[b, m] / (batch * size)
            mean_entropy = mean_entropy + entropy[b, m] / (batch * size)
        lead = lead - gain[b] * log_probability[b, winner[b]] / n / batch
    fraction = step / (total_steps - 1) if total_steps > 1 else 0.0
    coefficient = entropy_first + (entropy_last - entropy_first) * fraction
    return policy_gradient + guidance * lead - coefficient * mean_entropy
