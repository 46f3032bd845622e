"""The weights of the 2x2: restored from the history; what their cards say is what recipes and tables say."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from georoutenet.errors import InputError
from georoutenet.evaluate.packed import Packed
from georoutenet.policy.weights import load_policy, read_card
from georoutenet.train.recipe import read_recipe
from research.weights import listed, restore

ROOT = Path(__file__).parents[2]
NAMES = [
    f"paper-{encoder}-{objective}" for encoder in ("nar4tsp", "georoutenet") for objective in ("pg", "mcs")
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The restored files, or a skip where the history is not at hand."""
    to = tmp_path_factory.mktemp("weights")
    try:
        restore(to)
    except InputError as error:
        pytest.skip(f"the weights of the 2x2 need a full clone: {error}")
    return to


@pytest.mark.parametrize("name", NAMES)
def test_cards_name_the_recipes_and_the_common_budget(folder: Path, name: str) -> None:
    _, card = read_card(folder / f"{name}.safetensors")
    recipe = read_recipe(
        name,
        ["steps=312500", "precision=bfloat16", "validation_every=25000"],
    )
    assert recipe.differences(card["recipe"]) == []
    assert card["instances"] == 20_000_000 == card["step"] * recipe.batch


@pytest.mark.parametrize("name", NAMES)
def test_results_are_those_of_these_weights(name: str) -> None:
    packed = Packed(ROOT / "results" / f"{name}.npz")
    digests = {packed.header(cell)["sha256"] for cell in packed.names}
    assert digests == {listed()[f"{name}.safetensors"]}


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_they_solve_an_instance(folder: Path, name: str) -> None:
    policy = load_policy(folder / f"{name}.safetensors").eval()
    scores = policy(torch.rand(2, 9, 2, generator=torch.Generator().manual_seed(1)))
    assert torch.isfinite(scores.start).all()
    assert torch.isfinite(scores.logits).all()


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_restoring_takes_the_version_with_the_listed_digest(tmp_path: Path) -> None:
    """Two versions were committed and the file removed; the first is listed."""

    def git(*arguments: str) -> None:
        name = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
        subprocess.run(["git", *name, *arguments], cwd=tmp_path, check=True, capture_output=True)

    git("init")
    held = tmp_path / "weights"
    held.mkdir()
    for data in (b"first", b"second"):
        (held / "w.safetensors").write_bytes(data)
        git("add", ".")
        git("commit", "-m", "w")
    git("rm", "weights/w.safetensors")
    git("commit", "-m", "gone")
    held.mkdir(exist_ok=True)
    digests = held / "sha256.json"
    digests.write_text(json.dumps({"w.safetensors": hashlib.sha256(b"first").hexdigest()}))
    (path,) = restore(tmp_path / "out", held)
    assert path == tmp_path / "out" / "w.safetensors"
    assert path.read_bytes() == b"first"

    path.write_bytes(b"damaged")
    restore(tmp_path / "out", held)
    assert path.read_bytes() == b"first"

    digests.write_text(json.dumps({"w.safetensors": hashlib.sha256(b"third").hexdigest()}))
    with pytest.raises(InputError, match=r"no commit of this clone holds w\.safetensors.*unshallow"):
        restore(tmp_path / "other", held)
    assert not (tmp_path / "other").exists()
