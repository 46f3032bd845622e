"""Slots that processes share."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from georoutenet.web.slots import Slots

HOLD = """
import sys
from pathlib import Path
from georoutenet.web.slots import Slots
slot = Slots(Path(sys.argv[1]), "search", 2).take()
print(slot is not None, flush=True)
sys.stdin.read()
"""


def test_processes_share_slots_and_a_dead_one_leaves_its_own(tmp_path: Path) -> None:
    own = Slots(tmp_path, "search", 2)
    first = own.take()
    assert first is not None
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "True\n"
        assert own.take() is None
        other.kill()
        other.wait()
    second = own.take()
    assert second is not None
    assert own.take() is None
    first.release()
    first.release()
    assert own.take() is not None


def test_two_servers_do_not_share(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert Slots(tmp_path / "a", "search", 1).take() is not None
    assert Slots(tmp_path / "b", "search", 1).take() is not None
    assert Slots(tmp_path / "b", "queue", 0).take() is None


def test_a_folder_that_was_removed_is_made_again(tmp_path: Path) -> None:
    folder = tmp_path / "locks"
    folder.mkdir()
    own, other = Slots(folder, "search", 2), Slots(folder, "search", 2)
    assert own.take() is not None
    shutil.rmtree(folder)
    slot = own.take()
    assert slot is not None
    assert folder.stat().st_mode & 0o777 == 0o700
    assert own.take() is None
    assert other.take() is not None  # the first file's lock went with the folder
    assert other.take() is None  # and the second file is shared again
    slot.release()
    assert other.take() is not None
