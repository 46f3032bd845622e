"""Ctrl-C while packages are imported or functions compiled: nothing is left half done."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from georoutenet import jit, unbroken
from georoutenet.unbroken import import_whole

needs_signals = pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals")


def interrupt() -> None:
    """Ctrl-C, and time for the main thread to notice."""
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.05)


def test_results_and_errors_pass() -> None:
    assert unbroken.unbroken(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        unbroken.unbroken(lambda: 1 // 0)
    assert unbroken.unbroken(threading.get_ident) != threading.get_ident()


@needs_signals
def test_an_interrupt_ends_the_waiting_not_the_work() -> None:
    done = threading.Event()

    def work() -> None:
        interrupt()
        done.set()

    with pytest.raises(KeyboardInterrupt):
        unbroken.unbroken(work)
    assert done.wait(10)


def test_other_threads_do_their_own_work() -> None:
    """They get no signals."""
    found: list[bool] = []

    def work() -> None:
        found.append(unbroken.unbroken(threading.get_ident) == threading.get_ident())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [True]


def test_without_threads_the_work_is_done_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert unbroken.unbroken(threading.get_ident) == threading.get_ident()


@needs_signals
def test_an_import_is_finished_behind_an_interrupt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "slow_to_import.py").write_text(
        "import os, signal, time\n"
        "runs = globals().get('runs', 0) + 1\n"
        "os.kill(os.getpid(), signal.SIGINT)\n"
        "time.sleep(0.05)\n"
        "whole = True\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(KeyboardInterrupt):
        import_whole("slow_to_import")
    import_whole("slow_to_import")  # waits for the first
    module = sys.modules.pop("slow_to_import")
    assert (module.runs, module.whole) == (1, True)


def test_a_module_that_is_missing_is_an_error_each_time() -> None:
    for _ in range(2):
        with pytest.raises(ModuleNotFoundError):
            import_whole("no_such_module_anywhere")


@needs_signals
def test_compiling_goes_on_behind_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    @jit.njit
    def add(x: int) -> int:
        return x + 1

    seen: list[str] = []
    load = jit.DiskCache.load_overload

    def interrupted(self: Any, *given: Any) -> Any:
        seen.append("begun")
        if len(seen) == 1:
            interrupt()
        seen.append("whole")
        return load(self, *given)

    monkeypatch.setattr(jit.DiskCache, "load_overload", interrupted)
    with pytest.raises(KeyboardInterrupt):
        add(1)
    assert add(1) == 2
    assert seen == ["begun", "whole"]


LOST = """
import time
from georoutenet.unbroken import do_behind

class Slow:
    def __del__(self):
        begin = time.monotonic()
        while time.monotonic() < begin + 0.3:
            pass

def work():
    for _ in range(3):
        Slow()

do_behind(work)
time.sleep(0.05)
"""


def test_a_program_that_ends_says_nothing_of_what_it_breaks_off() -> None:
    """Where the exception that ends the thread is lost, as in Python's own imports, Python printed it."""
    command = [sys.executable, "-c", LOST]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    assert done.stderr == ""


def test_functions_of_others_may_call_compiled_ones() -> None:
    """Whoever compiles their own holds the compiler's lock, which no other thread may then wait for."""
    code = (
        "import numba, georoutenet.jit as jit\n"
        "@jit.njit\n"
        "def inner(x): return x + 1\n"
        "@numba.extending.overload(len)\n"
        "def of_int(x):\n"
        "    if isinstance(x, numba.types.Integer):\n"
        "        assert inner(1.5) == 2.5\n"  # compiled and called while the other is compiled
        "        return lambda x: x\n"
        "@numba.njit\n"
        "def outer(x): return inner(x) + len(x)\n"
        "assert outer(1) == 3\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=240)


INTERRUPTED = """
import os, signal, sys
class Interrupt:
    def find_spec(self, name, *_):
        if name == sys.argv[1]:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
cities = [[k * k % 17, k] for k in range(30)]
def attempt():
    import georoutenet as grn
    return grn.solve(cities, first=sys.argv[2], stop=grn.MaxIterations(3))
first, second = None, None
try:
    first = attempt()
except KeyboardInterrupt:
    assert sys.argv[1] == "numpy.linalg", "the tour is lost"
else:
    assert first.interrupted and sorted(first.tour) == list(range(30))
assert not isinstance(sys.meta_path[0], Interrupt)
second = attempt()
assert not second.interrupted and sorted(second.tour) == list(range(30))
assert second.method.startswith(sys.argv[3]), second.method
"""


@needs_signals
@pytest.mark.parametrize(
    ("moment", "first", "method"),
    [
        ("numpy.linalg", "auto", "greedy edge"),
        ("numba.core.typeconv.rules", "auto", "greedy edge"),
        ("georoutenet.search.kernels", "auto", "greedy edge"),
        ("torch.ao.nn", "network", "georoutenet"),
        pytest.param("torch.utils._sympy.functions", "network", "georoutenet", marks=pytest.mark.slow),
    ],
)
def test_ctrl_c_while_the_first_call_imports(moment: str, first: str, method: str) -> None:
    """It returns a tour where there are cities already, and the next call works as if nothing had been."""
    arguments = [sys.executable, "-c", INTERRUPTED, moment, first, method]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
