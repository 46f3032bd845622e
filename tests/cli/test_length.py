from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TSP = """NAME: triangle
TYPE: TSP
DIMENSION: 3
EDGE_WEIGHT_TYPE: EUC_2D
NODE_COORD_SECTION
1 0 0
2 3 4
3 3 0
EOF
"""


def georoutenet(*arguments: object, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "georoutenet", "length", *map(str, arguments)]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60)


@pytest.fixture
def triangle(tmp_path: Path) -> tuple[Path, Path]:
    (tmp_path / "a.tsp").write_text(TSP)
    (tmp_path / "a.tour").write_text("TYPE: TOUR\nTOUR_SECTION\n3 1 2 -1\nEOF\n")
    return tmp_path / "a.tsp", tmp_path / "a.tour"


def test_closed_open_and_standard_input(triangle: tuple[Path, Path]) -> None:
    cities, tour = triangle
    assert georoutenet(cities, tour).stdout == "triangle: 3 cities, EUC_2D, length 12\n"
    opened = georoutenet(cities, tour, "--open")
    assert opened.stdout == "triangle: 3 cities, EUC_2D, open path, length 8\n"
    piped = georoutenet("-", tour, stdin=cities.read_text())
    assert piped.stdout == "triangle: 3 cities, EUC_2D, length 12\n"


def test_kilometers_for_latitudes(tmp_path: Path) -> None:
    (tmp_path / "c.csv").write_text("lat,lon\n0,0\n1,0\n")
    (tmp_path / "t.json").write_text("[0, 1]")
    shown = georoutenet(tmp_path / "c.csv", tmp_path / "t.json").stdout
    assert shown.startswith("c: 2 cities, GREAT_CIRCLE, length 222.39")
    assert shown.endswith(" km\n")


def test_errors_are_one_line_without_a_traceback(triangle: tuple[Path, Path], tmp_path: Path) -> None:
    cities, tour = triangle
    cities.write_text(TSP.replace("2 3 4", "2 3 x"))
    wrong = georoutenet(cities, tour)
    assert wrong.returncode == 1
    assert wrong.stdout == ""
    assert wrong.stderr == f"error: {cities}:7: expected a number, got 'x'\n"
    unknown = georoutenet(cities, tour, "--opne")
    assert unknown.returncode == 2
    assert "--open" in unknown.stderr


@pytest.mark.skipif(
    not os.environ.get("GEOROUTENET_TSPLIB"),
    reason="GEOROUTENET_TSPLIB does not name a folder of TSPLIB files",
)
def test_gap_to_the_published_optimum(tmp_path: Path) -> None:
    folder = Path(os.environ["GEOROUTENET_TSPLIB"])
    optimal = georoutenet(folder / "berlin52.tsp", folder / "berlin52.opt.tour")
    assert optimal.stdout == "berlin52: 52 cities, EUC_2D, length 7542\noptimum 7542, gap 0.0000 %\n"
    (tmp_path / "t.json").write_text(str(list(range(52))))
    listed = georoutenet(folder / "berlin52.tsp", tmp_path / "t.json")
    assert listed.stdout == "berlin52: 52 cities, EUC_2D, length 22205\noptimum 7542, gap 194.4179 %\n"


def test_a_matrix(tmp_path: Path) -> None:
    (tmp_path / "m.csv").write_text("0,5,7\n5,0,1\n7,1,0\n")
    (tmp_path / "m.tour").write_text("TOUR_SECTION\n3 1 2 -1\n")
    done = georoutenet(tmp_path / "m.csv", tmp_path / "m.tour", "--matrix")
    assert done.stdout == "m: 3 cities, EXPLICIT, length 13\n"
    refused = georoutenet(tmp_path / "m.csv", tmp_path / "m.tour")
    assert refused.returncode != 0
    assert "matrix=True (--matrix)" in " ".join(refused.stderr.split())
