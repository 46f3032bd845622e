from __future__ import annotations

import numpy as np
import pytest
import torch

from georoutenet.errors import InputError
from georoutenet.problem.instance import WIDEST, Instance


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ([[0, 0], [1]], "row 0 has 2 values, row 1 has 1"),
        ([[0, 0], 1], "row 0 has 2 values, row 1 is a number"),
        ([[0, 0], [1, True]], r"got a boolean in row 1 \(counting"),
        ([[0, 0], np.array([True, False])], "got a boolean in row 1"),
        (np.array([[0, 0], [1, np.True_]], dtype=object), "got a boolean in row 1"),
        (np.zeros((3, 2), dtype=bool), "must be numbers, got bool"),
        (np.zeros((3, 2), dtype=complex), "must be numbers, got complex128"),
        (np.zeros((3, 2), dtype="datetime64[s]"), "must be numbers, got datetime64"),
        (np.ma.masked_equal(np.arange(6.0).reshape(3, 2), 4.0), "got a masked array: fill in or leave out"),
        (torch.rand(3, 2, requires_grad=True), r"requires grad: give tensor\.detach\(\)"),
        ([torch.rand(2, requires_grad=True), torch.rand(2)], "array of numbers"),
        ([[0, 0], [1e160, 0]], r"too far apart, by up to 1e\+160; allowed: 1e\+153"),
    ],
)
def test_what_is_not_coordinates(points: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Instance(points)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        ([[0, 1], [1]], "row 0 has 2 values, row 1 has 1"),
        (np.ma.masked_equal(np.ones((2, 2)), 1.0), "masked array"),
        (torch.ones(2, 2, requires_grad=True), "requires grad"),
    ],
)
def test_what_is_not_a_matrix(matrix: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Instance(matrix=matrix)  # type: ignore[arg-type]


def test_tensors_and_the_widest_coordinates_are_taken() -> None:
    assert Instance(torch.tensor([[0.0, 1.0], [2.0, 3.0]])).coordinates.tolist() == [[0, 1], [2, 3]]
    far = Instance([[0, 0], [WIDEST, 0]])
    assert far.distance(0, 1) == WIDEST
    assert np.isfinite(np.square(WIDEST))


def test_arrays_without_a_dimension_in_a_list_are_refused() -> None:
    for rows in ([np.array(True), np.array(1.0)], [[0.0, 1.0], np.array(2.0)], [np.array(3.0)]):
        with pytest.raises(InputError):
            Instance(rows)
