"""NAR4TSP's fused edge layer and attention against their plain versions, then the whole encoder.

Without a GPU the kernels run in Triton's interpreter, in a process of their own, at tiny sizes.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

NAMES = ("x", "scale", "weight", "source", "target", "gamma", "score")


def off(found: Tensor, exact: Tensor, least: float = 1e-30) -> float:
    """Relative difference in the 2-norm, of a tensor whose norm counts as ``least`` at least."""
    return ((found.double() - exact).norm() / exact.norm().clamp(min=least)).item()


def compare_layer(
    batch: int,
    n: int,
    d: int,
    heads: int,
    dtype: torch.dtype,
    device: str,
    *,
    first: bool,
    level: float = 0.0,
) -> dict[str, float]:
    """Differences of results and gradients from the float64 reference; ``level`` shifts the states."""
    from georoutenet.model.nar4tsp_triton import edge_layer, edge_layer_reference

    torch.manual_seed(batch * n + d)
    k = 1 if first else d
    shapes = [(batch, n, n, k), (d,), (d,), (d, k), (batch, n, d), (batch, n, d), (d,), (d, heads)]
    values = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    values[0] += level
    values[2] -= level * values[1]  # a mean far from zero, taken out again
    values[3] *= (k * (1 + level**2)) ** -0.5
    low = []
    for position, value in enumerate(values):
        is_wide = position in (1, 2, 6) or (position == 0 and first)
        low.append(value.to(device, torch.float32 if is_wide else dtype).requires_grad_())
    exact = [value.detach().double().requires_grad_() for value in low]
    shapes = [(batch, n, n, d), (batch, heads, n, n)]
    weights = [torch.randn(shape, dtype=torch.float64, device=device) for shape in shapes]

    found: dict[str, float] = {}
    results = []
    for function, inputs in ((edge_layer, low), (edge_layer_reference, exact)):
        p, scale, offset, scores = function(*inputs)[:4]
        states = p.double() * scale.double() + offset.double()
        loss = (states.tanh() * weights[0]).sum() + (scores.double() * weights[1]).sum()
        loss.backward()
        results.append((states, scores))
    found["states"] = off(*(states for states, _ in results))
    if heads:
        found["scores"] = off(*(scores for _, scores in results))
    for name, mine, literal in zip(NAMES, [*low[:2], *low[3:]], [*exact[:2], *exact[3:]], strict=True):
        if name == "x" and first:
            assert mine.grad is None or not mine.grad.any()  # distances are data
        elif not (name == "score" and heads == 0):
            found[name] = off(mine.grad, literal.grad)
    return found


def compare_attention(
    batch: int, n: int, d: int, heads: int, dtype: torch.dtype, device: str, *, first: bool
) -> dict[str, float]:
    """Differences of messages and gradients from the float64 reference."""
    from georoutenet.model.nar4tsp_attention_triton import attention, attention_reference

    torch.manual_seed(batch * n + d)
    edge = (0,) if first else (batch, heads, n, n)
    shapes = {
        "g": (batch, n, d),
        "ends": (2, d // heads),
        "edge": edge,
        "slope": (heads,),
        "constant": (heads,),
    }
    low = {
        name: torch.randn(shape, dtype=dtype if name in ("g", "edge") else torch.float32, device=device)
        for name, shape in shapes.items()
    }
    points = torch.rand(batch, n, 2, device=device)
    distance = torch.cdist(points, points)
    reach = distance.sort().values[:, :, min(3, n - 1)]
    exact = {name: value.double() for name, value in low.items()}
    weight = torch.randn(batch, n, d, dtype=torch.float64, device=device)
    for inputs in (low, exact):
        for value in inputs.values():
            value.requires_grad_()
    message = attention(*low.values(), distance, reach)[0]
    expected = attention_reference(*exact.values(), distance.double(), reach.double())
    for result in (message, expected):
        (result.double() * weight).sum().backward()
    results = {"message": off(message, expected)}
    unused = "edge" if first else "slope"
    assert low[unused].grad is None or not low[unused].grad.any()
    return results | {name: off(low[name].grad, exact[name].grad) for name in low if name != unused}


def compare_encoders(
    batch: int, n: int, dtype: torch.dtype, device: str, is_fused: bool = True, **sizes: int
) -> dict[str, float]:
    """Differences of scores and of every parameter's gradient from the plain float64 encoder."""
    from georoutenet.model.config import PolicyConfig
    from georoutenet.model.nar4tsp import Nar4Tsp

    torch.manual_seed(n)
    plain = Nar4Tsp(PolicyConfig(encoder="nar4tsp", **sizes))
    for name, parameter in plain.named_parameters():
        if "norm" in name:  # ones and zeros would hide what multiplies or adds them
            torch.nn.init.normal_(parameter, 1.0 if name.endswith("weight") else 0.0, 0.3)
    plain.to(device)
    fused = copy.deepcopy(plain)
    plain.double()
    coords = torch.rand(batch, n, 2, device=device)
    found = fused.from_batch(coords, dtype, fused=is_fused)
    exact = plain.from_batch(coords.double(), torch.float64)
    for start, logits in (found, exact):
        weight = torch.linspace(-1, 1, logits.numel(), dtype=logits.dtype, device=device)
        logits = logits.log_softmax(2)
        (
            (logits.flatten() * weight).sum() + (start * weight[: start.numel()].view_as(start)).sum()
        ).backward()
    # Some gradients are zero but for rounding, such as that of a bias before a norm.
    least = 1e-2 * max(p.grad.norm().item() for p in plain.parameters() if p.grad is not None)
    differences = {"start": off(found[0], exact[0]), "logits": off(found[1], exact[1])}
    for (name, mine), literal in zip(fused.named_parameters(), plain.parameters(), strict=True):
        if literal.grad is None or not literal.grad.any():
            assert mine.grad is None or not mine.grad.any(), name
        else:
            assert mine.grad is not None, name
            differences[name] = off(mine.grad, literal.grad, least)
    return differences


SCRIPT = """
import sys
sys.path.insert(0, {folder!r})
import georoutenet, torch
import georoutenet.model.nar4tsp_triton as module
import test_nar4tsp_triton as tests
torch.set_num_threads(1)
{body}
print("agreed")
"""

LAYERS = """
for batch, n, heads, first in ((2, 2, 2, False), (2, 5, 2, True), (3, 7, 8, False), (1, 9, 0, False)):
    found = tests.compare_layer(batch, n, 16, heads, torch.float32, "cpu", first=first)
    for name, off in found.items():
        assert off < 1e-5, (batch, n, heads, first, name, off)
module.LAUNCH["weight"] = module.Launch(16, warps=4, stages=1, share=1)  # targets in more than one block
for name, off in tests.compare_layer(1, 19, 16, 3, torch.float32, "cpu", first=False, level=3.0).items():
    assert off < 1e-4, (name, off)
"""


ATTENTION = """
import georoutenet.model.nar4tsp_attention_triton as module
for batch, n, first in ((2, 5, False), (1, 17, True), (2, 20, False)):
    if n == 20:
        module.ELEMENTS = 512  # the sources in two blocks
    for name, off in tests.compare_attention(batch, n, 32, 2, torch.float32, "cpu", first=first).items():
        assert off < 1e-5, (batch, n, first, name, off)
"""

ENCODERS = """
for batch, n, hidden in ((1, 4, 16), (3, 6, 32)):  # heads of 8 are too narrow for the attention's kernel
    sizes = dict(hidden=hidden, heads=2, layers=3, neighbors=3)
    for name, off in tests.compare_encoders(batch, n, torch.float32, "cpu", **sizes).items():
        assert off < 1e-4, (batch, n, name, off)
from georoutenet.model.config import PolicyConfig
from georoutenet.model.nar4tsp import Nar4Tsp
encoder, coords = Nar4Tsp(PolicyConfig(encoder="nar4tsp", **sizes)), torch.rand(2, 5, 2)
results = []
for function in (encoder.from_batch, torch.compile(encoder.from_batch, backend="aot_eager")):
    encoder.zero_grad()
    start, logits = function(coords, torch.float32, fused=True)
    (start.sum() + logits.square().sum()).backward()
    results.append([start, logits, *(p.grad for p in encoder.parameters() if p.grad is not None)])
for eager, compiled in zip(*results, strict=True):
    torch.testing.assert_close(compiled, eager, rtol=1e-5, atol=1e-6)
"""


@pytest.mark.parametrize("body", [LAYERS, ATTENTION, ENCODERS], ids=["layers", "attention", "encoders"])
def test_in_the_interpreter(body: str, interpret: Callable[[str], None]) -> None:
    interpret(SCRIPT.format(folder=os.path.dirname(__file__), body=body))


SIZES = [5, 11, 50, 63, 64, 65, 100, 127, 200]


@pytest.mark.gpu
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("first", [False, True])
# The GPU's own tangent is good to 5e-4; bfloat16 to 4e-3 at every rounding, and the norm cancels much.
@pytest.mark.parametrize(
    ("dtype", "d", "tolerance"), [(torch.float32, 32, 5e-3), (torch.bfloat16, 128, 5e-2)]
)
def test_layers_on_the_device(n: int, first: bool, dtype: torch.dtype, d: int, tolerance: float) -> None:
    for heads in (8, 0) if dtype == torch.bfloat16 else (8,):
        for name, difference in compare_layer(3, n, d, heads, dtype, "cuda", first=first).items():
            assert difference < tolerance, (heads, name, difference)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("n", "first"), [(5, False), (50, False), (50, True), (63, False), (64, True), (65, False), (200, False)]
)
def test_attention_on_the_device(n: int, first: bool) -> None:
    for name, difference in compare_attention(3, n, 128, 8, torch.bfloat16, "cuda", first=first).items():
        # A softmax does not see a constant but through the bend of the ReLU: little is left of its gradient.
        assert difference < (1e-1 if name == "constant" else 3e-2), (name, difference)


@pytest.mark.gpu
@pytest.mark.parametrize("n", [5, 50, 64, 100])
def test_encoders_on_the_device(n: int) -> None:
    """In bfloat16 the fused encoder is as near to the exact one as the plain encoder is."""
    found = compare_encoders(16, n, torch.bfloat16, "cuda")
    plain = compare_encoders(16, n, torch.bfloat16, "cuda", is_fused=False)
    for name, difference in found.items():
        assert difference < 3 * plain[name] + 0.05, (name, difference, plain[name])


@pytest.mark.gpu
def test_encoder_compiles_and_is_captured() -> None:
    from georoutenet.model.config import PolicyConfig
    from georoutenet.model.nar4tsp import Nar4Tsp

    torch.manual_seed(0)
    encoder = Nar4Tsp(PolicyConfig(encoder="nar4tsp")).cuda()
    coords = torch.rand(8, 50, 2, device="cuda")

    def run(network: Callable[..., tuple[Tensor, Tensor]]) -> list[Tensor]:
        start, logits = network(coords, torch.bfloat16, fused=True)
        parameters = list(encoder.parameters())
        loss = start.sum() + logits.log_softmax(2).diagonal(dim1=1, dim2=2).sum()
        return [start, logits, *torch.autograd.grad(loss, parameters[:4], materialize_grads=True)]

    compiled = torch.compile(encoder.from_batch, dynamic=False)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run(compiled)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run(compiled)
    coords.copy_(torch.rand_like(coords))
    graph.replay()
    exact = [wanted.double() for wanted in run(encoder.from_batch)]
    # A bias that the norms take out again has a gradient of rounding errors alone.
    least = 3e-2 * max(gradient.norm().item() for gradient in exact[2:])
    for position, (mine, wanted) in enumerate(zip(captured, exact, strict=True)):
        assert off(mine, wanted, least if position > 1 else 1e-30) < 0.1
