"""Dense scores in blocks with compiled kernels against the two towers in PyTorch."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from georoutenet.kernels.cpu import dense as dense_cpu
from georoutenet.kernels.cpu import dense_numba as kernels
from georoutenet.model.config import PolicyConfig
from georoutenet.policy import Policy


def make(**settings: object) -> Policy:
    torch.manual_seed(3)
    config = PolicyConfig.from_dict({"hidden": 32, "heads": 4, "layers": 3, "neighbors": 5, **settings})
    policy = Policy(config).eval()
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return policy


def cities(batch: int, n: int) -> Tensor:
    """Random instances, and as the last a grid full of ties."""
    torch.manual_seed(n)
    coords = torch.rand(batch, n, 2)
    coords[-1] = torch.stack((torch.arange(n) % 4, torch.arange(n) // 4), -1) / 4
    return coords


@torch.no_grad()
@pytest.mark.parametrize("n", [2, 3, 12, 31, 60])
@pytest.mark.parametrize("settings", [{}, {"layers": 1}, {"unit": "density", "reach": 0.4}])
@pytest.mark.parametrize(("threads", "together"), [(1, 1), (1, 5), (2, 1), (2, 2), (5, 5)])
def test_scores_are_those_of_the_two_towers(
    n: int, settings: dict[str, object], threads: int, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy, coords, kept = make(**settings), cities(5, n), torch.get_num_threads()
    monkeypatch.setattr(dense_cpu, "FEWEST", 1 << 20)
    expected = policy(coords)
    monkeypatch.setattr(dense_cpu, "FEWEST", 1)
    monkeypatch.setattr(dense_cpu, "TOGETHER", together * n * n)
    monkeypatch.setattr(dense_cpu, "BLOCK", 64)
    torch.set_num_threads(threads)
    try:
        found = policy(coords)
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(kept)
    assert not torch.equal(found.logits, expected.logits)
    for mine, value in ((found.start, expected.start), (found.logits, expected.logits)):
        torch.testing.assert_close(mine, value, rtol=0, atol=3e-6 * max(1.0, value.abs().max().item()))


@torch.no_grad()
def test_exponential() -> None:
    x = np.concatenate((np.linspace(-86.9, 86.9, 4001), [0.0, -0.0, 1e-30])).astype(np.float32)
    found = np.array([kernels.exponential(value) for value in x])
    np.testing.assert_allclose(found, np.exp(x.astype(np.float64)), rtol=3e-7)
    beyond = np.array([kernels.exponential(np.float32(value)) for value in (-1000.0, 1000.0)])
    np.testing.assert_allclose(beyond, np.exp([-87.0, 87.0]), rtol=1e-6)


@torch.no_grad()
def test_as_precise_as_the_two_towers() -> None:
    policy, coords = make(), cities(2, 91)
    exact = make().double()(coords.double())  # in float64 there are no kernels
    assert policy.form(coords) == "cpu dense"
    found = policy(coords)
    for mine, value in ((found.start, exact.start), (found.logits, exact.logits)):
        torch.testing.assert_close(
            mine.double(), value, rtol=0, atol=3e-6 * max(1.0, value.abs().max().item())
        )


@torch.no_grad()
def test_many_threads_lose_no_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some take long for a block while others are through with theirs."""
    monkeypatch.setattr(dense_cpu, "BLOCK", 1000)
    policy, coords, kept = make(), cities(1, 100), torch.get_num_threads()
    torch.set_num_threads(1)
    expected = policy(coords).logits
    torch.set_num_threads(4)
    multiplication, calls = dense_cpu._Group._multiplication, itertools.count()

    def slow(self: dense_cpu._Group, *arguments: Any) -> Callable[[slice], None]:
        multiply = multiplication(self, *arguments)

        def late(block: slice) -> None:
            multiply(block)
            if next(calls) % 3 == 0:
                time.sleep(0.01)

        return late

    monkeypatch.setattr(dense_cpu._Group, "_multiplication", slow)
    try:
        for _ in range(8):
            assert torch.equal(policy(coords).logits, expected)
    finally:
        torch.set_num_threads(kept)


@torch.no_grad()
@pytest.mark.parametrize("name", ["update", "first_update", "logits"])
def test_an_error_in_any_thread_is_raised(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    policy, coords, kept = make(), cities(1, 100), torch.get_num_threads()
    monkeypatch.setattr(dense_cpu, "BLOCK", 100)
    calls = []

    def fail(*arguments: object) -> None:
        calls.append(threading.current_thread())
        time.sleep(0.001)
        if calls[-1] is not threading.main_thread() or len(calls) > 500:
            raise MemoryError("no room")

    monkeypatch.setattr(kernels, name, fail)
    torch.set_num_threads(3)
    try:
        with pytest.raises(MemoryError, match="no room"):
            policy(coords)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(kept)


def test_callers_in_threads_leave_the_number_of_threads() -> None:
    policy, coords = make(), cities(1, 100)
    before = torch.get_num_threads()

    def logits(_: int) -> Tensor:
        with torch.no_grad():
            return policy(coords).logits

    expected = logits(0)
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(logits, range(6)))
    assert all(torch.equal(one, expected) for one in found)
    assert torch.get_num_threads() == before
