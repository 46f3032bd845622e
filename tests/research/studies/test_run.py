"""Studies of tiny runs, from training in pieces to packed results."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import assert_same_weights, rows

from georoutenet.errors import InputError
from georoutenet.evaluate.evaluation import evaluate
from georoutenet.evaluate.packed import Packed
from georoutenet.evaluate.settings import Settings
from georoutenet.policy.weights import load_policy, save_weights
from georoutenet.train import validation
from georoutenet.train.trainer import Trainer
from research.studies import home, session
from research.studies.__main__ import main
from research.studies.plan import Run, as_toml, read_study
from research.studies.run import Piece, _elsewhere, alarm

SETTINGS = """
n = 6, batch = 4, steps = 24, epoch_steps = 8, validation = "val50", validation_size = 4,
validation_every = 8, log_every = 4, checkpoint_every = 5,
policy = { hidden = 8, heads = 2, layers = 2, neighbors = 3, rbf = 4 }
"""
TINY = f"""
about = "tiny runs"
recipe = "paper-georoutenet-mcs"
together = 2
set = {{ {" ".join(SETTINGS.split())} }}
[[run]]
name = "tiny-full"
[[run]]
name = "tiny-no-edge-bias"
set = {{ pin = ["edge-bias"] }}
[[run]]
name = "tiny-nar4tsp"
recipe = "paper-nar4tsp-pg"
[[evaluate]]
sets = "test20"
decoders = "greedy"
limit = 3
[[evaluate]]
sets = "test20"
decoders = "greedy"
limit = 3
statistics = "batch"
"""
NAMES = ("tiny-full", "tiny-no-edge-bias", "tiny-nar4tsp")


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread, and frozen statistics of a few instances: they took most of the time of a tiny run."""
    torch.set_num_threads(1)
    monkeypatch.setattr(validation, "STATISTICS_BATCH", 8)


@pytest.fixture
def study(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    return path


def run(study: Path, work: Path, out: Path, *others: str) -> None:
    main(
        [
            "run",
            str(study),
            "--work",
            str(work),
            "--home",
            str(out),
            "--seconds",
            "600",
            "--device",
            "cpu",
            *others,
        ]
    )


def stop_at(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a signal came after so many steps."""
    must_stop = Trainer._must_stop
    monkeypatch.setattr(Trainer, "_must_stop", lambda self, *a: self.step >= step or must_stop(self, *a))


def test_pieces_on_two_machines_are_one_run(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(study, tmp_path / "whole", tmp_path / "out")
    assert "tiny: 3 done" in capsys.readouterr().err

    with pytest.MonkeyPatch.context() as patch:
        stop_at(13, patch)
        run(study, tmp_path / "first", tmp_path / "piece1")
    said = capsys.readouterr().err
    assert "stopped at step 13" in said
    assert "tiny: 2 begun, 1 to do" in said
    main(
        [
            "unpack",
            str(tmp_path / "piece1"),
            "--work",
            str(tmp_path / "second"),
            "--kept",
            str(tmp_path / "kept"),
        ]
    )
    assert "tiny-full: not finished" in capsys.readouterr().out
    (left,) = home.checkpoints(tmp_path / "second" / "tiny-full")
    assert left.name == "checkpoint-000000013"
    second = ["--work", str(tmp_path / "second")]
    main(["send", str(study), *second, "--to", str(tmp_path / "carry")])
    third = ["--work", str(tmp_path / "third"), "--kept", str(tmp_path / "none")]
    main(["unpack", str(tmp_path / "carry"), *third])
    for file in (tmp_path / "third").rglob("*"):
        there = tmp_path / "second" / file.relative_to(tmp_path / "third")
        assert file.is_dir() or file.read_bytes() == there.read_bytes()
    run(study, tmp_path / "third", tmp_path / "piece2")
    said = capsys.readouterr().err
    assert "resuming at step 13" in said
    assert "tiny: 3 done" in said
    for name in NAMES:
        whole, pieces = tmp_path / "whole" / name, tmp_path / "third" / name
        assert_same_weights(whole, pieces)
        numbers = [{**row, "seconds": ""} for row in rows(pieces) if int(row["step"]) != 13]
        kept = [row["step"] for row in numbers]
        assert [row["step"] for row in rows(whole) if row["step"] in kept] == kept
        assert (
            load_policy(pieces / "best.safetensors").config == load_policy(whole / "best.safetensors").config
        )

    main(
        [
            "unpack",
            str(tmp_path / "piece2"),
            "--work",
            str(tmp_path / "second"),
            "--kept",
            str(tmp_path / "kept"),
        ]
    )
    assert "tiny-nar4tsp: done" in capsys.readouterr().out
    assert {path.name for path in (tmp_path / "second" / "tiny-full").iterdir()} == {home.DONE}
    assert (tmp_path / "kept" / "tiny-full" / "best.safetensors").exists()
    main(["keep", str(study), "--kept", str(tmp_path / "kept"), "--to", str(tmp_path / "repository")])
    for name in NAMES:
        packed = Packed(tmp_path / "repository" / "results" / "studies" / f"{name}.npz").results()
        expected = ["test20-greedy-first-3"] + (["test20-greedy-batch-first-3"] if "nar" in name else [])
        assert sorted(packed) == sorted(expected)
        assert {each.header["weights"] for each in packed.values()} == {name}
        assert (tmp_path / "repository" / "docs" / "runs" / f"{name}.csv.gz").exists()
        assert (tmp_path / "kept" / name / "validation.csv").exists() == ("nar" in name)
        validation = tmp_path / "repository" / "docs" / "runs" / "validation" / f"{name}.csv"
        assert validation.exists() == ("nar" in name)
    main(["list", str(study), "--work", str(tmp_path / "second")])
    assert capsys.readouterr().out.count("done") == 3


@pytest.mark.parametrize("weights", ["keep", "drop"])
def test_runs_that_are_not_evaluated_yet_are_evaluated_elsewhere(
    weights: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their weights travel both ways, also where those of finished runs stay."""
    path = tmp_path / "tiny.toml"
    path.write_text(f'weights = "{weights}"\n' + TINY)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Piece, "_evaluate", lambda *_: None)  # as if time were up when training ended
        run(path, tmp_path / "first", tmp_path / "piece1")
    second = ["--work", str(tmp_path / "second"), "--kept", str(tmp_path / "kept")]
    main(["unpack", str(tmp_path / "piece1"), *second])
    assert "tiny-full: trained" in capsys.readouterr().out
    main(["send", str(path), *second[:2], "--to", str(tmp_path / "carry")])
    third = ["--work", str(tmp_path / "third"), "--kept", str(tmp_path / "none")]
    main(["unpack", str(tmp_path / "carry"), *third])
    run(path, tmp_path / "third", tmp_path / "piece2")
    assert "tiny: 3 done" in capsys.readouterr().err
    main(["unpack", str(tmp_path / "piece2"), *second])
    for name in NAMES:
        assert (tmp_path / "kept" / name / "best.safetensors").exists()
        assert list((tmp_path / "kept" / home.RESULTS / name).iterdir())


def test_nar4tsp_is_validated_under_both_statistics(study: Path, tmp_path: Path) -> None:
    """Also over an interruption: a step is there once."""
    first, _, others = TINY.partition("[[run]]")
    study.write_text(first + "[[run]]" + others.rpartition("[[run]]")[2])
    with pytest.MonkeyPatch.context() as patch:
        stop_at(18, patch)
        run(study, tmp_path / "work", tmp_path / "out")
    run(study, tmp_path / "work", tmp_path / "out")
    lines = (tmp_path / "work" / "tiny-nar4tsp" / "validation.csv").read_text().splitlines()
    assert lines[0] == "step,frozen,batch"
    values = [line.split(",") for line in lines[1:]]
    assert [int(step) for step, _, _ in values] == [8, 16, 24]
    validated = {row["step"]: row["validation"] for row in rows(tmp_path / "work" / "tiny-nar4tsp")}
    for step, frozen, batch in values:
        assert float(validated[step]) == pytest.approx(float(frozen), abs=1e-6)
        assert float(batch) != float(frozen)


def test_other_sources_train_in_a_process_of_their_own(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    package = Path(load_policy.__code__.co_filename).parents[1]
    (tmp_path / "older").mkdir()
    (tmp_path / "older" / "georoutenet").symlink_to(package)
    path = tmp_path / "tiny.toml"
    short = TINY.replace("steps = 24", "steps = 4").replace("together = 2", "together = 3")
    path.write_text(f'sources = "{tmp_path}/older"\n{short}')
    run(path, tmp_path / "work", tmp_path / "out")
    said = capfd.readouterr().err
    assert f"package in {tmp_path}/older/georoutenet" in said
    assert "3 done" in said
    assert home.read_note(tmp_path / "work" / "tiny-full")["sources"] == f"{tmp_path}/older"


def test_what_fails_side_by_side_is_tried_alone_and_then_left(
    study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one_step = Trainer._one_step

    def fail(self: Trainer) -> None:
        if self.recipe.pin and self.step == 3:
            raise InputError("made to fail")
        one_step(self)

    monkeypatch.setattr(Trainer, "_one_step", fail)
    run(study, tmp_path / "work", tmp_path / "out")
    assert "made to fail" in (tmp_path / "work" / "tiny-no-edge-bias" / home.FAILED).read_text()
    assert "tiny: 2 done, 1 failed" in capsys.readouterr().err


def test_an_evaluation_that_fails_costs_no_other(
    study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither of the same run nor of those after it, also in a next call; it is tried again when asked to."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "damaged.safetensors").write_bytes(b"x" * 100)
    given = tmp_path / "given.toml"
    given.write_text(
        'given = "*.safetensors"\n[[evaluate]]\nsets = "test20"\ndecoders = "greedy"\nlimit = 2\n'
    )
    study.write_text(TINY.replace('decoders = "greedy"', 'decoders = "greedy,beam-4"', 1))

    def without_memory(weights: Path, set_name: str, path: Path, settings: Settings, **others: Any) -> object:
        if "tiny-full" in str(weights) and settings.label.startswith("greedy"):
            raise RuntimeError("out of memory")
        return evaluate(weights, set_name, path, settings, **others)

    folders = ["--work", str(tmp_path / "work"), "--home", str(tmp_path / "out")]
    command = ["run", str(given), str(study), *folders, "--seconds", "600", "--device", "cpu"]
    with monkeypatch.context() as patch:
        patch.setattr("research.studies.run.evaluate", without_memory)
        main(command)
    said = capsys.readouterr().err
    assert "given: 1 failed" in said
    assert "tiny: 1 failed, 2 done" in said
    assert "damaged" in (tmp_path / "work" / "given-damaged" / home.FAILED).read_text()
    failed = tmp_path / "work" / "tiny-full" / home.FAILED
    assert failed.read_text() == "test20 greedy-first-3: RuntimeError: out of memory\n"
    assert (tmp_path / "work" / home.RESULTS / "tiny-full" / "test20-beam-4-first-3.csv.gz").exists()
    main(command)
    assert "tiny: 1 failed, 2 done" in capsys.readouterr().err
    failed.unlink()
    main(command)
    assert "tiny: 3 done" in capsys.readouterr().err


def hang(*_: object, **__: object) -> None:
    while True:
        time.sleep(0.01)


@pytest.mark.parametrize("what", ["evaluate", "load_policy"])
def test_the_clock_ends_an_evaluation(
    what: str, study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which may be of many minutes; what it has is packed."""
    monkeypatch.setattr(f"research.studies.run.{what}", hang)
    tiny = read_study(study)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.safetensors").write_bytes(b"")
    given = replace(tiny, runs=(Run("mine", {}, Path("mine.safetensors")),))
    monkeypatch.setattr(
        "research.studies.run.load_policy" if what == "evaluate" else "research.studies.run.evaluate",
        lambda *_: load_policy("georoutenet"),
    )
    piece = Piece([given, tiny], tmp_path / "work", "cpu", 0.5, 0.0)
    piece.go()
    assert piece.left < 0
    assert not list((tmp_path / "work").glob("tiny-*"))


def test_the_clock_ends_a_step_that_does_not(
    study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint before it is left."""
    one_step = Trainer._one_step

    def hangs(self: Trainer) -> None:
        if self.step == 7:
            assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 110
            signal.raise_signal(signal.SIGALRM)
        one_step(self)

    monkeypatch.setattr(Trainer, "_one_step", hangs)
    with pytest.raises(KeyboardInterrupt):
        Piece([read_study(study)], tmp_path, "cpu", 120.0, 20.0).go()
    (left,) = home.checkpoints(tmp_path / "tiny-full")
    assert left.name == "checkpoint-000000005"
    assert not signal.getitimer(signal.ITIMER_REAL)[0]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_pack_what_there_is(
    number: signal.Signals, study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        os.kill(os.getpid(), number)
        hang()

    monkeypatch.setattr("research.studies.run.evaluate", interrupted)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        run(study, tmp_path / "work", tmp_path / "out")
    assert signal.getsignal(signal.SIGTERM) == before
    assert "tiny-full" in home.unpack(tmp_path / "out", tmp_path / "there", tmp_path / "kept")
    assert (tmp_path / "there" / "tiny-full" / "best.safetensors").exists()


def test_other_sources_are_stopped_with_a_checkpoint(tmp_path: Path) -> None:
    """By the clock of the one that started them."""
    package = Path(load_policy.__code__.co_filename).parents[1]
    (tmp_path / "older").mkdir()
    (tmp_path / "older" / "georoutenet").symlink_to(package)
    file = tmp_path / "tiny-full" / "recipe.toml"
    file.parent.mkdir()
    path = tmp_path / "tiny.toml"
    longer = TINY.replace("steps = 24", "steps = 1_000_000")
    path.write_text(longer.replace("checkpoint_every = 5", "checkpoint_every = 1_000_000"))
    file.write_text(as_toml(read_study(path).runs[0].settings))
    threading.Thread(target=interrupt_when, args=(file.with_name("metrics.csv"),)).start()
    with alarm(120.0), pytest.raises(KeyboardInterrupt):
        _elsewhere([file], str(tmp_path / "older"), 600.0, "cpu")
    assert len(home.checkpoints(file.parent)) == 1


def test_the_start_of_other_sources_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Imports take seconds on a machine that has read nothing yet, and training must end for all that."""
    (tmp_path / "georoutenet").mkdir()
    commands: list[list[str]] = []

    def start(command: list[str], **_: Any) -> Any:
        commands.append(command)
        raise InterruptedError

    monkeypatch.setattr(subprocess, "Popen", start)
    monkeypatch.setattr(time, "time", lambda: 1000.0)
    with pytest.raises(InterruptedError):
        _elsewhere([Path("recipe.toml")], str(tmp_path), 60.0, "cpu")
    given: list[dict[str, Any]] = []
    monkeypatch.setattr(session, "train", lambda files, **others: given.append({"files": files, **others}))
    monkeypatch.setattr(sys, "argv", commands[0][2:])
    monkeypatch.setattr(time, "time", lambda: 1015.0)
    session.main()
    assert given == [{"files": [Path("recipe.toml")], "seconds": 45.0, "device": "cpu"}]


def interrupt_when(path: Path) -> None:
    """As the clock does, as soon as the training is seen to have begun."""
    while not path.exists() or path.read_text().count("\n") < 3:
        time.sleep(0.01)
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)


def test_no_time_begins_nothing(study: Path, tmp_path: Path) -> None:
    piece = Piece([read_study(study)], tmp_path, "cpu", 30.0)
    piece.go()
    assert not list(tmp_path.glob("tiny-*/metrics.csv"))


def test_given_weights_are_evaluated(tmp_path: Path, study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(study, tmp_path / "work", tmp_path / "out")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "weights").mkdir()
    (tmp_path / "work" / "tiny-full" / "best.safetensors").rename(tmp_path / "weights" / "mine.safetensors")
    given = tmp_path / "given.toml"
    given.write_text(
        'about = "x"\ntables = "main"\ngiven = "weights/*.safetensors"\n'
        '[[evaluate]]\nsets = "test20"\ndecoders = "greedy,beam-4"\nlimit = 2\n'
    )
    run(given, tmp_path / "work2", tmp_path / "out2")
    main(["unpack", "out2", "--work", "work2", "--kept", "kept2"])
    main(["keep", str(given), "--kept", "kept2", "--to", "repository"])
    packed = Packed(tmp_path / "repository" / "results" / "mine.npz").results()
    assert sorted(packed) == ["test20-beam-4-first-2", "test20-greedy-first-2"]


def test_given_weights_are_named_by_their_seed_and_evaluated_by_each_study(
    tmp_path: Path, study: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of seeds have one name, and what trained them is done without the sets of another study."""
    monkeypatch.chdir(tmp_path)
    for folder, seed in (("weights", 1234), ("weights2", 2), ("weights3", 3)):
        policy, card = load_policy("georoutenet-50"), {"recipe": {"seed": seed, "objective": "mcs"}}
        save_weights(tmp_path / folder / f"mine{'-seed3' if seed == 3 else ''}.safetensors", policy, card)
    home.write_note(tmp_path / "work" / "mine-seed3", {"step": 24, "evaluated": True})
    given = tmp_path / "given.toml"
    given.write_text(
        'given = "weights*/*.safetensors"\n[[evaluate]]\nsets = "test20"\ndecoders = "greedy"\nlimit = 2\n'
    )
    names = ["mine", "mine-seed2", "mine-seed3"]
    assert [each.name for each in read_study(given).runs] == names
    run(given, tmp_path / "work", tmp_path / "out")
    main(["unpack", "out", "--work", "home", "--kept", "kept"])
    main(["keep", str(given), "--kept", "kept", "--to", "repository"])
    for name in names:
        (cell,) = Packed(tmp_path / "repository" / "results" / "studies" / f"{name}.npz").results().values()
        assert cell.header["weights"] == name
    assert not list((tmp_path / "kept").rglob("*.safetensors"))
    (tmp_path / "weights2" / "mine-seed2.safetensors").write_bytes(b"damaged")
    with pytest.raises(InputError, match="two runs have one name, mine-seed2"):
        read_study(given)


def test_a_run_that_would_not_end_in_time_is_not_begun(study: Path, tmp_path: Path) -> None:
    """But one that goes on is, and one that is longer than any call."""
    study.write_text("seconds = 100\n" + TINY)
    tiny = read_study(study)
    (tmp_path / "tiny-nar4tsp" / "checkpoint-000000005").mkdir(parents=True)

    def next_of(seconds: float, spent: float) -> list[str]:
        piece = Piece([tiny], tmp_path, "cpu", seconds, 10.0)
        piece.deadline -= spent
        return [each.name for each in piece._next(tiny)]

    assert next_of(300, 0) == list(NAMES[:2])
    assert next_of(300, 180) == list(NAMES[:2])
    assert next_of(300, 200) == ["tiny-nar4tsp"]
    assert next_of(100, 0) == list(NAMES[:2])  # with 10 of them to pack, it ends in none


def test_sources_that_are_not_there(tmp_path: Path) -> None:
    path = tmp_path / "tiny.toml"
    path.write_text('sources = "nowhere"\n' + TINY)
    run(path, tmp_path / "work", tmp_path / "out")
    assert "nowhere holds no package" in (tmp_path / "work" / "tiny-full" / home.FAILED).read_text()


def test_bad_calls(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="error: study 'nothing' cannot be read"):
        main(["list", "nothing"])
    with pytest.raises(SystemExit, match="error: which study"):
        main(["run", "--seconds", "1", "--home", str(tmp_path)])


def test_what_does_not_fit_beside_the_checkout_is_not_sent(
    tmp_path: Path, study: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All that is tracked counts, and what else is carried; half of a state is none."""
    monkeypatch.chdir(tmp_path)
    for path, size in (("src/tracked", 300_000), ("runs/ignored", 900_000), ("carry/older/src", 100_000)):
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_bytes(bytes(size))
    (tmp_path / ".gitignore").write_text("/runs/\n/carry/\n/work/\n")
    subprocess.run(["git", "init", "-q"], check=True)
    subprocess.run(["git", "add", "src"], check=True)
    monkeypatch.setattr(home, "squeeze", bytes)
    state = tmp_path / "work" / "tiny-full" / "checkpoint-000000005"
    state.mkdir(parents=True)
    for name in ("weights", "momentum", "best"):
        (state / f"{name}.safetensors").write_bytes(bytes(30_000))
    send = ["send", str(study), "--work", "work", "--to", "carry/studies", "--limit"]
    main([*send, "0.55"])
    assert "0.1 MB in carry/studies" in capsys.readouterr().out
    (tmp_path / "carry" / "more").write_bytes(bytes(60_000))
    with pytest.raises(
        SystemExit, match=r"no room for work/tiny-full/.*the checkout has 0.4 of 0.5 MiB"
    ) as error:
        main([*send, "0.5"])
    assert "Send fewer studies" in str(error.value)
    assert not list((tmp_path / "carry" / "studies").iterdir())
