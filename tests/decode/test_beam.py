"""Beam search: the Numba kernel against the reference, and both against exhaustive search."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from georoutenet.decode import beam, greedy
from georoutenet.decode.replay import replay
from georoutenet.errors import InputError
from georoutenet.model.scores import Scores
from georoutenet.problem.instance import DistanceRule, Instance
from georoutenet.problem.tour import tour_length


def example(batch: int, n: int, *, ties: bool = False, seed: int = 0) -> tuple[Tensor, Scores]:
    generator = torch.Generator().manual_seed(1000 * seed + 10 * n + batch)
    points = torch.rand(batch, n, 2, generator=generator, dtype=torch.float64)
    logits = (-20 * torch.cdist(points, points) + torch.randn(batch, n, n, generator=generator)).float()
    start = torch.randn(batch, n, generator=generator)
    if ties:
        logits = torch.randint(-2, 3, (batch, n, n), generator=generator).float()
        start = torch.zeros(batch, n)
        points = torch.randint(0, 4, (batch, n, 2), generator=generator).double()
    return points, Scores(torch.log_softmax(start, dim=1), logits)


def assert_same(scores: Scores, width: int, **settings: Any) -> None:
    fast = beam(scores, width, backend="numba", **settings)
    slow = beam(scores, width, backend="reference", **settings)
    assert fast.tours.shape == slow.tours.shape
    assert (fast.tours == slow.tours).all()
    assert (fast.tours.sort(dim=2).values == torch.arange(scores.n)).all()
    torch.testing.assert_close(fast.log_probabilities, slow.log_probabilities, rtol=1e-5, atol=1e-5)
    if slow.lengths is not None:
        assert torch.equal(fast.lengths, slow.lengths)


SHAPES = [(1, 1, 3), (3, 2, 1), (2, 3, 4), (3, 7, 5), (2, 17, 33), (1, 34, 60), (5, 9, 2)]


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize(("batch", "n", "width"), SHAPES)
def test_numba_equals_reference(batch: int, n: int, width: int, ties: bool) -> None:
    points, scores = example(batch, n, ties=ties)
    assert_same(scores, width, keep=width)
    assert_same(scores, width, keep=width, coordinates=points)
    assert_same(scores, width, keep=3, coordinates=points, temperature=2.5)
    if n > 1:
        assert_same(scores, width, keep=width, end=n - 1)
        assert_same(scores, width, keep=width, start=0, end=n - 1, coordinates=points, closed=False)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("length_weight", [0.0, 60.0])
@pytest.mark.parametrize(("batch", "n", "width"), [(1, 1, 3), (2, 5, 4), (2, 12, 30), (1, 20, 64)])
def test_numba_equals_reference_with_dominance(
    batch: int, n: int, width: int, length_weight: float, closed: bool, ties: bool
) -> None:
    points, scores = example(batch, n, ties=ties)
    settings = {"coordinates": points, "closed": closed, "length_weight": length_weight, "keep": width}
    assert_same(scores, width, dominance=True, **settings)
    assert_same(scores, width, dominance=False, **settings)


@pytest.mark.parametrize("backend", ["numba", "reference"])
@pytest.mark.parametrize("ties", [False, True])
def test_width_one_is_greedy(backend: str, ties: bool) -> None:
    points, scores = example(6, 13, ties=ties)
    narrow = beam(scores, 1, coordinates=points, backend=backend)
    assert (narrow.tours == greedy(scores).tours).all()
    assert (beam(scores, 1, start=3, end=5).tours == greedy(scores, start=3, end=5).tours).all()


@pytest.mark.parametrize("fixed", [{}, {"start": 2}, {"end": 3}, {"start": 1, "end": 6}])
@pytest.mark.parametrize("closed", [True, False])
def test_a_wide_beam_is_exhaustive(closed: bool, fixed: dict[str, int]) -> None:
    n = 7
    points, scores = example(2, n)
    wide = beam(scores, 5040, coordinates=points, closed=closed, keep=9999, **fixed)
    tours = [
        tour
        for tour in itertools.permutations(range(n))
        if fixed.get("start", tour[0]) == tour[0] and fixed.get("end", tour[-1]) == tour[-1]
    ]
    assert wide.tours.shape == (2, len(tours), n)
    for b in range(2):
        instance = Instance(points[b].numpy())
        lengths = np.sort([tour_length(instance, tour, closed=closed) for tour in tours])
        np.testing.assert_allclose(wide.lengths[b].numpy(), lengths, rtol=1e-12)
        assert len({tuple(tour) for tour in wide.tours[b].tolist()}) == len(tours)


def test_without_a_cost_the_most_probable_tours_come_first() -> None:
    _, scores = example(2, 6)
    wide = beam(scores, 720, keep=720)
    chance, _ = replay(scores.start.double(), scores.logits.double(), wide.tours)
    torch.testing.assert_close(wide.log_probabilities.double(), chance, rtol=1e-5, atol=1e-4)
    assert (wide.log_probabilities.diff(dim=1) <= 0).all()
    assert wide.lengths is None
    assert chance.exp().sum(dim=1).tolist() == pytest.approx([1, 1])


def test_the_first_step_takes_the_most_probable_starts() -> None:
    _, scores = example(3, 8)
    starts = scores.start.argsort(dim=1, descending=True)
    sharp = Scores(scores.start, torch.zeros(3, 8, 8))  # nothing but the start tells tours apart
    for width in (1, 3, 8):
        best = beam(sharp, width, keep=width).tours[:, :, 0]
        assert (best == starts[:, :1]).all()  # all children of the best start come before the others


def test_the_cheapest_tour_is_chosen_by_the_instance_rule() -> None:
    points, scores = example(1, 8)
    scaled = points * 12  # coarse enough for integer rounding to change the order
    for rule in (DistanceRule.EUC_2D, DistanceRule.CEIL_2D, DistanceRule.ATT):
        instance = Instance(scaled[0].numpy(), rule=rule)
        found = beam(scores, 200, instances=[instance], keep=200)
        lengths = [tour_length(instance, tour) for tour in found.tours[0].numpy()]
        assert found.lengths[0].tolist() == lengths
        assert lengths == sorted(lengths)


def test_dominance_keeps_one_tour_per_state_and_finds_the_optimum_when_wide() -> None:
    points, scores = example(2, 8)
    optimum = beam(scores, 40320, coordinates=points).lengths
    # At most n * (n - 1) * C(n - 2, k) states exist at a step: a beam of 2000 holds them all.
    found = beam(scores, 2000, coordinates=points, dominance=True, keep=9999)
    torch.testing.assert_close(found.lengths[:, :1], optimum)
    ends = [[(tour[0], tour[-1]) for tour in tours] for tours in found.tours.tolist()]
    assert all(len(set(pairs)) == len(pairs) == 56 for pairs in ends)
    path = beam(scores, 40320, coordinates=points, closed=False)
    short = beam(scores, 2000, coordinates=points, closed=False, dominance=True, keep=9999)
    torch.testing.assert_close(short.lengths[:, :1], path.lengths)
    assert short.tours.shape[1] == 8


def test_length_weight_means_the_same_at_every_scale() -> None:
    points, scores = example(3, 15)
    small = beam(scores, 20, coordinates=points, length_weight=40.0, dominance=True, keep=5)
    large = beam(scores, 20, coordinates=1024 * points, length_weight=40.0, dominance=True, keep=5)
    assert (small.tours == large.tours).all()
    assert not (beam(scores, 20, coordinates=points, dominance=True, keep=5).tours == small.tours).all()
    chance, _ = replay(scores.start, scores.logits, small.tours)  # the rank is not the log-probability
    torch.testing.assert_close(small.log_probabilities, chance, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("backend", ["numba", "reference"])
@pytest.mark.parametrize("fill", [3000.0, -3000.0, -torch.inf])
def test_underflow_and_impossible_cities(backend: str, fill: float) -> None:
    points, scores = example(2, 9)
    logits, start = scores.logits.clone(), scores.start.clone()
    logits[:, :, :3] = fill
    start[:, 4] = -torch.inf
    found = beam(Scores(start, logits), 50, coordinates=points, keep=50, backend=backend)
    assert (found.tours.sort(dim=2).values == torch.arange(9)).all()
    assert not found.log_probabilities.isnan().any()
    assert_same(Scores(start, logits), 50, keep=50, coordinates=points)


def test_instances_do_not_touch_each_other() -> None:
    points, scores = example(3, 11)
    found = beam(scores, 16, coordinates=points, keep=4)
    for b in range(3):
        alone = beam(scores[b], 16, coordinates=points[b : b + 1], keep=4)
        assert (alone.tours[0] == found.tours[b]).all()


def test_errors_say_what_is_allowed() -> None:
    points, scores = example(1, 5)
    with pytest.raises(InputError, match="width must be a whole number of at least 1, got 0"):
        beam(scores, 0)
    with pytest.raises(InputError, match="keep must be"):
        beam(scores, 3, keep=0)
    with pytest.raises(InputError, match="length_weight must be at least 0, got -1"):
        beam(scores, 3, coordinates=points, length_weight=-1.0)
    with pytest.raises(InputError, match="give coordinates or instances"):
        beam(scores, 3, dominance=True)
    with pytest.raises(InputError, match="allowed: auto"):
        beam(scores, 3, backend="gpu")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="not numbers"):
        beam(Scores(scores.start, scores.logits * torch.nan), 3)
