"""While something compiles, whoever looks on is told; nobody else is."""

from __future__ import annotations

import io
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import georoutenet as grn
from georoutenet.clock import watch_compiler
from georoutenet.jit import njit
from georoutenet.solver import compiling as module
from georoutenet.solver.compiling import PARTS, WIDTH, bar, compiling


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def compile_two() -> None:
    watch_compiler()
    inner = njit(cache=False)(lambda x: x + 1)
    assert njit(cache=False)(lambda x: 2 * inner(x))(1) == 4


def test_progress_hears_of_the_stage() -> None:
    heard: list[tuple[str, Any]] = []
    with compiling(lambda stage, at: heard.append((stage, at))):
        compile_two()
    assert {stage for stage, _ in heard} == {"compile"}
    assert [at.iterations for _, at in heard] == [0, 0, 1, 2]  # one begins within the other
    assert heard[-1][1].seconds > heard[0][1].seconds >= 0
    compile_two()
    assert len(heard) == 4


def test_a_report_that_fails_does_not_reach_the_compiler() -> None:
    def fail(*_: Any) -> None:
        raise ValueError("enough")

    with pytest.raises(ValueError, match="enough"), compiling(fail):
        compile_two()
    compile_two()


def test_a_terminal_shows_a_bar_and_then_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(module, "MENTIONED", 60.0)
    with compiling(None):
        compile_two()
    text = terminal.getvalue()
    lines = [line for line in text.split("\r") if "compiling, once on this machine [" in line]
    assert 1 <= len(lines) == len(set(lines)) < 4  # two functions begin and end
    assert text.endswith("\r")  # a moment of it leaves nothing
    monkeypatch.setattr(module, "MENTIONED", 0.0)
    with compiling(None), compiling(None):  # as two threads would
        compile_two()
    assert terminal.getvalue().endswith("s, once on this machine\n")
    assert terminal.getvalue().count("compiled in") == 1
    before = terminal.getvalue()
    with compiling(None):
        pass
    assert terminal.getvalue() == before


def test_scripts_are_told_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with compiling(None):
        compile_two()
    assert stream.getvalue() == ""
    monkeypatch.setitem(sys.modules, "ipykernel", sys)  # a notebook
    with compiling(None):
        compile_two()
    assert "compiling" in stream.getvalue()


def test_the_bar_is_full_at_the_end() -> None:
    assert bar(0) == "[" + "." * WIDTH + "]"
    assert bar(PARTS) == bar(9 * PARTS) == "[" + "#" * WIDTH + "]"
    assert bar(PARTS // 2).count("#") == WIDTH * (PARTS // 2) // PARTS


def test_solve_hears_of_nothing_where_nothing_compiles() -> None:
    stages: list[str] = []
    cities = np.random.default_rng(0).random((12, 2))
    grn.solve(cities, stop=grn.MaxIterations(5))
    grn.solve(cities, stop=grn.MaxIterations(5), progress=lambda stage, _: stages.append(stage))
    assert "improve" in stages
    assert "compile" not in stages


FIRST = """
import numpy, georoutenet as grn
parts = []
def progress(stage, at):
    if stage == "compile":
        parts.append(at.iterations)
grn.solve(numpy.random.default_rng(0).random((30, 2)), stop=grn.MaxIterations(5), progress=progress)
print(max(parts), parts.count(0) > 0)
"""


@pytest.mark.slow
def test_a_first_call_compiles_as_much_as_the_bar_says(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    done = subprocess.run([sys.executable, "-c", FIRST], capture_output=True, text=True, check=True)
    parts, begun = done.stdout.split()
    assert 0.7 * PARTS <= int(parts) <= 1.3 * PARTS
    assert begun == "True"


def test_nothing_is_drawn_into_a_bar_of_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own lines would break, and brackets are markup there."""
    from rich.console import Console

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with Console(file=terminal, force_terminal=True).status("busy"):
        assert sys.stderr is not terminal
        with compiling(None):
            compile_two()
    assert "busy" in terminal.getvalue()
    assert "compil" not in terminal.getvalue()
    with compiling(None):
        compile_two()
    assert "compiling, once on this machine [" in terminal.getvalue()
