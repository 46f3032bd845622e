from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import Listening, assert_same_weights, rows, train
from tiny import tiny_recipe

from georoutenet.decode import decode_views
from georoutenet.errors import InputError
from georoutenet.io.provenance import commit, device_name
from georoutenet.policy import Policy
from georoutenet.policy.weights import load_policy, read_card
from georoutenet.problem.generate import GENERATORS
from georoutenet.train.checkpoint import load_checkpoint
from georoutenet.train.trainer import DivergedError, Trainer, run_together
from georoutenet.train.validation import freeze_statistics, mean_length, validation_set


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def test_a_whole_run(tmp_path: Path) -> None:
    outcome = train(tiny_recipe(), tmp_path)
    assert (outcome.step, outcome.finished, outcome.signal) == (24, True, None)
    logged = rows(tmp_path)
    assert [row["step"] for row in logged if row["validation"]] == ["8", "16", "24"]
    assert {4, 5, 8, 10, 12, 15, 16, 20, 24} == {int(row["step"]) for row in logged}
    assert logged[-1]["instances"] == "96"
    assert float(logged[-1]["entropy_weight"]) == 0.0
    validated = [float(row["validation"]) for row in logged if row["validation"]]
    assert outcome.best == min(validated)
    assert outcome.last == validated[-1]
    card = read_card(tmp_path / "best.safetensors")[1]
    assert card["validation_length"] == outcome.best
    assert not tiny_recipe().differences(card["recipe"])
    assert read_card(tmp_path / "last.safetensors")[1]["step"] == 24
    assert (card["commit"], card["device"]) == (commit(), device_name(torch.device("cpu")))


def test_the_newest_weights_of_nar4tsp_have_statistics_of_their_own(tmp_path: Path) -> None:
    """Also those of a checkpoint that no validation came before."""
    small = ["policy.encoder=nar4tsp", "checkpoint_every=5", "validation_every=24", "steps=30"]
    trainer = Trainer(tiny_recipe(small), tmp_path)
    session = trainer.session([], math.inf)
    for _ in range(5):
        next(session)
    kept = load_policy(tmp_path / "last.safetensors")
    own = trainer.state.policy
    assert isinstance(own, Policy)
    freeze_statistics(own, trainer.cities)
    coords = torch.rand(3, 8, 2)
    with torch.no_grad():
        torch.testing.assert_close(kept(coords).logits, own.eval()(coords).logits)


def test_a_run_over_candidates(tmp_path: Path) -> None:
    """In a mix with all pairs; validated as it is asked for."""
    mix = "mix=[{n=6, batch=4}, {n=40, batch=2, sparse=5}]"
    recipe = tiny_recipe([mix, "n=30", "sparse=4", "averaging=0.9"])
    outcome = train(recipe, tmp_path)
    assert outcome.finished
    kept, coords = load_policy(tmp_path / "best.safetensors"), validation_set(recipe)
    assert coords.shape[1] == 30
    assert mean_length(kept, coords, sparse=4) == pytest.approx(outcome.best, rel=1e-6)
    assert mean_length(kept, coords) != pytest.approx(outcome.best, rel=1e-6)
    views = {word: mean_length(kept, coords, f"sample-9-views-3{word}") for word in ("", "-candidates-4")}
    assert mean_length(kept, coords, "sample-9-views-3", sparse=4) == views["-candidates-4"] != views[""]


def test_kept_weights_have_the_validated_length(tmp_path: Path) -> None:
    recipe = tiny_recipe(["averaging=0.9"])
    outcome = train(recipe, tmp_path)
    policy = load_policy(tmp_path / "last.safetensors")
    assert mean_length(policy, validation_set(recipe)) == pytest.approx(outcome.last, abs=1e-9)


def test_training_learns(tmp_path: Path) -> None:
    recipe = tiny_recipe(["n=8", "batch=32", "steps=80", "epoch_steps=40", "learning_rate=3e-3"])
    train(recipe, tmp_path)
    lengths = [float(row["cost"]) for row in rows(tmp_path)]
    assert lengths[-1] < 0.9 * lengths[0]


def test_validation_may_be_any_function(tmp_path: Path) -> None:
    values = iter([3.0, 2.0, 2.5])
    outcome = train(tiny_recipe(), tmp_path, validation=lambda policy: next(values))
    assert (outcome.best, outcome.last) == (2.0, 2.5)
    assert read_card(tmp_path / "best.safetensors")[1]["step"] == 16


def test_stopping_and_resuming_reproduces_the_run(tmp_path: Path) -> None:
    """In one process: stopped by time after every few steps, until the recipe is complete."""
    recipe = tiny_recipe(["averaging=0.9", "schedule=cosine", "warmup=0.1"])
    train(recipe, tmp_path / "whole")
    for _ in range(30):
        trainer = Trainer(recipe, tmp_path / "parts")
        trainer.began = -math.inf  # time is up after the steps that the trick below allows
        allowed, must_stop = trainer.step + 7, trainer._must_stop
        trainer._must_stop = lambda *a, t=trainer, n=allowed, f=must_stop: t.step >= n and f(*a)  # type: ignore[method-assign]
        if trainer.run(max_seconds=0.0).finished:
            break
    assert_same_weights(tmp_path / "whole", tmp_path / "parts")
    best = [read_card(tmp_path / run / "best.safetensors")[1] for run in ("whole", "parts")]
    assert best[0]["validation_length"] == best[1]["validation_length"]
    assert best[0]["step"] == best[1]["step"]
    last_rows = [rows(tmp_path / run)[-1] for run in ("whole", "parts")]
    assert last_rows[0]["validation"] == last_rows[1]["validation"] != ""


def test_another_recipe_is_refused_unless_fresh(tmp_path: Path) -> None:
    train(tiny_recipe(["steps=8"]), tmp_path)
    with pytest.raises(InputError, match=r"batch: 4 there, 8 here.*--fresh"):
        Trainer(tiny_recipe(["steps=8", "batch=8"]), tmp_path)
    Trainer(tiny_recipe(["steps=8", "log_every=3"]), tmp_path)
    outcome = train(tiny_recipe(["steps=8", "batch=8"]), tmp_path, fresh=True)
    assert outcome.step == 8
    assert rows(tmp_path)[-1]["instances"] == "64"


def test_not_a_number_stops_with_a_report(tmp_path: Path) -> None:
    trainer = Trainer(tiny_recipe(), tmp_path)
    one_step = trainer._one_step

    def poisoned() -> None:
        one_step()
        if trainer.step == 6:
            trainer.state.totals[0] += math.nan

    trainer._one_step = poisoned  # type: ignore[method-assign]
    with pytest.raises(DivergedError, match=r"between steps 5 and 8: loss = nan.*learning rate 0.001"):
        trainer.run()
    stored = load_checkpoint(tmp_path)
    assert stored is not None
    assert stored.step == 5


def test_weights_that_are_not_numbers_diverge(tmp_path: Path) -> None:
    trainer = Trainer(tiny_recipe(), tmp_path)
    with torch.no_grad():
        next(iter(trainer.state.parameters.values())).fill_(math.nan)
    with pytest.raises(DivergedError):
        trainer.run()
    assert load_checkpoint(tmp_path) is None


def test_a_budget_in_seconds_ends_the_run(tmp_path: Path, fake_clock: Any) -> None:
    fake_clock.step = 0.005
    recipe = tiny_recipe(["steps=1000000", "schedule_by=seconds", "budget_seconds=1.0", "schedule=cosine"])
    trainer = Trainer(recipe, tmp_path)
    outcome = trainer.run()
    assert outcome.finished
    assert 1.0 <= outcome.seconds < 1.0 + 20 * fake_clock.step  # looks at the clock after the budget
    assert outcome.last < math.inf
    assert float(rows(tmp_path)[-1]["learning_rate"]) < 0.2 * recipe.learning_rate
    again = train(recipe, tmp_path)
    assert (again.step, again.finished, again.best) == (outcome.step, True, outcome.best)


def test_mixed_sizes_and_distributions(tmp_path: Path) -> None:
    mix = "mix=[{n=6, batch=4}, {n=9, batch=2, distribution='clustered'}]"
    recipe = tiny_recipe([mix, "steps=8", "validation_size=8"])
    train(recipe, tmp_path)
    assert 8 * 2 < int(rows(tmp_path)[-1]["instances"]) < 8 * 4


def test_nar4tsp_weights_are_kept_with_frozen_statistics(tmp_path: Path) -> None:
    train(tiny_recipe(["policy.encoder=nar4tsp", "steps=8"]), tmp_path)
    policy = load_policy(tmp_path / "best.safetensors")
    assert all(bool(torch.isfinite(tensor).all()) for tensor in policy.state_dict().values())
    assert policy(torch.rand(1, 9, 2)).logits.shape == (1, 9, 9)


def test_first_line_says_what_runs_and_how_fast(tmp_path: Path) -> None:
    listening = Listening()
    train(tiny_recipe(), tmp_path, reporter=listening)
    (line,) = listening.lines
    parameters = Policy(tiny_recipe().policy).parameter_count()
    for part in ("cpu", "float32", f"{parameters:,} parameters", "steps/s", "instances/s", "left"):
        assert part in line


def test_the_first_step_says_nothing_about_the_speed(
    tmp_path: Path, fake_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It loads and compiles; the time left was said to be hours where it was minutes."""
    one_step = Trainer._one_step

    def timed(trainer: Trainer) -> None:
        one_step(trainer)
        fake_clock.advance(100.0 if trainer.step == 1 else 1.0)

    monkeypatch.setattr(Trainer, "_one_step", timed)
    listening = Listening()
    train(tiny_recipe(), tmp_path, reporter=listening)
    assert 0.5 < float(re.findall(r"([0-9.]+) steps/s", listening.lines[0])[0]) <= 1.0


def test_held_out_sets_are_never_selected_on(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="held out"):
        Trainer(tiny_recipe(["validation=test50"]), tmp_path)
    with pytest.raises(InputError, match="unknown data set"):
        Trainer(tiny_recipe(["validation=val51"]), tmp_path)
    with pytest.raises(InputError, match="up to 10000"):
        Trainer(tiny_recipe(["validation=val50", "validation_size=10001"]), tmp_path)


def test_training_can_start_from_other_weights(tmp_path: Path) -> None:
    train(tiny_recipe(), tmp_path / "first")
    best = tmp_path / "first" / "best.safetensors"
    again = Trainer(tiny_recipe([f"initial={best}", "learning_rate=1e-9", "seed=8"]), tmp_path / "second")
    expected = load_policy(best).state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in again.state.policy.state_dict().items())
    assert again.run().best == pytest.approx(read_card(best)[1]["validation_length"], abs=1e-4)
    with pytest.raises(InputError, match="the recipe asks for"):
        Trainer(tiny_recipe([f"initial={best}", "policy.layers=3", "seed=8"]), tmp_path / "third")
    units = ["policy.unit=density", "policy.reach=1.4"]  # no weights depend on them
    Trainer(tiny_recipe([f"initial={best}", "seed=8", *units]), tmp_path / "fourth")


def test_a_next_stage_needs_a_seed_of_its_own(tmp_path: Path) -> None:
    """Instances are a function of seed and step, so those of an earlier stage would come again."""
    seed = tiny_recipe().seed
    train(tiny_recipe(), tmp_path / "1")
    first = tmp_path / "1" / "best.safetensors"
    with pytest.raises(InputError, match=rf"with seed {seed}, .*--set seed={seed + 1}"):
        Trainer(tiny_recipe([f"initial={first}"]), tmp_path / "2")
    next_seed = [f"initial={first}", f"seed={seed + 1}"]
    train(tiny_recipe(next_seed), tmp_path / "2")
    train(tiny_recipe(next_seed), tmp_path / "2")  # the same command goes on
    second = tmp_path / "2" / "best.safetensors"
    assert read_card(second)[1]["seeds"] == [seed, seed + 1]
    with pytest.raises(InputError, match=rf"with seed {seed}, .*--set seed={seed + 2}"):
        Trainer(tiny_recipe([f"initial={second}"]), tmp_path / "3")


def test_runs_side_by_side_are_the_runs_alone(tmp_path: Path) -> None:
    recipes = [
        tiny_recipe(["name=one"]),
        tiny_recipe(["name=two", "steps=16", "objective=pg", "candidates=1"]),
    ]
    alone = [Trainer(recipe, tmp_path / "alone" / recipe.name) for recipe in recipes]
    expected = [trainer.run() for trainer in alone]
    together = [Trainer(recipe, tmp_path / "together" / recipe.name) for recipe in recipes]
    outcomes = run_together(together)
    for outcome, other in zip(outcomes, expected, strict=True):
        assert outcome.finished
        assert (outcome.step, outcome.best, outcome.last) == (other.step, other.best, other.last)
    for left, right in zip(alone, together, strict=True):
        for name, parameter in left.state.parameters.items():
            assert torch.equal(parameter, right.state.parameters[name])


def test_runs_side_by_side_stop_together(tmp_path: Path) -> None:
    """The clock is that of the first: others take time to prepare, and nobody trains on while they end."""
    first, second = (Trainer(tiny_recipe([f"name={name}"]), tmp_path / name) for name in ("one", "two"))
    first.began -= 100
    outcomes = run_together([second, first], max_seconds=50)
    assert [outcome.step for outcome in outcomes] == [0, 0]


def test_when_one_run_fails_the_others_keep_a_checkpoint(tmp_path: Path) -> None:
    good = Trainer(tiny_recipe(["name=good", "checkpoint_every=1000"]), tmp_path / "good")
    bad = Trainer(tiny_recipe(["name=bad", "log_every=1"]), tmp_path / "bad")
    with torch.no_grad():
        next(iter(bad.state.parameters.values())).fill_(torch.nan)
    with pytest.raises(DivergedError):
        run_together([good, bad])
    stored = load_checkpoint(tmp_path / "good")
    assert stored is not None
    assert 0 < stored.step < good.recipe.steps


def test_a_mix_is_validated_at_the_size_of_the_recipe() -> None:
    recipe = tiny_recipe(["n=9", "mix=[{n=5, batch=4}, {n=7, batch=4}]", "validation_size=3"])
    assert validation_set(recipe).shape == (3, 9, 2)


@pytest.mark.parametrize("shape", ["uniform", "structure"])
def test_validation_on_any_shape(shape: str) -> None:
    recipe = tiny_recipe([f"validation={shape}", "n=9", "validation_size=3", "validation_seed=5"])
    expected = torch.from_numpy(GENERATORS[shape](3, 9, 5))
    assert torch.equal(validation_set(recipe), expected)


@pytest.mark.parametrize("decoder", ["beam-8-views-4-dominance-merge", "beam-8-views-4-merge-candidates-5"])
def test_validation_by_merged_views(tmp_path: Path, decoder: str) -> None:
    recipe = tiny_recipe([f"validation_decoder={decoder}", "n=25", "validation=strings", "steps=8"])
    outcome = train(recipe, tmp_path)
    policy, coords = load_policy(tmp_path / "last.safetensors"), validation_set(recipe)
    found = decode_views(
        lambda points: policy(points, candidates=5 if "candidates" in decoder else None), coords, decoder
    )
    assert found.lengths is not None
    assert outcome.last == pytest.approx(found.lengths.mean().item(), rel=1e-12)
    assert outcome.last < mean_length(policy, coords)
