"""Tables of studies: rows beside their base, seed by seed, against plain loops."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from made_up import header

from georoutenet.errors import InputError
from georoutenet.evaluate.results import Results, Row, write_results
from research.report.page import format_markdown
from research.report.studies import split_seed, studies
from research.report.tables import File, make_cells, read_folder

T_OF_TWO = 4.3026527297
"""The 97.5 % quantile of Student's t with two degrees of freedom, from a table."""


def made(weights: str, gaps: list[float], set_name: str = "test50", **other: str) -> File:
    rows = [Row(f"{set_name}-{k}", 50, 1 + gap / 100, 1.0) for k, gap in enumerate(gaps)]
    about = {"decoder": "greedy", "width": "", "instances": f"{len(gaps)} of 10000", **other}
    return File("file", Results(header(set_name, weights=weights, **about), rows))


def row_of(lines: list[str], start: str) -> list[str]:
    (line,) = [line for line in lines if line.startswith(f"| {start} |")]
    return [cell.strip() for cell in line.split("|")[1:-1]]


FILES = [
    made("short-full", [1, 2, 3]),
    made("short-full-seed2", [2, 3, 4]),
    made("short-no-edge-bias", [2, 2, 5]),
    made("short-no-edge-bias-seed2", [2, 4, 5]),
    made("short-no-edge-value", [1, 2, 3.3]),
    made("short-no-edge-value-seed2", [2, 3, 4.9]),
    made("short-1-candidate", [4, 5, 6]),
]


def test_differences_are_paired_by_seed() -> None:
    lines = studies(FILES, [])
    part = lines[: next(k for k, line in enumerate(lines) if line.startswith("`settings`"))]
    assert part[0].startswith("`components`: which components")
    heads = row_of(part, "run")
    place = heads.index("test50")
    assert row_of(part, "short-full")[place] == "2.500"
    assert row_of(part, "short-full")[1] == "1234 / 2"
    bias = [(2 + 2 + 5) / 3 - 2, (2 + 4 + 5) / 3 - 3]
    assert row_of(part, "short-no-edge-bias")[place] == f"3.333 ({bias[0]:+.3f} / {bias[1]:+.3f})"
    value = [0.1, 0.3]
    # Two rows of two seeds: two degrees of freedom.
    variance = sum((each[0] - each[1]) ** 2 / 2 for each in (bias, value)) / 2
    assert row_of(part, "between seeds")[place] == f"{T_OF_TWO * math.sqrt(variance / 2):.3f}"
    rest = lines[len(part) :]
    assert row_of(rest, "short-1-candidate")[heads.index("test50")] == "5.000 (+3.000)"
    assert not [line for line in rest if line.startswith("| between")]
    assert not [line for line in lines if "capacity" in line]  # nothing measured


def test_a_base_among_the_other_results_counts_on_the_same_instances() -> None:
    base = made("paper-georoutenet-mcs", [1, 2, 3, 100])
    lines = studies([made("capacity-georoutenet-3", [2, 2, 4])], [base])
    place = row_of(lines, "run").index("test50")
    assert row_of(lines, "capacity-georoutenet-3")[place] == f"{8 / 3:.3f} (+0.667)"
    other = File("x", Results(base.results.header, [row._replace(instance="i") for row in base.results.rows]))
    with pytest.raises(InputError, match="different instances"):
        studies([made("capacity-georoutenet-3", [2, 2, 4])], [other])


def test_a_given_base_is_that_of_every_seed() -> None:
    """Weights that runs began with have no run of those runs' seeds."""
    files = [made("georoutenet", [1, 2, 3], "val50"), made("structure-alone-seed1236", [1, 2, 6], "val50")]
    lines = studies(files[1:], files[:1])
    place = row_of(lines, "run").index("val50")
    assert row_of(lines, "structure-alone")[place] == "3.000 (+1.000)"
    assert row_of(lines, "georoutenet")[place] == "2.000"


def test_studies_stay_out_of_the_other_tables(tmp_path: Path) -> None:
    for name, results in FILES[:3]:
        weights = results.header["weights"]
        write_results(tmp_path / "results" / "studies" / weights / f"{name}.csv", results)
    found = read_folder(tmp_path / "results")
    assert len(found.studies) == 3
    assert not found.complete
    assert not found.partial
    text = format_markdown(found, make_cells(found.complete))
    assert "## Components, settings, capacity" in text
    assert text.count("short-no-edge-bias") == 2  # its row, and the file
    assert "only part of their set" not in text


def test_seeds_in_names() -> None:
    assert split_seed("short-full") == ("short-full", 1234)
    assert split_seed("short-full-seed12") == ("short-full", 12)
    assert split_seed("a-seedy") == ("a-seedy", 1234)
