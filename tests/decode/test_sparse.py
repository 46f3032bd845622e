"""Decoders on candidate lists: equal to the dense ones with all candidates, and to the reference with few."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from georoutenet.decode import beam, greedy, sample
from georoutenet.errors import InputError
from georoutenet.model.scores import Scores
from georoutenet.problem.instance import DistanceRule, Instance


def example(batch: int, n: int, candidates: int, *, ties: bool = False) -> tuple[Tensor, Scores, Scores]:
    """Points, dense scores, and the sparse scores with the given number of nearest candidates."""
    generator = torch.Generator().manual_seed(100 * n + batch)
    points = torch.rand(batch, n, 2, generator=generator, dtype=torch.float64)
    if ties:
        points = torch.randint(0, 5, (batch, n, 2), generator=generator).double()
    distances = torch.cdist(points, points)
    logits = (-20 * distances + torch.randn(batch, n, n, generator=generator)).float()
    if ties:
        logits = logits.round() / 4
    start = torch.log_softmax(torch.randn(batch, n, generator=generator), dim=1)
    away = distances + 1e9 * torch.eye(n)
    neighbors = away.argsort(dim=2, stable=True)[:, :, :candidates]

    def pairs(b: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return logits[b, i, j]

    return points, Scores(start, logits), Scores(start, logits.gather(2, neighbors), neighbors, pairs)


def assert_permutations(tours: Tensor) -> None:
    assert (tours.sort(dim=-1).values == torch.arange(tours.shape[-1])).all()


FIXED: list[dict[str, int]] = [{}, {"start": 2}, {"end": 0}, {"start": 1, "end": 3}]


@pytest.mark.parametrize("backend", ["numba", "reference"])
@pytest.mark.parametrize("fixed", FIXED)
@pytest.mark.parametrize("ties", [False, True])
def test_all_candidates_give_the_dense_result(backend: str, fixed: dict[str, int], ties: bool) -> None:
    n = 14
    points, dense, sparse = example(3, n, n - 1, ties=ties)
    settings: dict[str, Any] = {"backend": backend, **fixed}
    pairs = [
        (greedy(dense, **settings), greedy(sparse, **settings)),
        (sample(dense, 6, seed=3, **settings), sample(sparse, 6, seed=3, **settings)),
        (beam(dense, 9, keep=9, **settings), beam(sparse, 9, keep=9, **settings)),
    ]
    for extra in ({}, {"dominance": True, "length_weight": 30.0}, {"closed": False}):
        wide = {"coordinates": points, "keep": 20, **settings, **extra}
        pairs.append((beam(dense, 20, **wide), beam(sparse, 20, **wide)))
    for one, other in pairs:
        assert (one.tours == other.tours).all()
        torch.testing.assert_close(one.log_probabilities, other.log_probabilities, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("fixed", FIXED)
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("where", ["pairs", "coordinates", "both"])
@pytest.mark.parametrize(("batch", "n", "candidates"), [(1, 5, 1), (2, 23, 2), (3, 50, 4), (1, 90, 3)])
def test_numba_equals_reference(
    batch: int, n: int, candidates: int, where: str, ties: bool, fixed: dict[str, int]
) -> None:
    points, _, sparse = example(batch, n, candidates, ties=ties)
    if where == "coordinates":
        sparse = Scores(sparse.start, sparse.logits, sparse.neighbors)
    settings: dict[str, Any] = {"coordinates": None if where == "pairs" else points, **fixed}
    for decode in (greedy, lambda s, **kw: sample(s, 3, seed=8, temperature=1.5, **kw)):
        fast, slow = (decode(sparse, backend=backend, **settings) for backend in ("numba", "reference"))
        assert_permutations(fast.tours)
        assert (fast.tours == slow.tours).all()
        torch.testing.assert_close(fast.log_probabilities, slow.log_probabilities, rtol=1e-5, atol=1e-4)


def test_greedy_without_candidates_takes_the_best_of_the_nearest_unvisited() -> None:
    # On a line with one candidate each, a tour must run out of candidates at the end of the line.
    points = torch.tensor([[[0.0, 0], [1, 0], [2, 0], [3.5, 0], [5.5, 0]]], dtype=torch.float64)
    neighbors = torch.tensor([[[1], [0], [1], [2], [3]]])
    start = torch.log_softmax(torch.tensor([[5.0, 0, 0, 0, 0]]), dim=1)
    asked = []

    def pairs(b: Tensor, i: Tensor, j: Tensor) -> Tensor:
        asked.append((i.tolist(), j.tolist()))
        return j.float()  # the network likes far cities

    sparse = Scores(start, torch.zeros(1, 5, 1), neighbors, pairs)
    assert greedy(sparse, coordinates=points).tours.tolist() == [[[0, 1, 4, 3, 2]]]
    assert asked == [([1, 1, 1], [2, 3, 4])]
    silent = Scores(start, torch.zeros(1, 5, 1), neighbors)
    found = greedy(silent, coordinates=points)
    assert found.tours.tolist() == [[[0, 1, 2, 3, 4]]]
    torch.testing.assert_close(found.log_probabilities, start[:, :1])


@pytest.mark.parametrize("fixed", FIXED)
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("where", ["pairs", "coordinates", "both"])
@pytest.mark.parametrize(
    ("batch", "n", "candidates", "width"), [(1, 5, 1, 3), (2, 23, 2, 9), (3, 40, 4, 20), (1, 70, 3, 33)]
)
def test_numba_beam_equals_reference(
    batch: int, n: int, candidates: int, width: int, where: str, ties: bool, fixed: dict[str, int]
) -> None:
    points, _, sparse = example(batch, n, candidates, ties=ties)
    if where == "coordinates":
        sparse = Scores(sparse.start, sparse.logits, sparse.neighbors)
    settings: dict[str, Any] = {"keep": width, **fixed}
    every: list[dict[str, Any]] = [{}] if where == "pairs" else [{"coordinates": points}]
    if where != "pairs":
        every += [
            {"coordinates": points, "dominance": True},
            {"coordinates": points, "dominance": True, "length_weight": 30.0, "closed": False},
            {"coordinates": points, "length_weight": 30.0, "temperature": 3.0},
        ]
    for extra in every:
        fast, slow = (
            beam(sparse, width, backend=backend, **settings, **extra) for backend in ("numba", "reference")
        )
        assert_permutations(fast.tours)
        assert fast.tours.shape == slow.tours.shape
        assert (fast.tours == slow.tours).all()
        torch.testing.assert_close(fast.log_probabilities, slow.log_probabilities, rtol=1e-5, atol=1e-4)
        if slow.lengths is not None:
            assert torch.equal(fast.lengths, slow.lengths)


@pytest.mark.parametrize("rule", [DistanceRule.EUC_2D, DistanceRule.ATT])
def test_numba_beam_counts_in_the_instance_rule(rule: DistanceRule) -> None:
    points, _, sparse = example(2, 25, 3)
    instances = [Instance(one.numpy() * 40, rule=rule) for one in points]
    fast, slow = (
        beam(sparse, 20, instances=instances, dominance=True, keep=20, backend=backend)
        for backend in ("numba", "reference")
    )
    assert (fast.tours == slow.tours).all()
    assert torch.equal(fast.lengths, slow.lengths)


def test_numba_beam_with_logits_far_apart() -> None:
    points, _, sparse = example(2, 20, 6)
    logits = sparse.logits.clone()
    logits[:, :, :2] += 3000.0  # the weights of the others vanish beside these
    logits[:, 3] = -torch.inf
    far = Scores(sparse.start, logits, sparse.neighbors, sparse.pair_logits)
    fast, slow = (
        beam(far, 15, coordinates=points, keep=15, backend=backend) for backend in ("numba", "reference")
    )
    assert (fast.tours == slow.tours).all()
    torch.testing.assert_close(fast.log_probabilities, slow.log_probabilities, rtol=1e-5, atol=1e-4)


def test_a_pair_is_scored_once_and_all_instances_are_scored_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from georoutenet.decode.cpu import sparse_beam as numba_sparse_beam

    points, _, sparse = example(3, 40, 2)
    calls: list[list[tuple[int, int, int]]] = []

    def pairs(b: Tensor, i: Tensor, j: Tensor) -> Tensor:
        calls.append(list(zip(b.tolist(), i.tolist(), j.tolist(), strict=True)))
        return sparse.pair_logits(b, i, j)

    counted = Scores(sparse.start, sparse.logits, sparse.neighbors, pairs)
    together = beam(counted, 12, coordinates=points, keep=12)
    asked = [pair for call in calls for pair in call]
    assert len(set(asked)) == len(asked) > 0
    assert any(len({b for b, _, _ in call}) > 1 for call in calls)
    monkeypatch.setattr(numba_sparse_beam, "SCRATCH", 1)  # one instance at a time
    alone = beam(counted, 12, coordinates=points, keep=12)
    assert (alone.tours == together.tours).all()


def test_the_table_of_pairs_grows() -> None:
    from georoutenet.decode.cpu.pairs import ASKED, ask, new_pairs, place_of, roomy

    pairs = new_pairs(4 * ASKED)
    keys = [7 * k * k + 3 for k in range(3 * ASKED)]
    for k, key in enumerate(keys):
        if k % ASKED == 0:
            pairs.counts[1] = 0
            pairs = roomy(pairs)
        place = ask(pairs, key)
        assert place >= 0
        pairs.logits[place] = k
    assert len(pairs.keys) == 8 * ASKED
    assert pairs.counts[0] == 3 * ASKED
    assert [pairs.logits[place_of(pairs, key)] for key in keys] == list(range(len(keys)))
    assert ask(pairs, 5) == -1  # no more before the others are answered
    assert ask(pairs, keys[0]) >= 0


def test_memory_is_checked_before_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    from georoutenet.decode.cpu import sparse_beam

    _, _, sparse = example(1, 12, 2)
    monkeypatch.setattr(sparse_beam, "memory_available", lambda device: 10_000)
    with pytest.raises(InputError, match=r"a width of about \d+ would fit"):
        beam(sparse, 1000)
    with pytest.raises(InputError, match=r"below 2\^32"):
        beam(sparse, 2**30)


@pytest.mark.parametrize("fixed", FIXED)
def test_sparse_beam_returns_tours_of_width_one_greedy(fixed: dict[str, int]) -> None:
    points, _, sparse = example(2, 30, 3)
    narrow = beam(sparse, 1, coordinates=points, **fixed)
    assert (narrow.tours == greedy(sparse, coordinates=points, **fixed).tours).all()
    wide = beam(sparse, 25, coordinates=points, dominance=True, **fixed)
    assert_permutations(wide.tours)
    assert (wide.lengths <= narrow.lengths + 1e-9).all()


def test_missing_fallback_and_nan_are_errors() -> None:
    points, _, sparse = example(1, 12, 2)
    with pytest.raises(InputError, match="need coordinates"):
        greedy(Scores(sparse.start, sparse.logits, sparse.neighbors))
    with pytest.raises(InputError, match=r"coordinates must have shape \(1, 12, 2\)"):
        greedy(sparse, coordinates=points[:, :5])
    with pytest.raises(InputError, match="not numbers"):
        greedy(Scores(sparse.start, sparse.logits * torch.nan, sparse.neighbors), coordinates=points)


def test_equal_points_and_one_dimension_do_not_break_the_grid() -> None:
    _, _, sparse = example(1, 40, 2)
    bare = Scores(sparse.start, sparse.logits, sparse.neighbors)
    for points in (torch.zeros(1, 40, 2), torch.linspace(0, 1e6, 40)[None, :, None] * torch.tensor([1.0, 0])):
        fast = greedy(bare, coordinates=points, backend="numba")
        slow = greedy(bare, coordinates=points, backend="reference")
        assert_permutations(fast.tours)
        assert (fast.tours == slow.tours).all()


@pytest.mark.slow
def test_a_hundred_thousand_cities_in_linear_memory() -> None:
    from scipy.spatial import cKDTree

    n, candidates = 100_000, 10
    generator = np.random.default_rng(1)
    points = generator.random((n, 2))
    distances, neighbors = cKDTree(points).query(points, candidates + 1)
    logits = torch.from_numpy(-1000 * distances[:, 1:] + generator.normal(size=(n, candidates))).float()
    scores = Scores(
        torch.full((1, n), -float(np.log(n))), logits[None], torch.from_numpy(neighbors[None, :, 1:])
    )
    tours = torch.cat(
        [
            f.tours
            for f in (
                greedy(scores, coordinates=points[None]),
                sample(scores, 2, seed=1, coordinates=points[None]),
            )
        ],
        1,
    )
    assert_permutations(tours)
