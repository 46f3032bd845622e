from __future__ import annotations

import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import typer

from georoutenet import __version__
from georoutenet.cli import app, commands

COMMANDS = sorted(typer.main.get_command(app).commands)  # type: ignore[attr-defined]


def run(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "georoutenet", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, **options)  # type: ignore[call-overload]


def test_version() -> None:
    assert run("--version").stdout == f"georoutenet {__version__}\n"


def test_the_collector_neither_looks_often_nor_at_the_end() -> None:
    code = (
        "import atexit, gc, sys\n"
        "atexit.register(lambda: print(gc.get_freeze_count() > 1000))\n"  # runs after what main registers
        "sys.argv = ['georoutenet', '--version']\n"
        "from georoutenet.cli import main\n"
        "try:\n"
        "    main()\n"
        "finally:\n"
        "    print(gc.get_threshold()[0])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, timeout=60, capture_output=True, text=True
    )
    assert done.stdout.split()[-2:] == ["1000000", "True"]


def test_help_lists_every_subcommand() -> None:
    done = run("--help")
    assert done.returncode == 0
    for name in COMMANDS:
        assert name in done.stdout


@pytest.mark.parametrize("module", ["georoutenet", "georoutenet.cli"])
def test_heavy_packages_are_not_imported_at_the_start(module: str) -> None:
    code = (
        f"import sys, {module}\n"
        "heavy = {'torch', 'matplotlib', 'numba', 'scipy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_help_does_not_import_heavy_packages() -> None:
    code = (
        "import sys\n"
        "from georoutenet.cli import main\n"
        "sys.argv = ['georoutenet', '--help']\n"
        "try:\n"
        "    main()\n"
        "except SystemExit as end:\n"
        "    assert not end.code, end.code\n"
        "heavy = {'torch', 'matplotlib', 'numba', 'scipy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, capture_output=True)


def test_unknown_option_names_the_allowed_ones() -> None:
    done = run("demo", "--colour", "red")
    assert done.returncode == 2
    assert "--colour" in done.stderr
    assert "--out" in done.stderr
    assert "--seconds" in done.stderr
    assert "Traceback" not in done.stderr


def test_unknown_subcommand_names_the_allowed_ones() -> None:
    done = run("sovle")
    assert done.returncode == 2
    assert "sovle" in done.stderr
    for name in COMMANDS:
        assert name in done.stderr


def test_wrong_value_says_what_is_allowed() -> None:
    done = run("demo", "--seconds", "-1")
    assert done.returncode == 2
    assert "--seconds" in done.stderr
    assert re.search(r"(>=|greater than or equal to) ?0", done.stderr)


def test_missing_argument() -> None:
    done = run("length")
    assert done.returncode == 2
    assert "cities" in done.stderr


def test_a_missing_argument_names_the_help() -> None:
    assert run("solve").stderr.splitlines()[-1].endswith("solve --help")


@pytest.mark.parametrize("group", [[], ["data"]])
def test_a_group_alone_prints_its_help_as_it_is(group: list[str]) -> None:
    done = run(*group)
    assert done.returncode == 2
    assert done.stderr == ""
    assert done.stdout.rstrip("\n") == run(*group, "--help").stdout.rstrip("\n")


@pytest.mark.parametrize("words", [["--seconds", "banana"], ["--seconds=banana"]])
def test_a_wrong_value_is_repeated(words: list[str]) -> None:
    done = run("demo", *words)
    assert done.returncode == 2
    assert done.stderr.count("banana") == 1
    assert len(done.stderr.splitlines()) == 1


def test_input_errors_are_one_line(tmp_path: Path) -> None:
    done = run("length", str(tmp_path / "none.tsp"), str(tmp_path / "none.tour"))
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.splitlines()) == 1
    assert "none.tsp" in done.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    cities, full = tmp_path / "cities.csv", tmp_path / "full.csv"
    cities.write_text("0,0\n1,0\n1,1\n")
    full.symlink_to("/dev/full")
    done = run("solve", str(cities), "--output", str(full))
    assert done.returncode == 1
    assert done.stderr.strip() == "error: [Errno 28] No space left on device"


@pytest.mark.parametrize("text", ["", "Unable to allocate 9.3 TiB"])
def test_a_full_memory_is_one_line(
    text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(**_: object) -> None:
        raise MemoryError(*filter(None, [text]))

    monkeypatch.setattr("georoutenet.cli.commands.app", full)
    monkeypatch.setattr("georoutenet.cli.commands._spare_the_collector", lambda: None)
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    with pytest.raises(SystemExit, match="1"):
        commands.run()
    assert capsys.readouterr().err.rstrip() == "error: the memory is full" + (f": {text}" if text else "")


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX pipes")
def test_a_closed_pipe_gives_no_traceback() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "georoutenet", "data", "list"],
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
    finally:
        os.close(writing)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals")
@pytest.mark.parametrize(
    "moment",
    [
        "georoutenet.cli.commands",
        "typer",
        "typer.main",
        "georoutenet.errors",
        "georoutenet.cli.solve",
        "georoutenet.io.datasets",
    ],
)
def test_ctrl_c_while_the_command_is_imported(tmp_path: Path, moment: str) -> None:
    """The signal comes when a module is about to be imported, so always at the same place."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal, sys\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == {moment!r} and 'georoutenet.cli' in sys.modules:\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupt())\n"
    )
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = run("data", "list", env={**os.environ, "PYTHONPATH": path})
    assert done.returncode == 130
    assert done.stdout == ""
    assert done.stderr == "stopped\n"


def test_ctrl_c_finds_the_command_ready_soon() -> None:
    """What is imported before it is taken in hand is what Python itself needs, and ``signal``."""
    source = str(Path(__file__).parents[2] / "src")
    code = f"import sys; sys.path.insert(0, {source!r}); import georoutenet.cli; print(*sys.modules)"
    command = [sys.executable, "-I", "-S", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    heavy = {"typing", "re", "pathlib", "tempfile", "contextlib", "importlib.abc", "importlib.resources"}
    assert not heavy & set(done.stdout.split())
