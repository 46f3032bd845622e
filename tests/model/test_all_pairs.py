"""GeoRouteNet with one set of edge states in PyTorch against its two towers: scores and gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from georoutenet.model import all_pairs
from georoutenet.model.config import PolicyConfig
from georoutenet.policy import Policy


def make(dtype: torch.dtype = torch.float64, layers: int = 3) -> Policy:
    torch.manual_seed(2)
    made = Policy(PolicyConfig(hidden=16, heads=2, layers=layers, neighbors=4)).to(dtype)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return made


def cities(batch: int, n: int) -> Tensor:
    """Random instances, and as the last a grid full of ties."""
    torch.manual_seed(n)
    coords = torch.rand(batch, n, 2, dtype=torch.float64)
    coords[-1] = torch.stack((torch.arange(n) % 4, torch.arange(n) // 4), -1) / 4
    return coords


def scores_and_gradients(made: Policy, scores: Callable[[], tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    """Both scores, and the gradients of a fixed random function of them."""
    made.zero_grad()
    start, logits = scores()
    torch.manual_seed(5)
    weights = torch.randn(start.shape).to(start), torch.randn(logits.shape).to(logits)
    ((start * weights[0]).sum() + (logits * weights[1]).sum()).backward()
    gradients = {name: p.grad.clone() for name, p in made.named_parameters() if p.grad is not None}
    return {"start": start.detach(), "logits": logits.detach(), **gradients}


def of_two_towers(made: Policy, coords: Tensor, width: int | None) -> dict[str, Tensor]:
    near = made._near(made._scaled(coords), width)
    return scores_and_gradients(made, lambda: made._by_rows(coords, near))


def agree(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(
            found[name], value, rtol=tolerance, atol=tolerance, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.parametrize("n", [1, 2, 3, 5, 12, 30])
@pytest.mark.parametrize("fixed", [False, True])
def test_one_set_of_edge_states_equals_the_two_towers(n: int, fixed: bool) -> None:
    made, coords, width = make(), cities(3, n), min(n, 7) if fixed else None
    expected = of_two_towers(made, coords, width)
    found = scores_and_gradients(made, lambda: made.dense(coords, width))
    agree(found, expected, 1e-11)


def test_compiled() -> None:
    """Traced by the compiler, forward and backward."""
    made, coords = make(layers=2), cities(2, 11)
    compiled = torch.compile(made.dense, backend="aot_eager", fullgraph=True, dynamic=False)
    found = scores_and_gradients(made, lambda: compiled(coords, 5))
    agree(found, of_two_towers(made, coords, 5), 1e-11)


def test_precision_of_bfloat16() -> None:
    """Gradients in bfloat16 are about as far from the exact ones as those of the two towers."""
    exact, rounded, coords = make(), make(torch.float32), cities(4, 20)
    rounded.load_state_dict(exact.state_dict())
    rounded.compute_dtype = torch.bfloat16
    expected = of_two_towers(exact, coords, 9)
    towers = of_two_towers(rounded, coords.float(), 9)
    found = scores_and_gradients(rounded, lambda: rounded.dense(coords.float(), 9))

    def off(values: dict[str, Tensor]) -> float:
        both = [
            torch.cat([each[name].double().flatten() for name in expected if "." in name])
            for each in (values, expected)
        ]
        return ((both[0] - both[1]).norm() / both[1].norm()).item()

    assert off(found) < 1.5 * off(towers) < 0.15


def test_gradients_of_near_pairs_are_added_where_they_lie() -> None:
    e = torch.rand(1, 3, 3, 2, dtype=torch.float64, requires_grad=True)
    index = torch.tensor([[[0, 2], [1, 0], [2, 1]]])
    same, near = all_pairs.ProductAndNear.apply(e, torch.eye(2).double(), all_pairs.rows_of(index))
    assert torch.equal(near[1], e[0, 0, 2])
    (2 * same).sum().backward(retain_graph=True)
    assert torch.equal(e.grad, torch.full_like(e, 2))
    e.grad = None
    (2 * same.sum() + 3 * near.sum()).backward()
    expected = torch.full_like(e, 2)
    for i, row in enumerate(index[0].tolist()):
        expected[0, i, row] += 3
    assert torch.equal(e.grad, expected)


@pytest.mark.parametrize("n", [1, 2, 7])
def test_sums_by_product(n: int) -> None:
    x = torch.rand(3, n, n, 4, dtype=torch.float64)
    of_sources, of_targets = all_pairs.sums_by_product(x)
    torch.testing.assert_close(of_sources, x.sum(2))
    torch.testing.assert_close(of_targets, x.sum(1))
