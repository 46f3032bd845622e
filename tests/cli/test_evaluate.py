from __future__ import annotations

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

from georoutenet.cli import app
from georoutenet.errors import InputError
from georoutenet.evaluate.batch_solver import BatchSolver, Solved
from georoutenet.evaluate.results import read_results
from georoutenet.model.config import PolicyConfig
from georoutenet.policy.policy import Policy
from georoutenet.policy.weights import save_weights
from georoutenet.problem.instance import Instance


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    torch.set_num_threads(1)
    torch.manual_seed(5)
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "tiny.safetensors"
    save_weights(path, Policy(PolicyConfig(hidden=8, heads=2, layers=1, neighbors=3, rbf=4)))
    return path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_evaluate_says_what_it_found(weights: Path) -> None:
    done = run("evaluate", weights, "--set", "test20", "--limit", 5, "--device", "cpu", "--batch", 2)
    assert done.exit_code == 0, done.output
    results = read_results("results/tiny/test20-greedy-first-5.csv.gz")
    assert len(results) == 5
    assert "tiny on test20: Greedy" in done.stdout
    assert "5 of the 10000 in the set" in done.stdout
    assert f"mean gap    {results.gaps.mean():.4f} %, 95 % interval" in done.stdout
    assert "bootstrap, 2,000 resamples, seed 0" in done.stdout
    assert f"mean length {results.lengths.mean():.6f}" in done.stdout
    assert "instances/s" in done.stdout
    assert "network" in done.stdout
    assert "peak memory" not in done.stdout  # a CPU has none of its own
    assert "improve" not in done.stdout
    assert done.stdout.splitlines()[-1].startswith("written")
    again = run("evaluate", weights, "--set", "test20", "--limit", 5, "--device", "cpu", "--batch", 2)
    assert again.stdout.splitlines()[:-1] == done.stdout.splitlines()[:-1]
    assert again.stdout.splitlines()[-1].startswith("kept")


def test_evaluate_with_all_options(weights: Path) -> None:
    options = (
        "--set test20 --limit 2 --decoder beam --beam-width 12 --views 3 --batch 2 --device cpu --seed 4 "
        "--improve 0.01 --dominance --length-weight 60 --candidates 5"
    )
    done = run(
        "evaluate", weights, *options.split(), "--precision", "bfloat16", "--out", "x/y.csv.gz", "--fresh"
    )
    assert done.exit_code == 0, done.output
    header = read_results("x/y.csv.gz").header
    said = [header[key] for key in ("decoder", "width", "views", "seed", "precision", "batch", "improve")]
    assert said == ["beam", "12", "3", "4", "bfloat16", "2", "0.01"]
    assert [header[key] for key in ("dominance", "length_weight", "candidates")] == ["yes", "60", "5"]
    assert "Beam-12, 3 views, dominance, length 60, 0.01 s search, 5 candidates, bfloat16" in done.stdout
    assert ", improve 0.0" in done.stdout


def test_many_sets_and_decoders_in_one_command(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    forward = Policy.forward
    monkeypatch.setattr(Policy, "forward", lambda *a, **k: calls.append(1) or forward(*a, **k))
    options = ("--set", "test20,ring50", "--decoder", "greedy,beam-4", "--limit", 2, "--device", "cpu")
    done = run("evaluate", weights, *options, "--out", "here")
    assert done.exit_code == 0, done.output
    assert len(calls) == 2 * (2 + 1)  # a set: a batch for both decoders, and warming up for each
    names = {
        f"{name}-{each}-first-2.csv.gz" for name in ("test20", "ring50") for each in ("greedy", "beam-4")
    }
    assert {each.name for each in Path("here").iterdir()} == names
    *lines, last = done.stdout.splitlines()
    assert last == "4 files in here"
    assert [line.split()[:2] for line in lines] == [
        ["test20", "Greedy"],
        ["test20", "Beam-4"],
        ["ring50", "Greedy"],
        ["ring50", "Beam-4"],
    ]
    gap = read_results("here/ring50-beam-4-first-2.csv.gz").gaps.mean()
    assert lines[3].split()[2] == f"{gap:.4f}"
    Path("here/ring50-greedy-first-2.csv.gz").unlink()
    kept = Path("here/test20-greedy-first-2.csv.gz").stat().st_mtime_ns
    assert run("evaluate", weights, *options, "--out", "here").exit_code == 0
    assert {each.name for each in Path("here").iterdir()} == names
    assert Path("here/test20-greedy-first-2.csv.gz").stat().st_mtime_ns == kept
    refused = run("evaluate", weights, *options, "--out", "one.csv")
    assert refused.exit_code == 2
    assert "name a folder" in refused.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--set val51", "unknown data set 'val51'"),
        ("--set test20 --decoder best", "unknown decoder 'best'"),
        ("--set test20 --device abacus", "unknown device"),
        ("--set test20 --decoder greedy,beam-x", "unknown decoder 'beam-x'"),
        ("--set test20,,val50", "unknown data set ''"),
        (
            "--set test20 --decoder greedy,beam-9 --views 3",
            "'beam-9' says all; give it without views",
        ),
        ("--set test20 --decoder beam --views 0", "views must be a whole number of at least 1 and at most"),
    ],
)
def test_evaluate_refuses(weights: Path, options: str, message: str) -> None:
    done = run("evaluate", weights, *options.split())
    assert isinstance(done.exception, InputError)
    assert message in str(done.exception)
    assert not Path("results").exists()


def test_evaluate_writes_results_only(weights: Path) -> None:
    done = run("evaluate", weights, "--set", "test20", "--out", "notes.txt")
    assert done.exit_code == 2
    assert ".csv.gz" in done.output


def test_a_result_that_does_not_fit_does_not_stop_the_others(
    weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def small(solver: BatchSolver, instances: list[Instance]) -> Solved:
        if instances[0].n > 20:
            raise torch.OutOfMemoryError("too much")
        return solve(solver, instances)

    solve = BatchSolver.solve
    monkeypatch.setattr(BatchSolver, "solve", small)
    options = ("--set", "ring50,test20", "--limit", 2, "--device", "cpu", "--out", "here")
    done = run("evaluate", weights, *options)
    assert done.exit_code == 1
    assert "ring50 greedy-first-2: the device has too little memory; try --batch" in done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["test20", "1"]


def test_missing_instances_are_noticed_first(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEOROUTENET_TSPLIB", str(weights.parent))
    done = run("evaluate", weights, "--set", "test20,tsplib36", "--limit", 2, "--device", "cpu")
    assert isinstance(done.exception, InputError)
    assert "has no eil51.tsp" in str(done.exception)
    assert not Path("results").exists()
