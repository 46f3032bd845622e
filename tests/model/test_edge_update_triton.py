"""The fused edge update against its plain version: values and all gradients.

Without a GPU the kernels run in Triton's interpreter, in a process of their own, at tiny sizes.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

NAMES = ("e", "source", "target", "weight", "bias", "gamma", "beta")


def compare(batch: int, m: int, n: int, d: int, dtype: torch.dtype, device: str) -> dict[str, float]:
    """Relative difference (2-norm) of output and gradients from the float64 reference."""
    from georoutenet.model.edge_update_triton import edge_update, edge_update_reference

    torch.manual_seed(batch * n + d)
    shapes = [(batch, m, n, d), (batch, m, d), (batch, n, d), (d, d), (d,), (d,), (d,)]
    values = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    values[3] *= d**-0.5
    low = [
        value.to(device, dtype if k < 4 else torch.float32).requires_grad_() for k, value in enumerate(values)
    ]
    exact = [value.detach().double().requires_grad_() for value in low]
    upstream = torch.randn(shapes[0], dtype=torch.float64).to(device, dtype)
    out, expected = edge_update(*low), edge_update_reference(*exact)
    out.backward(upstream)
    expected.backward(upstream.double())

    def off(a: torch.Tensor, b: torch.Tensor) -> float:
        return ((a.double() - b).norm() / b.norm()).item()

    found = {"out": off(out, expected)}
    return found | {name: off(a.grad, b.grad) for name, a, b in zip(NAMES, low, exact, strict=True)}


SCRIPT = """
import sys, torch
sys.path.insert(0, {folder!r})
import georoutenet.model.edge_update_triton as module
from test_edge_update_triton import compare
module.WEIGHT_PROGRAMS = 3
for batch, m, n in ((1, 2, 2), (2, 5, 5), (2, 11, 11), (1, 17, 65)):
    if n == 65:
        module.LAUNCH["forward"] = module.LAUNCH["proposal"] = (32, 4)
    for name, off in compare(batch, m, n, 16, torch.float32, "cpu").items():
        assert off < 2e-6, (batch, n, name, off)
print("agreed")
"""


def test_in_the_interpreter() -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    script = SCRIPT.format(folder=os.path.dirname(__file__))
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "agreed" in done.stdout


@pytest.mark.gpu
@pytest.mark.parametrize("n", [5, 11, 50, 63, 64, 65, 100, 127, 200])
@pytest.mark.parametrize(
    ("dtype", "d", "tolerance"), [(torch.float32, 32, 1e-5), (torch.bfloat16, 128, 1e-2)]
)
def test_on_the_device(n: int, dtype: torch.dtype, d: int, tolerance: float) -> None:
    for name, off in compare(3, n, n, d, dtype, "cuda").items():
        assert off < tolerance, (name, off)
