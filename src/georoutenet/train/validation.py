"""Selection: the mean length of greedy tours on a fixed set."""

from __future__ import annotations

import torch
from torch import Tensor

from georoutenet.decode import rollout
from georoutenet.decode.costs import tour_costs
from georoutenet.errors import InputError
from georoutenet.policy import Policy
from georoutenet.train.recipe import Recipe

STATISTICS_BATCH = 256


def validation_set(recipe: Recipe) -> Tensor:
    """The first ``validation_size`` instances of the recipe's validation set, ``(N, n, 2)`` float32."""
    if recipe.validation == "uniform":
        generator = torch.Generator().manual_seed(recipe.validation_seed)
        return torch.rand(recipe.validation_size, recipe.n, 2, generator=generator)
    from georoutenet.io.datasets import Role, dataset

    chosen = dataset(recipe.validation)
    if chosen.role is Role.HELD_OUT:
        raise InputError(
            f"validation = {recipe.validation!r} is held out: nothing may be selected on it; "
            "allowed: val50, diag100, uniform"
        )
    if recipe.validation_size > chosen.count:
        raise InputError(
            f"validation_size = {recipe.validation_size} is more than {recipe.validation!r} holds; "
            f"allowed: up to {chosen.count}"
        )
    return torch.from_numpy(chosen.coordinates[: recipe.validation_size].copy())


@torch.no_grad()
def freeze_statistics(policy: Policy, n: int) -> None:
    """Freeze NAR4TSP's norms at the statistics of uniform instances with ``n`` cities."""
    generator = torch.Generator().manual_seed(0)
    policy.collect_statistics(torch.rand(STATISTICS_BATCH, n, 2, generator=generator))


@torch.no_grad()
def greedy_length(policy: Policy, coords: Tensor, *, batch: int = 500, sparse: int = 0) -> float:
    """Mean length of the greedy tours of ``coords (N, n, 2)``, network in float32, lengths in float64; where
    ``sparse`` is given, over so many candidates.

    NAR4TSP's norms are frozen first, at the statistics of uniform instances of the same size.
    """
    was_training, compute_dtype = policy.training, policy.compute_dtype
    policy.eval()
    policy.compute_dtype = None
    try:
        freeze_statistics(policy, coords.shape[1])
        total = torch.zeros((), dtype=torch.float64, device=policy.device)
        for part in coords.split(batch):
            part = part.to(policy.device)
            if sparse:
                start, logits = policy.over_candidates(part.to(policy.dtype), sparse)
            else:
                scores = policy(part)
                start, logits = scores.start, scores.logits
            tours = rollout(start, logits, samples=0, seed=0)  # the greedy tour alone
            total += tour_costs(part.double(), tours).sum()
        return float(total.item()) / len(coords)
    finally:
        policy.train(was_training)
        policy.compute_dtype = compute_dtype
