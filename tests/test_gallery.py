"""The examples run as they are, from an empty folder."""

from __future__ import annotations

import json
import os
import re
import runpy
import shlex
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest
from typer.testing import CliRunner

import georoutenet as grn
from georoutenet.cli import app

EXAMPLES = Path(__file__).parent.parent / "examples"
if not EXAMPLES.exists():
    pytest.skip("the examples are not part of this installation", allow_module_level=True)


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    mpl.use("Agg")


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_scripts(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    assert capsys.readouterr().out
    if name == "customers.py":
        assert len(grn.read_instance("route.csv").ids or ()) == 10
        assert b"<gpx" in Path("route.gpx").read_bytes()
    for picture in Path().glob("*.png"):
        assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_notebook() -> None:
    """Cell by cell, without Jupyter."""
    notebook = json.loads((EXAMPLES / "first_steps.ipynb").read_text(encoding="utf-8"))
    names: dict[str, Any] = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            exec(compile("".join(cell["source"]), "first_steps.ipynb", "exec"), names)
    assert {"network.png", "path.csv"} <= set(os.listdir())


def test_the_claim_of_an_example_is_what_it_prints(capsys: pytest.CaptureFixture[str]) -> None:
    """It said 1 % and printed 1.42."""
    runpy.run_path(str(EXAMPLES / "time_and_quality.py"), run_name="__main__")
    claims = re.findall(r"within (\S+) % of the bound: .* at most (\S+) % above", capsys.readouterr().out)
    assert len(claims) == 1
    assert float(claims[0][1]) <= float(claims[0][0])


def test_the_commands() -> None:
    """Those of a block follow from one another."""
    page = (EXAMPLES.parent / "docs" / "gallery.md").read_text(encoding="utf-8")
    found = re.findall(r"^```\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert len(found) == 2
    commands = "".join(found)
    assert commands.count("--max-seconds 5") == 1
    for line in commands.replace("--max-seconds 5", "--max-seconds 1").splitlines():
        done = CliRunner().invoke(app, shlex.split(line, comments=True)[1:])
        assert done.exit_code == 0, done.output
    assert Path("short.png").stat().st_size > 0


def test_the_gallery_names_every_example() -> None:
    page = (EXAMPLES.parent / "docs" / "gallery.md").read_text(encoding="utf-8")
    assert all(f"](../examples/{path.name})" in page for path in EXAMPLES.iterdir() if path.is_file())
