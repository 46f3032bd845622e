from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from georoutenet.errors import InputError
from georoutenet.model.config import PolicyConfig
from georoutenet.train.recipe import PACKAGED, Batch, Recipe, read_recipe, recipe_from_dict


def test_every_shipped_recipe_reads() -> None:
    names = {path.stem for path in PACKAGED.glob("*.toml")}
    assert {"laptop", "georoutenet-50", "paper-georoutenet-mcs", "paper-nar4tsp-pg"} <= names
    for path in PACKAGED.glob("*.toml"):
        assert read_recipe(path).name == path.stem


@pytest.mark.parametrize("encoder", ["georoutenet", "nar4tsp"])
@pytest.mark.parametrize("objective", ["mcs", "pg"])
def test_paper_recipes_hold_the_protocol(encoder: str, objective: str) -> None:
    recipe = read_recipe(PACKAGED / f"paper-{encoder}-{objective}.toml")
    assert recipe.policy == PolicyConfig(encoder=encoder, hidden=128, heads=8, layers=6, neighbors=10)
    assert (recipe.n, recipe.batch, recipe.seed, recipe.distribution) == (50, 64, 1234, "uniform")
    assert (recipe.learning_rate, recipe.weight_decay, recipe.schedule, recipe.clip) == (
        1e-4,
        0,
        "constant",
        0,
    )
    assert (recipe.steps, recipe.epoch_steps) == (1000 * 2500, 2500)
    assert (recipe.validation, recipe.validation_size, recipe.validation_every) == ("val50", 10_000, 2500)
    assert recipe.objective == objective
    if objective == "mcs":
        assert (recipe.candidates, recipe.baseline, recipe.standardization) == (3, "min", "joint")
        assert (recipe.guidance, recipe.entropy_first, recipe.entropy_last) == (0.5, 0.0125, 0.0)
    else:
        assert recipe.candidates == 1


def test_overrides() -> None:
    recipe = recipe_from_dict(
        {"n": 20, "policy": {"hidden": 64}},
        [
            "batch=8",
            "baseline=mean",
            "learning_rate=1",
            "policy.heads=4",
            "compile=false",
            "validation='uniform'",
        ],
    )
    assert (recipe.n, recipe.batch, recipe.baseline, recipe.learning_rate) == (20, 8, "mean", 1.0)
    assert (recipe.policy.hidden, recipe.policy.heads) == (64, 4)
    assert recipe.compile is False
    assert recipe.validation == "uniform"


def test_mix() -> None:
    recipe = recipe_from_dict({}, ["mix=[{n=20, batch=4}, {n=50, batch=2, distribution='ring', weight=0.5}]"])
    assert recipe.batches() == (Batch(n=20, batch=4), Batch(n=50, batch=2, distribution="ring", weight=0.5))
    assert recipe_from_dict({"n": 9, "batch": 3}).batches() == (Batch(n=9, batch=3),)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("learning_rat=1", "did you mean 'learning_rate'.*batch"),
        ("policy.hiden=1", "policy.hiden.*did you mean 'hidden'"),
        ("xyz=1", "unknown setting 'xyz'; allowed: .*batch"),
        ("batch=1.5", "batch = 1.5 .*type int"),
        ("batch=true", "type int"),
        ("batch=many", "batch = 'many' .*type int"),
        ("compile=1", "type bool"),
        ("batch=0", "1 or more"),
        ("n=2", "3 or more"),
        ("objective=ppo", "allowed: mcs, pg"),
        ("objective=pg", "candidates = 3"),
        ("baseline=median", "min, mean"),
        ("precision=float16", "float32, bfloat16"),
        ("distribution=gaussian", "uniform"),
        ("schedule_by=seconds", "budget_seconds"),
        ("warmup=1.5", "0 to below 1"),
        ("averaging=1", "0 to below 1"),
        ("learning_rate=0", "more than 0"),
        ("mix=3", "list of tables"),
        ("mix=[{m=3}]", r"mix\[0\].m"),
        ("mix=[{n=9,weight=0}]", "more than 0"),
        ("batch", "key=value"),
        ("seed.x=1", "not a table"),
        ("policy.hidden=7", "multiple of heads"),
        ("sparse=-1", "sparse = -1 is not understood; allowed: 0 or more"),
        ("mix=[{n=9,sparse=-1}]", "sparse = -1 is not understood"),
        ("recompute=-1", "recompute = -1 is not understood; allowed: 0 or more"),
        ("clip=nan", "clip = nan is not understood; allowed: 0 or more"),
        ("guidance=inf", "guidance = inf is not understood; allowed: numbers"),
        ("entropy_floor=-1", "entropy_floor = -1.0 is not understood; allowed: 0 or more"),
        ("validation_decoder=best", "unknown decoder 'best'"),
        ("validation_decoder=greedy-candidates-16-views-2", "unknown decoder"),
    ],
)
def test_bad_settings_say_what_is_allowed(override: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        recipe_from_dict({"seed": 1}, [override])


def test_candidates_of_the_validation_are_said_once() -> None:
    recipe_from_dict({}, ["validation_decoder=beam-9-views-2-candidates-5"])
    with pytest.raises(InputError, match="sparse = 5; allowed: one of them"):
        recipe_from_dict({}, ["validation_decoder=beam-9-views-2-candidates-5", "sparse=5"])


@pytest.mark.parametrize("sparse", ["sparse=3", "mix=[{n=9},{n=9,sparse=3}]"])
def test_sparse_is_for_georoutenet(sparse: str) -> None:
    recipe_from_dict({}, [sparse])
    with pytest.raises(InputError, match="sparse is for georoutenet"):
        recipe_from_dict({}, [sparse, "policy.encoder=nar4tsp"])


def test_what_an_older_recipe_did_not_have_is_the_default() -> None:
    recipe = recipe_from_dict({}, ["mix=[{n=9}]"])
    older = recipe.to_dict()
    del older["sparse"], older["mix"][0]["sparse"], older["policy"]["reach"]
    assert recipe.differences(older) == []
    assert recipe_from_dict({}, ["mix=[{n=9}]", "sparse=4"]).differences(older) == ["sparse: 0 there, 4 here"]


@pytest.mark.parametrize(("before", "now"), [(False, 0), (True, 3), (2, 2)])
def test_recompute_was_a_switch(before: bool | int, now: int) -> None:
    recipe = recipe_from_dict({"recompute": before})
    assert recipe.recompute == now
    assert type(recipe.recompute) is int
    assert not recipe_from_dict({}).differences({"recompute": before})


def test_best_of_needs_enough_candidates() -> None:
    with pytest.raises(InputError, match="best_of = 4"):
        recipe_from_dict({"baseline": "best-of", "best_of": 4})


def test_packaged_recipes_are_found_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    laptop = read_recipe("laptop")
    assert (laptop.name, laptop.n) == ("laptop", 20)
    assert read_recipe("recipes/laptop.toml") == laptop  # where 0.1 had it
    (tmp_path / "laptop").write_text("n = 7")
    assert read_recipe("laptop").n == 7  # a file of the user's own comes first
    for name in ("desktop", "recipes/desktop.toml", "elsewhere/laptop.toml", "laptop.toml"):
        with pytest.raises(InputError, match=r"does not exist, .*packaged: georoutenet-50, .*laptop"):
            read_recipe(name)


def test_unreadable_recipes(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        read_recipe(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("n = = 3")
    with pytest.raises(InputError, match=r"bad\.toml.*cannot be read"):
        read_recipe(tmp_path / "bad.toml")


def test_differences_name_what_matters() -> None:
    recipe = Recipe(batch=32)
    assert recipe.differences(Recipe(batch=32, log_every=7, compile=False).to_dict()) == []
    assert recipe.differences(Recipe().to_dict()) == ["batch: 64 there, 32 here"]
    assert recipe.differences({**recipe.to_dict(), "old": 1}) == ["old: 1 there, None here"]


def test_a_recipe_survives_the_round_trip() -> None:
    recipe = Recipe(mix=(Batch(n=20),), policy=PolicyConfig(hidden=64))
    assert recipe_from_dict(recipe.to_dict()) == recipe
    assert {field.name for field in dataclasses.fields(Recipe)} == recipe.to_dict().keys()


@pytest.mark.parametrize(
    "text",
    [
        "learning_rate = 1" + "0" * 400,
        "steps = 1" + "0" * 30,
        "batch = " + "9" * 5000,
        "mix = " + "[" * 5000,
        "[policy]\nhidden = 1000000",
        "[policy]\nreach = nan",
    ],
)
def test_numbers_and_nesting_beyond_reason_are_refused(tmp_path: Path, text: str) -> None:
    """Python refuses some of them with errors of its own, which say nothing of the recipe."""
    path = tmp_path / "large.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=r"64 bits|cannot be read|must be a"):
        read_recipe(path)
    if text.startswith("mix"):
        with pytest.raises(InputError, match="a list of tables is needed"):
            recipe_from_dict({}, [text.replace(" ", "")])
