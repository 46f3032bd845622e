from __future__ import annotations

import importlib.util
import math
from pathlib import Path

import pytest
import torch
from made_up import random_set, tsplib_set
from typer.main import get_command

from georoutenet.cli import app
from georoutenet.evaluate.results import Results
from georoutenet.evaluate.settings import header_of, parse_decoder
from georoutenet.io.datasets import parse_sets
from georoutenet.model.config import PolicyConfig
from georoutenet.policy.policy import Policy
from georoutenet.policy.weights import save_weights
from research.report.efficiency import read_measurements
from research.report.measure import measure_all
from research.report.reproduce import commands, decoder_label, place
from research.report.tables import File, Folder


def folder(*results: Results) -> Folder:
    return Folder([File(f"{k}.csv", each) for k, each in enumerate(results)], [], {})


def test_files_of_one_kind_share_a_command() -> None:
    found = commands(
        folder(
            random_set("ring50"),
            random_set("grid50"),
            random_set("ring50", width="", decoder="greedy"),
            random_set("grid50", width="", decoder="greedy"),
            tsplib_set(views="8", improve="0.5"),
        )
    )
    assert [each.line for each in found] == [
        "georoutenet evaluate tiny --set grid50,ring50 --decoder beam-1000,greedy --device cpu",
        "georoutenet evaluate tiny --set tsplib36 --decoder beam-1000-views-8-improve-0.5 --device cpu",
    ]
    assert found[0].place == "an abacus, 2 threads"
    assert found[0].minutes == pytest.approx(4 * 1000 * 0.5 / 60)
    assert math.isnan(found[1].minutes)


def test_what_differs_from_the_defaults_is_said() -> None:
    more = {
        "statistics": "batch",
        "candidates": "16",
        "precision": "bfloat16",
        "batch": "1000",
        "device": "NVIDIA X",
        "seed": "3",
    }
    (one,) = commands(folder(random_set("ring50", **more)))
    options = "--statistics batch --candidates 16 --precision bfloat16 --seed 3 --batch 1000 --device cuda"
    assert one.line == f"georoutenet evaluate tiny --set ring50 --decoder beam-1000 {options}"
    assert one.place == "NVIDIA X"
    (usual,) = commands(folder(random_set("ring50", batch="128")))
    assert "--batch" not in usual.line


@pytest.mark.parametrize("improve", ["", "0.5"])
def test_a_command_makes_the_file_it_was_read_from(improve: str) -> None:
    """Its options are those of the command line, and its sets and decoders name the files."""
    given = random_set("ring50", batch="64", improve=improve, views="4", precision="bfloat16", seed="2")
    (one,) = commands(folder(given))
    program, verb, weights, *options = one.line.split()
    assert (program, verb, weights) == ("georoutenet", "evaluate", "tiny")
    said = dict(zip(options[::2], options[1::2], strict=True))
    known = {name for option in get_command(app).commands["evaluate"].params for name in option.opts}  # type: ignore[attr-defined]
    assert said.keys() <= known
    assert parse_sets(said["--set"]) == ["ring50"]
    settings = parse_decoder(
        said["--decoder"],
        batch=int(said["--batch"]),
        precision=said["--precision"],
        seed=int(said["--seed"]),
    )
    decoding = settings.decoding
    assert (settings.batch, decoding.views, decoding.precision, settings.seed) == (64, 4, "bfloat16", 2)
    assert settings.improve == float(improve or 0)


def test_speed_from_the_header_where_rows_have_no_times() -> None:
    results = tsplib_set(instances_per_second="6.0")
    (one,) = commands(folder(results))
    assert one.minutes == pytest.approx(0.1)


@pytest.mark.parametrize(
    "decoder",
    [
        "greedy",
        "sample-5",
        "beam-7-views-3-improve-0.25",
        "beam-7-dominance-length-60",
        "beam-7-views-3-finalists-2",
    ],
)
def test_labels_are_those_of_the_command(decoder: str) -> None:
    settings = parse_decoder(decoder)
    header = header_of(settings)
    assert decoder_label(header) == settings.decoder_label == decoder


def test_places() -> None:
    assert place({"device": "x", "threads": "1"}) == "x, 1 thread"
    assert place({"device": "x"}) == "x"
    assert place({}) == ""


def test_the_command_of_a_file_of_measurements(tmp_path: Path) -> None:
    """Read back from a file that was measured."""
    torch.set_num_threads(1)
    weights = tmp_path / "tiny.safetensors"
    save_weights(weights, Policy(PolicyConfig(hidden=8, heads=2, layers=1, neighbors=3, rbf=4)))
    decoders = ["greedy", "beam-4-views-3-finalists-2-dominance-length-60-improve-0.01"]
    solvers = ["fast-tsp:0.01"] if importlib.util.find_spec("fast_tsp") else []
    out = tmp_path / "e.csv"
    settings = [parse_decoder(each, limit=2) for each in decoders]
    measure_all(
        out, [str(weights)], ["test20"], settings, solvers, device=torch.device("cpu"), solver_limit=1
    )
    measured = read_measurements(out)
    (one,) = commands(Folder([], [], {"results/e.csv": measured}))
    solver = f"--solver {solvers[0]} --limit 2 --solver-limit 1" if solvers else "--solver '' --limit 2"
    options = f"--weights tiny --set test20 --decoder {','.join(decoders)} {solver} --precision float32"
    assert one.line == f"python benchmarks/efficiency.py --out results/e.csv {options} --device cpu"
    assert one.minutes == pytest.approx(sum(m.seconds + 4 * m.probe_seconds for m in measured) / 60)
    assert commands(Folder([], [], {"empty.csv": []})) == []
