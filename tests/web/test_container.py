"""The steps of the container file, run one by one in an empty environment: no container engine is needed."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from live import answer, cities
from test_server import address_of, post

ROOT = Path(__file__).parent.parent.parent
HOME = "/opt/georoutenet"
"""What the file calls the folder of all that it makes."""


def steps() -> Iterator[tuple[str, str]]:
    """Instruction and arguments of each line."""
    for line in (ROOT / "Containerfile").read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            instruction, _, arguments = line.partition(" ")
            yield instruction, arguments


def test_what_the_container_is() -> None:
    listed = dict(steps())
    assert re.fullmatch(r"python:3\.\d+-slim", listed["FROM"])
    assert listed["USER"] == "10001:10001"
    assert listed["CMD"].startswith('["georoutenet", "serve"')
    assert [name for name, _ in steps()].index("USER") > max(
        k for k, (name, _) in enumerate(steps()) if name in ("RUN", "COPY")
    )
    wanted = [part for name, given in steps() if name == "COPY" for part in given.split()[:-1]]
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line[0] == "!"]
    assert sorted(wanted) == sorted(allowed)
    assert all((ROOT / part).exists() for part in wanted)


def snapshot(folder: Path) -> dict[str, float]:
    return {str(path): path.stat().st_mtime for path in folder.rglob("*")}


@pytest.mark.slow
def test_the_steps_of_the_container_make_a_server(tmp_path: Path) -> None:
    place, venv = tmp_path / "made", tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    kept = {
        name: os.environ[name] for name in os.environ if name.startswith(("PIP_", "SSL_", "HTTP", "http"))
    }
    environment = {**kept, "PATH": f"{venv / 'bin'}:/usr/bin:/bin"}
    command: list[str] = []
    for instruction, arguments in steps():
        given = arguments.replace(HOME, str(place))
        if instruction == "WORKDIR":
            Path(given).mkdir()
        elif instruction == "ENV":
            environment |= dict(pair.split("=", 1) for pair in given.split())
        elif instruction == "ARG":
            name, _, value = given.partition("=")
            environment.setdefault(name, value.strip('"'))
        elif instruction == "COPY":
            *sources, _ = given.split()
            for source in sources:
                copy = shutil.copytree if (ROOT / source).is_dir() else shutil.copy
                copy(ROOT / source, place / source)
        elif instruction == "RUN":
            subprocess.run(["sh", "-ec", given], cwd=place, env=environment, check=True)
        elif instruction == "CMD":
            command = json.loads(given)
        else:
            assert instruction in ("FROM", "USER", "EXPOSE")
    before = snapshot(place)
    assert any(name.endswith(".nbc") for name in before)  # compiled code
    # Nothing but the port is other than in the container.
    own = [venv / "bin" / command[0], *command[1:], "--host", "127.0.0.1", "--port", "0"]
    with subprocess.Popen(own, cwd=place, env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            address = address_of(process)
            for path in ("/api/solve", "/api/scores"):
                with post(address, path, cities(60)) as connection:
                    assert answer(connection)[0] == 200
            process.terminate()
            assert process.wait(60) == 0
        finally:
            process.kill()
    after = snapshot(place)
    changed = [name for name in after if before.get(name) != after[name]]
    assert all(name.endswith(".nbc") for name in changed)  # code that was read is touched where it can be
    assert after.keys() == before.keys()
