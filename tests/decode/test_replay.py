"""Replay against the literal step-by-step product of Eq. tour_factorization."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from georoutenet.decode.replay import replay


def step_loop(start: Tensor, logits: Tensor, tours: Tensor) -> tuple[Tensor, Tensor]:
    batch, count, n = tours.shape
    chances, entropies = [], []
    for b in range(batch):
        for m in range(count):
            tour = tours[b, m].tolist()
            chance = start[b, tour[0]]
            entropy = -(start[b].exp() * start[b]).sum()
            for step in range(n - 1):
                log_p = torch.log_softmax(logits[b, tour[step], tour[step + 1 :]], dim=0)
                chance = chance + log_p[0]
                entropy = entropy - (log_p.exp() * log_p).sum()
            chances.append(chance)
            entropies.append(entropy)
    return torch.stack(chances).reshape(batch, count), torch.stack(entropies).reshape(batch, count)


def example(batch: int, count: int, n: int, sharpness: float = 3.0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(100 * batch + 10 * count + n)
    logits = sharpness * torch.randn(batch, n, n, generator=generator, dtype=torch.float64)
    start = torch.log_softmax(torch.randn(batch, n, generator=generator, dtype=torch.float64), dim=1)
    tours = torch.rand(batch, count, n, generator=generator).argsort(dim=2)
    return start, logits, tours


@pytest.mark.parametrize(("batch", "count", "n"), [(1, 1, 1), (2, 3, 2), (3, 1, 3), (2, 4, 7), (1, 2, 17)])
def test_values_and_gradients_equal_the_step_loop(batch: int, count: int, n: int) -> None:
    start, logits, tours = example(batch, count, n)
    start.requires_grad_()
    logits.requires_grad_()
    weight = torch.linspace(0.5, 2.0, batch * count, dtype=torch.float64).reshape(batch, count)
    results = []
    for function in (replay, step_loop):
        chance, entropy = function(start, logits, tours)
        gradients = torch.autograd.grad(
            (weight * chance).sum() + (weight.flip(0) * entropy).sum(),
            (start, logits),
            allow_unused=True,
            materialize_grads=True,
        )
        results.append((chance, entropy, *gradients))
    for mine, literal in zip(*results, strict=True):
        torch.testing.assert_close(mine, literal, rtol=1e-10, atol=1e-12)


def test_visited_cities_far_more_probable_than_the_rest_do_not_underflow() -> None:
    start, logits, tours = example(1, 2, 9)
    logits[0, :, :2] += 5000.0  # after the first steps all probable cities are gone
    tours = torch.tensor([[[0, 1, *range(2, 9)], [1, 0, *range(8, 1, -1)]]])
    chance, entropy = replay(start.float(), logits.float(), tours)
    wanted_chance, wanted_entropy = step_loop(start, logits, tours)
    torch.testing.assert_close(chance, wanted_chance.float(), rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(entropy, wanted_entropy.float(), rtol=1e-4, atol=1e-3)


def test_zero_probabilities_leave_no_nan_in_gradients() -> None:
    start, logits, tours = example(2, 3, 6)
    start[0, 2] = -torch.inf
    logits[0, :, 3] = -torch.inf
    logits[1].fill_diagonal_(-torch.inf)
    start.requires_grad_()
    logits.requires_grad_()
    chance, entropy = replay(start, logits, tours)
    assert torch.isfinite(entropy).all()
    assert torch.isfinite(chance[1]).all()
    gradients = torch.autograd.grad(entropy.sum() + chance[1].sum(), (start, logits))
    assert all(torch.isfinite(gradient).all() for gradient in gradients)


def test_float32_stays_float32_and_close_to_float64() -> None:
    start, logits, tours = example(2, 3, 40)
    chance, entropy = replay(start.float(), logits.float(), tours)
    exact_chance, exact_entropy = replay(start, logits, tours)
    assert chance.dtype == entropy.dtype == torch.float32
    torch.testing.assert_close(chance.double(), exact_chance, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(entropy.double(), exact_entropy, rtol=1e-5, atol=1e-4)


@pytest.mark.slow
def test_replay_compiles_into_one_graph() -> None:
    start, logits, tours = example(2, 3, 6)
    logits.requires_grad_()
    compiled = torch.compile(replay, fullgraph=True, backend="aot_eager")
    for mine, eager in zip(compiled(start, logits, tours), replay(start, logits, tours), strict=True):
        torch.testing.assert_close(mine, eager)
    chance, entropy = compiled(start, logits, tours)
    (gradient,) = torch.autograd.grad(chance.sum() + entropy.sum(), logits)
    chance, entropy = replay(start, logits, tours)
    (wanted,) = torch.autograd.grad(chance.sum() + entropy.sum(), logits)
    torch.testing.assert_close(gradient, wanted)
