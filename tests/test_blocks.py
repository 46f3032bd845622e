"""Every Python block of the README and of the pages runs, and so does every command but those in a list."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import georoutenet as grn
from georoutenet.cli import app

ROOT = Path(__file__).parent.parent
if not (ROOT / "docs").exists():
    pytest.skip("docs are not part of this installation", allow_module_level=True)
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
RUN = ("solve", "length", "data list", "data show", "data make", "compare", "bulk")
"""Commands that are run, unless the next list has them."""
NOT_RUN = {
    "georoutenet (train|evaluate) ": "takes minutes to days",
    "georoutenet serve": "serves until it is stopped",
    "georoutenet reference ": "needs solvers that are not installed",
    "georoutenet data tsplib": "downloads",
    "georoutenet tables ": "writes the pages themselves",
    "georoutenet compare .*tsplib36": "needs TSPLIB",
    "georoutenet compare .*\\.csv": "reads what evaluate has written",
    "georoutenet bulk .* --engine ray": "needs Ray",
    "georoutenet bulk million": "takes long",
}
"""Beginnings of commands that are not run, as regular expressions, and why."""


def blocks(page: Path, *languages: str) -> list[str]:
    text = page.read_text(encoding="utf-8")
    found = re.findall(r"^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return [block for language, block in found if language in languages]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files that the pages name."""
    random = np.random.default_rng(0)
    rows = [
        f"K{k:03d};Kunde {k};{48 + x:.4f};{11 + y:.4f}" for k, (x, y) in enumerate(random.random((20, 2)))
    ]
    table = "\n".join(["Kunde_ID;Name;lat;lon", *rows]).replace(".", ",")
    (tmp_path / "customers.csv").write_text(table.replace("Kunde 17;", "Café Müller;"), encoding="cp1252")
    cities = random.random((12, 2))
    grn.write_instance(tmp_path / "cities.tsp", grn.Instance(1000 * cities, name="cities", rule="EUC_2D"))
    grn.write_instance(tmp_path / "cities.csv", grn.Instance(cities))
    (tmp_path / "instances").mkdir()
    for k in range(2):
        text = (tmp_path / "cities.tsp").read_text().replace("cities", f"cities{k}")
        (tmp_path / "instances" / f"{k}.tsp").write_text(text)
    matrix = random.integers(1, 100, (5, 5))
    places = [{"location": [13 + k / 10, 52.5]} for k in range(5)]
    symmetric = {"code": "Ok", "durations": np.triu(matrix, 1) + np.triu(matrix, 1).T, "sources": places}
    (tmp_path / "table.json").write_text(json.dumps(symmetric, default=np.ndarray.tolist))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def of_solving(folder: Path) -> dict[str, Any]:
    table = folder / "customers.csv"  # pandas takes UTF-8 unless it is told otherwise
    table.write_text(table.read_text(encoding="cp1252"), encoding="utf-8")
    cities = np.random.default_rng(1).random((30, 2))
    matrix = np.ceil(100 * np.linalg.norm(cities[:, None] - cities, axis=-1))
    drawn: list[float] = []
    many = [cities[:9], cities[:5]]
    names = {"coordinates": cities, "list_of_instances": many, "matrix": matrix, "grn": grn}
    return {**names, "draw": lambda tour, length: drawn.append(length)}


def of_bulk(folder: Path) -> dict[str, Any]:
    arrow = pytest.importorskip("pyarrow", reason="PyArrow is not installed")
    from pyarrow import parquet

    lists = np.random.default_rng(1).random((2, 4, 6)).tolist()
    table = arrow.table({"id": list("abcd"), "x": lists[0], "y": lists[1]})
    parquet.write_table(table, folder / "zones.parquet")
    return {}


PREPARED: dict[str, Callable[[Path], dict[str, Any]]] = {"solving": of_solving, "bulk": of_bulk}
NEEDS = {"import pandas": "pandas", "import ray": "ray", "import pyarrow": "pyarrow"}
ELSEWHERE = ("README", "many-instances")
"""Pages whose own tests run their blocks and look at what they print."""
ALL = [
    (page.stem, k) for page in PAGES if page.stem not in ELSEWHERE for k in range(len(blocks(page, "python")))
]


@pytest.mark.parametrize(("stem", "k"), ALL)
def test_python(stem: str, k: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (page,) = (page for page in PAGES if page.stem == stem)
    block = blocks(page, "python")[k]
    for line, package in NEEDS.items():
        if line in block and importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    names = PREPARED.get(stem, lambda _: {})(folder)
    if stem == "bulk":
        from made import run_here

        monkeypatch.setattr("georoutenet.bulk.api.run_local", run_here)
    if "127.0.0.1:8000" in block:
        pytest.importorskip("fastapi", reason="FastAPI is not installed")
        from research.serving import serving

        names["coordinates"] = [[0, 0], [0, 3], [4, 3], [4, 0]]
        with serving() as server:
            exec(block.replace("127.0.0.1:8000", f"127.0.0.1:{server.port}"), names)
        assert names["event"] == "done"
        return
    exec(block, names)


LINES = [
    (page.stem, line.partition(" #")[0].strip())
    for page in PAGES
    if page.stem != "gallery"  # its own tests run them, one after another
    for block in blocks(page, "", "bash")
    for line in block.replace("\\\n", " ").splitlines()
    if line.startswith("georoutenet ")
]
COMMANDS = [(stem, line) for stem, line in LINES if not any(re.match(each, line) for each in NOT_RUN)]


@pytest.mark.parametrize(("stem", "line"), COMMANDS)
def test_commands(stem: str, line: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if " data " in line:
        monkeypatch.setenv("GEOROUTENET_CACHE", str(folder / "cache"))
    if " bulk " in line:
        of_bulk(folder)
        from made import run_here

        monkeypatch.setattr("georoutenet.bulk.api.run_local", run_here)
    if " compare " in line:
        (folder / "results").symlink_to(ROOT / "results")
    words = [
        name
        for word in shlex.split(line)[1:]
        for name in (sorted(map(str, Path().glob(word))) if "*" in word else [word])
    ]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    for option in ("--output", "--plot", "--worst"):
        if option in words and "{name}" not in words[words.index(option) + 1]:
            assert (folder / words[words.index(option) + 1]).stat().st_size > 0


def test_each_command_is_run_or_listed_as_not_run() -> None:
    for _, line in COMMANDS:
        assert line.removeprefix("georoutenet ").startswith(RUN), f"put {line!r} into RUN or NOT_RUN"
    for each in (*(f"georoutenet {command}" for command in RUN if command != "length"), *NOT_RUN):
        assert any(re.match(each, line) for _, line in LINES), f"no page has {each!r} any more"


def test_there_are_blocks_and_commands() -> None:
    assert len(ALL) >= 11
    assert len(COMMANDS) >= 14
