"""TSPLIB files that hold distances."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from georoutenet.errors import InputError
from georoutenet.io import tsplib_format
from georoutenet.io.optima import published_optima
from georoutenet.io.tsplib import tsplib_names
from georoutenet.io.tsplib_format import format_tsp, parse_tsp
from georoutenet.problem.instance import DistanceRule, Instance

MATRIX = np.array([[0, 12, 13, 14], [12, 0, 23, 24], [13, 23, 0, 34], [14, 24, 34, 0]])
BODIES = {
    "FULL_MATRIX": "0 12 13 14\n12 0 23 24\n13 23 0 34\n14 24 34 0",
    "UPPER_ROW": "12 13 14\n23 24\n34",
    "LOWER_ROW": "12\n13 23\n14 24 34",
    "UPPER_DIAG_ROW": "0 12 13 14\n0 23 24\n0 34\n0",
    "LOWER_DIAG_ROW": "0\n12 0\n13 23 0\n14 24 34 0",
    "UPPER_COL": "12\n13 23\n14 24 34",
    "LOWER_COL": "12 13 14\n23 24\n34",
    "UPPER_DIAG_COL": "0\n12 0\n13 23 0\n14 24 34 0",
    "LOWER_DIAG_COL": "0 12 13 14\n0 23 24\n0 34\n0",
}
DISPLAY = "DISPLAY_DATA_SECTION\n1 5 5\n2 6.5 6\n3 7 7\n4 8 -1e1\n"
PLACES = [[5, 5], [6.5, 6], [7, 7], [8, -10]]


def file(form: str, body: str | None = None, extra: str = "") -> str:
    return (
        f"NAME: four\nTYPE: TSP\nDIMENSION: 4\nEDGE_WEIGHT_TYPE: EXPLICIT\nEDGE_WEIGHT_FORMAT: {form}\n"
        f"EDGE_WEIGHT_SECTION\n{BODIES[form] if body is None else body}\n{extra}EOF\n"
    )


@pytest.mark.parametrize("form", BODIES)
def test_every_format_is_the_same_matrix(form: str) -> None:
    for body in (BODIES[form], BODIES[form].replace("\n", " "), BODIES[form].replace(" ", "\n\n  ")):
        instance = parse_tsp(file(form, body))
        assert instance.rule is DistanceRule.EXPLICIT
        assert instance.is_integer
        assert not instance.has_coordinates
        np.testing.assert_array_equal(instance.distance_matrix(), MATRIX)
    assert parse_tsp(file(form).lower()).n == 4


def test_formats_are_those_of_tsplib() -> None:
    assert set(BODIES) == set(tsplib_format._LAYOUTS)


@pytest.mark.parametrize("form", ["FULL_MATRIX", "UPPER_DIAG_ROW"])
def test_the_diagonal_is_ignored(form: str) -> None:
    matrix = parse_tsp(file(form, BODIES[form].replace("0 ", "9999 "))).distance_matrix()
    np.testing.assert_array_equal(matrix, MATRIX)


def test_places_to_draw() -> None:
    head = "NODE_COORD_TYPE: NO_COORDS\nDISPLAY_DATA_TYPE: TWOD_DISPLAY\nTYPE"
    drawn = parse_tsp(file("UPPER_ROW", extra=DISPLAY).replace("TYPE", head, 1))
    assert drawn.coordinates.tolist() == PLACES
    np.testing.assert_array_equal(drawn.distance_matrix(), MATRIX)
    # The display data may come first, and coordinates proper come before them.
    first = file("UPPER_ROW").replace("EDGE_WEIGHT_SECTION", DISPLAY + "EDGE_WEIGHT_SECTION")
    assert parse_tsp(first).coordinates.tolist() == PLACES
    nodes = "NODE_COORD_SECTION\n1 0 0\n2 0 1\n3 0 2\n4 0 3\n"
    both = parse_tsp(file("UPPER_ROW", extra=DISPLAY + nodes))
    assert both.coordinates.tolist() == [[0, 0], [0, 1], [0, 2], [0, 3]]


def test_numbers_with_a_point_are_floats() -> None:
    instance = parse_tsp(file("UPPER_ROW", "12 13 14 23.0 24 34"))
    assert not instance.is_integer
    np.testing.assert_array_equal(instance.distance_matrix(), MATRIX)
    assert parse_tsp(file("UPPER_ROW", "12 13 14 2.3e1 24 34")).distance(1, 2) == 23.0


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("34", "", 8, "UPPER_ROW of 4 cities has 6 numbers, found 5"),
        ("34", "34 35", 9, "has 6 numbers, found 7"),
        ("12 13 14\n23 24\n34\n", "", 6, "found 0"),
        ("23 24", "23 x", 8, "expected a number, got 'x'"),
        ("23 24", "23 2_4", 8, "expected a number, got '2_4'"),
        ("23 24", "23 1e999", 8, "distances must be finite, got '1e999'"),
        ("DIMENSION: 4", "DIMENSION: 5", 9, "UPPER_ROW of 5 cities has 10 numbers, found 6"),
        ("DIMENSION: 4", "DIMENSION: 10001", 3, "at most 10,000 cities, got 10,001"),
        ("DIMENSION: 4", "DIMENSION: 999999999999999", 3, "at most 10,000 cities"),
        ("UPPER_ROW", "UPPER", 5, "EDGE_WEIGHT_FORMAT must be FULL_MATRIX or UPPER_ROW or .*, got 'UPPER'"),
        ("UPPER_ROW", "FUNCTION", 5, "got 'FUNCTION'"),
        ("EDGE_WEIGHT_FORMAT: UPPER_ROW\n", "", 5, "EDGE_WEIGHT_FORMAT is missing"),
        ("EDGE_WEIGHT_SECTION\n12 13 14\n23 24\n34\n", "", 5, "EDGE_WEIGHT_SECTION is missing"),
        ("TYPE: TSP", "NODE_COORD_TYPE: THREED_COORDS", 2, "must be TWOD_COORDS or NO_COORDS"),
        ("TYPE: TSP", "TYPE: ATSP", 2, "'ATSP' is not supported; allowed: TSP; .*Asymmetric"),
        ("EOF", "DISPLAY_DATA_SECTION\n1 0 0\nEOF", 11, "DIMENSION is 4, found 1 cities"),
        ("EXPLICIT", "EUC_2D", 5, "EDGE_WEIGHT_FORMAT must be FUNCTION, got 'UPPER_ROW'"),
    ],
)
def test_broken_files_name_the_line(old: str, new: str, line: int, message: str) -> None:
    text = file("UPPER_ROW")
    assert old in text
    with pytest.raises(InputError, match=message) as caught:
        parse_tsp(text.replace(old, new, 1), "some.tsp")
    assert str(caught.value).startswith(f"some.tsp:{line}: ")


def test_distances_that_make_no_instance_name_the_file() -> None:
    with pytest.raises(
        InputError, match=r"^some\.tsp: the matrix is asymmetric: from city 0 to city 1 it is 5"
    ):
        parse_tsp(file("FULL_MATRIX").replace("0 12", "0 5"), "some.tsp")
    with pytest.raises(InputError, match=r"^some\.tsp: .*from city 0 to city 3 it is -14"):
        parse_tsp(file("UPPER_ROW").replace("14", "-14"), "some.tsp")
    with pytest.raises(InputError, match=r"^some\.tsp: .*too large"):
        parse_tsp(file("UPPER_ROW").replace("14", "9" * 17), "some.tsp")


@pytest.mark.parametrize(("rule", "expected"), [("MAN_2D", 8), ("MAX_2D", 5)])
def test_rectangular_and_largest_distance(rule: str, expected: int) -> None:
    text = f"TYPE: TSP\nDIMENSION: 2\nEDGE_WEIGHT_TYPE: {rule}\nNODE_COORD_SECTION\n1 0 0\n2 2.5 -5\nEOF"
    assert parse_tsp(text).distance(0, 1) == expected


matrices = st.integers(1, 8).flatmap(
    lambda n: st.one_of(
        arrays(np.int64, (n, n), elements=st.integers(0, 10**12)),
        arrays(np.float64, (n, n), elements=st.floats(0, 1e300)),
    )
)


@settings(deadline=None)
@given(matrices, st.booleans(), st.sampled_from(sorted(BODIES)))
def test_round_trip(values: np.ndarray, with_places: bool, form: str) -> None:
    matrix = np.minimum(values, values.T)
    np.fill_diagonal(matrix, 0)
    places = np.random.default_rng(0).random((len(matrix), 2)) if with_places else None
    instance = Instance(places, name="own", matrix=matrix)  # type: ignore[arg-type]
    again = parse_tsp(format_tsp(instance, comment="written by a test"))
    assert (again.name, again.rule, again.is_integer) == ("own", DistanceRule.EXPLICIT, instance.is_integer)
    assert again.has_coordinates == with_places
    np.testing.assert_array_equal(again.distance_matrix(), matrix)
    if with_places:
        np.testing.assert_array_equal(again.coordinates, instance.coordinates)
    # The same by any of the formats, written entry by entry as TSPLIB describes them.
    n = len(matrix)
    upper, diagonal, column = "UPPER" in form, "DIAG" in form, form.endswith("COL")
    entries = []
    for i in range(n):
        for j in range(n):
            row, col = (j, i) if column else (i, j)
            inside = row < col if upper else row > col
            if form == "FULL_MATRIX" or inside or (diagonal and row == col):
                entries.append(repr(matrix[row, col].item()))
    text = f"DIMENSION: {n}\nEDGE_WEIGHT_TYPE: EXPLICIT\nEDGE_WEIGHT_FORMAT: {form}\nEDGE_WEIGHT_SECTION\n"
    np.testing.assert_array_equal(parse_tsp(text + " ".join(entries)).distance_matrix(), matrix)


def test_scale_is_for_coordinates() -> None:
    with pytest.raises(InputError, match="for EUCLIDEAN instances, got 10 for EXPLICIT"):
        format_tsp(Instance(matrix=MATRIX), scale=10)


def test_published_optima_are_known_but_in_no_set() -> None:
    explicit = [entry for entry in published_optima().values() if entry.rule is DistanceRule.EXPLICIT]
    assert len(explicit) == 17
    assert not {entry.name for entry in explicit} & set(tsplib_names("all"))
    sizes = [entry.n for entry in published_optima().values()]
    assert sizes == sorted(sizes)


@pytest.mark.skipif(
    not os.environ.get("GEOROUTENET_TSPLIB"),
    reason="GEOROUTENET_TSPLIB does not name a folder of TSPLIB files",
)
def test_files_of_tsplib_have_their_published_optimum() -> None:
    folder = Path(os.environ["GEOROUTENET_TSPLIB"])
    present = [entry for entry in published_optima().values() if entry.rule is DistanceRule.EXPLICIT]
    present = [entry for entry in present if (folder / f"{entry.name}.tsp").exists()]
    if not present:
        pytest.skip("the folder has no EXPLICIT instances")
    for entry in present:
        instance = parse_tsp((folder / f"{entry.name}.tsp").read_text())
        assert (instance.name, instance.n, instance.rule, instance.optimum) == entry
