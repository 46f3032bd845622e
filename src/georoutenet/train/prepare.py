"""From a recipe to what a training runs: the policy, and a step for each kind of batch."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from georoutenet.errors import InputError
from georoutenet.io.packaged import find_weights
from georoutenet.policy import Policy
from georoutenet.policy.weights import load_policy, read_card
from georoutenet.problem.shapes import TIED
from georoutenet.train.distributed import Processes
from georoutenet.train.recipe import Recipe
from georoutenet.train.step import CapturedStep, State, Step, make_loss


def seeds_before(recipe: Recipe) -> list[int]:
    """The seeds with which the recipe's initial weights were trained, as far as their card says."""
    card = read_card(find_weights(recipe.initial))[1] if recipe.initial else {}
    stored, made_by = card.get("seeds"), card.get("recipe")
    if not isinstance(stored, list):
        stored = [made_by.get("seed")] if isinstance(made_by, dict) else []
    return [seed for seed in stored if isinstance(seed, int)]


def check_seed(recipe: Recipe) -> None:
    """Instances are a function of seed and step: with a seed of the initial weights they would come again."""
    if recipe.seed in seeds_before(recipe):
        raise InputError(
            f"initial = {recipe.initial!r} was trained with seed {recipe.seed}, so the same instances would "
            f"come again; choose another one, as with --set seed={max(seeds_before(recipe)) + 1}"
        )


def make_policy(recipe: Recipe) -> Policy:
    """A new policy, from the recipe's seed or its initial weights, that computes as the recipe says."""
    torch.manual_seed(recipe.seed)
    policy = Policy(recipe.policy)
    if recipe.initial:
        initial = load_policy(recipe.initial)
        asked = recipe.policy
        if replace(initial.config, unit=asked.unit, reach=asked.reach) != asked:  # these have no weights
            holds = f"initial = {recipe.initial!r} holds {initial.config}"
            raise InputError(f"{holds}, the recipe asks for {asked}")
        policy.load_state_dict(initial.state_dict())
    policy.compute_dtype = torch.bfloat16 if recipe.precision == "bfloat16" else None
    policy.fused = recipe.fused
    policy.recompute = recipe.recompute
    return policy


def make_steps(
    state: State,
    recipe: Recipe,
    device: torch.device,
    processes: Processes | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> list[Callable[[], None]]:
    """One step function for each kind of batch: eager on the CPU, compiled and captured on CUDA, which takes
    a while and is reported."""
    policy = state.policy
    assert isinstance(policy, Policy)

    def network(coords: Tensor, width: int) -> tuple[Tensor, Tensor]:
        return policy.dense(coords.to(policy.dtype), width)

    def sparse_network(coords: Tensor, width: int, candidates: int) -> tuple[Tensor, Tensor]:
        return policy.over_candidates(coords.to(policy.dtype), candidates, width)

    processes = processes or Processes()
    loss_of = make_loss(state, recipe, processes)
    kinds = recipe.batches()
    # Compiling instances and loss saves a hundredth of a large step, and takes minutes for many kinds.
    single = len(kinds) == 1
    on_cuda = device.type == "cuda"
    compiled = on_cuda and recipe.compile
    if policy.is_fused() and not any(kind.sparse for kind in kinds):
        # Few products are left to cuBLAS, and small ones: 4 instead of 32 MiB for each of its work spaces, in
        # all of the process, if it has none yet.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:1")
    if compiled:
        from torch._dynamo import config as limits
        from torch._inductor import config as generated

        # Small sums are all that is compiled beside kernels. How they are ordered is not left to timings,
        # which differ from process to process.
        with suppress(AttributeError):  # older versions of PyTorch have no such choice
            generated.deterministic = recipe.fused
        # A function is compiled once for each layer, kind of batch and run, and beyond the limit not at all.
        limits.recompile_limit = max(limits.recompile_limit, 128)
        if not policy.compile_around_kernels():
            network = torch.compile(network, dynamic=False)
        if single and processes.count == 1:  # a collective would break the compiled loss apart
            loss_of = torch.compile(loss_of, dynamic=False)
    captured = on_cuda and recipe.cuda_graph and recipe.triton  # the plain sampler reads its seed back
    steps: list[Callable[[], None]] = []
    recorded: CapturedStep | None = None
    for kind in kinds:
        # Shapes are static. Random cities have no ties at the boundary of a neighborhood, lattices have some.
        width = recipe.policy.neighbors + (6 if kind.distribution in TIED else 1)
        scores = partial(network, width=min(width, kind.n))
        if kind.sparse:  # not compiled: a compiled sort takes a minute to prepare
            scores = partial(sparse_network, width=min(width, kind.n), candidates=kind.sparse)
        drawn = compiled and single
        step = Step(state, recipe, kind, scores, loss_of, processes=processes, compiled=drawn)
        if captured:
            began = time.monotonic()
            recorded = CapturedStep(step, beside=recorded)
            what = f"steps of {kind.batch:,} {kind.distribution} instances with {kind.n:,} cities"
            report(f"prepared {what} in {time.monotonic() - began:.1f} s")
        steps.append(recorded or step)
    return steps
