import dataclasses
import os
import subprocess
import sys

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

import research.references.make as job
from georoutenet.cli import reference as module
from georoutenet.errors import InputError, MissingDependencyError
from georoutenet.evaluate.references import PACKAGED, References, load_references
from research.references.keep import save_references
from research.references.make import Pass
from research.references.solvers import make_solver


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("GEOROUTENET_CACHE", str(tmp_path / "cache"))
    app = typer.Typer()
    app.callback()(lambda: None)
    module.register(app)

    def call(*arguments):
        result = CliRunner().invoke(app, ["reference", *map(str, arguments)])
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return call


@pytest.fixture
def calls(monkeypatch):
    """What the job is asked to do, without doing it."""
    seen = []

    def record(data, passes, **options):
        seen.append((data.name, passes, options))
        info = [{"solver": each.solver, "instances": 2, "improved": 1, "seconds": 0.5} for each in passes]
        return References(
            data.name, np.zeros((2, 3), int), np.array([1.0, 2.0]), np.array([True, False]), info
        )

    monkeypatch.setattr(job, "make_references", record)
    return seen


def test_defaults(run, calls):
    result = run("test50")
    ((name, passes, options),) = calls
    assert name == "test50"
    assert passes == [Pass("lkh", {"runs": 1})]
    assert options["folder"] == PACKAGED
    assert options["workers"] >= 1
    assert "mean length 1.500000, 1 of 2 proven" in result.stdout


def test_options_reach_the_job(run, calls, tmp_path):
    options = {"--prove": 7, "--runs": 3, "--seconds": 0.5, "--workers": 2, "--out": tmp_path}
    run("test50", "--solver", "lkh", "--solver", "fast-tsp", *(x for pair in options.items() for x in pair))
    ((_, passes, options),) = calls
    assert passes == [Pass("lkh", {"runs": 3}), Pass("fast-tsp", {"seconds": 0.5}), Pass("concorde", first=7)]
    assert (options["folder"], options["workers"]) == (tmp_path, 2)


def test_prove_alone_runs_nothing_else(run, calls):
    run("val50", "--prove", 1000)
    assert calls[0][1] == [Pass("concorde", first=1000)]


def test_errors_name_what_is_allowed(run):
    with pytest.raises(InputError, match="known: val50"):
        run("val51")
    with pytest.raises(InputError, match="unknown solver 'simplex'; known: concorde"):
        run("val50", "--solver", "simplex")


def test_tsplib_has_no_reference_tours(run):
    with pytest.raises(InputError, match="published optima"):
        run("tsplib36")


def test_a_real_run_in_worker_processes(tmp_path):
    try:
        make_solver("concorde")
    except MissingDependencyError as error:
        pytest.skip(str(error))
    known = load_references("val50")
    save_references(dataclasses.replace(known, proven=np.zeros(known.count, dtype=bool)), tmp_path)
    code = (
        "import typer; from georoutenet.cli import reference; a = typer.Typer(); reference.register(a); a()"
    )
    command = [sys.executable, "-c", code, "val50", "--prove", "3", "--workers", "2", "--out", str(tmp_path)]
    environment = os.environ | {"GEOROUTENET_CACHE": str(tmp_path / "cache")}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "val50: mean length 5.694818, 3 of 10000 proven optimal" in ended.stdout
    assert "3 of 3 instances" in ended.stderr
    np.testing.assert_array_equal(load_references("val50", tmp_path).proven, np.arange(10_000) < 3)
