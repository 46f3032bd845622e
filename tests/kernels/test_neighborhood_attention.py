"""The neighborhood attention: its reference against the equations, its kernels on emulated blocks, and on a
GPU, against the reference in float64."""

from __future__ import annotations

import itertools

import pytest
import torch
from emulated import off, on_gpu, worst_row
from torch import Tensor

from georoutenet.kernels.cuda import neighborhood_attention as cuda
from georoutenet.kernels.nearest import slots_reference
from georoutenet.kernels.neighborhood_attention import neighborhood_attention_reference

NAMES = ("q", "k", "v", "e", "bias_weight", "strength")


def problem(
    batch: int, n: int, width: int, d: int, heads: int, dtype: torch.dtype, device: str = "cpu"
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


def in_kernels(
    leaves: list[Tensor], near: list[Tensor], upstream: list[Tensor], *, hopper: bool
) -> dict[str, Tensor]:
    """Both averages, the gradients of all leaves, and the averages that the backward pass recomputed."""
    of_values, of_edges, de = (x.clone() for x in upstream)
    values, edges, alpha = cuda.forward((*leaves, *near))
    saved = (*leaves[:5], *near, alpha)
    slots = slots_reference(near[0], near[1])
    dq, dk, dv, sums = cuda.backward(saved, slots, of_values, of_edges, de, hopper=hopper)
    gradients = dict(zip(NAMES, (dq, dk, dv, de, sums[:8], sums[8, 0]), strict=True))
    return {"values": values, "edges": edges, "recomputed": of_edges, **gradients}


def exact(leaves: list[Tensor], near: list[Tensor], upstream: list[Tensor]) -> dict[str, Tensor]:
    """The same of the reference in float64; the third of ``upstream`` arrives at the edge states as it is."""
    doubles = [x.double().requires_grad_() for x in leaves]
    values, edges = neighborhood_attention_reference(*doubles, *near[:2], near[2].double(), heads=8)
    outputs = (values, edges, doubles[3])
    found = torch.autograd.grad(outputs, doubles, [x.double() for x in upstream])
    results = {"values": values, "edges": edges, "recomputed": edges, **dict(zip(NAMES, found, strict=True))}
    return {name: x.detach() for name, x in results.items()}


def compare(batch: int, n: int, width: int, *, hopper: bool, device: str = "cpu") -> None:
    given = problem(batch, n, width, 128, 8, torch.bfloat16, device)
    found, expected = in_kernels(*given, hopper=hopper), exact(*given)
    for name, value in expected.items():
        if width == 1 and name in ("q", "k", "bias_weight", "strength"):
            continue  # the weight is 1 whatever the scores are
        times = 50 if name == "strength" else 1  # one number, a sum that cancels
        assert off(found[name], value) < 6e-3 * times, name  # the rounding to bf16, 2^-9 a time
        assert worst_row(found[name], value) < 0.03 * times, name


SHAPES = [(1, 2, 1), (1, 3, 3), (2, 5, 16), (2, 11, 7), (1, 17, 16), (1, 37, 11), (1, 67, 4)]


@pytest.mark.usefixtures("launched")
@pytest.mark.parametrize("hopper", [False, True])
@pytest.mark.parametrize(("batch", "n", "width"), SHAPES)
def test_against_the_reference(batch: int, n: int, width: int, hopper: bool) -> None:
    compare(batch, n, width, hopper=hopper)


@pytest.mark.usefixtures("launched")
def test_weights() -> None:
    """They sum to one over the neighbors, and there are none beside them."""
    leaves, near, _ = problem(2, 7, 5, 128, 8, torch.bfloat16)
    _, _, alpha = cuda.forward((*leaves, *near))
    real = torch.nn.functional.pad(near[1], (0, 11)).unsqueeze(2).expand_as(alpha)
    assert torch.equal(alpha > 0, real)
    torch.testing.assert_close(alpha.float().sum(-1), torch.ones(2, 7, 8), rtol=0, atol=1e-2)


@pytest.mark.usefixtures("launched")
def test_parts_of_one_projection_and_short_indices() -> None:
    """The same bits as of tensors of their own and indices in int64."""
    leaves, near, upstream = problem(2, 6, 4, 128, 8, torch.bfloat16)
    plain = in_kernels(leaves, near, upstream, hopper=True)
    joined = torch.stack(leaves[:3], 2)
    found = in_kernels([*joined.unbind(2), *leaves[3:]], [near[0].int(), *near[1:]], upstream, hopper=True)
    assert all(torch.equal(found[name], value) for name, value in plain.items())


def test_reference_by_hand() -> None:
    """The plain version against the equations, city by city and head by head."""
    leaves, near, _ = problem(2, 6, 4, 16, 2, torch.float64)
    values, edges = neighborhood_attention_reference(*leaves, *near, heads=2)
    q, k, v, e, bias_weight, strength = leaves
    index, mask, distance = near
    for b, i, h in itertools.product(range(2), range(6), range(2)):
        part = slice(8 * h, 8 * h + 8)
        cities = index[b, i][mask[b, i]]
        scores = k[b, cities, part] @ q[b, i, part] / 8**0.5 + e[b, i, cities] @ bias_weight[h].double()
        weights = (scores - strength * distance[b, i][mask[b, i]]).exp()
        weights /= weights.sum()
        torch.testing.assert_close(values[b, i, part], weights @ v[b, cities, part], rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(edges[b, i, h], weights @ e[b, i, cities], rtol=1e-6, atol=1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("hopper", [False, True])
@pytest.mark.parametrize("n", [5, 11, 50, 63, 64, 65, 100, 127, 200])
def test_on_the_device(n: int, hopper: bool) -> None:
    device = on_gpu(hopper)
    for width in (16, min(n, 11)):
        compare(3, n, width, hopper=hopper, device=device)


@pytest.mark.gpu
@pytest.mark.parametrize("hopper", [False, True])
def test_repeats_bit_for_bit_on_the_device(hopper: bool) -> None:
    given = problem(64, 50, 16, 128, 8, torch.bfloat16, on_gpu(hopper))
    first, again = (in_kernels(*given, hopper=hopper) for _ in range(2))
    assert all(torch.equal(first[name], again[name]) for name in first)
