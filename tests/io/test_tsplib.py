"""TSPLIB: its two forms of files, right and broken, and the library of its instances."""

from __future__ import annotations

import csv
import gzip
import hashlib
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from within import processor_seconds

from georoutenet.errors import InputError
from georoutenet.io.optima import known_optimum, published_optima
from georoutenet.io.tsplib import (
    TSPLIB27,
    TSPLIB_SETS,
    format_tour,
    format_tsp,
    load_optimal_tour,
    load_tsplib,
    parse_tour,
    parse_tsp,
    size_group,
    size_groups,
    tsplib_folder,
    tsplib_names,
)
from georoutenet.io.tsplib_download import (
    tsplib_checksums,
)
from georoutenet.problem.instance import DistanceRule, Instance
from georoutenet.problem.tour import tour_length

needs_tsplib = pytest.mark.skipif(
    not os.environ.get("GEOROUTENET_TSPLIB"),
    reason="GEOROUTENET_TSPLIB does not name a folder of TSPLIB files",
)

GOOD = """NAME : three
COMMENT : EOF : -1 anything at all
TYPE : TSP
DIMENSION : 3
EDGE_WEIGHT_TYPE : EUC_2D
NODE_COORD_SECTION
1 0 0
2 3.5e+0 -4.25
3 1E1 .5
EOF
"""
POINTS = [[0.0, 0.0], [3.5, -4.25], [10.0, 0.5]]


# ---- .tsp


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        GOOD.replace(" : ", ": "),
        GOOD.replace(" : ", ":"),
        GOOD.replace("\n", "\r\n"),
        GOOD.replace("\n", "\r"),
        GOOD.replace("EOF\n", ""),
        GOOD.removesuffix("EOF\n").rstrip(),
        GOOD.replace("EOF\n", "EOF\nwhatever follows\n"),
        GOOD.replace("1 0 0\n2 3.5e+0 -4.25\n", "  1\t0   0 2 3.5e+0\n-4.25\n\n"),
        GOOD.replace("1 0 0\n2 3.5e+0 -4.25\n", "2 3.5e+0 -4.25\n1 0 0\n"),
        GOOD.lower(),
        "\ufeff" + GOOD,
        GOOD.replace("TYPE : TSP\n", ""),
        GOOD.replace("TYPE : TSP", "TYPE : TSP (somebody)"),
        GOOD.replace("\nEOF", "\nDISPLAY_DATA_SECTION\n1 5 5\n2 6 6\n3 7 7\nEOF"),
        GOOD.replace(
            "TYPE : TSP", "TYPE : TSP\nDISPLAY_DATA_TYPE : COORD_DISPLAY\nEDGE_WEIGHT_FORMAT: FUNCTION"
        ),
        GOOD.replace("NODE_COORD_SECTION", "NODE_COORD_SECTION :"),
        GOOD.replace("NAME", "COMMENT\nCOMMENT:\n\nNAME"),
    ],
)
def test_ways_to_write_the_same_file(text: str) -> None:
    instance = parse_tsp(text)
    assert instance.coordinates.tolist() == POINTS
    assert instance.rule is DistanceRule.EUC_2D
    assert instance.name == "three"
    assert instance.optimum is None


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("EUC_2D", "EUC_3D", 5, "not supported; allowed: EUC_2D, CEIL_2D, ATT, GEO, .*cities in space"),
        ("EUC_2D", "MAN_3D", 5, r"give their distances as Instance\(matrix="),
        ("EUC_2D", "XRAY1", 5, "'XRAY1' is not supported; allowed: EUC_2D, .*, EXPLICIT$"),
        ("EUC_2D", "SPECIAL", 5, "not supported"),
        ("EUC_2D", "EXPLICIT", 6, "EDGE_WEIGHT_FORMAT is missing"),
        ("EUC_2D", "EUCLIDEAN", 5, "not supported"),
        ("TYPE : TSP", "TYPE : ATSP", 3, "'ATSP' is not supported; allowed: TSP; .*georoutenet.Asymmetric"),
        ("TYPE : TSP", "TYPE : CVRP", 3, "'CVRP'"),
        ("TYPE : TSP", "TYPE :", 3, "''"),
        ("TYPE : TSP", "CAPACITY : 5", 3, "unknown keyword 'CAPACITY'"),
        ("DIMENSION : 3", "DIMENSION : 4", 9, "DIMENSION is 4, found 3 cities"),
        ("DIMENSION : 3", "DIMENSION : 2", 9, "DIMENSION is 2, found 3 cities"),
        ("DIMENSION : 3", "DIMENSION : 999999999999999", 9, "found 3 cities"),
        ("DIMENSION : 3", "DIMENSION : " + "9" * 5000, 4, "whole number"),
        ("DIMENSION : 3", "DIMENSION : 0", 4, "whole number from 1"),
        ("DIMENSION : 3", "DIMENSION : -3", 4, "whole number from 1"),
        ("DIMENSION : 3", "DIMENSION : 3.0", 4, "whole number from 1"),
        ("DIMENSION : 3", "DIMENSION : \u00b3", 4, "whole number from 1"),
        ("DIMENSION : 3", "DIMENSION : 3\nDIMENSION : 3", 5, "appears twice, first in line 4"),
        ("DIMENSION : 3\n", "", 5, "DIMENSION is missing"),
        ("EDGE_WEIGHT_TYPE : EUC_2D\n", "", 5, "EDGE_WEIGHT_TYPE is missing"),
        ("NODE_COORD_SECTION\n1 0 0\n2 3.5e+0 -4.25\n3 1E1 .5\n", "", 5, "NODE_COORD_SECTION is missing"),
        ("2 3.5e+0 -4.25", "2 3.5e+0", 8, "number, x and y, got 2 values"),
        ("2 3.5e+0 -4.25", "2 3.5e+0 -4.25 7", 8, "number, x and y, got 4 values"),
        ("2 3.5e+0 -4.25", "2 3.5x -4.25", 8, "expected a number, got '3.5x'"),
        ("2 3.5e+0 -4.25", "2 1_0 -4.25", 8, "expected a number, got '1_0'"),
        ("2 3.5e+0 -4.25", "2 \u0663 -4.25", 8, "expected a number"),
        ("2 3.5e+0 -4.25", "2 nan -4.25", 8, "finite, got 'nan'"),
        ("2 3.5e+0 -4.25", "2 1e999 -4.25", 8, "finite, got '1e999'"),
        ("2 3.5e+0 -4.25", "1 3.5e+0 -4.25", 8, "city 1 appears twice, first in line 7"),
        ("2 3.5e+0 -4.25", "4 3.5e+0 -4.25", 8, r"cities are numbered 1\.\.3, got '4'"),
        ("2 3.5e+0 -4.25", "0 3.5e+0 -4.25", 8, r"numbered 1\.\.3"),
        ("2 3.5e+0 -4.25", "1.5 3.5e+0 -4.25", 8, r"numbered 1\.\.3"),
        ("2 3.5e+0 -4.25", "nan 3.5e+0 -4.25", 8, "unknown keyword 'NAN'"),
        ("EOF", "NODE_COORD_SECTION\n1 0 0\n", 10, "appears twice, first in line 6"),
        ("EOF", "FIXED_EDGES_SECTION\n1 2\n-1\n", 10, "FIXED_EDGES_SECTION is not supported"),
        ("EOF", "EDGE_WEIGHT_SECTION\n1 2\n", 10, "EDGE_WEIGHT_SECTION goes with EDGE_WEIGHT_TYPE EXPLICIT"),
        ("NODE_COORD_SECTION", "NODE_COORD_SECTION 1 0 0", 6, "alone on its line"),
        ("TYPE : TSP", "NODE_COORD_TYPE : THREED_COORDS", 3, "must be TWOD_COORDS"),
        ("TYPE : TSP", "\x00\x01", 3, "unknown keyword"),
    ],
)
def test_broken_files_name_the_line(old: str, new: str, line: int, message: str) -> None:
    assert old in GOOD
    head, _, tail = GOOD.rpartition(old)
    with pytest.raises(InputError, match=message) as caught:
        parse_tsp(head + new + tail, "some.tsp")
    assert str(caught.value).startswith(f"some.tsp:{line}: ")


def test_blanks_beyond_ascii_separate_too() -> None:
    assert parse_tsp(GOOD.replace("1 0 0", "1\u00a00\u20030")).coordinates.tolist() == POINTS


def test_coordinates_too_far_apart_name_the_file() -> None:
    with pytest.raises(InputError, match=r"^far\.tsp: coordinates are too far apart"):
        parse_tsp(GOOD.replace("-4.25", "-4e250"), "far.tsp")


def test_empty_text() -> None:
    for text in ["", "\n\n", "EOF", "COMMENT : only"]:
        with pytest.raises(InputError, match="EDGE_WEIGHT_TYPE is missing"):
            parse_tsp(text)


def test_name_falls_back_and_loses_its_extension() -> None:
    assert parse_tsp(GOOD.replace("NAME : three\n", ""), name="fallback").name == "fallback"
    assert parse_tsp(GOOD.replace("three", ""), name="fallback").name == "fallback"
    assert parse_tsp(GOOD.replace("three", "three.tsp")).name == "three"


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.floats(-1e9, 1e9), st.floats(-1e9, 1e9)), min_size=1, max_size=30),
    st.sampled_from([rule for rule in DistanceRule if rule.is_integer]),
    st.text(max_size=20),
)
def test_tsp_round_trip(points: list[tuple[float, float]], rule: DistanceRule, name: str) -> None:
    instance = Instance(points, name=name, rule=rule)
    again = parse_tsp(format_tsp(instance, comment=name))
    np.testing.assert_array_equal(again.coordinates, instance.coordinates)
    assert again.rule is rule


def test_euclidean_instances_need_a_scale() -> None:
    instance = Instance([[0, 0], [0.25, 1]], name="unit")
    with pytest.raises(InputError, match="give a scale"):
        format_tsp(instance)
    scaled = parse_tsp(format_tsp(instance, scale=1000))
    assert scaled.coordinates.tolist() == [[0, 0], [250, 1000]]
    assert scaled.rule is DistanceRule.EUC_2D
    for bad in [0, -1, float("nan")]:
        with pytest.raises(InputError, match="scale is a number > 0"):
            format_tsp(instance, scale=bad)
    with pytest.raises(InputError, match="for EUC_2D"):
        format_tsp(scaled, scale=10)


# ---- .tour

TOUR = "NAME : t\nTYPE : TOUR\nDIMENSION : 4\nTOUR_SECTION\n2\n1\n4\n3\n-1\nEOF\n"


@pytest.mark.parametrize(
    "text",
    [
        TOUR,
        TOUR.replace("EOF\n", ""),
        TOUR.replace("-1\nEOF\n", ""),
        TOUR.replace("\n1\n4\n", " 1   4\t"),
        TOUR.replace("DIMENSION : 4\n", ""),
        TOUR.replace("TYPE : TOUR\n", ""),
        TOUR.replace("\n", "\r\n"),
        TOUR.replace("-1\n", "-1\n-1\n"),
        TOUR.lower(),
        "TOUR_SECTION 2 1 4 3 -1".replace(" ", "\n"),
    ],
)
def test_ways_to_write_the_same_tour(text: str) -> None:
    assert parse_tour(text) == [1, 0, 3, 2]


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("DIMENSION : 4", "DIMENSION : 5", 4, "DIMENSION is 5, the tour has 4 cities"),
        ("DIMENSION : 4", "DIMENSION : 3", 7, r"numbered 1\.\.3, got '4'"),
        ("DIMENSION : 4", "DIMENSION : 999999999999999", 4, "the tour has 4 cities"),
        ("\n4\n", "\n2\n", 7, "city 2 appears twice, first in line 5"),
        ("\n4\n", "\n0\n", 7, r"numbered 1\.\.4, got '0'"),
        ("\n4\n", "\n-2\n", 7, r"numbered 1\.\.4, got '-2'"),
        ("\n4\n", "\n4.0\n", 7, "got '4.0'"),
        ("\n4\n", "\n-1\n", 8, "after the -1"),
        ("TYPE : TOUR", "TYPE : TSP", 2, "allowed: TOUR"),
        ("TOUR_SECTION", "NODE_COORD_SECTION", 4, "allowed: TOUR_SECTION"),
        ("TOUR_SECTION\n2\n1\n4\n3\n-1\n", "", 3, "TOUR_SECTION is missing"),
    ],
)
def test_broken_tours_name_the_line(old: str, new: str, line: int, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        parse_tour(TOUR.replace(old, new), "some.tour")
    assert str(caught.value).startswith(f"some.tour:{line}: ")


def test_tours_without_dimension_are_still_checked() -> None:
    with pytest.raises(InputError, match=r"t:3: cities are numbered 1\.\.2, got .7."):
        parse_tour("TOUR_SECTION\n1\n7\n-1", "t")
    with pytest.raises(InputError, match="empty"):
        parse_tour("TOUR_SECTION\n-1")


def test_numbers_that_all_have_one_hash_are_not_kept() -> None:
    """A dictionary of them takes quadratic time: 2^61 - 1 and its multiples have the hash 0."""
    numbers = "\n".join(str((2**61 - 1) * k) for k in range(1, 100_000))
    with processor_seconds(20), pytest.raises(InputError, match=r"t:2: cities are numbered 1\.\.99999, got"):
        parse_tour(f"TOUR_SECTION\n{numbers}\n-1\nEOF\n", "t")


@settings(deadline=None)
@given(st.integers(1, 40).flatmap(lambda n: st.permutations(range(n))), st.text(max_size=10))
def test_tour_round_trip(tour: list[int], name: str) -> None:
    assert parse_tour(format_tour(tour, name=name, comment=name)) == tour


# ---- the library


def test_sets_and_groups() -> None:
    assert {name: len(tsplib_names(name)) for name in TSPLIB_SETS} == {
        "tsplib36": 36,
        "tsplib27": 27,
        "tsplib-large": 36,
        "all": 85,
    }
    assert set(tsplib_names("tsplib27")) < set(tsplib_names())
    assert {g: len(names) for g, names in size_groups(tsplib_names("tsplib27")).items()} == {
        "51-76": 5,
        "99-101": 8,
        "105-150": 7,
        "159-299": 7,
    }
    assert [len(names) for names in size_groups(tsplib_names()).values()] == [5, 8, 10, 13]
    assert size_group(152) == "159-299"
    with pytest.raises(InputError, match="51 to 299"):
        size_group(50)
    with pytest.raises(InputError, match="51 to 299"):
        size_group(318)
    with pytest.raises(InputError, match="allowed: tsplib36"):
        tsplib_names("tsplib99")
    with pytest.raises(InputError, match="similar: berlin52"):
        size_groups(["berlin53"])


def test_the_declared_27_follow_their_rule() -> None:
    groups = size_groups(tsplib_names())
    table = published_optima()
    expected = [*groups["51-76"], *groups["99-101"]]
    for group in ("105-150", "159-299"):
        names = sorted((n for n in groups[group] if n != "pr152"), key=lambda n: (table[n].n, n))
        expected += [names[k] for k in np.round(np.linspace(0, len(names) - 1, 7)).astype(int)]
    assert sorted(TSPLIB27) == sorted(expected)


def test_optimum_needs_name_size_and_rule() -> None:
    assert known_optimum("berlin52", 52, DistanceRule.EUC_2D) == 7542
    assert known_optimum("berlin52", 51, DistanceRule.EUC_2D) is None
    assert known_optimum("berlin52", 52, DistanceRule.CEIL_2D) is None
    assert known_optimum("berlin", 52, DistanceRule.EUC_2D) is None


def test_folder_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("GEOROUTENET_TSPLIB", raising=False)
    monkeypatch.setenv("GEOROUTENET_CACHE", str(tmp_path / "cache"))
    assert tsplib_folder() is None
    with pytest.raises(InputError, match="georoutenet data tsplib"):
        load_tsplib("berlin52")
    (tmp_path / "cache" / "tsplib").mkdir(parents=True)
    assert tsplib_folder() == tmp_path / "cache" / "tsplib"
    own = tmp_path / "own"
    monkeypatch.setenv("GEOROUTENET_TSPLIB", str(own))
    with pytest.raises(InputError, match="not a folder"):
        tsplib_folder()
    own.mkdir()
    assert tsplib_folder() == own
    (own / "three.tsp").write_text(GOOD)
    (own / "packed.tsp.gz").write_bytes(gzip.compress(GOOD.encode()))
    (own / "three.opt.tour").write_text("TOUR_SECTION\n3\n1\n2\n-1\n")
    assert load_tsplib("three").n == load_tsplib("packed").n == 3
    assert load_optimal_tour("three").tolist() == [2, 0, 1]
    with pytest.raises(InputError, match=r"has no berlin52\.tsp"):
        load_tsplib("berlin52")
    for wrong in ["berlin5", "../own/three", ""]:
        with pytest.raises(InputError, match="unknown TSPLIB instance"):
            load_tsplib(wrong)


@needs_tsplib
def test_every_instance_is_read_with_its_optimum() -> None:
    for name in tsplib_names("all"):
        instance = load_tsplib(name)
        entry = published_optima()[name]
        assert (instance.name, instance.n, instance.rule, instance.optimum) == entry


@needs_tsplib
def test_published_optimal_tours_have_exactly_the_published_length() -> None:
    rules: dict[DistanceRule, int] = {}
    for file in tsplib_checksums():
        if file.endswith(".opt.tour"):
            instance = load_tsplib(file.removesuffix(".opt.tour"))
            assert tour_length(instance, load_optimal_tour(instance.name)) == instance.optimum, instance.name
            rules[instance.rule] = rules.get(instance.rule, 0) + 1
    assert rules == {DistanceRule.EUC_2D: 18, DistanceRule.GEO: 5, DistanceRule.ATT: 1}


@needs_tsplib
def test_the_folder_has_the_published_contents() -> None:
    folder = Path(os.environ["GEOROUTENET_TSPLIB"])
    for name, expected in tsplib_checksums().items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == expected, name


@needs_tsplib
def test_the_optima_table_agrees_with_the_folder() -> None:
    table = Path(os.environ["GEOROUTENET_TSPLIB"]) / "optimal.csv"
    if not table.exists():
        pytest.skip("the folder has no optimal.csv")
    rows = {row["name"]: row for row in csv.DictReader(table.read_text().splitlines())}
    assert list(rows) == tsplib_names("all")
    for name, row in rows.items():
        entry = published_optima()[name]
        assert [str(entry.n), entry.rule.value, str(entry.optimum)] == [
            row["n"],
            row["edge_weight_type"],
            row["optimal"],
        ]
