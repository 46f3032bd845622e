"""A whole training pass through every CUDA kernel on emulated blocks: that they are called as is meant."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from emulated import emulate_kernels, off
from torch import Tensor

from georoutenet.kernels import encoder as fused
from georoutenet.model.config import PolicyConfig
from georoutenet.policy import Policy


@pytest.fixture
def launched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Kernels are emulated as on Hopper; the names of those that ran."""
    pytest.importorskip("triton", reason="Triton is not installed")
    monkeypatch.setattr(fused, "fits", lambda config, dtype, device: dtype == torch.bfloat16)
    return emulate_kernels(tmp_path, monkeypatch)


def scores_and_gradients(policy: Policy, coords: Tensor) -> dict[str, Tensor]:
    policy.zero_grad()
    start, logits = policy.dense(coords, 11)
    torch.manual_seed(2)
    sum((x * torch.randn(x.shape)).sum() for x in (start, logits)).backward()
    grads = {name: p.grad.flatten() for name, p in policy.named_parameters() if p.grad is not None}
    edges = torch.cat([grad for name, grad in grads.items() if "edge" in name])
    starts = torch.cat([grad for name, grad in grads.items() if "start" in name])
    return {
        "start": start.detach(),
        "logits": logits.detach(),
        "of edges": edges,
        "of start": starts,
        "of all": torch.cat(list(grads.values())),
    }


@pytest.mark.slow
def test_a_pass_through_all_kernels(launched: list[str]) -> None:
    torch.manual_seed(1)
    policy, coords = Policy(PolicyConfig()).train(), torch.rand(3, 14, 2)
    policy.fused = False
    exact = scores_and_gradients(policy, coords)
    policy.compute_dtype = torch.bfloat16
    narrow = scores_and_gradients(policy, coords)
    assert not launched
    policy.fused = True
    assert policy.is_fused()
    mine = scores_and_gradients(policy, coords)
    worst = {name: (off(mine[name], value), off(narrow[name], value)) for name, value in exact.items()}
    assert all(here < 1.5 * plain + 1e-3 for here, plain in worst.values()), worst
    policy.recompute = 1
    again = scores_and_gradients(policy, coords)
    assert all(torch.equal(value, again[name]) for name, value in mine.items())
    assert launched.count("embedding_forward") == 1 + 2
    expected = {"nearest", "update_logit_forward", "update_gradients", "node_gradients", "start_state"}
    assert expected | {"logit_backward"} <= set(launched)
    assert "logit_forward" not in launched
