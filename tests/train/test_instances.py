from __future__ import annotations

import pytest
import torch

from georoutenet.errors import InputError
from georoutenet.problem import generate
from georoutenet.train import instances as module
from georoutenet.train.instances import instances, step_seed, uniforms
from georoutenet.train.recipe import DISTRIBUTIONS

SEED = torch.tensor([42])


def test_uniform_numbers_are_uniform_and_uncorrelated() -> None:
    u = uniforms(SEED, 200, 500).double()
    assert u.min() >= 0
    assert u.max() < 1
    assert u.mean().item() == pytest.approx(0.5, abs=0.005)
    assert u.var().item() == pytest.approx(1 / 12, abs=0.002)
    histogram = torch.histc(u.flatten(), 20, 0, 1)
    assert (histogram - 5000).abs().max() < 5 * 5000**0.5
    for shifted in (u.roll(1, 0), u.roll(1, 1)):
        assert abs(torch.corrcoef(torch.stack((u.flatten(), shifted.flatten())))[0, 1].item()) < 0.02


def test_seeds_of_steps_purposes_and_runs_differ() -> None:
    seeds = {
        int(step_seed(seed, torch.tensor(step), purpose))
        for seed in (0, 1, 1234)
        for step in range(20)
        for purpose in (1, 2, 3)
    }
    assert len(seeds) == 3 * 20 * 3
    assert torch.equal(step_seed(5, torch.tensor(3), 1), step_seed(5, torch.tensor(3), 1))


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_instances_lie_in_the_square_and_split_over_processes(distribution: str) -> None:
    whole = instances(SEED, 6, 17, distribution)
    assert whole.shape == (6, 17, 2)
    assert whole.dtype == torch.float32
    assert whole.min() >= 0
    assert whole.max() <= 1
    halves = [instances(SEED, 3, 17, distribution, first=first) for first in (0, 3)]
    assert torch.equal(torch.cat(halves), whole)
    assert not torch.equal(instances(SEED + 1, 6, 17, distribution), whole)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_same_shape_as_the_evaluation_sets(distribution: str) -> None:
    """Moments and mean nearest-neighbor distance agree with the generators of the named data sets."""
    ours = instances(SEED, 2000, 30, distribution).double()
    theirs = torch.from_numpy(generate.GENERATORS[distribution](2000, 30, 7)).double()

    def figures(coords: torch.Tensor) -> list[float]:
        distance = torch.cdist(coords, coords) + 9 * torch.eye(30)
        spread = coords.std(1).mean(0)
        return [*coords.mean((0, 1)).tolist(), *spread.tolist(), distance.amin(2).mean().item()]

    assert figures(ours) == pytest.approx(figures(theirs), rel=0.04)


@pytest.mark.parametrize("n", [100, 1000])
def test_places_grow_with_the_cities(n: int) -> None:
    made = instances(SEED, 60, n, "structure")
    places = torch.tensor([len(cities.unique(dim=0)) for cities in made]) / n
    assert places.min() > 0.78
    assert (places > 0.95).double().mean() > 0.75


def test_unknown_distribution() -> None:
    with pytest.raises(InputError, match="uniform, clustered"):
        instances(SEED, 1, 5, "moon")


@pytest.mark.parametrize("distribution", ["structure", "uniform"])
def test_numbers_made_ahead_are_those_of_a_hash_each(
    distribution: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead = instances(SEED, 3, 40, distribution)
    monkeypatch.setattr(
        module._Hashes,
        "__call__",
        lambda self, count: (
            setattr(self, "used", self.used + count)
            or uniforms(self.seed, self.batch, count, first=self.first, skip=self.used - count)
        ),
    )
    assert torch.equal(instances(SEED, 3, 40, distribution), ahead)
