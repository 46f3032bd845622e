"""Nothing that a file says reaches the terminal as a command to it, or chooses where a file is written."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table
from typer.testing import CliRunner

from georoutenet.cli import app, solve
from georoutenet.cli.screen import complain, say, show_warning, styled, visible
from georoutenet.errors import GeoRouteNetWarning, InputError
from georoutenet.problem.instance import Instance
from georoutenet.stop import Progress

HOSTILE = "\x1b]0;title\x07\x1b[31m [/red][bold] :smile: \u202eabc\u200b\x9b2J\x7f"
SQUARE = (
    "TYPE: TSP\nDIMENSION: 4\nEDGE_WEIGHT_TYPE: EUC_2D\nNODE_COORD_SECTION\n1 0 0\n2 0 9\n3 9 9\n4 9 0\nEOF\n"
)


def write(path: Path, name: str) -> str:
    path.write_text(f"NAME : {name}\n{SQUARE}", encoding="utf-8")
    return path.name


def harmless(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n"))


def test_visible() -> None:
    assert visible("Köln, 東京 [bold]") == "Köln, 東京 [bold]"
    assert visible("a\x1b[0m\n\t\u202e\ud800\x9b") == "a\\x1b[0m\\n\\t\\u202e\\ud800\\x9b"
    assert visible(Path("a\nb")) == "a\\nb"


def test_lines_and_errors(capsys: pytest.CaptureFixture[str]) -> None:
    say("one", HOSTILE)
    complain(ValueError(HOSTILE + "\n"))
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = show_warning
        warnings.warn(GeoRouteNetWarning(HOSTILE), stacklevel=1)
    out, err = capsys.readouterr()
    assert harmless(out + err)
    assert len(out.splitlines()) == 2
    assert [line.split(":")[0] for line in err.splitlines()] == ["error", "note"]


def test_tables_show_markup_as_it_is() -> None:
    stream = io.StringIO()
    table = Table("name")
    table.add_row(styled("[/red] :smile: \x1b[2J"))
    Console(file=stream, width=80).print(table)
    assert "[/red] :smile: \\x1b[2J" in stream.getvalue()


def test_the_table_of_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    files = [write(tmp_path / "a.tsp", "[/red]"), write(tmp_path / "b.tsp", HOSTILE)]
    (tmp_path / "c.csv").write_text(f"x,{HOSTILE}\n1,2\n")
    (tmp_path / "d.tsp").write_text(f"NAME: d\n{HOSTILE} : 3\n{SQUARE}")
    (tmp_path / "e\x1b[31m.csv").write_text("1,2\n3,oops\n")
    files += ["c.csv", "d.tsp", "e\x1b[31m.csv", "none\x1b[2J.tsp"]
    done = CliRunner().invoke(app, ["solve", *files, "--max-seconds", "0"])
    assert done.exit_code == 1, done.exception
    assert "[/red]" in done.stdout
    assert "\\x1b]0;title" in done.stdout
    assert done.stderr.count("error: ") == 4
    assert harmless(done.stdout + done.stderr)


@pytest.mark.parametrize("command", ["solve", "length"])
def test_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").write_text("city\n0\n1\n2\n3\n")
    arguments = ["--max-seconds", "0"] if command == "solve" else ["a.csv"]
    done = CliRunner().invoke(app, [command, write(tmp_path / "a.tsp", HOSTILE), *arguments])
    assert done.exit_code == 0, done.exception
    assert done.stdout.startswith("\\x1b]0;title\\x07\\x1b[31m [/red][bold] :smile:")
    assert harmless(done.stdout + done.stderr)


@pytest.mark.parametrize("count", [1, 2])
def test_spinner_and_bar(count: int) -> None:
    stream = io.StringIO()
    instances = [("a.csv", Instance([[0, 0]], name=HOSTILE))] * count
    console = Console(file=stream, force_terminal=True, width=200, color_system=None)
    with solve._Display(console, instances) as display:
        display.show("[/network]", Progress(1.0, 0, 0, 3.0))
        (display.bar or display.status).refresh() if count > 1 else console.print(display.status.renderable)
        display.rest()
        assert display.bar is not None or not display.status._live.is_started  # else it would be drawn into
    shown = stream.getvalue()
    assert "[/network]" in shown
    assert "\x1b]0;" not in shown
    assert "\u202e" not in shown


def test_cities_are_not_their_own_tour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Written routes are read as cities in visiting order, of which their own tour is another one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").write_text("x,y\n0,0\n9,9\n0,9\n9,0\n")
    assert CliRunner().invoke(app, ["solve", "a.csv", "--output", "route.json"]).exit_code == 0
    right = CliRunner().invoke(app, ["length", "a.csv", "route.json"])
    assert "length 36.0" in right.output
    with pytest.raises(
        InputError, match="is named twice: a tour counts the cities in the order of their own"
    ):
        CliRunner().invoke(app, ["length", "route.json", "route.json"], catch_exceptions=False)


def test_a_terminal_that_cannot_show_a_name(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("city\n0\n1\n2\n3\n")
    done = subprocess.run(
        [sys.executable, "-m", "georoutenet", "length", write(tmp_path / "a.tsp", "東京"), "a.csv"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONIOENCODING": "latin-1"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.startswith("\\u6771\\u4eac: 4 cities"), done.stderr


# ---- names of written files

NAMES = ["../victim/settings", "/{folder}/victim/settings", "..", "x" * 300, "a\0b", "$\\frac{"]


@pytest.mark.parametrize("option", ["--output", "--plot", "--plot-progress"])
@pytest.mark.parametrize("name", NAMES)
def test_a_name_never_chooses_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    extension = "json" if option == "--output" else "svg"
    victim = tmp_path / "victim" / f"settings.{extension}"
    victim.parent.mkdir()
    victim.write_text("precious")
    write(tmp_path / "a.tsp", name.replace("{folder}", str(tmp_path)[1:]))
    limit = "5" if option == "--plot-progress" else "0"  # a search there has to be; four cities end it soon
    arguments = ["a.tsp", "--max-seconds", limit, option, f"safe/{{name}}.{extension}"]
    done = CliRunner().invoke(app, ["solve", *arguments])
    assert done.exit_code == 0, (done.output, done.exception)
    assert victim.read_text() == "precious"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.tsp", "safe", "victim"]
    (made,) = (tmp_path / "safe").iterdir()
    assert made.suffix == f".{extension}"


def test_names_that_are_safe_as_the_same_do_not_overwrite_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    files = [
        write(tmp_path / "a.tsp", "x/y"),
        write(tmp_path / "b.tsp", "x_y"),
        write(tmp_path / "c.tsp", "z"),
    ]
    done = CliRunner().invoke(app, ["solve", *files, "--max-seconds", "0", "--output", "{name}.json"])
    assert done.exit_code == 1
    assert "b.tsp: has the name 'x_y' of a.tsp, and so its output" in done.stderr
    assert json.loads((tmp_path / "x_y.json").read_text())["name"] == "x/y"
    assert (tmp_path / "z.json").exists()


def test_limits_of_size_are_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").write_text("city\n0\n1\n2\n3\n")
    write(tmp_path / "a.tsp", "a")
    for command in (["solve", "a.tsp", "--max-seconds", "0"], ["length", "a.tsp", "a.csv"]):
        refused: Any = CliRunner().invoke(app, [*command, "--max-bytes", "60"])
        assert refused.exit_code == 1
        assert "a.tsp: holds more than 60 bytes" in f"{refused.stderr}{refused.exception}"
        assert CliRunner().invoke(app, [*command, "--max-bytes", "600"]).exit_code == 0
