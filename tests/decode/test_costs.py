"""Tour costs in torch against the lengths of georoutenet.tour."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from georoutenet.decode import exact_costs, tour_costs
from georoutenet.decode.costs import as_instances
from georoutenet.errors import InputError
from georoutenet.instance import DistanceRule, Instance
from georoutenet.tour import tour_length


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("n", [1, 2, 3, 11])
def test_torch_and_exact_costs_equal_tour_length(n: int, closed: bool) -> None:
    generator = torch.Generator().manual_seed(n)
    coordinates = torch.rand(3, n, 2, generator=generator, dtype=torch.float64)
    tours = torch.rand(3, 4, n, generator=generator).argsort(dim=2)
    instances = [Instance(one.numpy()) for one in coordinates]
    wanted = torch.tensor(
        [
            [tour_length(i, t.numpy(), closed=closed) for t in ts]
            for i, ts in zip(instances, tours, strict=True)
        ],
        dtype=torch.float64,
    )
    torch.testing.assert_close(tour_costs(coordinates, tours, closed=closed), wanted)
    torch.testing.assert_close(exact_costs(instances, tours, closed=closed), wanted)


def test_equal_points_and_dtype() -> None:
    coordinates = torch.tensor([[[0.0, 0.0], [0.0, 0.0], [1.0, 0.0]]])
    cost = tour_costs(coordinates, torch.tensor([[[0, 1, 2]]]))
    assert cost.tolist() == [[2.0]]
    assert cost.dtype == torch.float32


def test_integer_rules_are_kept() -> None:
    instance = Instance(np.array([[0, 0], [0, 1.6], [1.6, 0]]), rule=DistanceRule.EUC_2D)
    costs = exact_costs([instance], torch.tensor([[[0, 1, 2], [2, 0, 1]]]))
    assert costs.tolist() == [[6.0, 6.0]]  # 2 + 2 + floor(2.26 + 0.5)


def test_errors_name_what_was_given() -> None:
    with pytest.raises(InputError, match="not both"):
        as_instances(1, 2, coordinates=np.zeros((1, 2, 2)), instances=[Instance(np.zeros((2, 2)))])
    with pytest.raises(InputError, match=r"\(2, 3, 2\), got \(1, 3, 2\)"):
        as_instances(2, 3, coordinates=np.zeros((1, 3, 2)))
    with pytest.raises(InputError, match=r"got 1 with \[2\] cities"):
        as_instances(1, 3, instances=[Instance(np.zeros((2, 2)))])
