from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from georoutenet.errors import InputError
from georoutenet.io import atomic
from georoutenet.io.atomic import atomic_write, sweep
from georoutenet.io.cache import cache_folder
from georoutenet.io.datasets import dataset
from georoutenet.io.tsplib import load_tsplib
from georoutenet.solver.versions import report


def test_text_and_bytes(tmp_path: Path) -> None:
    with atomic_write(tmp_path / "a.txt") as file:
        file.write("Köln\n")
    assert (tmp_path / "a.txt").read_bytes() == "Köln\n".encode()
    with atomic_write(str(tmp_path / "b"), "wb") as file:
        file.write(b"\x00\xff")
    assert (tmp_path / "b").read_bytes() == b"\x00\xff"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.txt", "b"]


def test_old_file_is_seen_until_the_end_and_kept_on_failure(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")

    def fail() -> None:
        with atomic_write(path) as file:
            file.write("new")
            file.flush()
            assert path.read_text() == "old"
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fail()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
    with atomic_write(path) as file:
        file.write("new")
    assert path.read_text() == "new"


def test_missing_folders_are_created(tmp_path: Path) -> None:
    with atomic_write(tmp_path / "deep" / "er" / "a.txt") as file:
        file.write("x")
    assert (tmp_path / "deep" / "er" / "a.txt").read_text() == "x"


def test_permissions_follow_the_umask(tmp_path: Path) -> None:
    old = os.umask(0o022)
    try:
        with atomic_write(tmp_path / "a") as file:
            file.write("x")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o644


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with atomic_write(tmp_path / "link") as file:
        file.write("new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


def test_a_device_is_written_directly() -> None:
    with atomic_write("/dev/null") as file:
        file.write("x")
    assert not Path("/dev/null").is_file()


def test_errors_name_the_path(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a folder"), atomic_write(tmp_path):
        pass
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="inside: cannot write"), atomic_write(tmp_path / "file" / "inside"):
        pass
    for folder in (tmp_path, tmp_path / "new"):
        with pytest.raises(InputError, match="cannot write"), atomic_write(folder / ("n" * 300)):
            pass
    with pytest.raises(InputError, match="cannot write"), atomic_write("nul\0byte"):
        pass
    with pytest.raises(InputError, match="allowed: 'w', 'wb'"), atomic_write(tmp_path / "a", "r"):
        pass


KILLED = """
import os, signal, sys
from georoutenet.io.atomic import atomic_write
with atomic_write(sys.argv[1]) as file:
    file.write("half")
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_leftovers_of_killed_processes_are_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the first write of the next process; files being written and other people's files stay."""
    monkeypatch.setattr(atomic, "_swept", set())
    done = subprocess.run([sys.executable, "-c", KILLED, tmp_path / "a"], check=False)
    assert done.returncode == -signal.SIGKILL
    (leftover,) = tmp_path.iterdir()
    others = {".a.tmp", ".a.0123456789ag.tmp", "a.0123456789ab.tmp", ".a.0123456789ab.tmp.txt"}
    for name in others:
        (tmp_path / name).write_text("kept")
    (tmp_path / ".link.0123456789ab.tmp").symlink_to(tmp_path / ".a.tmp")
    with atomic_write(tmp_path / "b") as file:
        assert not leftover.exists()
        file.write("x")
        sweep(tmp_path)  # as another process would meanwhile
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"b", ".link.0123456789ab.tmp"} | others


def test_sweeping_never_takes_what_is_being_written(tmp_path: Path) -> None:
    """Also not between the making of a file and its lock, or between its end and its new name."""
    done = threading.Event()

    def sweeping() -> None:
        while not done.is_set():
            sweep(tmp_path)

    sweeper = threading.Thread(target=sweeping)
    sweeper.start()
    try:
        for number in range(200):
            with atomic_write(tmp_path / "a") as file:
                file.write(str(number))
            assert (tmp_path / "a").read_text() == str(number)
    finally:
        done.set()
        sweeper.join()
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_without_locks_files_are_written_and_nothing_is_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system without locks cannot tell a leftover from a file that is being written."""
    monkeypatch.setattr("georoutenet.io.locks.fcntl", None)
    monkeypatch.setattr(atomic, "_swept", set())
    (tmp_path / ".a.0123456789ab.tmp").write_text("x")
    with atomic_write(tmp_path / "a") as file:
        file.write("new")
    assert {path.name for path in tmp_path.iterdir()} == {"a", ".a.0123456789ab.tmp"}


def test_cache_folder_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GEOROUTENET_CACHE", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "own"
    monkeypatch.delenv("GEOROUTENET_CACHE")
    assert cache_folder() == tmp_path / "xdg" / "georoutenet"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "georoutenet"


def test_a_user_without_a_home_has_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in containers: what can do without goes on, the rest says what to set."""
    for name in ("GEOROUTENET_CACHE", "XDG_CACHE_HOME", "GEOROUTENET_TSPLIB", "NUMBA_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)

    def homeless(*_: object) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    monkeypatch.setattr(Path, "expanduser", homeless)
    with pytest.raises(InputError, match="no home folder for a cache: set GEOROUTENET_CACHE"):
        cache_folder()
    with pytest.raises(InputError, match=r"TSPLIB is not here: .* or set GEOROUTENET_TSPLIB"):
        load_tsplib("berlin52")
    assert dataset("test500").coordinates.shape == (128, 500, 2)
    with pytest.raises(InputError, match="set GEOROUTENET_CACHE"):
        dataset("test500").make()
    assert any("not kept: there is no home folder" in line for line in report())
    monkeypatch.setenv("GEOROUTENET_CACHE", "~nobody-of-that-name/x")
    with pytest.raises(InputError, match="set GEOROUTENET_CACHE"):
        cache_folder()
