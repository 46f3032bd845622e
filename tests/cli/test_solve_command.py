from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from georoutenet import read_tour
from georoutenet.cli import app

SOLVE = [sys.executable, "-m", "georoutenet", "solve"]


def run(*arguments: str, folder: Path, status: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([*SOLVE, *arguments], cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    return done


def run_here(*arguments: str, status: int = 0) -> Any:
    """In this process, which has loaded everything."""
    done = CliRunner().invoke(app, ["solve", *arguments])
    assert done.exit_code == status, done.output
    return done


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for k, n in enumerate((20, 30)):
        points = np.random.default_rng(k).random((n, 2))
        rows = "\n".join(f"{x},{y}" for x, y in points)
        (tmp_path / f"cities{n}.csv").write_text(f"x,y\n{rows}\n")
    square = "\n".join(
        f"{k + 1} {x} {y}" for k, (x, y) in enumerate([(0, 0), (0, 9), (9, 9), (9, 0), (5, 5)])
    )
    (tmp_path / "five.tsp").write_text(
        f"NAME: five\nTYPE: TSP\nDIMENSION: 5\nEDGE_WEIGHT_TYPE: EUC_2D\nNODE_COORD_SECTION\n{square}\nEOF\n"
    )
    return tmp_path


def test_one_file(folder: Path) -> None:
    arguments = [
        "--plot",
        "tour.png",
        "--probabilities",
        "--plot-progress",
        "search.svg",
        "--output",
        "best.tour",
        "--first",
        "network",
    ]
    done = run("cities20.csv", *arguments, folder=folder)
    length = float(re.findall(r"length (\S+)", done.stdout)[0])
    assert "20 cities, EUCLIDEAN" in done.stdout
    assert "georoutenet, beam-1000-views-4-dominance-length-60" in done.stdout
    assert "network" in done.stdout
    assert re.search(r"at most \S+ % above optimal|proven optimal", done.stdout)
    assert (folder / "tour.png").read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in (folder / "search.svg").read_bytes()
    tour = read_tour(folder / "best.tour", 20)
    points = np.random.default_rng(0).random((20, 2))
    steps = points[tour] - points[np.roll(tour, -1)]
    assert np.hypot(*steps.T).sum() == pytest.approx(length, rel=1e-6)


def test_many_files_one_of_them_bad(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    (folder / "bad.csv").write_text("x,y\n1,2\n3,oops\n")
    files = ["five.tsp", "bad.csv", "none.tsp", "cities20.csv"]
    done = run_here(*files, "--max-seconds", "0.1", "--output", "{name}.json", status=1)
    assert "bad.csv:3" in done.stderr
    assert "none.tsp: cannot read" in done.stderr
    assert "five" in done.stdout
    assert "cities20" in done.stdout
    assert json.loads((folder / "five.json").read_text())["length"] == 39
    assert read_tour(folder / "cities20.json", 20).shape == (20,)


def test_json(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    arguments = ["--json", "--start", "2", "--end", "4", "--open", "--seed", "1", "--max-seconds", "0.2"]
    content = json.loads(run_here("five.tsp", "cities30.csv", *arguments).stdout)
    assert content["errors"] == []
    assert content["mean_gap_percent"] is None
    for result in content["results"]:
        assert result["closed"] is False
        assert result["tour"][0] == 2
        assert result["tour"][-1] == 4
        assert sorted(result["tour"]) == list(range(result["n"]))
    assert [result["file"] for result in content["results"]] == ["five.tsp", "cities30.csv"]


@pytest.mark.parametrize("more", [[], ["--max-seconds", "100"]])
def test_so_many_kicks(more: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    arguments = ["--json", "--open", "--max-iterations", "3", *more]  # no bound ends a path's search
    (result,) = json.loads(run_here("cities20.csv", *arguments).stdout)["results"]
    assert result["iterations"] == 3


def test_the_pure_neural_tour(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    arguments = "--no-improve --decoder greedy --views 2 --weights georoutenet-50 --json"
    (result,) = json.loads(run_here("cities30.csv", *arguments.split()).stdout)["results"]
    assert result["method"] == "georoutenet-50, greedy-views-2"
    assert "improve" not in result["timings"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--decoder", "bean"], "unknown decoder 'bean'; allowed: greedy, sample, beam"),
        (["--output", "tour.xml"], "allowed: .tour, .csv, .json, .geojson, .gpx"),
        (["--plot", "tour.gif"], "allowed: .png, .svg, .pdf"),
        (["--output", "tour.geojson"], "GeoJSON needs latitudes and longitudes"),
        (["--output", "tour.gpx"], "GPX needs latitudes and longitudes"),
        (["--start", "K7"], "no city is called 'K7': they have no ids, only positions 0..19"),
        (["--id-column", "customer"], "there is no column 'customer' of ids; columns: none"),
        (["cities30.csv", "--output", "tour.csv"], "several files need {name}"),
        (["--start", "99"], "cities20.csv: start must be a city in 0..19, got 99"),
        (["--device", "tpu"], "unknown device 'tpu'"),
        (["--probabilities"], "name one with --plot"),
        (["--workers", "0"], "workers must be a whole number of at least 1 and at most 1,024, got 0"),
        (["--decoder", "beam-9", "--views", "2"], "decoder 'beam-9' says all"),
        (["--decoder", "beam-9-improve-1"], "-improve- belongs to evaluate"),
        (["--first", "best"], "unknown first tour 'best'; allowed: auto, network, greedy-edge, curve"),
        (["--output", "cities20.csv"], "would overwrite a file of cities"),
    ],
)
def test_errors(arguments: list[str], message: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    done = CliRunner().invoke(app, ["solve", "cities20.csv", *arguments])
    assert done.exit_code == 1
    assert message in f"{done.output} {done.exception}".replace("\n", " ")


def test_a_decoder_in_full_and_a_constructed_tour(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    for option, method in (
        (["--decoder", "beam-9-views-2-dominance"], "georoutenet, beam-9-views-2-dominance"),
        (["--first", "curve"], "space-filling curve"),
    ):
        done = run_here("cities20.csv", "--no-improve", "--json", *option)
        assert json.loads(done.stdout)["results"][0]["method"] == method


def test_files_of_one_name_do_not_overwrite_each_other(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    (folder / "other").mkdir()
    (folder / "other" / "cities20.csv").write_text((folder / "cities30.csv").read_text())
    files = ["cities20.csv", "other/cities20.csv", "cities30.csv", "--max-seconds", "0.1"]
    done = run_here(*files, "--output", "{name}.json", status=1)
    assert "other/cities20.csv: has the name 'cities20' of cities20.csv" in done.output
    assert read_tour(folder / "cities20.json", 20).shape == (20,)
    assert run_here(*files).stdout.count("cities20") == 2  # no output, no harm


def test_several_files_are_searched_side_by_side(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order given, and with the tours that one worker finds."""
    monkeypatch.chdir(folder)
    files = ["cities30.csv", "five.tsp", "cities20.csv"]
    one, three = (
        json.loads(run_here(*files, "--json", "--workers", workers).stdout)["results"] for workers in "13"
    )
    assert [result["file"] for result in three] == files
    assert [result["tour"] for result in one] == [result["tour"] for result in three]


def test_probabilities_of_a_network_that_was_not_asked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    np.save("many.npy", np.random.default_rng(3).random((1001, 2)))
    arguments = ["many.npy", "--max-seconds", "0.2", "--plot", "many.svg"]
    assert "not asked above" in run_here(*arguments).output
    size = (folder / "many.svg").stat().st_size
    run_here(*arguments, "--probabilities")
    assert (folder / "many.svg").stat().st_size > 2 * size


def test_an_unknown_option_names_the_known_ones(folder: Path) -> None:
    done = run("cities20.csv", "--beam", "3", folder=folder, status=2)
    assert "--beam-width" in done.stderr


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals")
def test_ctrl_c_keeps_the_best_tour(folder: Path) -> None:
    (folder / "three.csv").write_text("x,y\n0,0\n0,9\n9,9\n")  # nothing to search for
    process = subprocess.Popen(
        [*SOLVE, "three.csv", "cities30.csv", "--open", "--max-seconds=20", "--workers=1",
         "--output={name}.tour"],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        while not (folder / "three.tour").exists():
            assert process.poll() is None, "no first tour"
            time.sleep(0.05)
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert "cities30" in output
    assert read_tour(folder / "cities30.tour", 30).shape == (30,)


CUSTOMERS = "customer_id,name,lat,lon\n" + "".join(
    f"{k + 1},Caf\u00e9 {k + 1},{48 + k % 7 / 10},{11 + k * k % 11 / 10}\n" for k in range(12)
)


def test_customers_by_id(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    Path("customers.csv").write_text(CUSTOMERS, encoding="utf-8")

    def visited(*arguments: str) -> list[str]:
        output = run_here("customers.csv", "--no-improve", *arguments).stdout
        return re.findall(r"visits: (.*)", output)[0].split(", ")

    assert sorted(visited(), key=int) == [str(k) for k in range(1, 13)]
    ends = ["--id-column", "name", "--start", "Caf\u00e9 3", "--end", "Caf\u00e9 12", "--open"]
    order = visited(*ends)
    assert (order[0], order[-1]) == ("Caf\u00e9 3", "Caf\u00e9 12")
    assert visited("--id-column", "customer_id", "--start", "5")[0] == "5"
    # A number is a position unless the column is named, and who may mean an id is told so.
    done = run_here("customers.csv", "--no-improve", "--start", "5")
    assert "visits: 6, " in done.stdout
    assert "--start 5 counts from 0, which is the customer_id 6; --id-column customer_id" in done.stderr
    failed = run_here("customers.csv", "--id-column", "customer_id", "--start", "0", status=1)
    assert "no city has the customer_id '0'; given: 1, 2, 3, ..." in failed.stderr


def test_names_with_commas_are_told_apart(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    Path("customers.csv").write_text('name,x,y\nDepot,0,0\n"Bike, Hof",1,0\nTor 3,2,0\n')
    done = run_here("customers.csv", "--no-improve", "--start", "Depot", "--end", "Tor 3", "--open")
    assert 'visits: Depot, "Bike, Hof", Tor 3\n' in done.stdout


def test_visits_without_ids_are_said_to_be_rows(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where there is a column of ids that does not tell the cities apart."""
    monkeypatch.chdir(folder)
    Path("customers.csv").write_text("id,x,y\nK1,0,0\nK2,1,0\nK1,2,0\n")
    ends = ["--start", "0", "--end", "2", "--open"]
    assert "visits (rows, counting from 0): 0, 1, 2\n" in run_here("customers.csv", *ends).stdout
    assert "visits: K" in run_here("customers.csv", "--id-column", "id").stdout


@pytest.mark.parametrize("extension", ["csv", "json", "geojson", "gpx"])
def test_columns_go_to_the_output(extension: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    Path("customers.csv").write_bytes(CUSTOMERS.replace(",", ";").replace(".", ",").encode("cp1252"))
    done = run_here("customers.csv", "--no-improve", "--output", f"route.{extension}")
    assert "read as Windows-1252" in done.stderr
    assert "visits:" not in done.stdout
    text = Path(f"route.{extension}").read_text(encoding="utf-8-sig")
    for k in range(1, 13):
        assert re.search(rf"Caf(\u00e9|\\u00e9) {k}\b", text)
    if extension != "gpx":
        again = run_here(f"route.{extension}", "--no-improve", "--json")
        (content,) = json.loads(again.stdout)["results"]
        assert {visit["name"] for visit in content["visits"]} == {f"Caf\u00e9 {k}" for k in range(1, 13)}


def test_all_outputs_are_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was the last one alone, without a word."""
    monkeypatch.chdir(folder)
    Path("customers.csv").write_text(CUSTOMERS, encoding="utf-8")
    files = ["route.geojson", "route.gpx", "route.csv"]
    pictures = ["route.png", "route.svg"]
    options = [f"--output={each}" for each in files] + [f"--plot={each}" for each in pictures]
    done = run_here("customers.csv", "--no-improve", *options)
    for name in files + pictures:
        assert f"wrote {name}" in done.stderr
        assert Path(name).stat().st_size > 0
    run_here("cities20.csv", "--output=good.csv", "--output=bad.gpx", status=1)  # before any work
    assert not Path("good.csv").exists()


def test_the_order_of_a_long_tour_is_shortened(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    np.save("many.npy", np.random.default_rng(3).random((200, 2)))
    order = re.findall(r"0\): (.*)", run_here("many.npy", "--no-improve", "--first", "curve").stdout)[0]
    left_out = int(re.findall(r"\.\.\. \((\d+) more", order)[0])
    shown = re.findall(r"(?:^|, )(\d+)(?=,|$)", order)
    assert len(shown) + left_out == 200
    assert len(shown) < 60


def test_no_picture_of_a_search_that_is_not_made(folder: Path) -> None:
    refused = run("cities20.csv", "--no-improve", "--plot-progress", "search.png", folder=folder, status=1)
    assert "--plot-progress draws the search, and --no-improve makes none" in refused.stderr
    told = run("cities20.csv", "--max-seconds", "0", "--plot-progress", "search.png", folder=folder)
    assert "no search was made, so search.png is not written" in told.stderr
    assert not (folder / "search.png").exists()
