from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

import georoutenet as grn
from georoutenet.errors import InputError

POINTS = np.random.default_rng(0).random((12, 2))


@pytest.fixture(scope="module")
def result() -> grn.Result:
    shops = grn.Instance(
        POINTS, name="shops", columns={"shop": [f"s{k}" for k in range(12)]}, id_column="shop"
    )
    return grn.solve(shops, start="s7", end="s2", closed=False)


def test_ends_by_id(result: grn.Result) -> None:
    assert (result.tour[0], result.tour[-1]) == (7, 2)
    again = grn.solve(result.instance, start=7, end=2, closed=False)
    assert again.tour.tolist() == result.tour.tolist()


def test_ids_of_each_of_many() -> None:
    """The same id is another city in another instance, also in one of the same size."""
    names = ["a", "b", "c", "d", "e"]
    two = [grn.Instance(POINTS[:5], columns={"id": ids}, id_column="id") for ids in (names, names[::-1])]
    first, second = grn.solve_many(two, start="a", improve=False)
    assert (first.tour[0], second.tour[0]) == (0, 4)
    with pytest.raises(InputError, match="no city has the id 'f'; given: a, b, c, "):
        grn.solve_many(two, start="f")


def test_repr_is_short(result: grn.Result) -> None:
    assert repr(result).startswith(f"Result('shops', n=12, length={result.length:.8g}, open path, ")
    assert len(repr(result)) < 120
    square = grn.Instance([[0, 0], [0, 3], [4, 3]], rule="EUC_2D", optimum=12)
    assert "length=12, gap=0.000 %" in repr(grn.solve(square))


def test_equality_and_hash(result: grn.Result) -> None:
    assert result == result
    assert result != grn.solve(POINTS, improve=False)
    assert len({result, result}) == 1
    assert len({result.instance, result.instance}) == 1


def test_a_picture_in_a_notebook(result: grn.Result) -> None:
    picture = result._repr_html_()
    svg = ElementTree.fromstring(picture[picture.index("<svg") :])
    line, dots, start = svg
    assert line.attrib["d"].count("L") == 11
    assert not line.attrib["d"].endswith("Z")
    assert dots.attrib["d"].count("M") == 12
    assert line.attrib["d"].startswith(f"M{start.attrib['cx']} {start.attrib['cy']}L")
    assert "<svg" not in grn.solve(grn.Instance(matrix=1 - np.eye(4)))._repr_html_()


def test_figures_show_themselves(result: grn.Result) -> None:
    for figure in (result.plot(), result.plot_progress()):
        assert figure._repr_png_().startswith(b"\x89PNG")  # type: ignore[attr-defined]


def test_progress_that_is_flat_knows_the_bound() -> None:
    """The bound came after the only entry of the history, so that the picture did not know it."""
    square = grn.solve([[0, 0], [1, 0], [1, 1], [0, 1]], max_seconds=5)
    (axes,) = square.plot_progress().axes
    (words,) = axes.texts
    assert words.get_text() == "nothing to improve: the first tour is proven optimal"
    assert axes.get_title() == "instance  ·  length 4  ·  proven optimal"


def test_visits_are_in_the_files(result: grn.Result, tmp_path: Path) -> None:
    result.save(tmp_path / "a.json")
    content = json.loads((tmp_path / "a.json").read_text())
    assert [visit["shop"] for visit in content["visits"]] == [f"s{k}" for k in result.tour]
    assert [visit["city"] for visit in content["visits"]] == content["tour"]
    assert result.to_dict()["visits"] == content["visits"] == result.visits()
    plain = grn.solve(POINTS, improve=False)
    assert "visits" not in plain.to_dict()
    plain.save(tmp_path / "b.json")
    assert grn.read_instance(tmp_path / "b.json").coordinates.tolist() == POINTS[plain.tour].tolist()


@pytest.mark.parametrize(
    ("problem", "message"),
    [([[0, 0], [1]], "row 0 has 2 values"), ([[True, False]], "must be numbers, got bool")],
)
def test_what_is_no_problem(problem: list[list[int]], message: str) -> None:
    with pytest.raises(InputError, match=message):
        grn.solve(problem)
