"""`solve` in processes of every kind, and what a new one can afford."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import georoutenet as grn
from georoutenet.solver import api, stages

SCRIPT = """
import multiprocessing, sys
import numpy as np
import georoutenet as grn

def child(seed):
    return grn.solve(np.random.default_rng(seed).random((120, 2)), improve=False, device="cpu").length

if __name__ == "__main__":
    expected = [child(1), child(2)]
    with multiprocessing.get_context(sys.argv[1]).Pool(2) as pool:
        found = pool.map_async(child, [1, 2]).get(timeout=100)
    assert np.allclose(found, expected, rtol=1e-3), (found, expected)
"""


METHODS = sorted(multiprocessing.get_all_start_methods())
"""Of these the first, ``fork`` where there is one, leaves a child with the most of its parent."""


@pytest.mark.parametrize(
    "method", [METHODS[0], *(pytest.param(name, marks=pytest.mark.slow) for name in METHODS[1:])]
)
def test_a_child_of_a_process_that_has_asked_the_network(method: str, tmp_path: Any) -> None:
    """A forked child waited for ever for threads of PyTorch that its parent has and it has not."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, script, method], capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr


SHORT = """
import multiprocessing, sys
import numpy as np
import georoutenet as grn
from georoutenet.unbroken import _behind, is_behind

cities = np.random.default_rng(0).random((200, 2))

def call(seconds, kicks=10**9):
    return grn.solve(cities, stop=grn.AnyOf(grn.MaxTime(seconds), grn.MaxIterations(kicks))).method

if __name__ == "__main__":
    assert call(0.3) == "space-filling curve"
    assert is_behind()  # so that the second call need not load it
    if sys.argv[1] == "fork":
        with multiprocessing.get_context("fork").Pool(1) as pool:
            job = pool.apply_async(call, [5.0, 10])
            assert job.get(timeout=100) == "greedy edge"
    if sys.argv[1] == "again":
        _behind[0].join()
        result = grn.solve(cities, max_seconds=0.3)
        assert result.method == "greedy edge" and result.length < result.initial_length, result.notes
"""


@pytest.mark.parametrize("then", ["again", "exit", "fork"])
def test_what_was_too_long_to_load_is_loaded_behind(then: str, tmp_path: Any) -> None:
    """Every call with such a limit gave a bare curve. A program may end or fork while it is loaded."""
    if then == "fork" and "fork" not in multiprocessing.get_all_start_methods():
        pytest.skip("needs fork")
    script = tmp_path / "script.py"
    script.write_text(SHORT)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", script, then],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_half_a_second_in_a_new_process_is_enough_for_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """It gave the bare space-filling curve, half as long again as the tour that the search finds."""
    imports = iter([stages.IMPORT["numba"]] * 2)  # asked at the beginning and before the construction
    monkeypatch.setattr(stages, "_numba_import", lambda: next(imports, 0.0))
    for module in (api, stages):  # however busy the machine is
        monkeypatch.setattr(module, "now", lambda: 0.0)
    result = grn.solve(np.random.default_rng(0).random((200, 2)), max_seconds=0.5)
    assert result.method == "greedy edge"
    assert result.length < result.initial_length


def test_where_loading_took_the_limit_there_is_still_a_short_search(
    monkeypatch: pytest.MonkeyPatch, fake_clock: Any
) -> None:
    """On a busy core greedy edge alone came back, a fifth too long, after more than the limit."""
    grn.solve(np.random.default_rng(1).random((200, 2)), stop=grn.MaxIterations(10))  # compiled code
    fake_clock.step = 1e-5
    imports = iter([stages.IMPORT["numba"]] * 2)
    monkeypatch.setattr(stages, "_numba_import", lambda: next(imports, 0.0))
    monkeypatch.setattr(stages, "watch_compiler", lambda: fake_clock.advance(1.0))  # called before loading
    result = grn.solve(np.random.default_rng(0).random((200, 2)), max_seconds=0.5)
    assert result.length < 0.95 * result.initial_length
    assert result.timings["total"] < 2.0 + 2 * stages.FIRST_SEARCH  # a second for each thing loaded
    assert not result.notes[1:]
