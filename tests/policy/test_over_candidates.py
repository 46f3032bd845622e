"""The policy over candidates as dense logits, against a walk from city to city that knows the lists alone."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from georoutenet.decode import rollout
from georoutenet.decode.replay import replay
from georoutenet.model.config import PolicyConfig
from georoutenet.model.scores import Scores
from georoutenet.policy import Policy


def make(**settings: object) -> Policy:
    torch.manual_seed(1)
    small = {"hidden": 16, "heads": 2, "layers": 2, "neighbors": 3, "rbf": 4}
    policy = Policy(PolicyConfig.from_dict({**small, **settings})).double()
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return policy


def walk(scores: Scores, coords: Tensor, b: int, tour: list[int]) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy of a tour: a softmax over unvisited candidates, and no choice without."""
    assert scores.neighbors is not None
    start = scores.start[b]
    total, entropy = start[tour[0]], -(start.exp() * start).sum()
    for step, city in enumerate(tour[:-1]):
        visited, following = tour[: step + 1], tour[step + 1]
        listed = scores.neighbors[b, city].tolist()
        left = [k for k, other in enumerate(listed) if other not in visited]
        if not left:
            others = [k for k in range(len(tour)) if k not in visited]
            assert following == min(others, key=lambda k: math.dist(coords[b, city], coords[b, k]))
            continue
        assert following in [listed[k] for k in left]
        chances = scores.logits[b, city, left].log_softmax(0)
        total = total + chances[[listed[k] for k in left].index(following)]
        entropy = entropy - (chances.exp() * chances).sum()
    return total, entropy


@pytest.mark.parametrize(("n", "candidates"), [(3, 1), (9, 1), (14, 3), (30, 5)])
@pytest.mark.parametrize("settings", [{}, {"unit": "density", "reach": 0.5}])
def test_tours_and_their_chances_are_those_of_the_lists(
    n: int, candidates: int, settings: dict[str, object]
) -> None:
    policy, coords = make(**settings), torch.rand(2, n, 2, dtype=torch.float64)
    start, logits = policy.over_candidates(coords, candidates)
    tours = rollout(start.detach().float(), logits.detach().float(), samples=6, seed=3)
    chances, entropies = replay(start, logits, tours)
    scores = policy(coords, candidates)
    expected = [walk(scores, coords, b, tour) for b in range(2) for tour in tours[b].tolist()]
    given = torch.stack([total for total, _ in expected]), torch.stack([own for _, own in expected])
    for mine, value in zip((chances.flatten(), entropies.flatten()), given, strict=True):
        torch.testing.assert_close(mine, value, rtol=1e-9, atol=1e-9)
    parameters = list(policy.parameters())
    mine = torch.autograd.grad(chances.sum() + entropies.sum(), parameters, allow_unused=True)
    theirs = torch.autograd.grad(given[0].sum() + given[1].sum(), parameters, allow_unused=True)
    for (name, _), one, other in zip(policy.named_parameters(), mine, theirs, strict=True):
        if one is not None and other is not None:
            torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-8, msg=name)
        else:
            assert one is other is None, name


def test_all_others_as_candidates_are_the_dense_policy() -> None:
    policy, coords = make(), torch.rand(2, 12, 2, dtype=torch.float64)
    start, logits = policy.over_candidates(coords, 50)
    dense = policy.dense(coords)
    torch.testing.assert_close(start, dense[0])
    others = ~torch.eye(12, dtype=torch.bool)
    torch.testing.assert_close(logits[:, others], dense[1][:, others])
