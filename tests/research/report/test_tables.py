from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from made_up import random_set, tsplib_set

from georoutenet.errors import InputError
from georoutenet.evaluate.results import Results, write_results
from georoutenet.evaluate.statistics import bootstrap_mean
from georoutenet.io.optima import published_optima
from georoutenet.io.tsplib import TSPLIB27, size_group, tsplib_names
from research.pack import pack_folder
from research.report.efficiency import write_measurements
from research.report.tables import (
    DECODERS,
    METHODS,
    format_csv,
    make_cells,
    paper_value,
    paper_values,
    papers_decoder,
    read_folder,
)

ROOT = Path(__file__).resolve().parents[3]
RESULTS = ROOT / "results"


def test_cells_of_a_random_set(tmp_path: Path) -> None:
    results = random_set("clustered50")
    write_results(tmp_path / "a" / "c.csv.gz", results)
    complete, partial, efficiency, _ = read_folder(tmp_path)
    (cell,) = make_cells(complete)
    interval = bootstrap_mean(complete[0].results.gaps)
    assert (partial, efficiency) == ([], {})
    assert (cell.method, cell.weights, cell.decoder, cell.set, cell.group, cell.instances) == (
        "GeoRouteNet-MCS",
        "tiny",
        "Beam-1000",
        "clustered50",
        "all",
        1000,
    )
    assert cell.gap == pytest.approx(100 * (results.lengths.mean() - 1), abs=1e-6)
    assert (cell.gap_low, cell.gap_high) == (interval.low, interval.high)
    assert math.isnan(cell.paper_gap)
    assert cell.file == f"{tmp_path.name}/a/c.csv.gz"


def test_packed_results_give_the_same_cells(tmp_path: Path) -> None:
    write_results(tmp_path / "csv" / "tsplib36-greedy.csv", tsplib_set(decoder="greedy", width=""))
    write_results(tmp_path / "csv" / "part.csv", Results(tsplib_set().header, tsplib_set().rows[:5]))
    pack_folder(tmp_path / "packed" / "tiny.npz", tmp_path / "csv")
    plain, packed = read_folder(tmp_path / "csv"), read_folder(tmp_path / "packed")
    assert [name for name, _ in packed.partial] == ["packed/tiny.npz:part"]
    cells = make_cells(packed.complete)
    assert cells[0].file == "packed/tiny.npz:tsplib36-greedy"
    assert [replace(cell, file="") for cell in cells] == [
        replace(c, file="") for c in make_cells(plain.complete)
    ]


def test_groups_of_tsplib_for_both_sets(tmp_path: Path) -> None:
    write_results(tmp_path / "t.csv", tsplib_set())
    complete = read_folder(tmp_path).complete
    cells = {(cell.set, cell.group): cell for cell in make_cells(complete)}
    assert len(cells) == 10
    place = {name: k for k, name in enumerate(tsplib_names("tsplib36"), start=1)}
    for set_name, names in (("tsplib27", list(TSPLIB27)), ("tsplib36", tsplib_names("tsplib36"))):
        for group in ("51-76", "99-101", "105-150", "159-299", "all"):
            own = [n for n in names if group == "all" or size_group(published_optima()[n].n) == group]
            cell = cells[set_name, group]
            assert cell.instances == len(own)
            assert cell.gap == pytest.approx(np.mean([place[name] for name in own]))
            assert math.isnan(cell.gap_low)
    assert cells["tsplib27", "all"].paper_gap == 3.60
    assert cells["tsplib27", "159-299"].paper_gap == 8.41
    assert math.isnan(cells["tsplib36", "all"].paper_gap)


def test_settings_the_paper_does_not_have_get_rows_of_their_own(tmp_path: Path) -> None:
    write_results(tmp_path / "a.csv", tsplib_set())
    write_results(tmp_path / "b.csv", tsplib_set(views="8", precision="bfloat16"))
    write_results(tmp_path / "c.csv", tsplib_set(encoder="nar4tsp", weights="nar", statistics="batch"))
    write_results(tmp_path / "d.csv", tsplib_set(objective="", weights="odd"))
    complete = read_folder(tmp_path).complete
    found = {(cell.method, cell.weights, cell.decoder) for cell in make_cells(complete)}
    assert found == {
        ("GeoRouteNet-MCS", "tiny", "Beam-1000"),
        ("GeoRouteNet-MCS", "tiny", "Beam-1000, 8 views, bfloat16"),
        ("NAR4TSP-MCS", "nar", "Beam-1000, batch statistics"),
        ("", "odd", "Beam-1000"),
    }


def test_of_two_files_for_one_cell_the_first_counts(tmp_path: Path) -> None:
    write_results(tmp_path / "a.csv", tsplib_set())
    other = tsplib_set(device="a slide rule")
    write_results(
        tmp_path / "b.csv", Results(other.header, [row._replace(length=200.0) for row in other.rows])
    )
    complete = read_folder(tmp_path).complete
    assert {cell.file for cell in make_cells(complete)} == {f"{tmp_path.name}/a.csv"}


def test_what_cannot_be_used(tmp_path: Path) -> None:
    whole = random_set("grid50")
    write_results(tmp_path / "part.csv", Results(whole.header, whole.rows[:10]))
    write_measurements(tmp_path / "e.csv", [])
    complete, partial, efficiency, _ = read_folder(tmp_path)
    assert (complete, efficiency) == ([], {f"{tmp_path.name}/e.csv": []})
    assert [name for name, _ in partial] == [f"{tmp_path.name}/part.csv"]
    write_results(tmp_path / "t1.csv", tsplib_set())
    write_results(tmp_path / "t2.csv", tsplib_set(sha256="cd" * 32))
    with pytest.raises(InputError, match="another SHA-256"):
        read_folder(tmp_path)
    write_results(tmp_path / "t2.csv", Results({"set": "val50"}, []))
    with pytest.raises(InputError, match="lacks decoder, encoder"):
        read_folder(tmp_path)
    with pytest.raises(InputError, match="not a folder"):
        read_folder(tmp_path / "none")


def test_the_paper_stands_beside_what_it_does_not_tell_apart() -> None:
    assert papers_decoder("Beam-1000, 8 views, batch statistics, bfloat16") == "Beam-1000, 8 views"
    plain = paper_value("NAR4TSP-PG", "Beam-1000", "tsplib27")
    assert plain.gap == 17.12
    assert paper_value("NAR4TSP-PG", "Beam-1000, batch statistics", "tsplib27") == plain
    assert math.isnan(paper_value("NAR4TSP-PG", "Beam-1000, 8 views", "tsplib27").gap)


def test_local_search_is_a_setting_of_its_own(tmp_path: Path) -> None:
    write_results(tmp_path / "a.csv", tsplib_set(improve="0.1"))
    (cell, *_) = make_cells(read_folder(tmp_path).complete)
    assert cell.decoder == "Beam-1000, 0.1 s search"


def test_csv_has_a_line_for_each_cell(tmp_path: Path) -> None:
    write_results(tmp_path / "t.csv", tsplib_set())
    cells = make_cells(read_folder(tmp_path)[0])
    lines = format_csv(cells).splitlines()
    assert len(lines) == 1 + len(cells)
    columns = dict(zip(lines[0].split(","), lines[5].split(","), strict=True))
    assert (columns["set"], columns["group"], columns["paper_gap"]) == ("tsplib27", "all", "3.600000")
    assert columns["gap_low"] == ""


def test_the_papers_numbers_agree_with_each_other() -> None:
    values = paper_values()
    assert len(values) == 4 * 3 * 7 + 2 * 7  # the four models with three decoders, and two solvers
    sizes = {"51-76": 5, "99-101": 8, "105-150": 7, "159-299": 7}
    concorde = {name: values["Concorde", "", name, "all"].length for name in ("val50", "diag100")}
    for name, length in concorde.items():
        lkh = values["LKH-3", "", name, "all"]
        assert lkh.gap == pytest.approx(100 * (lkh.length / length - 1), abs=0.002)
    for method in METHODS.values():
        for decoder in DECODERS:
            groups = sum(
                count * values[method, decoder, "tsplib27", group].gap for group, count in sizes.items()
            )
            assert values[method, decoder, "tsplib27", "all"].gap == pytest.approx(groups / 27, abs=0.011)
            for name, optimal in concorde.items():
                # The mean of the gaps is not the gap of the means, but near it.
                value = values[method, decoder, name, "all"]
                assert value.gap == pytest.approx(100 * (value.length / optimal - 1), abs=0.03)
