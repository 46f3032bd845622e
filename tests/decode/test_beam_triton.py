from __future__ import annotations

import os
from dataclasses import replace
from itertools import islice, permutations
from typing import Any

import pytest
import torch
from torch import Tensor

from georoutenet.errors import InputError

# Without a GPU the kernels run in Triton's interpreter, which must be asked for before the first import.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
pytest.importorskip("triton", reason="triton is not installed")

from georoutenet.decode import api as decoders
from georoutenet.decode import reference
from georoutenet.decode.beam_task import BeamTask, prepare_beam
from georoutenet.decode.common import prepare
from georoutenet.decode.costs import as_costs
from georoutenet.decode.cpu import beam as numba_beam
from georoutenet.decode.gpu import beam as beam_triton
from georoutenet.decode.gpu.beam import beam_tours
from georoutenet.model.scores import Scores
from georoutenet.problem.instance import DistanceRule, Instance

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

# The interpreter computes every lane, also those without a beam.
pytestmark = pytest.mark.filterwarnings("ignore:(divide by zero|invalid value) encountered:RuntimeWarning")


def random_scores(batch: int, n: int, seed: int = 0, scale: float = 2.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    start = torch.randn(batch, n, generator=generator).log_softmax(1)
    return start.to(DEVICE), (torch.randn(batch, n, n, generator=generator) * scale).to(DEVICE)


def random_instances(batch: int, n: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Coordinates, and scores that favor short edges, as a trained policy's do."""
    generator = torch.Generator().manual_seed(seed)
    coords = torch.rand(batch, n, 2, generator=generator, dtype=torch.float64)
    start = torch.randn(batch, n, generator=generator).log_softmax(1)
    noise = torch.randn(batch, n, n, generator=generator)
    logits = (-30 * torch.cdist(coords, coords) + noise).float()
    return coords.to(DEVICE), start.to(DEVICE), logits.to(DEVICE)


def lengths(distances: Tensor, tours: Tensor, *, closed: bool = True) -> Tensor:
    batch = torch.arange(len(tours), device=tours.device)[:, None, None]
    edges = distances[batch, tours, tours.roll(-1, dims=2)]
    return (edges if closed else edges[..., :-1]).sum(dim=2)


def plain_task(start: Tensor, logits: Tensor, width: int) -> BeamTask:
    task = prepare(Scores(start.cpu(), logits.cpu()))
    return prepare_beam(task, None, width=width, keep=width, dominance=False, length_weight=0.0)


def compare(start: Tensor, logits: Tensor, width: int) -> None:
    tours, log_probability = beam_tours(start, logits, width=width)
    expected = reference.beam(plain_task(start, logits, width))
    assert torch.equal(tours.cpu(), expected.tours)
    torch.testing.assert_close(log_probability.cpu(), expected.log_probabilities, rtol=1e-6, atol=2e-6)


@pytest.mark.parametrize(
    ("batch", "n", "width"), [(2, 1, 1), (2, 2, 3), (1, 4, 50), (2, 5, 10), (1, 7, 3), (1, 7, 50), (1, 12, 3)]
)
def test_equals_the_reference(batch: int, n: int, width: int) -> None:
    compare(*random_scores(batch, n, seed=n), width)


@pytest.mark.slow
@pytest.mark.parametrize(("n", "width"), [(12, 10), (12, 50), (33, 3), (33, 50), (40, 2)])
def test_equals_the_reference_at_more_shapes(n: int, width: int) -> None:
    compare(*random_scores(1, n, seed=n), width)


@pytest.mark.parametrize(("n", "batch"), [(6, 2), (33, 1)])
def test_width_one_is_greedy(n: int, batch: int) -> None:
    start, logits = random_scores(batch, n, seed=1)
    tours, _ = beam_tours(start, logits, width=1)
    assert torch.equal(tours.cpu(), reference.greedy(prepare(Scores(start.cpu(), logits.cpu()))).tours)


def test_a_beam_as_wide_as_the_tree_is_exhaustive() -> None:
    start, logits = random_scores(2, 4, scale=1.0)
    tours, log_probability = beam_tours(start, logits, width=24)
    for found in tours.tolist():
        assert sorted(found) == sorted(map(list, permutations(range(4))))
    torch.testing.assert_close(log_probability.exp().sum(dim=1).cpu(), torch.ones(2))


def test_ties_go_to_the_lexicographically_first_tours() -> None:
    start, logits = torch.full((1, 6), -1.5, device=DEVICE), torch.zeros(1, 6, 6, device=DEVICE)
    tours, log_probability = beam_tours(start, logits, width=11)
    assert tours[0].tolist() == [list(tour) for tour in islice(permutations(range(6)), 11)]
    assert len(set(log_probability[0].tolist())) == 1


def test_whole_number_logits_tie_at_the_threshold_as_in_the_reference() -> None:
    generator = torch.Generator().manual_seed(2)
    logits = torch.randint(0, 2, (1, 7, 7), generator=generator).float().to(DEVICE)
    compare(torch.zeros(1, 7, device=DEVICE), logits, 9)


def test_logits_far_apart_and_impossible_edges() -> None:
    start, logits = random_scores(2, 6, seed=5)
    logits[0, :, 3:] -= 2000.0  # the weights of cities 3 to 5 vanish in float64
    logits[1, :, 4] = -torch.inf
    compare(start, logits, 8)


def test_forbidden_starts_leave_fewer_tours() -> None:
    start, logits = random_scores(2, 4, seed=6)
    start[0, [0, 1, 3]] = -torch.inf
    tours, log_probability = beam_tours(start, logits, width=10)
    assert (tours[0, :6, 0] == 2).all()
    assert (tours[0, 6:] == -1).all()
    assert log_probability[0, :6].isfinite().all()
    assert (log_probability[0, 6:] == -torch.inf).all()
    assert log_probability[1].isfinite().all()


@pytest.mark.parametrize("closed", [True, False])
def test_distances_rank_by_length(closed: bool) -> None:
    coords, start, logits = random_instances(2, 5, seed=7)
    distances = (torch.cdist(coords, coords) * 100).round()  # whole numbers, so equal lengths are equal
    all_tours, all_chances = beam_tours(start, logits, width=9)
    tours, chances = beam_tours(start, logits, width=9, distances=distances, closed=closed, keep=5)
    order = lengths(distances, all_tours, closed=closed).sort(dim=1, stable=True).indices[:, :5]
    assert torch.equal(tours, all_tours.gather(1, order[..., None].expand(-1, -1, 5)))
    assert torch.equal(chances, all_chances.gather(1, order))


def test_keep_takes_the_first_tours_in_the_type_asked_for() -> None:
    start, logits = random_scores(1, 5)
    tours, log_probability = beam_tours(start, logits, width=7)
    first, first_log_probability = beam_tours(start, logits.double(), width=7, keep=2, dtype=torch.int16)
    assert first.dtype == torch.int16
    assert torch.equal(first.long(), tours[:, :2])
    assert torch.equal(first_log_probability, log_probability[:, :2])


@pytest.mark.parametrize("rule", [DistanceRule.EUCLIDEAN, DistanceRule.EUC_2D, None])
def test_a_task_gives_what_the_reference_gives(
    rule: DistanceRule | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    coords, start, logits = random_instances(3, 5, seed=8)
    instances = [Instance(points * 50, rule=rule) for points in coords.cpu().numpy()] if rule else None
    task = prepare(Scores(start, logits), start=[0, 2, 4])
    costs = as_costs(3, 5, start.device, instances=instances)
    task = prepare_beam(task, costs, width=30, keep=40, dominance=False, length_weight=0.0)
    assert beam_triton.supports(task)
    monkeypatch.setattr(beam_triton, "SCRATCH", 3000)  # two instances at a time
    found, expected = beam_triton.beam(task), reference.beam(task)
    assert found.tours.shape == (3, 24, 5)
    torch.testing.assert_close(found.log_probabilities, expected.log_probabilities)
    if rule is None:
        assert found.lengths is None
    else:
        torch.testing.assert_close(found.lengths, expected.lengths, rtol=1e-12, atol=0)
    assert torch.equal(found.tours, expected.tours)


def settled_task(
    scores: Scores, points: Tensor, width: int, *, closed: bool = True, fixed: dict[str, int], **settings: Any
) -> BeamTask:
    costs = as_costs(*scores.start.shape, scores.start.device, coordinates=points, closed=closed)
    settled = {"keep": width, "dominance": False, "length_weight": 0.0, **settings}
    return prepare_beam(prepare(scores, **fixed), costs, width=width, **settled)


def grid_scores(batch: int, n: int, seed: int = 0) -> tuple[Tensor, Scores]:
    """Cities on a coarse grid and whole logits: equal ranks, equal lengths, and states met many times."""
    generator = torch.Generator().manual_seed(seed)
    points = torch.randint(0, 4, (batch, n, 2), generator=generator).double()
    logits = torch.randint(-2, 3, (batch, n, n), generator=generator).float()
    start = torch.zeros(batch, n).log_softmax(1)
    return points.to(DEVICE), Scores(start.to(DEVICE), logits.to(DEVICE))


def assert_equals_numba(task: BeamTask) -> None:
    found, expected = beam_triton.beam(task), numba_beam.beam(task.on_cpu())
    assert found.tours.shape == expected.tours.shape
    assert torch.equal(found.tours.cpu(), expected.tours)
    assert torch.equal(found.lengths.cpu(), expected.lengths)
    torch.testing.assert_close(
        found.log_probabilities.cpu(), expected.log_probabilities, rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("grid", [False, True])
@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize(
    ("dominance", "length_weight", "fixed"),
    [
        (True, 60.0, {}),
        (True, 0.0, {"start": 2}),
        (True, 60.0, {"start": 1, "end": 3}),
        (False, 60.0, {"end": 0}),
    ],
)
def test_settings_give_the_tours_of_numba(
    dominance: bool, length_weight: float, fixed: dict[str, int], closed: bool, grid: bool
) -> None:
    points, scores = grid_scores(1, 5)
    if not grid:
        points, start, logits = random_instances(1, 5, seed=4)
        scores = Scores(start, logits)
    settings = {"dominance": dominance, "length_weight": length_weight}
    assert_equals_numba(settled_task(scores, points, 7, closed=closed, fixed=fixed, **settings))


@pytest.mark.parametrize(
    ("n", "width", "fixed", "closed", "length_weight"),
    [
        (1, 3, {}, True, 30.0),
        (2, 3, {}, True, 0.0),
        (2, 1, {"start": 1, "end": 0}, False, 30.0),
        (3, 40, {"end": 1}, True, 0.0),
        (8, 1, {}, True, 30.0),
        (8, 13, {"start": 0, "end": 7}, True, 0.0),
        pytest.param(33, 2, {"end": 32}, False, 30.0, marks=pytest.mark.slow),
    ],
)
def test_dominance_gives_the_tours_of_numba(
    n: int, width: int, fixed: dict[str, int], closed: bool, length_weight: float
) -> None:
    points, scores = grid_scores(1, n)
    settings = {"dominance": True, "length_weight": length_weight}
    assert_equals_numba(settled_task(scores, points, width, closed=closed, fixed=fixed, **settings))


@pytest.mark.parametrize("flat", [False, True])
def test_dominance_with_more_duplicates_than_one_round_holds(flat: bool) -> None:
    """From one start many orders of a set come up: the walk passes 64 children, all that a round holds.

    With equal logits the first round ends in the middle of a tie.
    """
    n = 7 if flat else 8
    points = torch.rand(1, n, 2, generator=torch.Generator().manual_seed(2)).double().to(DEVICE)
    logits = torch.zeros(1, n, n, device=DEVICE) if flat else (-30 * torch.cdist(points, points)).float()
    scores = Scores(torch.zeros(1, n, device=DEVICE).log_softmax(1), logits)
    assert_equals_numba(settled_task(scores, points, 32, dominance=True, fixed={"start": 0}))


def test_a_temperature_is_folded_into_the_scores() -> None:
    points, start, logits = random_instances(1, 6, seed=5)
    fixed = {"temperature": 2.5}
    task = settled_task(Scores(start, logits), points, 5, dominance=True, fixed=fixed)  # type: ignore[arg-type]
    assert_equals_numba(task)


def test_logits_far_apart_with_a_length_weight() -> None:
    points, start, logits = random_instances(1, 6, seed=6)
    logits[0, :, 3:] -= 2000.0
    settings = {"dominance": True, "length_weight": 20.0, "fixed": {}}
    assert_equals_numba(settled_task(Scores(start, logits), points, 8, **settings))


@pytest.mark.slow
@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("grid", [False, True])
def test_dominance_at_more_beams(grid: bool, closed: bool) -> None:
    points, scores = grid_scores(2, 12)
    if not grid:
        points, start, logits = random_instances(2, 12, seed=4)
        scores = Scores(start, logits)
    settings = {"dominance": True, "length_weight": 60.0, "fixed": {}}
    assert_equals_numba(settled_task(scores, points, 70, closed=closed, **settings))


def test_tasks_beyond_the_kernel_are_left_to_the_cpu() -> None:
    start, logits = random_scores(1, 5)
    assert beam_triton.supports(plain_task(start, logits, beam_triton.MAX_WIDTH))
    assert not beam_triton.supports(plain_task(start, logits, beam_triton.MAX_WIDTH + 1))
    neighbors = torch.arange(1, 5).expand(1, 5, 4)
    sparse = replace(plain_task(start, logits, 3), neighbors=neighbors)
    assert not beam_triton.supports(sparse)


def test_wrong_inputs_are_refused() -> None:
    start, logits = random_scores(2, 5)
    with pytest.raises(InputError, match=r"\(2, 5, 5\)"):
        beam_tours(start, logits[:, :4], width=3)
    with pytest.raises(InputError, match="width"):
        beam_tours(start, logits, width=0)
    with pytest.raises(InputError, match="give distances"):
        beam_tours(start, logits, width=3, dominance=True)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("batch", "n", "width"), [(64, 20, 100), (16, 50, 32), (8, 50, 1000), (4, 100, 1000), (2, 200, 257)]
)
def test_equals_the_reference_on_the_gpu(batch: int, n: int, width: int) -> None:
    """Rounding may swap children at the threshold, so lengths and log-probabilities are compared."""
    coords, start, logits = random_instances(batch, n, seed=n)
    distances = torch.cdist(coords, coords)
    tours, log_probability = beam_tours(start, logits, width=width)
    assert (tours.sort(dim=2).values == torch.arange(n, device=DEVICE)).all()
    expected = reference.beam(plain_task(start, logits, width))
    expected_tours, chances = expected.tours.to(DEVICE), expected.log_probabilities.to(DEVICE)
    torch.testing.assert_close(log_probability[:, 0], chances[:, 0], rtol=1e-5, atol=1e-5)
    for found, wanted in zip(tours.tolist(), expected.tours.tolist(), strict=True):
        common = set(map(tuple, found)) & set(map(tuple, wanted))
        assert len(common) >= 0.98 * len(wanted)
    difference = (lengths(distances, tours).amin(1) - lengths(distances, expected_tours).amin(1)).abs()
    assert (difference < 1e-9).float().mean() >= 0.95


@pytest.mark.gpu
def test_the_cheapest_tours_are_those_of_the_cpu() -> None:
    coords, start, logits = random_instances(1000, 50, seed=9)
    distances = torch.cdist(coords, coords)
    tours, _ = beam_tours(start, logits, width=100, distances=distances, keep=1)
    scores = Scores(start.cpu(), logits.cpu())
    expected = decoders.beam(scores, 100, coordinates=coords.cpu(), backend="numba")
    difference = (lengths(distances, tours) - expected.lengths.to(DEVICE)).abs()
    assert (difference < 1e-9).float().mean() >= 0.999


@pytest.mark.gpu
@pytest.mark.parametrize("num_warps", [4, 8, 16, 32])
def test_the_launch_shape_does_not_change_the_beams(num_warps: int) -> None:
    _, start, logits = random_instances(32, 50, seed=3)
    tours, log_probability = beam_tours(start, logits, width=1000)
    for registers in (None, 64):
        again, log_again = beam_tours(start, logits, width=1000, num_warps=num_warps, registers=registers)
        assert torch.equal(again, tours)
        assert torch.equal(log_again, log_probability)
