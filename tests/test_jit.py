"""The cache of compiled code: it is used again, never after a change, and its absence is no error."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from georoutenet import jit
from georoutenet.errors import GeoRouteNetWarning

CALLER = """
import numpy as np
import callee
from callee import scaled, table
from georoutenet.jit import njit

@njit(nogil=True, fastmath={"reassoc", "nsz", "contract"})
def caller(x):
    return scaled(x) + callee.OFFSET + table(x)
"""
CALLEE = """
from numba.extending import overload
from constants import FACTOR
from georoutenet.jit import njit

OFFSET = 100.0

def table(x):
    raise NotImplementedError

@overload(table)
def _table(x):
    return lambda x: 1000.0

@njit
def scaled(x):
    return FACTOR * x
"""
RUN = "import caller; print(caller.caller(2.0), sum(caller.caller.stats.cache_misses.values()))"


def write(folder: Path, **changes: tuple[str, str]) -> None:
    """The three files, with ``old`` replaced by ``new`` where a change ``(old, new)`` is given."""
    for name, text in {"caller": CALLER, "callee": CALLEE, "constants": "FACTOR = 10.0\n"}.items():
        old, new = changes.get(name, ("", ""))
        assert old in text
        (folder / f"{name}.py").write_text(text.replace(old, new) if old else text)


def start(folder: Path, code: str = RUN, **variables: str) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}
    environment |= {
        "PYTHONPATH": os.pathsep.join([str(folder), *sys.path]),
        "PYTHONDONTWRITEBYTECODE": "1",  # two edits within a second, of one length, look alike to Python
        "NUMBA_CACHE_DIR": str(folder / "cache"),
    }
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env=environment | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> list[str]:
    out, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return out.split()


def test_a_change_in_another_file_is_seen_and_no_change_compiles_nothing(tmp_path: Path) -> None:
    write(tmp_path)
    assert finish(start(tmp_path)) == ["1120.0", "1"]
    assert finish(start(tmp_path)) == ["1120.0", "0"]
    for changes, result in [
        ({"callee": ("FACTOR * x", "FACTOR * x * x")}, "1140.0"),
        ({"callee": ("OFFSET = 100.0", "OFFSET = 200.0")}, "1220.0"),
        ({"callee": ("x: 1000.0", "x: 3000.0")}, "3120.0"),  # an overload: the caller does not name it
        ({"constants": ("10.0", "20.0")}, "1140.0"),
    ]:
        write(tmp_path, **changes)
        assert finish(start(tmp_path)) == [result, "1"]
    write(tmp_path)  # what was compiled for the first text is still there
    assert finish(start(tmp_path)) == ["1120.0", "0"]


def test_processes_that_compile_at_once_leave_whole_files(tmp_path: Path) -> None:
    write(tmp_path)
    processes = [start(tmp_path) for _ in range(3)]
    assert [finish(process)[0] for process in processes] == ["1120.0"] * 3
    assert finish(start(tmp_path)) == ["1120.0", "0"]
    for path in (tmp_path / "cache" / "georoutenet").iterdir():
        assert path.suffix == ".nbc"  # no temporary file is left
        path.write_bytes(path.read_bytes()[:100])
    assert finish(start(tmp_path)) == ["1120.0", "1"]  # damaged: compiled again
    assert finish(start(tmp_path)) == ["1120.0", "0"]


@pytest.mark.parametrize("home", ["a file", "missing"])
def test_without_a_folder_to_write_to_there_is_one_warning(tmp_path: Path, home: str) -> None:
    write(tmp_path)
    nowhere = tmp_path / "file"
    nowhere.write_text("")
    # A home that cannot be found: no entry for the user, and no variable.
    lost = "import pathlib; pathlib.Path.home = lambda: (_ for _ in ()).throw(RuntimeError('no home'))\n"
    code = "import warnings\nwith warnings.catch_warnings(record=True) as seen:\n"
    code += f"    warnings.simplefilter('always')\n    {RUN}\n"
    code += "print(*(f'{w.category.__name__}:{w.message}' for w in seen), sep=';')"
    variables = {"NUMBA_CACHE_DIR": "", "GEOROUTENET_CACHE": "", "XDG_CACHE_HOME": "", "HOME": str(nowhere)}
    process = start(tmp_path, (lost if home == "missing" else "") + code, **variables)
    out, errors = process.communicate(timeout=120)
    assert not errors
    result, warned = out.splitlines()
    assert result == "1120.0 1"
    assert warned.count("GeoRouteNetWarning") == 1
    assert "set GEOROUTENET_CACHE to a folder that can be written" in warned
    assert ("no home" if home == "missing" else "Not a directory") in warned


def test_the_folder_is_numbas_or_the_packages_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import numba

    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "numba"))
    assert jit.compiled_folder() == tmp_path / "numba" / "georoutenet"
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    monkeypatch.setenv("GEOROUTENET_CACHE", str(tmp_path / "own"))
    assert jit.compiled_folder() == tmp_path / "own" / "numba"


def test_code_that_nobody_reads_is_removed_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jit, "compiled_folder", lambda: tmp_path)
    double = jit.njit(lambda x: 2 * x)
    assert double(3) == 6
    (first,) = tmp_path.iterdir()
    os.utime(first, (time.time() - jit.UNUSED - 9,) * 2)
    assert double(3.0) == 6.0  # another signature is another file
    (second,) = tmp_path.iterdir()
    assert second != first
    double.recompile()
    assert len(list(tmp_path.iterdir())) == 2
    plain = jit.njit(cache=False)(lambda x: 3 * x)
    assert plain(3) == 9
    assert len(list(tmp_path.iterdir())) == 2


def test_only_the_first_function_warns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(jit, "compiled_folder", lambda: tmp_path / "file")
    monkeypatch.setattr(jit.DiskCache, "writable", True)
    with pytest.warns(GeoRouteNetWarning, match="compiled code is not kept"):
        assert jit.njit(lambda x: x + 1)(1) == 2
    assert jit.njit(lambda x: x + 2)(1) == 3  # no second warning


def test_options_arguments_and_constants_are_part_of_a_stamp() -> None:
    def made(offset: float) -> Any:
        return lambda x: x + offset

    stamps = {jit.stamp(jit.njit(made(offset))) for offset in (1.0, 1.0, 2.0)}
    assert len(stamps) == 2
    assert jit.stamp(jit.njit(fastmath=True)(made(1.0))) not in stamps
    one, other = (lambda x, y=1: x + y), (lambda x, y=2: x + y)
    assert jit.stamp(jit.njit(one)) != jit.stamp(jit.njit(other))


def test_an_interrupt_inside_compiled_code_is_an_interrupt() -> None:
    with pytest.raises(KeyboardInterrupt), jit.interrupts():
        raise SystemError("returned a result with an exception set") from KeyboardInterrupt()
    with pytest.raises(SystemError, match="another"), jit.interrupts():
        raise SystemError("another")


def test_importing_it_does_not_import_numba() -> None:
    code = "import sys, georoutenet.jit; print('numba' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]


def test_inner_functions_refuse_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jit, "compiled_folder", lambda: tmp_path)
    inner = jit.njit(inner=True)(lambda x: x + 1)
    for _ in range(2):  # before there is code, and then
        with pytest.raises(TypeError, match=r"called by compiled code alone; njit\("):
            inner(1)
        assert jit.njit(lambda *given: inner(*given))(1) == 2


def test_a_level_holds_for_its_function_and_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    import numba
    from numba.core import codegen

    levels: list[int] = []
    usual = getattr(codegen.CPUCodegen, "_pass_builder", None)
    if usual is None:
        pytest.skip("this version of Numba makes its passes elsewhere")

    def watch(self: Any, **options: Any) -> Any:
        levels.append(int(options.get("opt", numba.config.OPT)))
        return usual(self, **options)

    monkeypatch.setattr(codegen.CPUCodegen, "_pass_builder", watch)
    before = numba.config.OPT
    assert jit.njit(cache=False, level=1)(lambda x: x + 3)(1) == 4
    assert max(levels) == 1
    assert numba.config.OPT is before
    levels.clear()
    assert jit.njit(cache=False)(lambda x: x + 4)(1) == 5
    assert max(levels) == before


def test_inner_functions_are_optimized_with_their_callers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from numba.core.codegen import CPUCodeLibrary

    jit._leave_inner_alone()
    seen: list[bool] = []
    ours = CPUCodeLibrary._optimize_final_module
    monkeypatch.setattr(
        CPUCodeLibrary,
        "_optimize_final_module",
        lambda library: (seen.append(jit._compiling["inner"]), ours(library)),
    )

    @jit.njit(cache=False, **jit.INNER)
    def square(x: int) -> int:
        return x * x

    @jit.njit(cache=False, **jit.PLAIN)
    def squares(n: int) -> int:
        total = 0
        for k in range(n):
            total += square(k)
        return total

    assert squares(10) == 285
    assert True in seen  # of `square`
    assert seen[-1] is False  # of `squares`, the last
    assert jit._compiling["inner"] is False
    (text,) = squares.inspect_llvm().values()
    body = re.search(r"define [^@]*@_ZN[^(]*squares[^{]*\{(.*?)\n\}", text, re.DOTALL)
    assert body is not None
    assert "@_ZN" not in body[1]  # `square` went into its caller


@pytest.mark.parametrize("usual", [True, False])
def test_nothing_is_collected_while_something_compiles(usual: bool) -> None:
    import gc

    from numba.extending import overload

    def ask() -> None: ...

    seen: list[bool] = []

    @overload(ask)
    def while_compiling() -> Any:
        seen.append(gc.isenabled())
        return lambda: 7

    asking = jit.njit(cache=False)(lambda: ask())
    before = gc.isenabled()
    (gc.enable if usual else gc.disable)()
    try:
        assert asking() == 7
        assert gc.isenabled() is usual
    finally:
        (gc.enable if before else gc.disable)()
    assert seen
    assert not any(seen)
