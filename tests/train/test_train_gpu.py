"""The captured, compiled and bfloat16 paths on CUDA against the eager float32 step."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from tiny import tiny_recipe

from georoutenet.kernels import streams
from georoutenet.policy import Policy
from georoutenet.train.pins import COMPONENTS, hold
from georoutenet.train.prepare import make_policy, make_steps
from georoutenet.train.recipe import Recipe
from georoutenet.train.step import CapturedStep, State, diagnostics
from georoutenet.train.trainer import Trainer, run_together

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
EAGER = ["compile=false", "cuda_graph=false"]


def totals(recipe: Recipe, steps: int = 3) -> tuple[torch.Tensor, State]:
    device = torch.device("cuda")
    policy = make_policy(recipe)
    state = State(policy, recipe, device)
    state.entropy_weight.fill_(0.01)
    (step,) = make_steps(state, recipe, device)
    for _ in range(steps):
        step()
    return state.totals.cpu(), state


@pytest.mark.parametrize("encoder", ["georoutenet", "nar4tsp"])
@pytest.mark.parametrize("how", [["compile=false"], ["cuda_graph=false"], []])
def test_fast_steps_learn_what_the_eager_step_does(encoder: str, how: list[str]) -> None:
    size = [f"policy.encoder={encoder}", "n=20", "batch=16", "candidates=8", "policy.neighbors=5"]
    expected, eager = totals(tiny_recipe([*size, *EAGER]))
    found, fast = totals(tiny_recipe([*size, *how]))
    assert int(fast.step) == int(eager.step) == 3
    # A rounding difference may change a sampled tour; one step's loss then differs by a candidate's share.
    torch.testing.assert_close(found, expected, rtol=0.05, atol=0.05)


def test_plain_sampling_learns_as_well() -> None:
    """Other random numbers, so only the averages of many candidates agree."""
    size = ["n=20", "batch=64", "candidates=32", "policy.neighbors=5"]
    expected, _ = totals(tiny_recipe(size))
    found, _ = totals(tiny_recipe([*size, *EAGER, "triton=false"]))
    names = diagnostics(tiny_recipe())
    for name in ("cost", "entropy"):
        assert found[names.index(name)].item() == pytest.approx(expected[names.index(name)].item(), rel=0.02)


def test_capture_leaves_the_state_untouched() -> None:
    recipe = tiny_recipe(["averaging=0.9"])
    state = State(make_policy(recipe), recipe, torch.device("cuda"))
    before = {g: {k: v.clone() for k, v in tensors.items()} for g, tensors in state.groups().items()}
    (step,) = make_steps(state, recipe, torch.device("cuda"))
    assert isinstance(step, CapturedStep)
    for group, tensors in state.groups().items():
        for name, tensor in tensors.items():
            assert torch.equal(tensor, before[group][name]), (group, name)
    assert int(state.step) == 0
    assert state.totals.abs().sum() == 0


def test_graphs_draw_new_instances_each_replay() -> None:
    recipe = tiny_recipe(["learning_rate=1e-12"])
    state = State(make_policy(recipe), recipe, torch.device("cuda"))
    (step,) = make_steps(state, recipe, torch.device("cuda"))
    costs = []
    for _ in range(3):
        state.totals.zero_()
        step()
        costs.append(state.totals[diagnostics(recipe).index("cost")].item())
    assert len(set(costs)) == 3


def test_bfloat16_stays_near_float32() -> None:
    size = ["n=20", "batch=64", "candidates=16", "policy.hidden=32", "policy.neighbors=8"]
    names = diagnostics(tiny_recipe())
    wide, _ = totals(tiny_recipe(size), steps=1)
    narrow, _ = totals(tiny_recipe([*size, "precision=bfloat16"]), steps=1)
    for name in ("cost", "greedy_cost", "entropy"):
        at = names.index(name)
        assert narrow[at].item() == pytest.approx(wide[at].item(), rel=0.05)


def test_resuming_gives_the_same_losses(tmp_path: Path) -> None:
    recipe = tiny_recipe(["n=20", "batch=16", "averaging=0.9", "policy.neighbors=5"])
    whole = Trainer(recipe, tmp_path / "whole", device="cuda").run()
    trainer = Trainer(recipe, tmp_path / "parts", device="cuda")
    must_stop = trainer._must_stop
    trainer._must_stop = lambda *a: trainer.step >= 10 or must_stop(*a)  # type: ignore[method-assign]
    assert trainer.run().step == 10
    parts = Trainer(recipe, tmp_path / "parts", device="cuda")
    assert parts.step == 10
    assert parts.run().last == pytest.approx(whole.last, rel=0.02)


LARGE_ENOUGH = ["policy.hidden=128", "policy.heads=8", "policy.rbf=16", "precision=bfloat16"]


@pytest.mark.parametrize("encoder", ["georoutenet", "nar4tsp"])
@pytest.mark.parametrize("how", [EAGER, ["cuda_graph=false"], []])
def test_fused_kernels_learn_what_compiled_code_does(encoder: str, how: list[str]) -> None:
    size = [f"policy.encoder={encoder}", "n=20", "batch=32", "candidates=16", "policy.neighbors=5"]
    plain, _ = totals(tiny_recipe([*size, *LARGE_ENOUGH, "fused=false"]))
    fused, state = totals(tiny_recipe([*size, *LARGE_ENOUGH, *how]))
    assert isinstance(state.policy, Policy)
    assert state.policy.is_fused() == (encoder == "georoutenet")
    # Rounding changes sampled tours; the loss, a small sum of large terms of both signs, shows it most.
    averages = slice(diagnostics(tiny_recipe()).index("policy_gradient") + 1, None)
    torch.testing.assert_close(fused[averages], plain[averages], rtol=0.05, atol=0.1)


@pytest.mark.parametrize("encoder", ["georoutenet", "nar4tsp"])
def test_steps_in_kernels_repeat_bit_for_bit(encoder: str) -> None:
    """Also a sign that nothing is read before it is there: the start attention has a stream of its own."""
    size = [f"policy.encoder={encoder}", "n=50", "batch=64", "candidates=8", "policy.layers=6"]
    recipe = tiny_recipe([*size, *LARGE_ENOUGH])
    first, one = totals(recipe, steps=30)
    again, two = totals(recipe, steps=30)
    assert torch.equal(first, again)
    for name, parameter in one.parameters.items():
        assert torch.equal(parameter, two.parameters[name]), name


@pytest.mark.parametrize("how", [EAGER, []])
def test_what_is_pinned_does_not_move_in_kernels(how: list[str]) -> None:
    """Where the backward pass leaves gradients for the optimizer's kernels to find."""
    pin = f"pin={list(COMPONENTS)}"
    size = ["n=20", "batch=32", "candidates=8", "averaging=0.9", "clip=1.0", pin, *LARGE_ENOUGH, *how]
    recipe = tiny_recipe(size)
    _, state = totals(recipe, steps=10)
    before = {name: p.detach().clone() for name, p in make_policy(recipe).named_parameters()}
    held = hold(make_policy(recipe), recipe.pin)
    moved = 0
    for name, parameter in state.parameters.items():
        mask = held.get(name, torch.zeros_like(before[name], dtype=torch.bool))
        where = torch.ones_like(before[name], dtype=torch.bool) if mask is None else mask
        for group in ("momentum", "variance"):
            assert not state.groups()[group][name].cpu()[where].any(), (group, name)
        now = parameter.detach().cpu()
        if name in held and "rbf" not in name:
            assert len(now[where].unique()) == 1, name
        moved += int(not torch.equal(now[~where], before[name][~where]))
    assert moved > 30


@pytest.mark.parametrize("how", [["cuda_graph=false", "recompute=2"], []])
def test_postponed_gradients_are_the_same(how: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of weights, which run alongside the rest of the backward pass, to the bit."""
    size = ["n=50", "batch=512", "candidates=8", "policy.layers=6", "compile=false"]
    recipe = tiny_recipe([*size, *LARGE_ENOUGH, *how])
    used = []

    def late_of(stream: torch.cuda.Stream, late_of: Callable[..., torch.cuda.Stream] = streams._late_of):
        used.append(stream)
        return late_of(stream)

    monkeypatch.setattr(streams, "_late_of", late_of)
    _, postponed = totals(recipe, steps=10)
    assert used
    monkeypatch.setattr("georoutenet.train.step.postponing", nullcontext)
    used.clear()
    _, at_once = totals(recipe, steps=10)
    assert not used
    for name, parameter in postponed.parameters.items():
        assert torch.equal(parameter, at_once.parameters[name]), name


def test_a_mix_of_sizes_trains_in_kernels(tmp_path: Path) -> None:
    kinds = (
        "{n=11, batch=16}",
        '{n=20, batch=8, distribution="clustered"}',
        '{n=16, batch=8, distribution="grid"}',
        "{n=40, batch=4, sparse=6}",
    )
    mix = f"mix=[{', '.join(kinds)}]"
    outcome = Trainer(tiny_recipe([mix, *LARGE_ENOUGH]), tmp_path, device="cuda").run()
    assert outcome.finished
    assert torch.isfinite(torch.tensor(outcome.last))


def test_runs_side_by_side_on_streams(tmp_path: Path) -> None:
    recipes = [tiny_recipe([f"name={name}", f"seed={seed}"]) for seed, name in enumerate(("one", "two"))]
    alone = [Trainer(recipe, tmp_path / "alone" / recipe.name, device="cuda").run() for recipe in recipes]
    together = run_together(
        [Trainer(recipe, tmp_path / "both" / recipe.name, device="cuda") for recipe in recipes]
    )
    for left, right in zip(alone, together, strict=True):
        assert left.step == right.step
        assert right.last == pytest.approx(left.last, rel=0.02)


def test_runs_side_by_side_in_kernels_repeat_bit_for_bit(tmp_path: Path) -> None:
    """Graphs that run at the same time share nothing that they write to."""
    size = ["n=50", "batch=64", "candidates=8", "policy.layers=6", *LARGE_ENOUGH]
    size += ["compile=false", "steps=100", "epoch_steps=100", "log_every=50", "checkpoint_every=50"]

    def trainers(folder: Path) -> list[Trainer]:
        encoders = ("georoutenet", "nar4tsp", "georoutenet", "nar4tsp")
        recipes = [
            tiny_recipe([*size, f"name=run{seed}", f"seed={seed}", f"policy.encoder={encoder}"])
            for seed, encoder in enumerate(encoders)
        ]
        return [Trainer(recipe, folder / recipe.name, device="cuda") for recipe in recipes]

    alone, together = trainers(tmp_path / "alone"), trainers(tmp_path / "together")
    for trainer in alone:
        trainer.run()
    run_together(together)
    for left, right in zip(alone, together, strict=True):
        for name, parameter in left.state.parameters.items():
            assert torch.equal(parameter, right.state.parameters[name]), (left.recipe.name, name)


@pytest.mark.slow
def test_kernels_give_the_same_learning_curve() -> None:
    """2,000 steps with and without the kernels: costs of the last 200 differ by less than seeds make them."""
    size = ["n=20", "batch=128", "candidates=16", "policy.layers=3", "learning_rate=4e-4", *LARGE_ENOUGH]
    final = {}
    for fused in ("true", "false"):
        recipe = tiny_recipe([*size, f"fused={fused}", "steps=2000"])
        state = State(make_policy(recipe), recipe, torch.device("cuda"))
        (step,) = make_steps(state, recipe, torch.device("cuda"))
        for number in range(2_000):
            if number == 1_800:
                state.totals.zero_()
            step()
        final[fused] = state.totals[diagnostics(recipe).index("greedy_cost")].item() / 200
    assert final["true"] == pytest.approx(final["false"], rel=0.01)
