from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from made_up import random_set, tsplib_set

from georoutenet.evaluate.results import Results, write_results
from georoutenet.evaluate.statistics import bootstrap_mean
from georoutenet.io.tsplib import TSPLIB27, tsplib_names
from research.report.efficiency import Measurement, write_measurements
from research.report.figures import figure_names
from research.report.page import format_markdown
from research.report.tables import File, Folder, format_csv, make_cells, read_folder

ROOT = Path(__file__).resolve().parents[3]
RESULTS = ROOT / "results"


def page(folder: Path) -> list[str]:
    found = read_folder(folder)
    return format_markdown(found, make_cells(found.complete)).splitlines()


def section(lines: list[str], title: str) -> list[str]:
    first = lines.index(f"## {title}")
    last = next((k for k in range(first + 1, len(lines)) if lines[k].startswith("## ")), len(lines))
    return lines[first:last]


def test_random_sets(tmp_path: Path) -> None:
    results = random_set("clustered50", improve="0.1")
    rows = [row._replace(improve_seconds=0.125) for row in results.rows]
    write_results(tmp_path / "a" / "c.csv.gz", Results(results.header, rows))
    lines = page(tmp_path)
    interval = bootstrap_mean(read_folder(tmp_path).complete[0].results.gaps)
    assert "| set | instances | Beam-1000, 0.1 s search |" in lines
    assert f"| clustered50 | 1,000 | {interval} |" in lines
    assert not any(line.startswith("| grid50 |") for line in lines)  # not measured
    assert any(", 2 threads | float32 |  |  | 2.0 | 50 | 25 |" in line for line in section(lines, "Files"))
    picture = "![Gap of tiny by distribution and size, for each decoder](images/results-grid-tiny.png)"
    assert picture not in lines  # of one set
    for name in ("test20", "grid50", "ring50"):
        write_results(tmp_path / "a" / f"{name}.csv.gz", random_set(name))
    assert picture in page(tmp_path)


def test_sets_of_selection_are_not_called_held_out(tmp_path: Path) -> None:
    for name in ("val50", "val1000", "structure500", "valstructure200"):
        write_results(tmp_path / "a" / f"{name}.csv.gz", random_set(name))
    rows = [line.split()[1] for line in section(page(tmp_path), "Held-out random sets") if line[0:3] == "| s"]
    assert rows == ["set", "structure500"]


def test_what_is_not_measured_is_empty_beside_the_paper(tmp_path: Path) -> None:
    write_results(tmp_path / "t.csv", tsplib_set())
    lines = page(tmp_path)
    rows = section(lines, "The paper's random sets")
    (row,) = (line for line in rows if line.startswith("| GeoRouteNet-MCS | tiny | Beam-1000 |"))
    assert set(row.split("|")[4:8]) == {"  ", " 5.7134 ", " 0.324 "}  # val50


def test_headline_tables_have_no_empty_cells(tmp_path: Path) -> None:
    sets = ("test50", "test100", "clustered50", "clustered100", "ring50")
    for decoder, width in (("greedy", ""), ("beam", "1000")):
        for name in sets:
            results = random_set(name, decoder=decoder, width=width)
            write_results(tmp_path / f"{name}-{decoder}.csv.gz", results)
    (tmp_path / "test100-greedy.csv.gz").unlink()
    write_results(tmp_path / "views.csv.gz", random_set("ring50", views="8"))
    lines = page(tmp_path)
    rows = [row for row in section(lines, "In short") if row.startswith("|")]
    assert rows[0] == "| set | tiny, Greedy | tiny, Beam-1000 |"
    assert [row.split()[1] for row in rows[2:]] == ["test50", "clustered100"]
    beyond = [row for row in section(lines, "Beyond the paper's decoders") if row.startswith("| tiny")]
    assert len(beyond) == 1
    assert beyond[0].startswith("| tiny | Beam-1000, 8 views | ring50 | 1,000 | ")
    assert "## In short" not in format_markdown(Folder([], [], {}), [])


def test_settings_beyond_the_paper_and_other_models(tmp_path: Path) -> None:
    write_results(tmp_path / "d.csv", tsplib_set(objective="", weights="odd"))
    write_results(tmp_path / "e.csv", tsplib_set(objective="", weights="odd", device="a slide rule"))
    lines = page(tmp_path)
    assert any(line.startswith("|  | odd | Beam-1000 |") for line in lines)
    assert any("a slide rule" in line for line in section(lines, "Files"))  # not used, but listed


def test_tables_have_the_decoders_of_their_own_sets(tmp_path: Path) -> None:
    write_results(tmp_path / "t.csv", tsplib_set(views="8"))
    write_results(tmp_path / "r.csv", random_set("ring50", improve="2"))
    lines = page(tmp_path)
    head = "| set | instances | Beam-1000, 2 s search |"
    assert head in section(lines, "Held-out random sets")
    assert not any(", 2 s search" in line for line in section(lines, "TSPLIB"))
    assert any("| tiny | Beam-1000, 8 views |" in line for line in section(lines, "TSPLIB"))
    assert not any("8 views" in line for line in section(lines, "The paper's random sets"))


def test_the_four_models_are_found_by_their_headers(tmp_path: Path) -> None:
    """With NAR4TSP's norms in both ways, as the weights of a study will come."""
    for encoder in ("nar4tsp", "georoutenet"):
        for objective in ("pg", "mcs"):
            name = f"{encoder}-{objective}"
            for statistics in ("frozen", "batch") if encoder == "nar4tsp" else ("",):
                more = {"encoder": encoder, "objective": objective, "statistics": statistics}
                more |= {"training_instances": "20000000"} if encoder == "nar4tsp" else {}
                write_results(tmp_path / name / f"t{statistics}.csv", tsplib_set(weights=name, **more))
    rows = section(page(tmp_path), "Encoder and objective, Beam-1000")
    place = {name: k for k, name in enumerate(tsplib_names("tsplib36"), start=1)}
    mean = f"{sum(place[name] for name in TSPLIB27) / 27:.2f}"
    for words in (
        f"PG | nar4tsp-pg | Beam-1000 | 20.0 | 20 |  | 0.417 |  | 2.728 | {mean} | 17.12",
        f"PG | nar4tsp-pg | Beam-1000, batch statistics | 20.0 | 20 |  | 0.417 |  | 2.728 | {mean} | 17.12",
        f"MCS | nar4tsp-mcs | Beam-1000, batch statistics | 20.0 | 60 |  | 0.356 |  | 2.174 | {mean} | 21.98",
        f"PG | georoutenet-pg | Beam-1000 |  |  |  | 0.368 |  | 1.535 | {mean} | 5.41",
        f"MCS | georoutenet-mcs | Beam-1000 |  |  |  | 0.324 |  | 1.261 | {mean} | 3.60",
    ):
        assert any(row.endswith(f"-{words} |") for row in rows), rows


def measurement(**other: object) -> Measurement:
    given = Measurement(
        *("val50", "GeoRouteNet-MCS", "mine", "Beam-1000", 100, 0.25, 0.2, 0.3, 0.05, 4.0, 1.0, 2.0, 1.0),
        *(3.5, 128, "float32", 2_000_000, 2.0**30, "NVIDIA X", 2, "", "2026-01-01"),
    )
    return replace(given, **other)  # type: ignore[arg-type]


def test_efficiency_has_the_papers_columns_beside_ours(tmp_path: Path) -> None:
    solver = {"weights": "", "parameters": 0, "device": "an abacus", "threads": 1, "gap": -1e-9}
    write_measurements(
        tmp_path / "e.csv",
        [
            measurement(),
            measurement(decoder="Greedy"),
            measurement(method="LKH-3", decoder="", **solver),
            measurement(method="OR-Tools", decoder="at most 1 s", set="test20", **solver),
        ],
    )
    rows = section(page(tmp_path), "Efficiency")
    times = "50.0 | 33.2 | 4.00 | 400 | 9.22 | 25.0 | 1,084.8 | 25 | 25 | 3.50"
    ours = f"{times} | 1,024 | 1,193 | 2,000,000 | 2,024,000"
    assert f"| val50 | mine | Beam-1000 | NVIDIA X | 100 | 0.250 | {ours} |" in rows
    greedy = "50.0 |  | 4.00 | 400 |  | 25.0 |  | 25 | 25 | 3.50 | 1,024 |  | 2,000,000 | "
    assert f"| val50 | mine | Greedy | NVIDIA X | 100 | 0.250 | {greedy} |" in rows
    for start in (
        "| val50 | LKH-3 |  | an abacus, 1 thread | 100 | 0.000 | 50.0 | 63.6 |",
        "| test20 | OR-Tools | at most 1 s |",
        "| val50 | NAR4TSP-PG |  |",  # not measured: the paper's numbers stand alone
        "| diag100 | Concorde |  |",
    ):
        assert sum(row.startswith(start) for row in rows) == 1
    assert not any(row.startswith("| val50 | GeoRouteNet-MCS |") for row in rows)


def test_files_that_cannot_be_used_are_named() -> None:
    part = Results(tsplib_set().header, tsplib_set().rows[:5])
    text = format_markdown(Folder([], [File("results/part.csv", part)], {}), [])
    assert "only part of their set: results/part.csv." in text


@pytest.mark.skipif(not RESULTS.is_dir(), reason="the per-instance files come with the repository only")
def test_every_number_in_the_documentation_comes_from_a_file() -> None:
    found = read_folder(RESULTS)
    cells = make_cells(found.complete)
    assert cells
    again = "georoutenet tables results"
    text = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    assert text == format_markdown(found, cells), f"docs/results.md is not what the files give: {again}"
    numbers = (ROOT / "docs" / "results.csv").read_text(encoding="utf-8")
    assert numbers == format_csv(cells), f"docs/results.csv is not what the files give: {again}"
    for name in figure_names(cells, found.measurements):
        assert (ROOT / "docs" / "images" / f"{name}.png").is_file(), f"{name} is missing: {again}"
    for title in ("In short", "Encoder and objective, Beam-1000", "Beyond the paper's decoders"):
        rows = [line for line in section(text.splitlines(), title) if line.startswith("|")]
        assert len(rows) > 7
        assert not [row for row in rows if "|  |" in row]
