from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import typer

from georoutenet.cli import app
from georoutenet.examples import thousand_cities, us_capitals
from georoutenet.search import greedy_edge, improve
from georoutenet.search.neighbors import spatial_points
from georoutenet.stop import MaxIterations

ROOT = Path(__file__).resolve().parents[2]
DEMO = [sys.executable, "-m", "georoutenet", "demo"]


def test_the_demo_prints_a_table_and_writes_two_pictures(tmp_path: Path) -> None:
    done = subprocess.run(
        [*DEMO, "--seconds", "1.5"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True
    )
    for name in ("us_capitals.png", "thousand_cities.png"):
        assert (tmp_path / "demo" / name).read_bytes().startswith(b"\x89PNG")
        assert f"wrote {Path('demo') / name}" in done.stdout
    rows = [line.split() for line in done.stdout.splitlines() if "%" in line]
    assert [row[2] for row in rows] == ["48", "1,000"]
    assert "17,083" in rows[0]  # the optimum
    gaps = [float(re.findall(r"(\S+) %", line)[-1]) for line in done.stdout.splitlines() if "%" in line]
    assert gaps[0] == 0.0
    assert 0.0 <= gaps[1] < 5.0
    assert "US capitals: first tour by" in done.stdout
    assert "by the network" not in done.stdout  # a title had it, whatever made the first tour


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals")
def test_ctrl_c_ends_the_demo_quietly(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*DEMO, "--seconds", "60"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        while not (tmp_path / "demo" / "us_capitals.png").exists():
            assert process.poll() is None, "no first picture"
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "stopped" in errors
    assert "Traceback" not in errors
    assert not list((tmp_path / "demo").glob(".*"))  # no half-written file


def test_the_capitals_are_forty_eight_distinct_places_in_the_country() -> None:
    cities = us_capitals()
    assert cities.latlon is not None
    assert cities.n == 48 == len(np.unique(cities.latlon, axis=0))
    assert (cities.latlon.min(axis=0) > [24, -125]).all()
    assert (cities.latlon.max(axis=0) < [49.5, -66]).all()


def test_the_best_known_lengths_are_of_these_instances() -> None:
    capitals = us_capitals()
    found = improve(capitals, greedy_edge(spatial_points(capitals)), stop=MaxIterations(3000)).length
    assert found == pytest.approx(capitals.optimum, rel=1e-12)
    random = thousand_cities()
    found = improve(random, greedy_edge(random.coordinates), stop=MaxIterations(1000)).length
    assert random.optimum is not None
    assert 1.0 <= found / random.optimum < 1.03


def test_the_python_example_of_the_readme_runs(tmp_path: Path) -> None:
    readme = ROOT / "README.md"
    if not readme.exists():
        pytest.skip("the README is not part of this installation")
    (example,) = re.findall(r"```python\n(.*?)```", readme.read_text(encoding="utf-8"), flags=re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", example], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True
    )
    numbers = re.fullmatch(r"([0-9.]+) -> ([0-9.]+), at most ([0-9.]+) % above optimal\n", done.stdout)
    assert numbers is not None
    before, after, above = map(float, numbers.groups())
    assert after < before
    assert above < 3
    assert (tmp_path / "tour.png").stat().st_size > 10_000
    assert "DIMENSION" in (tmp_path / "example.tour").read_text()


def test_the_readme_names_only_existing_commands_and_files() -> None:
    readme = ROOT / "README.md"
    if not readme.exists():
        pytest.skip("the README is not part of this installation")
    text = readme.read_text(encoding="utf-8")
    known = set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    used = set(re.findall(r"^georoutenet ([a-z]+)", text, flags=re.MULTILINE))
    assert used
    assert used <= known
    for picture in re.findall(r"!\[.*?\]\((.*?)\)", text):
        assert (ROOT / picture).is_file()
