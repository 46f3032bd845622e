"""The lock of a run's folder: one holder, whose end, however it comes, frees it."""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from georoutenet.errors import InputError
from georoutenet.io.folder_lock import NAME, FolderLock


@pytest.fixture(params=["locks of the system", "without"])
def system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "without":
        monkeypatch.setattr("georoutenet.io.locks.fcntl", None)
    return str(request.param)


HOLDER = """
import sys
from pathlib import Path
from georoutenet.io import locks
from georoutenet.io.folder_lock import FolderLock
if sys.argv[2] == "without":
    locks.fcntl = None
lock = FolderLock(Path(sys.argv[1]))
lock.acquire()
print("ready", flush=True)
sys.stdin.readline()
lock.release()
"""


@pytest.mark.parametrize("end", ["killed", "released"])
def test_another_process_holds_it_until_its_end(tmp_path: Path, system: str, end: str) -> None:
    command = [sys.executable, "-c", HOLDER, tmp_path, system]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == "ready\n"
        mine = FolderLock(tmp_path)
        for _ in range(2):
            with pytest.raises(InputError, match=f"in use: process {holder.pid} on '{socket.gethostname()}'"):
                mine.acquire()
        mine.release()
        assert (tmp_path / NAME).exists()
        if end == "killed":
            holder.send_signal(signal.SIGKILL)
        holder.communicate("go\n", timeout=60)
    finally:
        holder.kill()
        holder.wait()
    assert (tmp_path / NAME).exists() == (end == "killed")
    mine.acquire()
    assert json.loads((tmp_path / NAME).read_text())["pid"] == os.getpid()
    mine.release()
    assert not list(tmp_path.iterdir())


def test_one_process_has_it_once(tmp_path: Path, system: str) -> None:
    first, second = FolderLock(tmp_path / "new"), FolderLock(tmp_path / "new")
    first.acquire()
    first.acquire()
    with pytest.raises(InputError, match="in use: this process trains there"):
        second.acquire()
    first.release()
    first.release()
    second.acquire()
    del second
    gc.collect()
    first.acquire()
    first.release()


def test_a_lock_of_another_machine_stays_where_the_system_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether that process lives cannot be known here; the message says what to do."""
    monkeypatch.setattr("georoutenet.io.locks.fcntl", None)
    for text in ('{"pid": 1, "host": "elsewhere", "since": "then"}', "", "[]", '{"pid": "x"}'):
        (tmp_path / NAME).write_text(text)
        with pytest.raises(InputError, match=r"if that process is gone, remove .*\.lock"):
            FolderLock(tmp_path).acquire()
        assert (tmp_path / NAME).read_text() == text


def test_a_forked_child_does_not_free_it(tmp_path: Path) -> None:
    held = FolderLock(tmp_path)
    held.acquire()
    child = os.fork()
    if not child:
        held.release()
        os._exit(0)
    os.waitpid(child, 0)
    with pytest.raises(InputError, match="in use"):
        FolderLock(tmp_path).acquire()
    held.release()


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="cannot write"):
        FolderLock(tmp_path / "file" / "run").acquire()


@pytest.mark.parametrize("there", [True, False])
def test_a_link_is_not_followed(tmp_path: Path, system: str, there: bool) -> None:
    """Who made the folder would choose what is overwritten; one that leads nowhere was tried for ever."""
    victim, folder = tmp_path / "victim", tmp_path / "run"
    folder.mkdir()
    if there:
        victim.write_text("precious")
    (folder / NAME).symlink_to(victim)
    with pytest.raises(InputError, match="is a link"):
        FolderLock(folder).acquire()
    assert victim.read_text() == "precious" if there else not victim.exists()
