"""The same scores give the same answer on CPU and GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from georoutenet.decode import RECOMMENDED, Decoding, beam, decode_views, greedy, sample
from georoutenet.decode.cpu import beam as numba_beam
from georoutenet.decode.replay import replay
from georoutenet.model.scores import Scores

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def example(batch: int, n: int) -> tuple[Tensor, Scores]:
    generator = torch.Generator().manual_seed(n)
    points = torch.rand(batch, n, 2, generator=generator, dtype=torch.float64)
    noise = torch.randn(batch, n, n, generator=generator)
    logits = (-20 * torch.cdist(points, points) + noise).float()
    return points, Scores(torch.log_softmax(torch.randn(batch, n, generator=generator), dim=1), logits)


@pytest.mark.parametrize("fixed", [{}, {"start": 3}, {"end": 1}, {"start": 0, "end": 2}])
@pytest.mark.parametrize("n", [5, 50, 101])
def test_greedy_tours_are_identical(n: int, fixed: dict[str, int]) -> None:
    _, scores = example(64, n)
    one, other = greedy(scores, **fixed), greedy(scores.to("cuda"), **fixed)
    assert other.tours.device.type == "cuda"
    assert (one.tours == other.tours.cpu()).all()
    torch.testing.assert_close(one.log_probabilities, other.log_probabilities.cpu(), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("fixed", [{}, {"start": 3, "end": 1}])
def test_samples_are_tours_with_their_log_probabilities(fixed: dict[str, int]) -> None:
    _, scores = example(16, 30)
    drawn = sample(scores.to("cuda"), 7, seed=3, **fixed)
    assert (drawn.tours.sort(dim=2).values.cpu() == torch.arange(30)).all()
    assert (sample(scores.to("cuda"), 7, seed=3, **fixed).tours == drawn.tours).all()
    if not fixed:
        chance, _ = replay(scores.start.cuda(), scores.logits.cuda(), drawn.tours)
        torch.testing.assert_close(drawn.log_probabilities, chance, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"end": 4},
        {"dominance": True},
        {"dominance": True, "length_weight": 30.0},
        {"length_weight": 60.0, "temperature": 2.0},
        {"start": 2, "closed": False},
        {"start": 2, "end": 3, "closed": False, "dominance": True, "length_weight": 60.0},
    ],
)
@pytest.mark.parametrize(("n", "width"), [(7, 40), (50, 100), (100, 32), (130, 125)])
def test_beams_are_equal(
    n: int, width: int, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    points, scores = example(200, n)
    one = beam(scores, width, coordinates=points, keep=3, **settings)
    monkeypatch.setattr(numba_beam, "beam", None)  # nothing may run on the CPU
    other = beam(scores.to("cuda"), width, coordinates=points.cuda(), keep=3, **settings)
    assert one.lengths.shape == other.lengths.shape
    equal = torch.isclose(one.lengths[:, 0], other.lengths[:, 0].cpu(), rtol=1e-9, atol=0)
    assert equal.float().mean() >= 0.99


@pytest.mark.parametrize("width", [125, 1000])
def test_beams_on_a_grid_with_dominance_are_equal(width: int) -> None:
    """Equal ranks and lengths everywhere, and many orders of the same cities."""
    generator = torch.Generator().manual_seed(1)
    points = torch.randint(0, 6, (20, 40, 2), generator=generator).double()
    logits = torch.randint(-3, 4, (20, 40, 40), generator=generator).float()
    scores = Scores(torch.zeros(20, 40).log_softmax(1), logits)
    for closed in (True, False):
        settings: dict[str, Any] = {"dominance": True, "closed": closed}
        one = beam(scores, width, coordinates=points, **settings)
        other = beam(scores.to("cuda"), width, coordinates=points.cuda(), **settings)
        # One normalizer that rounds otherwise can part two beams, so that not all need be equal.
        assert (one.lengths == other.lengths.cpu()).float().mean() >= 0.9


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings", [{"width": 100}, {"width": 1000}, {"width": 125, "dominance": True, "length_weight": 60.0}]
)
def test_ten_thousand_instances_give_the_same_lengths(settings: dict[str, Any]) -> None:
    points, scores = example(10_000, 50)
    one = beam(scores, coordinates=points, **settings)
    other = beam(scores.to("cuda"), coordinates=points.cuda(), **settings)
    equal = torch.isclose(one.lengths, other.lengths.cpu(), rtol=1e-9, atol=0)
    assert equal.float().mean() >= 0.999
    assert (greedy(scores).tours == greedy(scores.to("cuda")).tours.cpu()).all()


def test_views_on_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    points, _ = example(8, 20)

    def policy(coordinates: Tensor) -> Scores:
        logits = -20 * torch.cdist(coordinates, coordinates)
        return Scores(torch.log_softmax(coordinates.sum(dim=2), dim=1), logits)

    wide = Decoding("beam", views=9, width=40)
    ones = [decode_views(policy, points, decoding) for decoding in (wide, RECOMMENDED)]
    monkeypatch.setattr(numba_beam, "beam", None)  # nothing may run on the CPU
    for one, decoding in zip(ones, (wide, RECOMMENDED), strict=True):
        other = decode_views(policy, points, decoding, device="cuda")
        torch.testing.assert_close(one.lengths, other.lengths.cpu(), rtol=1e-2, atol=0)
