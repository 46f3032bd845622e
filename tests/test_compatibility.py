"""What 0.1 wrote is still read, and what it offered is still there.

The files in ``tests/data/0.1`` were written by the code of 0.1; ``make.py`` among them says how.
"""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.main import get_command
from typer.testing import CliRunner

import georoutenet as grn
from georoutenet.cli import app
from georoutenet.evaluate.results import read_results
from georoutenet.moved import MOVED

OLD = Path(__file__).parent / "data" / "0.1"
CONTRACT = json.loads((OLD / "contract.json").read_text())
RESULTS = ("test20-greedy.csv", "test20-beam-16.csv.gz")


@pytest.mark.parametrize("name", CONTRACT["scores"])
def test_weights_of_0_1_give_the_same_scores(name: str) -> None:
    expected = CONTRACT["scores"][name]
    with torch.no_grad():
        found = grn.load_policy(OLD / name)(torch.tensor([expected["cities"]]))
    np.testing.assert_allclose(found.start[0], expected["start"], atol=1e-5)
    np.testing.assert_allclose(found.logits[0], expected["logits"], atol=1e-5)


def test_results_of_0_1_are_read() -> None:
    greedy, beam = (read_results(OLD / name) for name in RESULTS)
    for results in (greedy, beam):
        assert [row.instance for row in results.rows] == [f"test20-{k}" for k in range(5)]
        assert results.header["georoutenet"] == "0.1.0"
        assert (results.header["weights"], results.header["set"]) == ("georoutenet", "test20")
        assert (results.seconds > results.network_seconds).all()
    assert (greedy.header["decoder"], beam.header["decoder"], beam.header["width"]) == (
        "greedy",
        "beam",
        "16",
    )
    assert greedy.lengths[0] == 8.128979306
    assert greedy.gaps[0] == pytest.approx(112.252807)
    assert (beam.references == greedy.references).all()


@pytest.mark.parametrize("name", RESULTS)
def test_results_of_0_1_are_kept_and_come_out_again(name: str, tmp_path: Path) -> None:
    decoder = name.removeprefix("test20-").partition(".")[0]

    def evaluate(out: Path) -> str:
        options = [
            "--set",
            "test20",
            "--decoder",
            decoder,
            "--limit",
            "5",
            "--device",
            "cpu",
            "--out",
            str(out),
        ]
        done = CliRunner().invoke(app, ["evaluate", str(OLD / "georoutenet.safetensors"), *options])
        assert done.exit_code == 0, done.output
        return done.stdout

    old, new = tmp_path / name, tmp_path / f"new-{name}"
    shutil.copy(OLD / name, old)
    assert evaluate(old).splitlines()[-1].startswith("kept")
    assert old.read_bytes() == (OLD / name).read_bytes()
    evaluate(new)
    np.testing.assert_allclose(read_results(new).lengths, read_results(old).lengths, rtol=1e-6)


def test_names_of_0_1_are_public() -> None:
    assert set(CONTRACT["names"]) <= set(grn.__all__)
    for name in CONTRACT["names"]:
        assert getattr(grn, name) is not None


def test_solve_takes_the_options_of_0_1() -> None:
    cities = np.random.default_rng(3).random((9, 2))
    common: dict[str, Any] = {
        "stop": grn.AnyOf(grn.MaxIterations(20), grn.NoImprovement(10)),
        "seed": 1,
        "start": 2,
        "end": 4,
        "closed": False,
        "progress": lambda *_: None,
    }
    network: dict[str, Any] = {
        "weights": "georoutenet",
        "decoder": "beam",
        "beam_width": 20,
        "views": 2,
        "device": "cpu",
    }
    by_network = grn.solve(cities, **common, **network)
    given = grn.solve(cities, **common, initial_tour=by_network.tour)
    many = grn.solve_many([cities], workers=1, **common, **network)[0]
    common.pop("stop")
    decoded = grn.solve(cities, **common, **network, improve=False, max_seconds=60.0)
    for result in (by_network, given, many, decoded):
        assert sorted(result.tour) == list(range(9))
        assert (result.tour[0], result.tour[-1]) == (2, 4)
    assert many.length == by_network.length


@pytest.mark.parametrize("name", CONTRACT["commands"])
def test_commands_of_0_1_have_their_options(name: str) -> None:
    command: Any = get_command(app)
    for part in name.split():
        assert part in command.commands, f"no command {name}"
        command = command.commands[part]
    here = {text for each in command.params for text in (*each.opts, *each.secondary_opts)}
    assert set(CONTRACT["commands"][name]) <= here


@pytest.mark.parametrize("name", MOVED)
def test_modules_of_0_1_are_found_and_warn(name: str) -> None:
    sys.modules.pop(f"georoutenet.{name}", None)
    with pytest.warns(DeprecationWarning, match=f"georoutenet.{name} is now georoutenet") as caught:
        module = importlib.import_module(f"georoutenet.{name}")
    assert {Path(each.filename).name for each in caught} <= {Path(__file__).name, "__init__.py"}
    new = importlib.import_module(f"georoutenet.{MOVED[name][0]}")
    for public in [each for each in vars(new) if each[0].isupper()]:
        assert getattr(module, public) is getattr(new, public)
    with pytest.raises(AttributeError, match="have no attribute 'nothing'"):
        module.nothing  # noqa: B018


def test_names_that_moved_warn_or_say_where_they_went() -> None:
    sys.modules.pop("georoutenet.improve", None)
    with pytest.warns(DeprecationWarning, match="search and georoutenet.stop"):
        from georoutenet.improve import MaxTime, improve  # type: ignore[import-not-found]
    assert (MaxTime, improve.__module__) == (grn.MaxTime, "georoutenet.search.local_search")
    with pytest.warns(DeprecationWarning, match="georoutenet.solver.solve is georoutenet.solve"):
        from georoutenet.solver import solve
    assert solve is grn.solve
    with pytest.raises(AttributeError, match="decode_views"):
        importlib.import_module("georoutenet.decode").solve_views  # noqa: B018
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("georoutenet.nothing")
