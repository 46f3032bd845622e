"""The weights of the 2x2 in ``research/weights``: what their cards say is what the recipes and tables say."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch

from georoutenet.evaluate.packed import Packed
from georoutenet.policy.weights import load_policy, read_card
from georoutenet.train.recipe import read_recipe

ROOT = Path(__file__).parents[2]
NAMES = [
    f"paper-{encoder}-{objective}" for encoder in ("nar4tsp", "georoutenet") for objective in ("pg", "mcs")
]


@pytest.mark.parametrize("name", NAMES)
def test_cards_name_the_recipes_and_the_common_budget(name: str) -> None:
    _, card = read_card(ROOT / "research" / "weights" / f"{name}.safetensors")
    recipe = read_recipe(
        ROOT / "recipes" / f"{name}.toml",
        ["steps=312500", "precision=bfloat16", "validation_every=25000"],
    )
    assert recipe.differences(card["recipe"]) == []
    assert card["instances"] == 20_000_000 == card["step"] * recipe.batch


@pytest.mark.parametrize("name", NAMES)
def test_results_are_those_of_these_weights(name: str) -> None:
    digest = hashlib.sha256((ROOT / "research" / "weights" / f"{name}.safetensors").read_bytes()).hexdigest()
    packed = Packed(ROOT / "results" / f"{name}.npz")
    assert {packed.header(cell)["sha256"] for cell in packed.names} == {digest}


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_they_solve_an_instance(name: str) -> None:
    policy = load_policy(ROOT / "research" / "weights" / f"{name}.safetensors").eval()
    scores = policy(torch.rand(2, 9, 2, generator=torch.Generator().manual_seed(1)))
    assert torch.isfinite(scores.start).all()
    assert torch.isfinite(scores.logits).all()
