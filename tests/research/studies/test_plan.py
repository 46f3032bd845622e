"""The studies that are kept, and how they are read."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
import torch

from georoutenet.errors import InputError
from georoutenet.evaluate.references import has_references
from georoutenet.io.datasets import Role, dataset
from georoutenet.kernels.choose import FORMS, Case, unmet
from georoutenet.policy import Policy
from georoutenet.train.pins import COMPONENTS
from georoutenet.train.recipe import read_recipe, recipe_from_dict
from research.studies.plan import Run, as_toml, packaged, read_study


def test_every_study_is_read() -> None:
    assert {"components", "settings", "seed3-nar4tsp", "paper-budget", "shift"} <= set(packaged())
    names = [run.folder for each in packaged() for run in read_study(each).runs]
    assert len(set(names)) == len(names)
    for each in packaged():
        study = read_study(each)
        assert study.about
        assert study.evaluations
        assert study.runs or study.name == "shift"  # whose weights may not be here
        for run in study.runs:
            assert recipe_from_dict(tomllib.loads(as_toml(run.settings))) == run.recipe()


def differences(run: Run, base: Run) -> list[str]:
    skipped = ("name:", "seed:")
    return [
        each for each in run.recipe().differences(base.recipe().to_dict()) if not each.startswith(skipped)
    ]


def test_components_and_settings_differ_in_one_thing_from_the_base() -> None:
    components, settings = read_study("components"), read_study("settings")
    assert len(components.runs) == 9 * 2
    assert [run.recipe().seed for run in components.runs] == [1234] * 9 + [2] * 9
    base = components.runs[0]
    assert base.name == components.base == settings.base
    assert [run.recipe().pin for run in components.runs[1:9]] == [(name,) for name in COMPONENTS]
    for run in components.runs[:9]:
        assert differences(run, base) == (
            [] if run is base else [f"pin: [] there, {list(run.recipe().pin)} here"]
        )
    assert components.evaluations == settings.evaluations
    for run in settings.runs:
        assert len(differences(run, base)) == (
            2 if run.name.endswith("s-mean") and "-3-" not in run.name else 1
        )
    values = [run.recipe() for run in settings.runs]
    assert {(each.candidates, each.baseline) for each in values} == {
        (1, "min"), *((m, how) for m in (3, 8, 16, 48) for how in ("min", "mean"))
    }  # fmt: skip
    assert {each.guidance for each in values} == {0, 0.5, 1}
    assert {(each.entropy_first, each.entropy_last) for each in values} == {
        (0.0125, 0), (0, 0), (0.0125, 0.0125)
    }  # fmt: skip
    assert {each.policy.neighbors for each in values} == {5, 10, 15}


def test_short_runs_are_five_million_instances() -> None:
    recipe = read_study("components").runs[0].recipe()
    assert recipe.steps * recipe.batch == pytest.approx(5e6, rel=1e-4)
    assert (recipe.candidates, recipe.baseline, recipe.schedule) == (3, "min", "cosine")
    assert recipe.averaging


def test_all_of_georoutenet_train_in_kernels() -> None:
    """What the kernels ask of a network's sizes and precision is met by every run."""
    needs = [need for need in FORMS["cuda hopper"] if "GPU" not in need.what and "compile" not in need.what]
    assert len(needs) == 4
    checked = 0
    for name in packaged():
        for run in read_study(name).runs:
            if run.given is not None:
                continue
            recipe = run.recipe()
            if recipe.policy.encoder == "nar4tsp":
                assert read_study(name).sources
                continue
            case = Case(
                config=recipe.policy, device=torch.device("cpu"), gradients=True,
                stored=torch.float32, compute=torch.bfloat16, batch=recipe.batch, n=recipe.n,
                width=recipe.policy.neighbors + 1,
            )  # fmt: skip
            assert recipe.precision == "bfloat16"
            assert all(need.is_met(case) for need in needs), run.name
            assert "GPU" in unmet("cuda hopper", case)
            checked += 1
    assert checked == 18 + 14 + 2 + 2 + 1 + 2 + 5 + 1


@pytest.mark.parametrize("study", ["seed3-nar4tsp", "seed3-georoutenet"])
def test_third_seeds_are_the_recipe_of_the_others(study: str) -> None:
    """As the page of results says it of them."""
    for run in read_study(study).runs:
        assert run.name.endswith("-seed3")
        recipe, paper = run.recipe(), read_recipe(run.name.removesuffix("-seed3"))
        changed = {each.split(":")[0] for each in recipe.differences(paper.to_dict())}
        assert changed == {"name", "seed", "steps", "validation_every", "precision"}
        assert (recipe.seed, recipe.steps, recipe.validation_every) == (3, 312_500, 25_000)
        assert recipe.checkpoint_every == 25_000


def test_the_papers_budget_is_its_recipe() -> None:
    for run in read_study("paper-budget").runs:
        recipe, paper = run.recipe(), read_recipe(run.name.removesuffix("-160m"))
        changed = {each.split(":")[0] for each in recipe.differences(paper.to_dict())}
        assert changed == {"name", "validation_every", "precision"}
        assert recipe.steps * recipe.batch == 160_000_000
        assert recipe.validation_every <= 25_000


def test_capacities() -> None:
    sizes = {}
    for name in ("capacity-georoutenet", "capacity-nar4tsp"):
        (run,) = read_study(name).runs
        sizes[run.name] = round(Policy(run.recipe().policy).parameter_count() / 1e6, 2)
        assert str(sizes[run.name]) in read_study(name).about
    assert sizes == {"capacity-georoutenet-3": 1.03, "capacity-nar4tsp-12": 1.81}


def test_squares_have_one_schedule() -> None:
    upright, turned = read_study("squares").runs
    assert differences(turned, upright)[0].startswith("mix:")
    assert len(differences(turned, upright)) == 1
    kinds = [(each.n, each.batch, each.distribution) for each in upright.recipe().batches()]
    assert kinds == [(50, 512, "uniform")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("abut = 'x'", "unknown 'abut'; allowed: about, base"),
        ("[[run]]\nname = 'a'\nrecipe = 'laptop'\nsets = {}", "unknown 'sets'; allowed: name, recipe"),
        ("[[run]]\nname = 'a'\nrecipe = 'laptop'\n" * 2, "two runs have one name"),
        ("[[run]]\nname = 'a'\nrecipe = 'desktop'", "does not exist"),
        ("[[run]]\nname = 'a'\nrecipe = 'laptop'\nset = { n = 2 }", "3 or more"),
        ("[[evaluate]]\nsets = 'val51'\ndecoders = 'greedy'", "val51"),
        ("= 3", "cannot be read"),
    ],
)
def test_studies_that_are_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_study(path)


def test_a_study_that_is_not_there() -> None:
    with pytest.raises(InputError, match=r"cannot be read.*components"):
        read_study("conponents")


def test_text_that_toml_would_read_otherwise_is_refused() -> None:
    with pytest.raises(InputError, match="without quotes"):
        as_toml({"name": 'a"b'})


def test_structure_and_size_are_added_one_after_the_other() -> None:
    study = read_study("structure")
    before, alone, both, floor, best_of, packaged = study.runs
    assert packaged.name == study.base == "georoutenet"
    mixes = [run.recipe().batches() for run in (before, alone, both)]
    assert mixes[0] == read_recipe("georoutenet").batches()
    assert [any(kind.distribution == "structure" for kind in mix) for mix in mixes] == [False, True, True]
    assert [max(kind.n for kind in mix) for mix in mixes] == [500, 500, 1000]
    assert [kind for kind in mixes[1] if kind.n < 500] == [kind for kind in mixes[2] if kind.n < 500]
    for run in (before, alone):
        assert [each.split(":")[0] for each in differences(run, both)] == ["mix"]
    assert [each.split(":")[0] for each in differences(floor, both)] == ["entropy_floor"]
    assert [each.split(":")[0] for each in differences(best_of, both)] == ["baseline", "best_of"]
    whole, now = read_study("structure-whole").runs
    assert now.given
    assert whole.recipe().batches() == mixes[2]
    assert whole.recipe().seed not in {run.recipe().seed for run in study.runs[:5]}


def test_the_run_that_may_be_packaged_is_measured_on_sets_kept_apart() -> None:
    """Those of which figures are wanted; its selection sees none of them."""
    sets = {name for name, _ in read_study("structure-whole").evaluations}
    held_out = {name for name in sets if dataset(name).role is Role.HELD_OUT}
    assert {f"test{n}" for n in (50, 100, 200, 500, 1000)} | {"clustered200"} <= held_out
    assert {f"{kind}{n}" for kind in ("val", "valstructure") for n in (200, 500, 1000)} <= sets
    (table,) = {each.limit for name, each in read_study("structure-whole").evaluations if name in held_out}
    assert table is None  # whole sets alone are in the tables


def test_gaps_are_known_on_every_set_of_every_study() -> None:
    names = {name for each in packaged() for name, _ in read_study(each).evaluations}
    assert [name for name in sorted(names) if not has_references(name)] == []
