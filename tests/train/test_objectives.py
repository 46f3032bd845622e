from __future__ import annotations

from itertools import combinations

import pytest
import torch
from literal_mcs import (
    literal_cost,
    literal_mcs,
    literal_replay,
    literal_single_pg,
)

from georoutenet.errors import InputError
from georoutenet.train.objectives import (
    MultiCandidate,
    advantages,
    best_of_advantage,
    cheapest_other,
    entropy_coefficient,
    multi_candidate_loss,
    single_candidate_loss,
    standardize,
)

PAPER = MultiCandidate()


def random_case(batch: int, size: int, seed: int = 0) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    costs = 5 + torch.rand(batch, size, generator=generator, dtype=torch.float64)
    greedy = 5 + torch.rand(batch, generator=generator, dtype=torch.float64)
    log_probability = -20 * torch.rand(batch, size, generator=generator, dtype=torch.float64)
    entropy = 30 * torch.rand(batch, size, generator=generator, dtype=torch.float64)
    return costs, greedy, log_probability.requires_grad_(), entropy.requires_grad_()


def test_cheapest_other_with_ties() -> None:
    costs = torch.tensor([[3.0, 1.0, 2.0], [1.0, 1.0, 4.0]])
    assert cheapest_other(costs).tolist() == [[1.0, 2.0, 1.0], [1.0, 1.0, 1.0]]


def test_min_baseline_by_hand() -> None:
    costs = torch.tensor([[3.0, 1.0, 2.0], [5.0, 6.0, 7.0]])
    greedy = torch.tensor([1.5, 4.0])
    # instance 0: baselines 1, min(1.5, 2), 1; instance 1: the greedy tour beats every candidate
    assert advantages(costs, greedy, PAPER).tolist() == [[2.0, -0.5, 1.0], [1.0, 2.0, 3.0]]


def test_one_candidate_is_compared_with_greedy() -> None:
    for baseline in ("min", "mean", "leave-one-out"):
        found = advantages(
            torch.tensor([[3.0], [4.0]]), torch.tensor([2.0, 5.0]), MultiCandidate(baseline=baseline)
        )
        assert found.tolist() == [[1.0], [-1.0]]


def test_mean_and_leave_one_out_baselines_by_hand() -> None:
    costs, greedy = torch.tensor([[3.0, 1.0, 2.0]]), torch.tensor([0.0])
    assert advantages(costs, greedy, MultiCandidate(baseline="mean")).tolist() == [[1.0, -1.0, 0.0]]
    # 3 - 1.5, 1 - 2.5, 2 - 2
    assert advantages(costs, greedy, MultiCandidate(baseline="leave-one-out")).tolist() == [[1.5, -1.5, 0.0]]


@pytest.mark.parametrize(("size", "best_of"), [(2, 2), (5, 2), (6, 3), (6, 5), (6, 6)])
def test_best_of_against_enumeration(size: int, best_of: int) -> None:
    costs = random_case(3, size)[0]
    found = best_of_advantage(costs, best_of)
    for b in range(3):
        row = costs[b].tolist()
        subsets = list(combinations(range(size), best_of))
        for m in range(size):
            gains = [
                min(row[i] for i in s) - min(row[i] for i in s if i != m) if m in s else 0.0 for s in subsets
            ]
            assert found[b, m].item() == pytest.approx(size * sum(gains) / len(subsets), abs=1e-12)


def test_best_of_refuses_more_than_the_candidates() -> None:
    with pytest.raises(InputError, match="allowed: 2 to 3"):
        best_of_advantage(torch.rand(2, 3), 4)


def test_settings_are_checked() -> None:
    with pytest.raises(InputError, match="leave-one-out"):
        MultiCandidate(baseline="median")
    with pytest.raises(InputError, match="joint, instance, none"):
        MultiCandidate(standardization="batch")
    with pytest.raises(InputError, match="best_of = 1"):
        MultiCandidate(baseline="mean", best_of=3)
    with pytest.raises(InputError, match="2 or more"):
        MultiCandidate(baseline="best-of")


def test_standardize_uses_the_population_deviation_and_a_floor() -> None:
    joint = standardize(torch.tensor([[1.0, 3.0], [1.0, 3.0]]))
    assert joint.tolist() == [[-1.0, 1.0], [-1.0, 1.0]]
    tiny = standardize(torch.tensor([[0.0, 2e-7]], dtype=torch.float64))
    assert tiny[0, 1].item() == pytest.approx(0.1)  # 1e-7 / 1e-6, not 1
    assert standardize(torch.zeros(2, 3)).tolist() == [[0.0] * 3] * 2
    apart = standardize(torch.tensor([[1.0, 3.0], [10.0, 30.0]]), "instance")
    assert apart.tolist() == [[-1.0, 1.0], [-1.0, 1.0]]
    assert standardize(torch.tensor([[1.0, 3.0]]), "none").tolist() == [[1.0, 3.0]]


def test_entropy_schedule() -> None:
    assert entropy_coefficient(0, 2_500_000) == 0.0125
    assert entropy_coefficient(2_499_999, 2_500_000) == 0.0
    assert entropy_coefficient(5, 11) == pytest.approx(0.00625)
    assert entropy_coefficient(0, 1) == 0.0125
    assert entropy_coefficient(torch.tensor(3.0), 4, first=1.0, last=4.0).item() == 4.0


def test_mcs_by_hand() -> None:
    # one instance, costs 4 and 2, greedy 3: advantages 4 - 2 and 2 - 3, standardized +1 and -1
    log_probability = torch.tensor([[-1.0, -3.0]], requires_grad=True)
    loss, diagnostics = multi_candidate_loss(
        torch.tensor([[4.0, 2.0]]),
        torch.tensor([3.0]),
        log_probability,
        torch.tensor([[5.0, 7.0]]),
        n=6,
        entropy_coefficient=0.5,
        settings=PAPER,
    )
    # policy gradient (-1 + 3) / 2 = 1; winner gain 1, guidance 3 / 6; entropy 6
    assert loss.item() == pytest.approx(1 + 0.5 * 0.5 - 0.5 * 6)
    loss.backward()
    assert log_probability.grad is not None
    assert log_probability.grad.tolist() == [[0.5, pytest.approx(-0.5 - 0.5 / 6)]]
    assert diagnostics["gain"].item() == 1.0
    assert diagnostics["best_cost"].item() == 2.0
    assert not any(value.requires_grad for value in diagnostics.values())


@pytest.mark.parametrize(("floor", "coefficient"), [(0.0, 0.5), (0.9, 0.5), (1.1, 2.0), (7 / 6, 2.0)])
@pytest.mark.parametrize("on_device", [False, True])
def test_entropy_below_its_floor(floor: float, coefficient: float, on_device: bool) -> None:
    """Six nats over six cities: one nat a city."""
    entropy = torch.tensor([[5.0, 7.0]], requires_grad=True)
    settings = MultiCandidate(guidance=0.0, entropy_floor=floor, entropy_below=2.0)
    loss, _ = multi_candidate_loss(
        torch.ones(1, 2),
        torch.ones(1),
        torch.zeros(1, 2),
        entropy,
        n=6,
        entropy_coefficient=torch.tensor(0.5) if on_device else 0.5,
        settings=settings,
    )
    assert loss.item() == pytest.approx(-coefficient * 6)
    loss.backward()
    assert entropy.grad is not None
    assert entropy.grad.tolist() == [[-coefficient / 2] * 2]


def test_single_candidate_by_hand() -> None:
    log_probability = torch.tensor([[-1.0], [-2.0]], requires_grad=True)
    loss, _ = single_candidate_loss(torch.tensor([[5.0], [4.0]]), torch.tensor([3.0, 4.0]), log_probability)
    assert loss.item() == pytest.approx((1 * -1 + -1 * -2) / 2)
    loss.backward()
    assert log_probability.grad is not None
    assert log_probability.grad.tolist() == [[0.5], [-0.5]]


@pytest.mark.parametrize(("batch", "size"), [(1, 1), (1, 3), (4, 1), (5, 2), (3, 3), (2, 7)])
def test_mcs_against_the_literal_loop(batch: int, size: int) -> None:
    for seed in range(3):
        costs, greedy, log_probability, entropy = random_case(batch, size, seed)
        coefficient = entropy_coefficient(3, 10)
        loss, _ = multi_candidate_loss(
            costs, greedy, log_probability, entropy, n=9, entropy_coefficient=coefficient, settings=PAPER
        )
        found = torch.autograd.grad(loss, (log_probability, entropy))
        literal = literal_mcs(
            costs.tolist(),
            greedy.tolist(),
            log_probability,
            entropy,
            n=9,
            guidance=0.5,
            step=3,
            total_steps=10,
        )
        expected = torch.autograd.grad(literal, (log_probability, entropy))
        assert loss.item() == pytest.approx(literal.item(), rel=1e-12)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def test_single_candidate_against_the_literal_loop() -> None:
    costs, greedy, log_probability, _ = random_case(6, 1)
    loss, _ = single_candidate_loss(costs, greedy, log_probability)
    literal = literal_single_pg(costs.tolist(), greedy.tolist(), log_probability)
    assert loss.item() == pytest.approx(literal.item(), rel=1e-12)
    torch.testing.assert_close(
        torch.autograd.grad(loss, log_probability), torch.autograd.grad(literal, log_probability)
    )


def test_single_candidate_is_mcs_without_scale() -> None:
    """One candidate, no guidance, no entropy: only the division by the deviation remains between the two."""
    costs, greedy, log_probability, entropy = random_case(6, 1)
    single, _ = single_candidate_loss(costs, greedy, log_probability)
    multi, _ = multi_candidate_loss(
        costs,
        greedy,
        log_probability,
        entropy,
        n=9,
        entropy_coefficient=0.0,
        settings=MultiCandidate(guidance=0.0),
    )
    deviation = (costs[:, 0] - greedy).std(correction=0)
    assert single.item() == pytest.approx((multi * deviation).item(), rel=1e-12)


def test_gradient_with_respect_to_scores_matches_the_literal_algorithm() -> None:
    """Algorithm 1 from scores to loss, both ways, gradients with respect to the scores included."""
    from georoutenet.decode.costs import tour_costs
    from georoutenet.decode.replay import replay

    generator = torch.Generator().manual_seed(5)
    batch, size, n = 3, 3, 6
    coords = torch.rand(batch, n, 2, generator=generator, dtype=torch.float64)
    raw = torch.randn(batch, n, generator=generator, dtype=torch.float64).requires_grad_()
    logits = torch.randn(batch, n, n, generator=generator, dtype=torch.float64).requires_grad_()
    tours = torch.stack(
        [torch.stack([torch.randperm(n, generator=generator) for _ in range(size + 1)]) for _ in range(batch)]
    )
    start = raw.log_softmax(1)

    costs = tour_costs(coords, tours)
    log_probability, entropy = replay(start, logits, tours[:, :size])
    loss, _ = multi_candidate_loss(
        costs[:, :size],
        costs[:, size],
        log_probability,
        entropy,
        n=n,
        entropy_coefficient=0.01,
        settings=PAPER,
    )
    found = torch.autograd.grad(loss, (raw, logits), retain_graph=True)

    pairs = [
        [literal_replay(start[b], logits[b], tours[b, m].tolist()) for m in range(size)] for b in range(batch)
    ]
    reference = [
        [literal_cost(coords[b], tours[b, m].tolist()) for m in range(size + 1)] for b in range(batch)
    ]
    literal = literal_mcs(
        [row[:size] for row in reference],
        [row[size] for row in reference],
        torch.stack([torch.stack([p[0] for p in row]) for row in pairs]),
        torch.stack([torch.stack([p[1] for p in row]) for row in pairs]),
        n=n,
        guidance=0.5,
        step=0,
        total_steps=1,
        entropy_first=0.01,
    )
    expected = torch.autograd.grad(literal, (raw, logits))
    assert loss.item() == pytest.approx(literal.item(), rel=1e-6)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)
