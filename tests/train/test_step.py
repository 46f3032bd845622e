from __future__ import annotations

import math

import pytest
import torch
from literal_mcs import literal_cost, literal_mcs, literal_replay, literal_single_pg
from tiny import tiny_recipe

from georoutenet.decode import rollout
from georoutenet.train.prepare import make_policy, make_steps
from georoutenet.train.recipe import Recipe
from georoutenet.train.step import State, Step, diagnostics, plain_rollout

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def make(recipe: Recipe, dtype: torch.dtype = torch.float32) -> tuple[State, Step]:
    state = State(make_policy(recipe).to(dtype), recipe, CPU)
    (step,) = make_steps(state, recipe, CPU)
    assert isinstance(step, Step)
    return state, step


def literal_training(recipe: Recipe, steps: int) -> dict[str, torch.Tensor]:
    """Algorithm 1, step by step in plain loops, with torch's own Adam; the weights after ``steps`` steps."""
    state, step = make(recipe, torch.float64)
    policy, n = state.policy, recipe.n
    optimizer = torch.optim.Adam(policy.parameters(), lr=recipe.learning_rate)
    for t in range(steps):
        state.step.fill_(t)
        coords, seed = step.draw()
        scores = policy(coords)
        tours = rollout(scores.start.detach(), scores.logits.detach(), samples=recipe.candidates, seed=seed)
        costs = [[literal_cost(coords[b], tour) for tour in tours[b].tolist()] for b in range(recipe.batch)]
        pairs = [
            [literal_replay(scores.start[b], scores.logits[b], tour) for tour in tours[b, :-1].tolist()]
            for b in range(recipe.batch)
        ]
        log_probability = torch.stack([torch.stack([pair[0] for pair in row]) for row in pairs])
        entropy = torch.stack([torch.stack([pair[1] for pair in row]) for row in pairs])
        sampled, greedy = [row[:-1] for row in costs], [row[-1] for row in costs]
        if recipe.objective == "pg":
            loss = literal_single_pg(sampled, greedy, log_probability)
        else:
            loss = literal_mcs(
                sampled,
                greedy,
                log_probability,
                entropy,
                n=n,
                guidance=recipe.guidance,
                step=t,
                total_steps=recipe.steps,
            )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {name: p.detach().clone() for name, p in policy.named_parameters()}


@pytest.mark.parametrize("encoder", ["georoutenet", "nar4tsp"])
@pytest.mark.parametrize("objective", [["objective=mcs"], ["objective=pg", "candidates=1"]])
def test_training_equals_the_literal_algorithm(encoder: str, objective: list[str]) -> None:
    """The fast step against the slow reference, for a whole small run in double precision."""
    from georoutenet.train.schedule import entropy_weight

    recipe = tiny_recipe([f"policy.encoder={encoder}", *objective, "steps=6", "learning_rate=1e-4"])
    state, step = make(recipe, torch.float64)
    before = {name: p.detach().clone() for name, p in state.parameters.items()}
    for t in range(6):
        state.entropy_weight.fill_(entropy_weight(recipe, t, 0.0))
        step()
    expected = literal_training(recipe, 6)
    compared = total = 0
    for name, parameter in state.parameters.items():
        # Adam divides by the size of the gradient: one of rounding size (a bias that a softmax cancels, say)
        # moves its weight by chance, so only weights with a gradient worth the name are compared.
        real = state.groups()["variance"][name].sqrt() > 1e-6
        found, wanted, old = parameter.detach()[real], expected[name][real], before[name][real]
        torch.testing.assert_close(found - old, wanted - old, rtol=0, atol=1e-6, msg=name)
        compared += int((found != old).sum())
        total += real.numel()
    assert compared > 0.5 * total


def test_plain_sampling_needs_no_kernel() -> None:
    """The setting for machines without our kernels draws proper tours and the same greedy ones."""
    recipe = tiny_recipe(["triton=false"])
    state, step = make(recipe)
    assert step.tours_of is plain_rollout
    coords, seed = step.draw()
    start, logits = (x.detach() for x in step.network(coords))
    tours = plain_rollout(start, logits, samples=5, seed=seed)
    assert torch.equal(tours.sort(2).values, torch.arange(6).expand(4, 6, 6))
    assert torch.equal(tours[:, -1], rollout(start, logits, samples=5, seed=seed)[:, -1])
    step()
    assert bool(state.totals.isfinite().all())


def test_diagnostics_add_up() -> None:
    recipe = tiny_recipe()
    state, step = make(recipe)
    step()
    one = state.totals.clone()
    names = dict(zip(diagnostics(recipe), one.tolist(), strict=True))
    assert names["best_cost"] <= names["cost"]
    assert names["gain"] == pytest.approx(names["cost"] - names["best_cost"], rel=1e-5)
    assert names["loss"] == pytest.approx(names["policy_gradient"] + 0.5 * names["guidance"], rel=1e-5)
    assert names["gradient_norm"] == pytest.approx(
        math.sqrt(sum(p.grad.square().sum().item() for p in state.parameters.values() if p.grad is not None)),
        rel=1e-5,
    )
    step()
    assert not torch.equal(state.totals, one)
    assert int(state.step) == 2


def test_clipping_scales_to_the_largest_norm() -> None:
    state, step = make(tiny_recipe(["clip=0.01"]))
    step()
    squares = sum(p.grad.square().sum().item() for p in state.parameters.values() if p.grad is not None)
    assert math.sqrt(squares) == pytest.approx(0.01, rel=1e-3)
    unclipped, step = make(tiny_recipe())
    step()
    assert state.totals[-1].item() == pytest.approx(unclipped.totals[-1].item())  # the norm before clipping


def test_averaging_is_the_mean_and_then_exponential() -> None:
    state, step = make(tiny_recipe(["averaging=0.75"]))
    name = next(iter(state.parameters))
    expected = torch.zeros_like(state.parameters[name])
    for t in range(1, 8):
        step()
        expected = expected + (state.parameters[name].detach() - expected) * max(1 / t, 0.25)
    averaged = state.groups()["average"][name]
    torch.testing.assert_close(averaged, expected)
    assert state.evaluated() is state.average
    assert not torch.equal(averaged, state.parameters[name])


def test_weight_decay_stays_apart_from_the_gradient() -> None:
    """The same first step with and without decay differs by the decay of the weights alone."""
    decayed, step = make(tiny_recipe(["weight_decay=0.5", "learning_rate=0.01"]))
    before = {name: p.detach().clone() for name, p in decayed.parameters.items() if p.requires_grad}
    step()
    plain, step = make(tiny_recipe(["learning_rate=0.01"]))
    step()
    for name, p in decayed.parameters.items():
        if p.grad is not None:
            torch.testing.assert_close(p - plain.parameters[name], -0.01 * 0.5 * before[name])


def test_the_state_comes_back() -> None:
    state, step = make(tiny_recipe(["averaging=0.9"]))
    step()
    stored = {g: {k: v.clone() for k, v in tensors.items()} for g, tensors in state.groups().items()}
    step()
    after = {g: {k: v.clone() for k, v in tensors.items()} for g, tensors in state.groups().items()}
    state.load(stored, 1)
    step()
    for group, tensors in state.groups().items():
        for name, tensor in tensors.items():
            assert torch.equal(tensor, after[group][name]), (group, name)


@pytest.mark.parametrize("encoder", ["georoutenet", "nar4tsp"])
def test_network_and_loss_compile_without_graph_breaks(encoder: str) -> None:
    """The compiled step (traced, run by the eager backend) learns what the plain one does."""
    recipe = tiny_recipe([f"policy.encoder={encoder}"])
    plain, plain_step = make(recipe)
    traced, step = make(recipe)
    step.network = torch.compile(step.network, fullgraph=True, dynamic=False, backend="eager")
    step.loss_of = torch.compile(step.loss_of, fullgraph=True, dynamic=False, backend="eager")
    step.draw = torch.compile(step.draw, fullgraph=True, dynamic=False, backend="eager")
    for _ in range(2):
        plain_step()
        step()
    torch.testing.assert_close(traced.totals, plain.totals, rtol=1e-5, atol=1e-6)
