"""Pinned components: the network is then the one that never had them, and they do not move in training."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from math import sqrt
from pathlib import Path

import literal_georoutenet as literal
import numpy as np
import pytest
import torch
from runs import assert_same_weights, train
from tiny import tiny_recipe

from georoutenet.errors import InputError
from georoutenet.model.config import PolicyConfig
from georoutenet.policy import Policy
from georoutenet.policy.weights import load_policy
from georoutenet.train.checkpoint import load_checkpoint
from georoutenet.train.pins import COMPONENTS, hold
from georoutenet.train.prepare import make_policy, make_steps
from georoutenet.train.recipe import recipe_from_dict
from georoutenet.train.step import State
from georoutenet.train.trainer import Trainer

SIZE = {"hidden": 8, "heads": 2, "layers": 3}
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    torch.set_num_threads(1)
    yield
    torch.set_default_dtype(torch.float32)


# The paper's equations, each without one component, in the words of the literal version.


def attention_logit(*, distance: bool, edge_bias: bool) -> Callable[..., float]:
    def logit(h_i, h_j, e_ij, d_ij, weights, *, layer, head, heads) -> float:
        query = literal.head_block(literal.affine(h_i, weights, f"layers.{layer}.query"), head, heads)
        key = literal.head_block(literal.affine(h_j, weights, f"layers.{layer}.key"), head, heads)
        found = float(np.dot(query, key)) / sqrt(len(query))
        if edge_bias:
            found += literal.project(e_ij, weights, f"layers.{layer}.edge_bias")[head]
        if distance:
            found -= literal.softplus(float(weights[f"layers.{layer}.distance"])) * d_ij
        return found

    return logit


def message_of_nodes_alone(i, h, e, d, members, weights, *, layer, heads) -> np.ndarray:
    blocks = []
    for head in range(heads):
        alpha = literal.attention_weights(i, h, e, d, members, weights, layer=layer, head=head, heads=heads)
        values = [literal.affine(h[j], weights, f"layers.{layer}.value") for j in members]
        blocks.append(sum(a * literal.head_block(v, head, heads) for a, v in zip(alpha, values, strict=True)))
    return literal.project(np.concatenate(blocks), weights, f"layers.{layer}.output")


def only_normalized(mixed, weights, *, layer) -> np.ndarray:
    return literal.layer_norm(mixed, weights, f"layers.{layer}.norm2")


def proposal_of_the_edge(e_ij, h_i, h_j, weights, *, layer) -> np.ndarray:
    own = literal.affine(e_ij, weights, f"layers.{layer}.edge_update")
    if layer < SIZE["layers"] - 1:
        return own
    of_ends = literal.project(h_i, weights, f"layers.{layer}.source")
    return own + of_ends + literal.project(h_j, weights, f"layers.{layer}.target")


def evenly_spaced(weights) -> tuple[np.ndarray, float]:
    fractions = np.linspace(0, 1, literal.RBF_COUNT).clip(1e-4, 1 - 1e-4)
    return sqrt(2.0) * fractions, sqrt(2.0) / (literal.RBF_COUNT - 1)


def equal_shares(g_i, history, weights, *, layer) -> list[float]:
    return [1 / len(history)] * len(history)


def coordinates_alone(coords: np.ndarray) -> np.ndarray:
    return np.concatenate([coords, np.zeros((len(coords), 3))], 1)


WITHOUT: dict[str, tuple[str, Callable[..., object]]] = {
    "distance-coefficient": ("attention_logit", attention_logit(distance=False, edge_bias=True)),
    "edge-bias": ("attention_logit", attention_logit(distance=True, edge_bias=False)),
    "edge-value": ("node_message", message_of_nodes_alone),
    "feed-forward": ("node_ffn", only_normalized),
    "source-and-target": ("edge_proposal", proposal_of_the_edge),
    "radial-bases": ("rbf_parameterization", evenly_spaced),
    "residual-attention": ("residual_attention", equal_shares),
    "centered-channels": ("node_features", coordinates_alone),
}


def literal_scores(weights: literal.Weights, coords: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    return literal.scores(coords[0].numpy(), weights, heads=2, layers=3, neighbors=4)


def made(component: str | None) -> tuple[Policy, literal.Weights]:
    """A policy with the literal version's weights, then the component pinned; the weights know of no pin."""
    weights = literal.random_weights(**SIZE, rng=np.random.default_rng(5))
    torch.set_default_dtype(torch.float64)  # what is made, too, such as the centers of the bases
    policy = Policy(PolicyConfig(**SIZE, neighbors=4))
    with torch.no_grad():
        for name, parameter in policy.encoder.named_parameters():
            if name in weights and not (component == "radial-bases" and name.startswith("rbf.")):
                parameter.copy_(torch.from_numpy(weights[name]))
    hold(policy, () if component is None else (component,))
    return policy, weights


@pytest.mark.parametrize("component", COMPONENTS)
def test_pinned_is_the_literal_network_without_it(component: str, monkeypatch: pytest.MonkeyPatch) -> None:
    policy, weights = made(component)
    coords = torch.rand(1, 7, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    whole_start, whole_logits = literal_scores(weights, coords)
    monkeypatch.setattr(literal, *WITHOUT[component])
    start, logits = literal_scores(weights, coords)
    forms = set()
    for gradients in (False, True):  # the two towers, and the form that trains
        with torch.set_grad_enabled(gradients):
            forms.add(policy.form(coords))
            found_start, found_logits = policy.dense(coords)
        np.testing.assert_allclose(found_start[0].exp().detach(), start, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(found_logits[0].detach(), logits, rtol=1e-9, atol=1e-10)
    assert forms == {"blocks of rows", "all pairs"}
    assert abs(whole_logits - logits).max() > 1e-3  # and not the whole network
    assert abs(whole_start - start).max() > 1e-6


def test_the_literal_versions_here_are_the_paper_s_with_all_components() -> None:
    policy, weights = made(None)
    coords = torch.rand(1, 7, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    expected = literal_scores(weights, coords)[1]
    np.testing.assert_allclose(policy(coords).logits[0].detach(), expected, rtol=1e-9, atol=1e-10)
    logit = attention_logit(distance=True, edge_bias=True)
    rng = np.random.default_rng(2)
    given = (*rng.normal(size=(3, 8)), 0.7, weights)
    for head in (0, 1):
        assert logit(*given, layer=1, head=head, heads=2) == pytest.approx(
            literal.attention_logit(*given, layer=1, head=head, heads=2)
        )


SETTINGS = ["policy.layers=3", "steps=8", "averaging=0.9", "clip=1.0", "weight_decay=0.01"]


@pytest.mark.parametrize("component", COMPONENTS)
def test_what_is_pinned_does_not_move(component: str, tmp_path: Path) -> None:
    """Neither it nor its moments nor its average; all else does, and begins as without the pin."""
    recipe = tiny_recipe([*SETTINGS, f'pin=["{component}"]'])
    before = dict(make_policy(recipe).named_parameters())
    train(recipe, tmp_path)
    stored = load_checkpoint(tmp_path)
    assert stored is not None
    held = hold(make_policy(recipe), recipe.pin)
    assert held
    value = COMPONENTS[component][0].value
    for name, mask in held.items():
        where = torch.ones_like(before[name], dtype=torch.bool) if mask is None else mask
        start = before[name].detach()[where]
        expected = start if value is None else torch.full_like(start, value)
        for group in ("weights", "average"):
            assert torch.equal(stored.groups[group][name][where], expected), (group, name)
        for group in ("momentum", "variance"):
            assert not stored.groups[group][name][where].any(), (group, name)
        if mask is not None:
            assert (stored.groups["weights"][name] != before[name])[~where].all()
    moved = 0
    for name, parameter in before.items():
        moved += int(name not in held and not torch.equal(stored.groups["weights"][name], parameter))
    assert moved > 0.7 * (len(before) - len(held))


def test_gradients_of_the_rest_are_those_of_the_pinned_network() -> None:
    """The first step, with and without leaving gradients out: nothing else changes."""
    recipe = tiny_recipe(["pin=['edge-bias', 'centered-channels']"])
    found = []
    for leave_out in (True, False):
        state = State(make_policy(recipe).double(), recipe, CPU)
        (step,) = make_steps(state, recipe, CPU)
        if not leave_out:
            state.held = {}
        step.gradients()
        found.append({name: p.grad for name, p in state.parameters.items()})
    held = hold(make_policy(recipe), recipe.pin)
    for name, gradient in found[1].items():
        mine, mask = found[0][name], held.get(name)
        if name not in held:
            assert (mine is None and gradient is None) or torch.equal(mine, gradient), name
        elif mask is None:
            assert mine is None, name
            assert gradient is not None
            assert gradient.any(), name
        else:
            assert torch.equal(mine, gradient.masked_fill(mask, 0)), name
            assert gradient[mask].any()


def test_a_pinned_run_resumes_with_the_same_bits(tmp_path: Path) -> None:
    recipe = tiny_recipe(["steps=12", "pin=['feed-forward', 'distance-coefficient']"])
    train(recipe, tmp_path / "whole")
    trainer = Trainer(recipe, tmp_path / "parts")
    must_stop = trainer._must_stop
    trainer._must_stop = lambda *a: trainer.step >= 7 or must_stop(*a)  # type: ignore[method-assign]
    assert trainer.run().step == 7
    train(recipe, tmp_path / "parts")
    assert_same_weights(tmp_path / "whole", tmp_path / "parts")
    with pytest.raises(InputError, match=r"pin: \['feed-forward', 'distance-coefficient'\] there, \[\] here"):
        train(dataclasses.replace(recipe, pin=()), tmp_path / "parts")
    policy = load_policy(tmp_path / "whole" / "last.safetensors")  # -1000 is a number like others
    assert torch.isfinite(policy(torch.rand(1, 9, 2)).logits).all()


def test_counts_of_what_can_move() -> None:
    """Of the paper's network; 2,024,344 parameters in all."""
    d, counts = 128, {}
    for component in COMPONENTS:
        policy = Policy(PolicyConfig())
        sizes = {name: parameter.numel() for name, parameter in policy.named_parameters()}
        held = hold(policy, (component,))
        counts[component] = sum(
            sizes[name] if mask is None else int(mask.sum()) for name, mask in held.items()
        )
    assert counts == {
        "distance-coefficient": 6,
        "edge-bias": 6 * 8 * d,
        "edge-value": 6 * d * d,
        "feed-forward": 6 * (3 * 2 * d * d + 2 * 2 * d + d),
        "source-and-target": 5 * 2 * d * d,
        "radial-bases": 17,
        "residual-attention": 6 * 2 * d * d,
        "centered-channels": 3 * d,
    }


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["pin=3"], "list of names"),
        (["pin=['edge']"], r"pin = 'edge' is not understood; allowed: distance-coefficient, edge-bias"),
        (["pin=[1]"], r"pin\[0\] = 1 is not understood; a value of type str"),
        (["pin=['edge-bias','edge-bias']"], "twice"),
        (["pin=['edge-bias']", "policy.encoder=nar4tsp"], "nar4tsp has none"),
    ],
)
def test_pins_that_are_refused(settings: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        recipe_from_dict({}, settings)


def test_a_pin_that_finds_nothing_is_refused() -> None:
    recipe = tiny_recipe(["policy.layers=1", "pin=['source-and-target']"])
    with pytest.raises(InputError, match="finds no parameter"):
        State(make_policy(recipe), recipe, CPU)
