"""The fused neighborhood attention against its plain version: values and all gradients.

Without a GPU the kernels run in Triton's interpreter, in a process of their own, at tiny sizes.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

NAMES = ("q", "k", "v", "e", "bias_weight", "strength")


def problem(
    batch: int, n: int, width: int, d: int, heads: int, dtype: torch.dtype, device: str
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Random leaves, neighborhoods and upstream gradients; at least the city itself is a neighbor.

    Padding repeats city 0 or, beyond the n cities, holds an index that no array has.
    """
    torch.manual_seed(batch * n + width)
    shapes = [(batch, n, d)] * 3 + [(batch, n, n, d), (heads, d), ()]
    leaves = [torch.randn(shape) for shape in shapes]
    leaves[4] *= d**-0.5
    leaves[5] = torch.tensor(0.7)
    leaves = [x.to(device, dtype if k < 4 else torch.float32) for k, x in enumerate(leaves)]
    order = torch.rand(batch, n, n)
    order.diagonal(dim1=1, dim2=2).fill_(-1)
    index = torch.nn.functional.pad(order.argsort(-1), (0, max(0, width - n)), value=10**6)[..., :width]
    mask = (torch.rand(index.shape) < 0.7) & (index < n)
    mask[..., 0] = True
    index = index.where(mask | (index >= n), 0)
    near = [index.to(device), mask.to(device), torch.rand(index.shape).to(device)]
    upstream = [torch.randn(shape) for shape in ((batch, n, d), (batch, n, heads, d), (batch, n, n, d))]
    return leaves, near, [x.to(device, dtype) for x in upstream]


def gradients(
    function: Any, leaves: list[Tensor], near: list[Tensor], upstream: list[Tensor], **options: Any
):
    """Both results and the gradients of the leaves; without a third in ``upstream``, none passes through."""
    leaves = [x.detach().clone().requires_grad_() for x in leaves]
    outputs = function(*leaves, *near, **options)
    assert torch.equal(outputs[2], leaves[3])
    found = torch.autograd.grad(outputs[: len(upstream)], leaves, [x.clone() for x in upstream])
    return [*outputs[:2], *found]


def compare(
    batch: int,
    n: int,
    width: int,
    d: int,
    heads: int,
    dtype: torch.dtype,
    device: str,
    *,
    through: bool = True,
    **options: Any,
) -> dict[str, float]:
    """Relative difference (2-norm) of results and gradients from the float64 reference."""
    from georoutenet.kernels import neighborhood_attention as module

    leaves, near, upstream = problem(batch, n, width, d, heads, dtype, device)
    upstream = upstream if through else upstream[:2]
    found = gradients(module.neighborhood_attention, leaves, near, upstream, heads=heads, **options)
    exact = gradients(
        module.neighborhood_attention_reference,
        [x.double() for x in leaves],
        [near[0], near[1], near[2].double()],
        [x.double() for x in upstream],
        heads=heads,
    )
    return {
        name: ((a.double() - b).norm() / b.norm()).item()
        for name, a, b in zip(("values", "edges", *NAMES), found, exact, strict=True)
    }


SCRIPT = """
import sys, torch
sys.path.insert(0, {folder!r})
import georoutenet.kernels.neighborhood_attention as module
from test_neighborhood_attention_triton import compare, in_place, strided
for name in ("forward", "pairs"):
    module.LAUNCH[name] = module.LAUNCH[name]._replace(programs=3)  # several tiles each
for batch, n, width, heads, through in (
    (1, 3, 3, 2, True),
    (2, 5, 16, 2, False),
    (2, 11, 7, 4, True),
    (1, 17, 17, 2, True),
    (1, 17, 11, 16, False),
):
    if n == 17 and width == 17:
        module.LAUNCH["cities"] = module.LAUNCH["cities"]._replace(rows=16)  # two blocks of cities
    for name, off in compare(batch, n, width, 16, heads, torch.float32, "cpu", through=through).items():
        assert off < 3e-6, (n, width, name, off)
strided("cpu")
in_place("cpu")
print("agreed")
"""


def strided(device: str, d: int = 16, heads: int = 2, dtype: torch.dtype = torch.float32) -> None:
    """Parts of one projection, 32-bit indices, slots made beforehand, other strides: the same bits."""
    from georoutenet.kernels.neighborhood_attention import neighborhood_attention, neighborhood_slots

    leaves, near, upstream = problem(2, 6, 4, d, heads, dtype, device)
    plain = gradients(neighborhood_attention, leaves, near, upstream, heads=heads)
    near[0] = near[0].int()
    joined = torch.stack(leaves[:3], 2).requires_grad_()
    rest = [x.detach().clone().requires_grad_() for x in leaves[3:]]
    slots = neighborhood_slots(*near[:2])
    outputs = neighborhood_attention(*joined.unbind(2), *rest, *near, heads=heads, slots=slots)
    upstream[1] = upstream[1].permute(2, 0, 1, 3).contiguous().permute(1, 2, 0, 3)  # heads outermost
    found = torch.autograd.grad(outputs, [joined, *rest], [x.clone() for x in upstream])
    for a, b in zip(plain, [*outputs[:2], *found[0].unbind(2), *found[1:]], strict=True):
        assert torch.equal(a, b)


def in_place(device: str, d: int = 16, heads: int = 2, dtype: torch.dtype = torch.float32) -> None:
    """The gradient that arrives for the pass-through is the one that leaves, unless its rows overlap."""
    from georoutenet.kernels.neighborhood_attention import neighborhood_attention

    leaves, near, (_, edges, through) = problem(1, 4, 3, d, heads, dtype, device)
    leaves[3].requires_grad_()
    outputs = neighborhood_attention(*leaves, *near, heads=heads)
    before = through.clone()
    (found,) = torch.autograd.grad(outputs[1:], leaves[3], (edges, through), retain_graph=True)
    assert found.data_ptr() == through.data_ptr()
    expanded = torch.ones(1, 1, 1, d, device=device, dtype=dtype)
    (other,) = torch.autograd.grad(outputs[1:], leaves[3], (edges, expanded.expand_as(before)))
    assert torch.equal(expanded, torch.ones_like(expanded))
    rounding = None if dtype == torch.float32 else 0.05
    torch.testing.assert_close(other - 1, found - before, rtol=rounding, atol=rounding)


def test_reference_by_hand() -> None:
    """The plain version against the equations, city by city and head by head."""
    module = pytest.importorskip("georoutenet.kernels.neighborhood_attention")
    leaves, near, _ = problem(2, 6, 4, 16, 2, torch.float64, "cpu")
    values, edges, through = module.neighborhood_attention_reference(*leaves, *near, heads=2)
    q, k, v, e, bias_weight, strength = leaves
    index, mask, distance = near
    assert through is e
    for b, i, h in itertools.product(range(2), range(6), range(2)):
        part = slice(8 * h, 8 * h + 8)
        cities = index[b, i][mask[b, i]]
        scores = k[b, cities, part] @ q[b, i, part] / 8**0.5 + e[b, i, cities] @ bias_weight[h].double()
        weights = (scores - strength * distance[b, i][mask[b, i]]).exp()
        weights /= weights.sum()
        torch.testing.assert_close(values[b, i, part], weights @ v[b, cities, part], rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(edges[b, i, h], weights @ e[b, i, cities], rtol=1e-6, atol=1e-6)


def test_in_the_interpreter(interpret: Callable[[str], None]) -> None:
    interpret(SCRIPT.format(folder=os.path.dirname(__file__)))


@pytest.fixture(params=["cuda", "triton"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which kernels run where both could."""
    from georoutenet.kernels.cuda import compile as native
    from georoutenet.kernels.cuda import neighborhood_attention as neighborhood_attention_cuda

    if request.param == "triton":
        monkeypatch.setattr(neighborhood_attention_cuda, "fits", lambda *arguments: False)
    elif not native.fits(
        torch.empty(1, 1, 128, dtype=torch.bfloat16, device="cuda"),
        *neighborhood_attention_cuda.kernels(torch.device("cuda", 0)),
    ):
        pytest.skip("no CUDA kernels on this device")
    return str(request.param)


@pytest.mark.gpu
@pytest.mark.parametrize("n", [5, 11, 50, 63, 64, 65, 100, 127, 200])
@pytest.mark.parametrize(
    ("dtype", "d", "heads", "tolerance"), [(torch.float32, 32, 4, 1e-5), (torch.bfloat16, 128, 8, 6e-3)]
)
def test_on_the_device(
    n: int, dtype: torch.dtype, d: int, heads: int, tolerance: float, kernels: str
) -> None:
    if kernels == "cuda" and dtype == torch.float32:
        pytest.skip("only in Triton")
    for width, through in ((16, True), (min(n, 11), False)):
        found = compare(3, n, width, d, heads, dtype, "cuda", through=through)
        found["strength"] /= 50  # one number, a sum that cancels
        for name, off in found.items():
            assert off < tolerance, (width, name, off)


@pytest.mark.gpu
@pytest.mark.parametrize("width", [20, 50])
def test_wide_neighborhoods_on_the_device(width: int) -> None:
    for name, off in compare(2, 70, width, 128, 8, torch.bfloat16, "cuda").items():
        assert off < (6e-2 if name == "strength" else 6e-3), (name, off)


@pytest.mark.gpu
@pytest.mark.usefixtures("kernels")
def test_repeats_bit_for_bit() -> None:
    """Twice in a row, and from a captured graph."""
    from georoutenet.kernels.neighborhood_attention import neighborhood_attention

    problems = problem(64, 50, 16, 128, 8, torch.bfloat16, "cuda")
    first = gradients(neighborhood_attention, *problems, heads=8)
    again = gradients(neighborhood_attention, *problems, heads=8)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        leaves = [x.detach().requires_grad_() for x in problems[0]]
        outputs = neighborhood_attention(*leaves, *problems[1], heads=8)
        captured = torch.autograd.grad(outputs, leaves, [x.clone() for x in problems[2]])
    for _ in range(2):
        graph.replay()
    for a, b, c in zip(first, again, [*outputs[:2], *captured], strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a, c)


@pytest.mark.gpu
def test_views_and_the_gradient_in_place_on_the_device(kernels: str) -> None:
    for check in (strided, in_place):
        if kernels == "triton":
            check("cuda")
        check("cuda", 128, 8, torch.bfloat16)
