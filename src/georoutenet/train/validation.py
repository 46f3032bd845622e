"""Selection: the mean length of a decoder's tours, by default greedy ones, on a fixed set."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from georoutenet.decode import decode_views, rollout
from georoutenet.decode.costs import tour_costs
from georoutenet.decode.decoding import Decoding
from georoutenet.errors import InputError
from georoutenet.policy import Policy
from georoutenet.problem.generate import GENERATORS
from georoutenet.train.recipe import Recipe

STATISTICS_BATCH = 256
GREEDY = Decoding()
PAIRS_AT_A_TIME = 1 << 24
"""Pairs of cities whose scores are held at a time, where there are views."""


def validation_set(recipe: Recipe) -> Tensor:
    """The first ``validation_size`` instances of the recipe's validation set, ``(N, n, 2)`` float32."""
    if recipe.validation in GENERATORS:
        made = GENERATORS[recipe.validation](recipe.validation_size, recipe.n, recipe.validation_seed)
        return torch.from_numpy(made)
    from georoutenet.io.datasets import Role, dataset

    chosen = dataset(recipe.validation)
    if chosen.role is Role.HELD_OUT:
        raise InputError(
            f"validation = {recipe.validation!r} is held out: nothing may be selected on it; "
            f"allowed: val50, diag100, {', '.join(GENERATORS)}"
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
def mean_length(
    policy: Policy,
    coords: Tensor,
    decoder: Decoding | str = "greedy",
    *,
    batch: int = 500,
    sparse: int = 0,
) -> float:
    """Mean length of the decoder's tours of ``coords (N, n, 2)``, network in float32, lengths in float64.

    Over ``sparse`` candidates, where that is given: greedy tours as in training, others as by `Decoding`.

    NAR4TSP's norms are frozen first, at the statistics of uniform instances of the same size.
    """
    decoding = decoder if isinstance(decoder, Decoding) else Decoding.parse(decoder)
    candidates = decoding.candidates or sparse or None
    was_training, compute_dtype = policy.training, policy.compute_dtype
    policy.eval()
    policy.compute_dtype = torch.bfloat16 if decoding.precision == "bfloat16" else None
    try:
        freeze_statistics(policy, coords.shape[1])
        total = torch.zeros((), dtype=torch.float64, device=policy.device)
        for part in coords.split(batch):
            part = part.to(policy.device)
            if decoding == replace(GREEDY, precision=decoding.precision):
                total += _greedy_lengths(policy, part, sparse).sum()
                continue
            found = decode_views(
                partial(policy, candidates=candidates), part, decoding, device=policy.device,
                batch=max(1, PAIRS_AT_A_TIME // (part.shape[1] * (candidates or part.shape[1]))),
            )  # fmt: skip
            assert found.lengths is not None
            total += found.lengths[:, 0].sum()
        return float(total.item()) / len(coords)
    finally:
        policy.train(was_training)
        policy.compute_dtype = compute_dtype


def _greedy_lengths(policy: Policy, coords: Tensor, sparse: int) -> Tensor:
    if sparse:
        start, logits = policy.over_candidates(coords.to(policy.dtype), sparse)
    else:
        scores = policy(coords)
        start, logits = scores.start, scores.logits
    return tour_costs(coords.double(), rollout(start, logits, samples=0, seed=0))  # the greedy tour alone
