"""Training objectives: pure functions of costs, log-probabilities and entropies, with no model inside.

Costs are constants (gradients never pass through them); log-probabilities and entropies carry the gradient.
Every reduction over the batch goes through ``across``, which averages a tensor over the processes of a
distributed run, so that standardization always sees the global batch. Nothing here waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import comb
from typing import TypeVar

import torch
from torch import Tensor

from georoutenet.errors import InputError

BASELINES = ("min", "mean", "leave-one-out", "best-of")
STANDARDIZATIONS = ("joint", "instance", "none")
DEVIATION_FLOOR = 1e-6  # Eq. advantage_standardization

Across = Callable[[Tensor], Tensor]
"""Average of a tensor over the processes of a distributed run; the identity in a single process."""

Number = TypeVar("Number", float, Tensor)


def one_process(value: Tensor) -> Tensor:
    """The average over a single process: the value itself."""
    return value


@dataclass(frozen=True, kw_only=True)
class MultiCandidate:
    """Settings of the multi-candidate objective. The defaults are the paper's MCS-RL.

    ``baseline`` is what a candidate's cost is compared with: ``"min"`` the cheapest of the greedy tour and
    the other candidates (the paper), ``"mean"`` the mean of all candidates, ``"leave-one-out"`` the mean of
    the others, ``"best-of"`` the gradient of the expected cost of the best of ``best_of`` candidates. With a
    single candidate every baseline is the greedy cost. ``standardization`` centers and scales the advantages
    over the whole batch (``"joint"``, the paper), over each instance's candidates (``"instance"``), or not
    at all (``"none"``). Where the mean path entropy is below ``entropy_floor`` nats per city, its coefficient
    is ``entropy_below``, if that is more.
    """

    baseline: str = "min"
    standardization: str = "joint"
    best_of: int = 1
    guidance: float = 0.5
    entropy_floor: float = 0.0
    entropy_below: float = 0.0

    def __post_init__(self) -> None:
        if self.baseline not in BASELINES:
            raise InputError(
                f"baseline = {self.baseline!r} is not understood; allowed: {', '.join(BASELINES)}"
            )
        if self.standardization not in STANDARDIZATIONS:
            raise InputError(
                f"standardization = {self.standardization!r} is not understood; "
                f"allowed: {', '.join(STANDARDIZATIONS)}"
            )
        if (self.baseline == "best-of") != (self.best_of > 1):
            raise InputError(
                f"baseline = {self.baseline!r} with best_of = {self.best_of} does not fit; "
                'baseline "best-of" needs best_of of 2 or more, every other baseline best_of = 1'
            )


def entropy_coefficient(
    step: Number, total_steps: int, *, first: float = 0.0125, last: float = 0.0
) -> Number:
    """Linear annealing over the optimizer steps ``0 .. total_steps - 1`` (Eq. entropy_schedule)."""
    return first + (last - first) * (step / max(total_steps - 1, 1))


def cheapest_other(costs: Tensor) -> Tensor:
    """For each candidate the lowest cost among the other candidates, ``(B, M) -> (B, M)``, M of 2 or more."""
    lowest, index = costs.min(1, keepdim=True)  # not topk, which compiles to a sort
    is_lowest = torch.arange(costs.shape[1], device=costs.device) == index
    second = costs.masked_fill(is_lowest, torch.inf).amin(1, keepdim=True)
    return torch.where(is_lowest, second, lowest)


def best_of_advantage(costs: Tensor, best_of: int) -> Tensor:
    """Advantages whose policy gradient is that of the expected cost of the best of ``K = best_of`` tours.

    Candidate m gets M times the mean, over all K-subsets S of the candidates, of
    ``min C(S) - min C(S without m)`` (zero where S lacks m): it counts only where it wins, by how much it
    beats the runner-up. In sorted order candidate i wins with runner-up j in ``comb(M - 1 - j, K - 2)``
    subsets, so no subset is enumerated.
    """
    size = costs.shape[1]
    if not 2 <= best_of <= size:
        raise InputError(f"best_of = {best_of} is not possible with {size} candidates; allowed: 2 to {size}")
    behind = torch.arange(size - 1, -1, -1, dtype=costs.dtype, device=costs.device)  # M - 1 - j
    share = torch.full_like(behind, size / comb(size, best_of))
    for chosen in range(best_of - 2):  # times comb(behind, K - 2), computed on the device
        share = share * (behind - chosen) / (best_of - 2 - chosen)
    runner_up = share.expand(size, size).triu(1)  # [i, j > i]
    ordered, order = costs.sort(dim=1)
    advantage = ordered * runner_up.sum(1) - ordered @ runner_up.T
    return torch.empty_like(costs).scatter(1, order, advantage)


def advantages(costs: Tensor, greedy: Tensor, settings: MultiCandidate) -> Tensor:
    """Cost of each candidate minus its baseline (Eq. adaptive_baseline and the alternatives), ``(B, M)``."""
    size = costs.shape[1]
    if settings.baseline == "best-of":
        return best_of_advantage(costs, settings.best_of)
    if size == 1:
        return costs - greedy[:, None]
    if settings.baseline == "min":
        return costs - torch.minimum(greedy[:, None], cheapest_other(costs))
    mean = costs.mean(1, keepdim=True)
    if settings.baseline == "mean":
        return costs - mean
    return (costs - mean) * (size / (size - 1))  # minus the mean of the others


def standardize(advantage: Tensor, how: str = "joint", *, across: Across = one_process) -> Tensor:
    """Center and divide by the population deviation, never by less than 1e-6
    (Eqs. advantage_mean, advantage_std, advantage_standardization)."""
    if how == "none":
        return advantage
    if how == "instance":
        centered = advantage - advantage.mean(1, keepdim=True)
        deviation = centered.square().mean(1, keepdim=True).sqrt()
    else:
        centered = advantage - across(advantage.mean())
        deviation = across(centered.square().mean()).sqrt()
    return centered / deviation.clamp_min(DEVIATION_FLOOR)


def single_candidate_loss(
    costs: Tensor, greedy: Tensor, log_probability: Tensor, *, across: Across = one_process
) -> tuple[Tensor, dict[str, Tensor]]:
    """Policy gradient with one sampled tour and the greedy tour as baseline, batch-centered (Eq. single_pg).

    ``costs`` and ``log_probability`` are ``(B, 1)``, ``greedy`` is ``(B,)``.
    """
    difference = (costs[:, 0] - greedy).detach()
    centered = difference - across(difference.mean())
    loss = (centered * log_probability[:, 0]).mean()
    return loss, {
        "loss": loss.detach(),
        "policy_gradient": loss.detach(),
        "cost": costs.mean(),
        "best_cost": costs.mean(),
        "greedy_cost": greedy.mean(),
    }


def multi_candidate_loss(
    costs: Tensor,
    greedy: Tensor,
    log_probability: Tensor,
    entropy: Tensor,
    *,
    n: int,
    entropy_coefficient: float | Tensor,
    settings: MultiCandidate,
    across: Across = one_process,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The MCS-RL objective (Eqs. adaptive_baseline to mcs_full_objective) and its diagnostics.

    ``costs``, ``log_probability`` and ``entropy`` are ``(B, M)``, ``greedy`` is ``(B,)``, ``n`` the cities.
    """
    costs, greedy = costs.detach(), greedy.detach()
    advantage = advantages(costs, greedy, settings)
    weight = standardize(advantage, settings.standardization, across=across)
    policy_gradient = (weight * log_probability).mean()  # Eq. mcs_policy_gradient

    winner_cost, winner = costs.min(1)
    gain = costs.mean(1) - winner_cost  # Eq. winner_gain
    is_winner = torch.arange(costs.shape[1], device=costs.device) == winner[:, None]
    # Not gathered: the gradient would be scattered, by kernels of its own.
    winner_log_probability = torch.where(is_winner, log_probability, 0.0).sum(1)
    guidance = -(gain * winner_log_probability / n).mean()  # Eq. winner_loss

    mean_entropy = entropy.mean()  # Eq. mean_path_entropy
    if settings.entropy_floor:
        is_below = across(mean_entropy.detach()) < n * settings.entropy_floor
        raised = torch.as_tensor(entropy_coefficient).clamp(min=settings.entropy_below)
        entropy_coefficient = torch.where(is_below, raised, entropy_coefficient)
    loss = policy_gradient + settings.guidance * guidance - entropy_coefficient * mean_entropy
    return loss, {
        "loss": loss.detach(),
        "policy_gradient": policy_gradient.detach(),
        "guidance": guidance.detach(),
        "entropy": mean_entropy.detach(),
        "advantage": advantage.mean(),
        "gain": gain.mean(),
        "cost": costs.mean(),
        "best_cost": winner_cost.mean(),
        "greedy_cost": greedy.mean(),
    }
