"""The fused replay against the plain one in float64: values, gradients, extreme scores.

Without a GPU the kernels run in Triton's interpreter, in a process of their own, at tiny sizes.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

EXTREMES = ("plain", "large", "visited", "forbidden")


def example(batch: int, count: int, n: int, kind: str) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(100 * batch + 10 * count + n)
    logits = 3.0 * torch.randn(batch, n, n, generator=generator)
    start = torch.log_softmax(torch.randn(batch, n, generator=generator), dim=1)
    # One tour more than is replayed, as in training: the tours are a slice and not contiguous.
    tours = torch.rand(batch, count + 1, n, generator=generator).argsort(dim=2)[:, :-1]
    if kind == "large":
        logits = (logits * 3000).round()  # about +-1e4, exactly representable differences
    elif (
        kind == "visited"
    ):  # the two probable cities of every row are visited first, then only the rest is left
        logits[:, :, :2] += 5000.0
        rest = torch.rand(batch, count, max(0, n - 2), generator=generator).argsort(dim=2) + 2
        tours = torch.cat((torch.arange(min(2, n)).expand(batch, count, -1), rest), 2)
    elif kind == "forbidden":
        start[:, 0] = -torch.inf
        logits[:, :, -1] = -torch.inf  # chosen in the end all the same
        logits.diagonal(dim1=1, dim2=2).fill_(-torch.inf)
        logits[:, 0] = -9e29  # above the floor the gradient is passed on, below it is not
        logits[:, n // 2, 0] = -2e30
    return start, logits, tours


def run(function: object, start: Tensor, logits: Tensor, tours: Tensor) -> list[Tensor]:
    """Values and the gradients of a weighted sum of them."""
    start, logits = start.detach().requires_grad_(), logits.detach().requires_grad_()
    chance, entropy = function(start, logits, tours)  # type: ignore[operator]
    weight = torch.linspace(-1.0, 2.0, chance.numel(), dtype=chance.dtype, device=chance.device)
    weight = weight.reshape(chance.shape)
    # A forbidden start has no finite log-probability; its gradient is the weight all the same.
    gradients = torch.autograd.grad(
        (weight * chance.clamp(min=-1e31)).sum() + (3 * weight.flip(0) * entropy).sum(),
        (start, logits),
        allow_unused=True,
        materialize_grads=True,
    )
    return [chance.detach(), entropy.detach(), *gradients]


def compare(batch: int, count: int, n: int, kind: str, device: str) -> None:
    from georoutenet.decode.gpu.replay import replay_fused
    from georoutenet.decode.replay import replay_reference

    start, logits, tours = (x.to(device) for x in example(batch, count, n, kind))
    found = run(replay_fused, start, logits, tours)
    wanted = run(replay_reference, start.double(), logits.double(), tours)
    tolerance = 2e-6 if device == "cpu" else 2e-5  # a GPU's own exponential is approximate
    for name, mine, exact in zip(("chance", "entropy", "start", "logits"), found, wanted, strict=True):
        scale = exact[exact.isfinite()].abs().amax().item() if exact.isfinite().any() else 1.0
        torch.testing.assert_close(
            mine,
            exact.float(),
            rtol=tolerance,
            atol=tolerance * min(max(scale, 1.0), 1e6),
            msg=lambda text, name=name: f"{name} of {(batch, count, n, kind)}: {text}",
        )


SCRIPT = """
import sys
sys.path.insert(0, {folder!r})
import georoutenet, torch
import georoutenet.decode.gpu.replay as module
from georoutenet.decode.replay import replay_reference
from test_replay_triton import EXTREMES, compare, example, run
torch.set_num_threads(1)
for batch, count, n in ((1, 1, 1), (2, 3, 2), (1, 1, 3), (3, 2, 5), (2, 4, 17)):
    for kind in EXTREMES:
        compare(batch, count, n, kind, "cpu")
module.ELEMENTS = 16  # the rows of an instance shared by programs, more programs than rows fill
compare(2, 3, 5, "forbidden", "cpu")
start, logits, tours = example(2, 3, 5, "plain")
torch.library.opcheck(module.replay_rows, (logits.requires_grad_(), tours))
compiled = torch.compile(module.replay_fused, fullgraph=True, backend="aot_eager")
for mine, eager in zip(run(compiled, start, logits, tours), run(module.replay_fused, start, logits, tours)):
    assert torch.equal(mine, eager)
# Only one of the two results is used by a loss without entropy.
alone = torch.autograd.grad(module.replay_fused(start, logits, tours)[0].sum(), logits)[0]
wanted = torch.autograd.grad(replay_reference(start, logits, tours)[0].sum(), logits)[0]
torch.testing.assert_close(alone, wanted, rtol=1e-5, atol=1e-6)
print("agreed")
"""


def test_in_the_interpreter(interpret: Callable[[str], None]) -> None:
    interpret(SCRIPT.format(folder=os.path.dirname(__file__)))


@pytest.mark.gpu
@pytest.mark.parametrize("n", [1, 2, 5, 50, 63, 64, 65, 100, 200, 1024])
@pytest.mark.parametrize("kind", EXTREMES)
def test_on_the_device(n: int, kind: str) -> None:
    compare(3, 7 if n < 1000 else 2, n, kind, "cuda")


@pytest.mark.gpu
def test_runs_compiled_and_in_a_graph_and_repeats_itself() -> None:
    from georoutenet.decode.replay import replay

    start, logits, tours = (x.cuda() for x in example(16, 48, 50, "plain"))
    wanted = run(replay, start, logits, tours)
    for mine, once in zip(run(replay, start, logits, tours), wanted, strict=True):
        assert torch.equal(mine, once)
    compiled = torch.compile(replay, fullgraph=True, dynamic=False)
    for mine, eager in zip(run(compiled, start, logits, tours), wanted, strict=True):
        torch.testing.assert_close(mine, eager, rtol=1e-5, atol=1e-5)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run(compiled, start, logits, tours)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run(compiled, start, logits, tours)
    logits.copy_(example(16, 48, 50, "large")[1] / 1000)
    graph.replay()
    for mine, eager in zip(captured, run(replay, start, logits, tours), strict=True):
        torch.testing.assert_close(mine, eager, rtol=1e-5, atol=1e-4)
