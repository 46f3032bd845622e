"""``georoutenet serve`` as a command: its address, its processes, its end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from live import GIVE_UP, LONG, answer, cities, everything, request
from typer.testing import CliRunner

import georoutenet
from georoutenet.cli import app


def address_of(process: subprocess.Popen[str]) -> tuple[str, int]:
    """Where a server says it is."""
    assert process.stderr is not None
    said = process.stderr.readline()
    assert said.startswith("the playground is at http://127.0.0.1:"), said
    assert "--host" in process.stderr.readline()
    where = urlsplit(said.split()[4])
    assert where.hostname is not None
    assert where.port is not None
    return where.hostname, where.port


@contextmanager
def serve(*options: str) -> Iterator[tuple[subprocess.Popen[str], tuple[str, int]]]:
    command = [sys.executable, "-m", "georoutenet", "serve", "--port", "0", *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process, address_of(process)
        finally:
            process.kill()


def post(address: tuple[str, int], path: str, content: object) -> socket.socket:
    connection = socket.create_connection(address, timeout=GIVE_UP)
    connection.sendall(request(path, json.dumps(content).encode()))
    return connection


def test_processes_take_no_code_from_the_current_folder(tmp_path: Path) -> None:
    """A folder that strangers made may hold a module of any name."""
    folder, command = tmp_path / "here", tmp_path / "command.py"
    folder.mkdir()
    (folder / "multiprocessing.py").write_text("open('ran', 'w').close()\n")
    command.write_text("from georoutenet.cli import main\nif __name__ == '__main__':\n    main()\n")
    paths = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    options = ["--port", "0", "--processes", "2", "--no-warm-up"]
    with subprocess.Popen(
        [sys.executable, command, "serve", *options],
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**os.environ, **paths},
    ) as process:
        try:
            where = "http://{}:{}/healthz".format(*address_of(process))
            with urllib.request.urlopen(where, timeout=60) as told:
                assert json.load(told)["status"] == "ok"
        finally:
            process.terminate()
            process.wait(GIVE_UP)
    assert not (folder / "ran").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_processes_share_the_limits_and_end_with_the_best_tours(number: signal.Signals) -> None:
    limits = (
        "--no-warm-up",
        "--searches",
        "1",
        "--queue",
        "0",
        "--max-seconds",
        str(LONG),
        "--processes",
        "2",
    )
    with serve(*limits) as (process, address):
        with urllib.request.urlopen(f"http://{address[0]}:{address[1]}/healthz") as response:
            assert json.load(response)["version"] == georoutenet.__version__
        with post(address, "/api/solve/stream", cities(100, max_seconds=LONG)) as running:
            body = running.recv(65536)
            while b"event: tour" not in body:  # it has loaded or compiled what it needs
                body += running.recv(65536)
            for _ in range(20):  # either process says so
                with post(address, "/api/solve", cities(5)) as other:
                    assert answer(other)[0] == 429
            process.send_signal(number)
            body += everything(running)
            assert b"event: done" in body
            assert b'"interrupted":true' in body
        assert process.wait(GIVE_UP) in (0, 130)


def test_first_requests_at_once_do_not_disturb_one_another() -> None:
    """Each of them begins to load what all need."""
    with serve("--searches", "4", "--no-warm-up") as (_, address):
        given = [("/api/scores", {}), ("/api/solve", {"first": "curve", "improve": False})] * 2
        for connection in [post(address, path, cities(60, **options)) for path, options in given]:
            with connection:
                assert answer(connection)[0] == 200


@pytest.mark.parametrize("end", ["None", "sys.exit(0)"])  # Ctrl-C that a shell had ignored, SIGTERM
def test_nothing_waits_for_python_to_end_in_order(end: str) -> None:
    """A thread that still compiled was in LLVM while it did, which aborted the process."""
    program = (
        "import atexit, sys, georoutenet.cli, georoutenet.web.server\n"
        "atexit.register(print, 'an orderly end')\n"
        f"georoutenet.web.server.serve = lambda *_: {end}\n"
        "georoutenet.cli.main()"
    )
    command = [sys.executable, "-c", program, "serve"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")


def test_a_port_in_use_and_limits_that_are_none_are_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        run = CliRunner().invoke(app, ["serve", "--port", str(port)])
    assert f"cannot listen on 127.0.0.1 port {port}" in str(run.exception)
    run = CliRunner().invoke(app, ["serve", "--max-cities", "0"])
    assert "cities must be a whole number of at least 1, got 0" in str(run.exception)
    run = CliRunner().invoke(app, ["serve", "--port", "99999"])
    assert "port must be a whole number of at least 0 and at most 65,535" in str(run.exception)


def test_without_fastapi_the_install_line_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastapi", None)
    for name in [name for name in sys.modules if name.startswith("georoutenet.web.")]:
        monkeypatch.delitem(sys.modules, name)
    run = CliRunner().invoke(app, ["serve"])
    assert "pip install fastapi uvicorn" in str(run.exception)


def test_the_page_is_in_the_package() -> None:
    assert (Path(georoutenet.__file__).parent / "web" / "static" / "index.html").is_file()
