"""A wheel, installed outside the source tree, solves and trains."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "georoutenet"
CITIES = "x,y\n0,0\n0,9\n9,9\n9,0\n4,1\n"

SOLVE = """
import json, sys, numpy, georoutenet as grn
result = grn.solve(numpy.random.default_rng(0).random((20, 2)), stop=grn.MaxIterations(50), first="network")
print(json.dumps([grn.__file__, result.method, sorted(map(int, result.tour))]))
"""

RECIPE = """
name = "two-steps"
n = 6
batch = 4
candidates = 3
learning_rate = 1e-3
steps = 2
epoch_steps = 2
log_every = 1
validation = "uniform"
validation_size = 4
[policy]
hidden = 8
heads = 2
layers = 1
neighbors = 3
rbf = 4
"""


def run(*arguments: str | Path, folder: Path, **environment: str) -> str:
    """Run Python's module or script in ``folder`` with nothing of this source tree in reach."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(argument) for argument in arguments],
        cwd=folder,
        env=kept | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def solves_and_trains(
    python: str | Path, site: Path, folder: Path, *, own_recipe: bool, **environment: str
) -> None:
    """From Python, by the command and two steps of training, all with the package in ``site``."""
    file, method, tour = json.loads(run(python, "-c", SOLVE, folder=folder, **environment))
    assert Path(file).is_relative_to(site)
    assert "beam" in method
    assert tour == list(range(20))

    def command(arguments: str) -> str:
        return run(python, "-m", "georoutenet", *arguments.split(), folder=folder, **environment)

    (folder / "cities.csv").write_text(CITIES)
    command("solve cities.csv --max-seconds 10 --output tour.csv")
    assert "length 36.222" in command("length cities.csv tour.csv")

    few = "--set steps=2 --set epoch_steps=2 --set batch=2 --set validation_size=4"
    command(f"train laptop --device cpu --out laptop {few}")
    if own_recipe:
        (folder / "tiny.toml").write_text(RECIPE)
        command("train tiny.toml --device cpu --out run")
    trained = f"--weights {'run' if own_recipe else 'laptop'}/best.safetensors --device cpu"
    assert "length 36.222" in command(f"solve cities.csv {trained} --max-seconds 10")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec("hatchling") is None:
        pytest.skip("hatchling, which builds the wheel, is not installed")
    folder = tmp_path_factory.mktemp("wheel")
    options = "--no-deps --no-build-isolation --no-index --quiet --wheel-dir"
    path = os.pathsep.join(sys.path)  # hatchling may be anywhere on it
    run(sys.executable, "-m", "pip", "wheel", *options.split(), folder, ROOT, folder=folder, PYTHONPATH=path)
    (file,) = folder.glob("georoutenet-*.whl")
    return file


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    source = {
        path.relative_to(PACKAGE.parent).as_posix()
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert names == source
    assert {".py", ".cu", ".cuh", ".csv", ".npz", ".safetensors", ".toml", ".typed"} <= {
        Path(name).suffix or Path(name).name for name in names
    }


def test_the_sdist_holds_what_is_versioned(tmp_path: Path) -> None:
    """So its own tests find what they read; and it stays small. What runs the checks is left out."""
    pytest.importorskip("hatchling", reason="hatchling, which builds the sdist, is not installed")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode != 0 or not (ROOT / ".git").exists():
        pytest.skip("not a clone: nothing says what is versioned")
    built = ("-m", "hatchling", "build", "--target", "sdist", "--directory", tmp_path)
    run(sys.executable, *built, folder=ROOT, PYTHONPATH=os.pathsep.join(sys.path))
    (file,) = tmp_path.glob("georoutenet-*.tar.gz")
    assert file.stat().st_size < 30e6
    with tarfile.open(file) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    versioned = {name for name in listed.stdout.split("\0") if name and (ROOT / name).exists()}
    assert {name for name in versioned - names if not name.startswith(".ci/")} == set()
    assert not [name for name in names if "__pycache__" in name or name.endswith(".partial")]


def test_an_installed_wheel_solves_and_trains(wheel: Path, tmp_path: Path) -> None:
    """With the code that other tests compiled from the same sources."""
    site = tmp_path / "site"
    options = f"--no-deps --no-index --quiet --target {site}"
    run(sys.executable, "-m", "pip", "install", *options.split(), wheel, folder=tmp_path)
    solves_and_trains(sys.executable, site, tmp_path, own_recipe=False, PYTHONPATH=str(site))


@pytest.mark.slow
def test_a_new_environment_solves_and_trains(tmp_path: Path) -> None:
    """From nothing: builds and downloads all that the package asks for, and compiles all that it runs."""
    place = tmp_path / "venv"
    run(sys.executable, "-m", "venv", place, folder=tmp_path)
    python = place / ("Scripts" if os.name == "nt" else "bin") / "python"
    constraints = ("--constraint", ROOT / "constraints.txt")
    run(python, "-m", "pip", "install", "--quiet", *constraints, ROOT, folder=tmp_path)
    solves_and_trains(python, place, tmp_path, own_recipe=True, NUMBA_CACHE_DIR=str(tmp_path / "numba"))
