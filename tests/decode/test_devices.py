"""The same scores give the same answer on CPU and GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from georoutenet.decode import beam, greedy, replay, sample, solve_views
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
    "settings", [{}, {"end": 4}, {"dominance": True, "length_weight": 30.0}, {"start": 2, "closed": False}]
)
@pytest.mark.parametrize(("n", "width"), [(7, 40), (50, 100), (100, 32)])
def test_beams_are_equal(n: int, width: int, settings: dict[str, Any]) -> None:
    points, scores = example(200, n)
    one = beam(scores, width, coordinates=points, keep=3, **settings)
    other = beam(scores.to("cuda"), width, coordinates=points.cuda(), keep=3, **settings)
    equal = torch.isclose(one.lengths[:, 0], other.lengths[:, 0].cpu(), rtol=1e-9, atol=0)
    assert equal.float().mean() >= 0.99


def test_views_on_the_gpu() -> None:
    points, _ = example(8, 20)

    def policy(coordinates: Tensor) -> Scores:
        logits = -20 * torch.cdist(coordinates, coordinates)
        return Scores(torch.log_softmax(coordinates.sum(dim=2), dim=1), logits)

    one = solve_views(policy, points, views=9, width=40)
    other = solve_views(policy, points, views=9, width=40, device="cuda")
    torch.testing.assert_close(one.lengths, other.lengths.cpu(), rtol=1e-2, atol=0)
