"""``kill -9`` of all processes, and a disk that is full: nothing is lost, nothing is there twice."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from killing import command, finish, kill_again_and_again, start
from made import contents, random_cities, write_form

from georoutenet.bulk.api import make_plan
from georoutenet.bulk.local import run_local
from georoutenet.errors import GeoRouteNetError
from georoutenet.solver.options import SolveOptions

pytestmark = pytest.mark.skipif(os.name != "posix", reason="kills processes as POSIX has them")

OPTIONS = ("--shard-rows", "10", "--workers", "2")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_form("wide", tmp_path_factory.mktemp("in"), list(range(400)), random_cities(400, least=5))


@pytest.fixture(scope="module")
def undisturbed(source: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, bytes], float]:
    """The shards of a run that nobody killed, and how long it took."""
    began, out = time.monotonic(), tmp_path_factory.mktemp("undisturbed")
    finish(source, out, *OPTIONS)
    return contents(out), time.monotonic() - began


@pytest.mark.parametrize("kills", [2, pytest.param(30, marks=pytest.mark.slow)])
def test_killed_runs_give_the_shards_of_an_undisturbed_one(
    kills: int, source: Path, tmp_path: Path, undisturbed: tuple[dict[str, bytes], float]
) -> None:
    shards, seconds = undisturbed
    assert len(shards) == 40
    kill_again_and_again(source, tmp_path / "out", shards, kills, seconds, *OPTIONS)
    left = sorted(path.name for path in (tmp_path / "out").iterdir() if not path.name.startswith("part-"))
    assert left == ["_manifest.json"]


def test_ctrl_c_leaves_whole_shards_and_no_processes(source: Path, tmp_path: Path) -> None:
    process = start(source, tmp_path / "out", *OPTIONS, "--max-seconds", "0.2")
    while not contents(tmp_path / "out"):
        assert process.poll() is None
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "the same command goes on from here" in printed
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
    assert not [path.name for path in (tmp_path / "out").iterdir() if path.name.endswith(".tmp")]


WHILE_STARTING = """
import os, sys, time
if "georoutenet.bulk.worker" in sys.orig_argv:
    print("worker", os.getpid(), file=sys.stderr, flush=True)
    time.sleep(0.5)
"""


def test_ctrl_c_does_not_reach_a_worker_that_starts(source: Path, tmp_path: Path) -> None:
    """A terminal interrupts workers too, before they can say that they do not mind."""
    (tmp_path / "sitecustomize.py").write_text(WHILE_STARTING)
    paths = os.pathsep.join(filter(None, [str(tmp_path), *sys.path]))
    process = start(source, tmp_path / "out", "--workers", "1", PYTHONPATH=paths)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("worker "):
            os.kill(int(line.split()[1]), signal.SIGINT)
            break
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == 0, printed


def test_workers_take_no_code_from_the_current_folder(tmp_path: Path) -> None:
    """A folder that strangers made may hold a module of any name."""
    (tmp_path / "random.py").write_text("open('ran', 'w').close()\nprint('not an answer', flush=True)\n")
    source = write_form("wide", tmp_path, [1, 2], random_cities(2, least=5))
    # By its own script or with -P, Python itself does not look into the current folder either.
    paths = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-P", "-m", "georoutenet", "bulk", source, tmp_path / "out", "--workers", "1"],
        cwd=tmp_path,
        env={**os.environ, **paths},
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "ran").exists()


def test_what_is_no_answer_ends_a_worker(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that cannot be understood is one that died: nobody waits for it for ever."""
    usual = subprocess.Popen

    def chatty(command: list[str], **options: Any) -> subprocess.Popen[str]:
        return usual([sys.executable, "-c", "print('hello'); input(); input()"], **options)

    job = make_plan(source, source.parent / "out", SolveOptions()).job
    monkeypatch.setattr("georoutenet.bulk.local.subprocess.Popen", chatty)
    raised: list[Exception] = []

    def run() -> None:
        try:
            list(run_local(job, range(job.shards), 1))
        except GeoRouteNetError as error:
            raised.append(error)

    waiting = threading.Thread(target=run, daemon=True)
    waiting.start()
    waiting.join(60)
    assert "a worker could not start" in str(raised)


SCRIPT = """
set -e
mount -t tmpfs -o size=80k tmpfs "$1"
shift
if "$@"; then exit 9; fi
mount -o remount,size=20m "${OUT%/out}"
ls -a "$OUT"
"$@"
cp "$OUT"/part-* "$KEPT"
"""


def test_a_full_disk(source: Path, tmp_path: Path, undisturbed: tuple[dict[str, bytes], float]) -> None:
    """A small file system in memory, which then grows."""
    disk, kept = tmp_path / "disk", tmp_path / "kept"
    for folder in (disk, kept):
        folder.mkdir()
    attempt = ["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", disk]
    if (
        shutil.which("unshare") is None
        or subprocess.run(attempt, capture_output=True, check=False).returncode
    ):
        pytest.skip("mounting a file system of one's own is not allowed here")
    done = subprocess.run(
        [
            "unshare",
            "-rm",
            "sh",
            "-c",
            SCRIPT,
            "sh",
            disk,
            *command(source, disk / "out", *OPTIONS),
        ],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "OUT": str(disk / "out"),
            "KEPT": str(kept),
        },
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "No space left on device; the same command goes on from here" in done.stderr
    assert ".tmp" not in done.stdout
    assert contents(kept) == undisturbed[0]
