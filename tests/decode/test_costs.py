"""Tour costs in torch against the lengths of georoutenet.problem.tour."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from georoutenet.decode import tour_costs
from georoutenet.decode.costs import Costs, as_costs
from georoutenet.errors import InputError
from georoutenet.problem.instance import DistanceRule, Instance
from georoutenet.problem.tour import tour_length


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
    euclidean = as_costs(3, n, torch.device("cpu"), coordinates=coordinates, closed=closed)
    assert isinstance(euclidean, Costs)
    torch.testing.assert_close(euclidean.lengths(tours), wanted)
    torch.testing.assert_close(euclidean.lengths(tours[1:], first=1), wanted[1:])
    same = as_costs(3, n, torch.device("cpu"), instances=instances, closed=closed)
    assert isinstance(same, Costs)
    assert torch.equal(same.lengths(tours), euclidean.lengths(tours))
    twice = torch.cat([tours, tours], dim=1).reshape(6, 4, n)
    torch.testing.assert_close(
        euclidean.selected(torch.tensor([0, 0, 1, 1, 2, 2])).lengths(twice),
        wanted.repeat_interleave(2, dim=0),
    )


def test_equal_points_and_dtype() -> None:
    coordinates = torch.tensor([[[0.0, 0.0], [0.0, 0.0], [1.0, 0.0]]])
    cost = tour_costs(coordinates, torch.tensor([[[0, 1, 2]]]))
    assert cost.tolist() == [[2.0]]
    assert cost.dtype == torch.float32


@pytest.mark.parametrize("rule", [rule for rule in DistanceRule if rule is not DistanceRule.EXPLICIT])
def test_every_rule_is_kept(rule: DistanceRule) -> None:
    points = np.random.default_rng(3).uniform(0, 20, (2, 6, 2))
    instances = [Instance(one, rule=rule) for one in points]
    costs = as_costs(2, 6, torch.device("cpu"), instances=instances)
    assert isinstance(costs, Costs)
    tours = torch.tensor([[[0, 1, 2, 3, 4, 5], [3, 1, 0, 5, 2, 4]]]).repeat(2, 1, 1)
    for b in range(2):
        wanted = [tour_length(instances[b], tour) for tour in tours[b].numpy()]
        np.testing.assert_allclose(costs.lengths(tours)[b].numpy(), wanted, rtol=1e-14)
        matrix, off = costs.matrices(slice(b, b + 1))[0].numpy(), ~np.eye(6, dtype=bool)
        np.testing.assert_allclose(matrix[off], instances[b].distance_matrix()[off], rtol=1e-14)


def test_a_matrix_counts_and_coordinates_beside_it_do_not() -> None:
    generator = np.random.default_rng(4)
    matrices = generator.integers(1, 99, (2, 6, 6))
    points = generator.random((2, 6, 2))
    instances = [Instance(points[b], matrix=matrices[b] + matrices[b].T) for b in range(2)]
    costs = as_costs(2, 6, torch.device("cpu"), instances=instances)
    assert isinstance(costs, Costs)
    tours = torch.tensor([[[0, 1, 2, 3, 4, 5], [3, 1, 0, 5, 2, 4]]]).repeat(2, 1, 1)
    for b in range(2):
        wanted = [tour_length(instances[b], tour) for tour in tours[b].numpy()]
        assert costs.lengths(tours)[b].tolist() == wanted
        assert costs.matrices(slice(b, b + 1))[0].tolist() == instances[b].distance_matrix().tolist()
    bare = [instance.replaced(coordinates=None) for instance in instances]
    with pytest.raises(InputError, match="has distances but no coordinates"):
        as_costs(2, 6, torch.device("cpu"), instances=bare)


def test_normalized_distances_have_the_larger_side_as_their_unit() -> None:
    points = torch.tensor([[[0.0, 0.0], [4.0, 0.0], [4.0, 2.0]], [[1.0, 1.0], [1.0, 1.0], [1.0, 1.0]]])
    costs = as_costs(2, 3, torch.device("cpu"), coordinates=points)
    assert isinstance(costs, Costs)
    cities = torch.arange(3)
    assert costs.normalized(0, cities[:1], cities).tolist() == pytest.approx([0, 1, 1.25**0.5])
    assert costs.normalized(1, cities[:, None], cities).abs().max() == 0
    for b in range(2):
        one = costs.normalized_matrices(slice(b, b + 1))
        assert torch.equal(one[0], costs.normalized(b, cities[:, None], cities))


def test_errors_name_what_was_given() -> None:
    cpu = torch.device("cpu")
    with pytest.raises(InputError, match="not both"):
        as_costs(1, 2, cpu, coordinates=np.zeros((1, 2, 2)), instances=[Instance(np.zeros((2, 2)))])
    with pytest.raises(InputError, match=r"\(2, 3, 2\), got \(1, 3, 2\)"):
        as_costs(2, 3, cpu, coordinates=np.zeros((1, 3, 2)))
    with pytest.raises(InputError, match=r"got 1 with \[2\] cities"):
        as_costs(1, 3, cpu, instances=[Instance(np.zeros((2, 2)))])
    assert as_costs(1, 3, cpu) is None
