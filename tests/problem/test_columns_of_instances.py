from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from georoutenet.errors import InputError
from georoutenet.problem.instance import Instance
from georoutenet.problem.sketch import LARGEST, sketch

POINTS = [[0, 0], [1, 0], [1, 2]]


def shops() -> Instance:
    return Instance(POINTS, columns={"shop": ["a", "b", "b"], "no": [7, 8, 9]}, id_column="no")


def test_columns_and_ids() -> None:
    for instance in (shops(), shops().replaced(name="other"), pickle.loads(pickle.dumps(shops()))):
        assert instance.columns == {"shop": ("a", "b", "b"), "no": (7, 8, 9)}
        assert instance.ids == (7, 8, 9)
        assert instance.city("8") == 1  # a string is an id
        assert instance.city(2) == 2  # a number is a position
    assert Instance(POINTS).ids is None


@pytest.mark.parametrize(
    ("instance", "name", "message"),
    [
        (Instance(POINTS), "a", r"no city is called 'a': they have no ids, only positions 0\.\.2"),
        (shops(), "1", "no city has the no '1'; given: 7, 8, 9"),
        (shops().replaced(id_column="shop"), "b", "cities 1 and 2 both have the shop 'b'"),
    ],
)
def test_ids_that_name_no_single_city(instance: Instance, name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        instance.city(name)


def test_columns_must_fit() -> None:
    with pytest.raises(InputError, match="the column 'a' has 2 rows for 3 cities"):
        Instance(POINTS, columns={"a": [1, 2]})
    with pytest.raises(InputError, match="no column 'b' of ids; columns: a"):
        Instance(POINTS, columns={"a": [1, 2, 3]}, id_column="b")


def test_an_instance_in_a_notebook() -> None:
    picture = shops()._repr_html_()
    assert repr(shops()).replace("'", "&#x27;") in picture
    assert picture.count("h0") == 3  # a dot for each city
    assert "NaN" not in Instance([[3, 3], [3, 3]])._repr_html_()
    assert "<svg" not in Instance(matrix=[[0, 1], [1, 0]])._repr_html_()
    assert "<script" not in Instance(POINTS, name="<script>")._repr_html_()
    assert "<svg" not in sketch("", Instance([[k, 0] for k in range(LARGEST + 1)]).coordinates)


@pytest.mark.parametrize("values", [None, 1.5, object(), np.array("x")])
def test_a_column_that_is_no_column_is_refused(values: Any) -> None:
    with pytest.raises(InputError, match="the column 'a' must hold a value for each city"):
        Instance(np.eye(3, 2), columns={"a": values})


def test_odd_names_are_refused() -> None:
    with pytest.raises(InputError, match=r"there is no column array\(\['a', 'b'\]"):
        Instance(np.eye(3, 2), columns={"a": range(3)}, id_column=np.array(["a", "b"]))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="columns must be a dict of names and values, got 5"):
        Instance(np.eye(3, 2), columns=5)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="name must be a string, got 5"):
        Instance(np.eye(3, 2), name=5)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"there is no column \['a'\] of ids"):
        Instance(np.eye(3, 2), columns={"a": range(3)}, id_column=["a"])  # type: ignore[arg-type]
    with pytest.raises(InputError, match="coordinates"):
        Instance(object())  # type: ignore[arg-type]
