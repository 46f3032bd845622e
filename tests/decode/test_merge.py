from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from georoutenet.decode import decode_views
from georoutenet.decode.costs import as_costs
from georoutenet.decode.decoding import Decoding
from georoutenet.decode.merge import merge_tours
from georoutenet.model.scores import Scores
from georoutenet.problem.instance import DistanceRule, Instance
from georoutenet.problem.tour import is_permutation, tour_length


def made(rule: DistanceRule, n: int, seed: int) -> Instance:
    return Instance(np.random.default_rng(seed).random((n, 2)) * 80, rule=rule)


def perturbed(tour: np.ndarray, random: np.random.Generator, first: int, last: int) -> np.ndarray:
    """A few short reversals between two positions."""
    tour = tour.copy()
    for _ in range(3):
        low = int(random.integers(first, last - 4))
        tour[low : low + 4] = tour[low : low + 4][::-1]
    return tour


def edges_of(tour: np.ndarray, closed: bool) -> set[frozenset[int]]:
    pairs = {frozenset((int(a), int(b))) for a, b in itertools.pairwise(tour)}
    return pairs | {frozenset((int(tour[-1]), int(tour[0])))} if closed else pairs


@pytest.mark.parametrize("rule", [DistanceRule.EUCLIDEAN, DistanceRule.EUC_2D, DistanceRule.GREAT_CIRCLE])
@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("fixed", [(), ("start",), ("end",), ("start", "end")])
def test_merged_tours_keep_their_ends_and_are_the_shortest(
    rule: DistanceRule, closed: bool, fixed: tuple[str, ...]
) -> None:
    n, count, batch = 30, 9, 4
    random = np.random.default_rng(5)
    instances = [made(rule, n, seed) for seed in range(batch)]
    tours = np.empty((batch, count, n), dtype=np.int64)
    for b in range(batch):
        base = random.permutation(n)
        first, last = ("start" in fixed) + 0, n - ("end" in fixed)
        found = [base] + [perturbed(base, random, first, last) for _ in range(count - 1)]
        tours[b] = sorted(found, key=lambda tour, b=b: tour_length(instances[b], tour, closed=closed))
    ends: dict[str, Any] = {
        name: torch.from_numpy(tours[:, 0, 0 if name == "start" else -1].copy()) for name in fixed
    }
    costs = as_costs(batch, n, torch.device("cpu"), instances=instances, closed=closed)
    assert costs is not None
    given = torch.from_numpy(tours)
    merged = merge_tours(given, costs.lengths(given), costs, **ends).numpy()
    assert merged.shape == (batch, 1, n)
    shorter = 0
    for b, instance in enumerate(instances):
        tour, known = merged[b, 0], set[frozenset[int]]()
        assert is_permutation(tour, n)
        assert all(tour[0 if name == "start" else -1] == ends[name][b] for name in fixed)
        for each in tours[b]:
            known |= edges_of(each, closed)
        assert edges_of(tour, closed) <= known  # no edge is new
        length, before = (tour_length(instance, each, closed=closed) for each in (tour, tours[b, 0]))
        assert length <= before * (1 + 1e-12)
        shorter += length < before
    assert shorter > 0


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6])
@pytest.mark.parametrize("closed", [True, False])
def test_few_cities(n: int, closed: bool) -> None:
    random = np.random.default_rng(n)
    tours = torch.from_numpy(np.stack([random.permutation(n) for _ in range(5)])[None])
    costs = as_costs(1, n, torch.device("cpu"), coordinates=torch.rand(1, n, 2).double(), closed=closed)
    assert costs is not None
    order = costs.lengths(tours)[0].argsort()
    merged = merge_tours(tours[:, order], costs.lengths(tours[:, order]), costs)
    assert is_permutation(merged[0, 0].numpy(), n)
    assert costs.lengths(merged)[0, 0] <= costs.lengths(tours).min() + 1e-12


@pytest.mark.parametrize("text", ["greedy-views-8", "sample-24-views-3", "beam-40-views-8-dominance"])
def test_views_that_are_merged(text: str) -> None:
    """Scores that are nearly noise: merging finds a shorter tour than any view has."""
    points = torch.rand(6, 40, 2, generator=torch.Generator().manual_seed(1)).double()

    def score(seen: torch.Tensor) -> Scores:
        noise = torch.Generator().manual_seed(int(seen[0, 0, 0] * 1e6))
        logits = -20 * torch.cdist(seen, seen) + torch.randn(*seen.shape[:2], 40, generator=noise)
        return Scores(torch.zeros(seen.shape[:2]).log_softmax(1), logits)

    plain = decode_views(score, points, text, keep=2, batch=1)
    merged = decode_views(score, points, f"{text}-merge", keep=2, batch=1)
    assert plain.lengths is not None
    assert merged.lengths is not None
    assert merged.tours.shape == plain.tours.shape
    assert merged.log_probabilities is None
    assert bool((merged.lengths[:, 0] <= plain.lengths[:, 0]).all())
    assert bool((merged.lengths[:, 0] < plain.lengths[:, 0]).any())
    for b in range(6):
        assert is_permutation(merged.tours[b, 0].numpy(), 40)


def test_the_setting_is_written_and_read() -> None:
    decoding = Decoding("beam", width=400, views=8, merge=True, candidates=32)
    assert str(decoding) == "beam-400-views-8-merge-candidates-32"
    assert Decoding.parse(str(decoding)) == decoding
    assert Decoding.from_header(decoding.header()) == decoding
