"""GeoRouteNet in CUDA kernels, emulated or on a GPU, against PyTorch: scores and gradients of all weights."""

from __future__ import annotations

import copy
import gc
import math
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from emulated import emulate_gpu, off
from torch import Tensor

from georoutenet.kernels import choose, encoder
from georoutenet.kernels.cuda.compile import Kernel
from georoutenet.kernels.encoder import Recomputed
from georoutenet.model.config import PolicyConfig
from georoutenet.model.geometry import Neighborhood
from georoutenet.model.georoutenet import GeoRouteNet
from georoutenet.policy import Policy
from georoutenet.train.pins import COMPONENTS, hold

BF16 = torch.bfloat16


def make(layers: int = 2, device: str = "cpu", **settings: Any) -> Policy:
    torch.manual_seed(2)
    policy = Policy(PolicyConfig(layers=layers, **settings)).to(device).train()
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    return policy


def cities(batch: int, n: int) -> Tensor:
    """Random instances, and as the last a grid full of ties."""
    torch.manual_seed(n)
    coords = torch.rand(batch, n, 2)
    coords[-1] = torch.stack((torch.arange(n) % 4, torch.arange(n) // 4), -1) / 4
    return coords


def scores_and_gradients(policy: Policy, coords: Tensor, width: int | None = 11) -> dict[str, Tensor]:
    """Scores, and the gradients of a fixed random function of them."""
    policy.zero_grad()
    start, logits = policy.dense(coords, width)
    torch.manual_seed(5)
    weights = torch.randn(start.shape).to(start), torch.randn(logits.shape).to(logits)
    ((start * weights[0]).sum() + (logits * weights[1]).sum()).backward()
    gradients = {name: p.grad.clone() for name, p in policy.named_parameters() if p.grad is not None}
    return {"start": start.detach(), "logits": logits.detach(), **gradients}


def summary(found: dict[str, Tensor]) -> dict[str, Tensor]:
    """Scores, and the gradients of all parameters and of some kinds of them in a row."""
    every = {name: x.flatten().double() for name, x in found.items() if "." in name}
    kinds = {kind: torch.cat([x for name, x in every.items() if kind in name]) for kind in ("edge", "start.")}
    return {"start": found["start"], "logits": found["logits"], **kinds, "all": torch.cat([*every.values()])}


def as_near_as_pytorch(policy: Policy, coords: Tensor, width: int | None = 11) -> dict[str, Tensor]:
    """In kernels the scores and gradients are about as far from fp32 as those of PyTorch in bf16."""
    policy.compute_dtype, policy.fused = None, False
    exact = summary(scores_and_gradients(policy, coords, width))
    policy.compute_dtype = BF16
    plain = summary(scores_and_gradients(policy, coords, width))
    policy.fused = True
    found = scores_and_gradients(policy, coords, width)
    for name, mine in summary(found).items():
        assert off(mine, exact[name]) < 1.5 * off(plain[name], exact[name]) + 1e-3, name
    return found


@pytest.mark.parametrize("hopper", [False, True])
def test_a_pass_through_all_kernels(
    hopper: bool, launched: list[Kernel], monkeypatch: pytest.MonkeyPatch
) -> None:
    emulate_gpu(monkeypatch, hopper=hopper)
    policy, coords = make(), cities(2, 12)
    assert policy.compile_around_kernels() is False  # in fp32
    found = as_near_as_pytorch(policy, coords)
    with torch.no_grad():
        assert torch.equal(policy.dense(coords, 11)[1], found["logits"])
    ran = set(launched)
    needed = set(encoder.kernels(hopper=hopper))
    absent = {
        kernel for kernel in needed - ran if kernel.name not in ("nearest", "node_forward", "node_backward")
    }
    assert not absent
    assert not ran - needed
    launched.clear()
    policy.recompute = 1
    again = scores_and_gradients(policy, coords)
    assert all(torch.equal(value, again[name]) for name, value in found.items())
    assert [kernel.name for kernel in launched].count("embedding_forward") == 2


@pytest.mark.usefixtures("launched")
def test_pinned_components_in_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """No kernel minds a component that does nothing: weights of zeros, a distance that has no weight."""
    emulate_gpu(monkeypatch, hopper=True)
    policy, coords = make(), cities(2, 12)
    assert len(hold(policy, tuple(COMPONENTS))) == 27
    found = as_near_as_pytorch(policy, coords)
    assert all(torch.isfinite(value).all() for value in found.values())


@pytest.mark.usefixtures("launched")
@pytest.mark.parametrize(("unit", "reach"), [("square", 0.0), ("density", 0.2)])
def test_neighborhoods_that_pytorch_found(unit: str, reach: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a fixed width they are found by a kernel, else by PyTorch: the same scores and gradients."""
    emulate_gpu(monkeypatch, hopper=True)
    policy = make(1, unit=unit, reach=reach)
    policy.compute_dtype = BF16
    coords = cities(3, 14)[:-1]  # ties would make them wider
    fixed, free = (scores_and_gradients(policy, coords, width) for width in (11, None))
    for name, value in fixed.items():
        torch.testing.assert_close(free[name], value, rtol=1e-2, atol=1e-2 * value.abs().max().item())


@torch.no_grad()
def test_rows_equal_all_pairs(launched: list[Kernel], monkeypatch: pytest.MonkeyPatch) -> None:
    """Instance by instance, rows of one, and neighborhoods that are too wide for the kernels."""
    emulate_gpu(monkeypatch, hopper=True)
    policy, coords = make(1).eval(), cities(2, 20)[:1].repeat(2, 1, 1)
    policy.compute_dtype = BF16
    whole = policy.dense(coords, 11)
    for pairs in (400, 100):
        policy.pairs_per_block = pairs
        for left, right in zip(policy.dense(coords, 11), whole, strict=True):
            torch.testing.assert_close(left, right, rtol=0.05, atol=0.1)
    policy.pairs_per_block = None
    launched.clear()
    wide = policy.dense(coords, 17)
    assert [kernel.name for kernel in launched] == ["embedding_forward", "update_logit_alone"]
    for left, right in zip(wide, whole, strict=True):
        torch.testing.assert_close(left, right, rtol=0.05, atol=0.1)


def test_compiled_beginning() -> None:
    """The beginning of a pass is written otherwise than the network's, and compiled; it is the same."""
    policy, coords = make(1), cities(3, 7)
    net = policy.encoder
    assert isinstance(net, GeoRouteNet)
    (h,), s, queries = net.begin(coords, torch.float32)
    expected = (h, s, torch.cat(queries, -1))
    torch.manual_seed(1)
    upstream = [torch.randn_like(x) for x in expected]
    results = []
    for outputs in (expected, encoder.begin(net, coords), encoder.compiled_begin()(net, coords)):
        policy.zero_grad()
        torch.autograd.backward(outputs, [y.to(x.dtype) for x, y in zip(outputs, upstream, strict=True)])
        grads = [p.grad.flatten() for _, p in net.named_parameters() if p.grad is not None]
        results.append([*(x.detach() for x in outputs), torch.cat(grads)])
    for exact, plain, compiled in zip(*results, strict=True):
        assert off(plain, exact) < 6e-3
        assert off(compiled, exact) < 6e-3
    again = copy.deepcopy(net)
    assert torch.equal(encoder.compiled_begin()(again, coords)[2], results[2][2])


def test_what_is_recomputed_is_not_kept(launched: list[Kernel], monkeypatch: pytest.MonkeyPatch) -> None:
    """One set of edge states, or every second one, is gone after the forward pass."""
    emulate_gpu(monkeypatch, hopper=True)
    made: list[weakref.ref] = []  # edge states, in the order in which they were computed
    alive: list[list[bool]] = []  # whether they still are when the last ones are computed, with the logits

    def remember(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def remembered(*args: Any, **options: Any) -> Tensor:
            states = make(*args, **options)
            made.append(weakref.ref(states.untyped_storage()))
            return states

        return remembered

    logits = encoder.logits

    def look(*args: Any, **options: Any) -> Tensor:
        gc.collect()
        alive.append([each() is not None for each in made])
        return logits(*args, **options)

    for name in ("embed", "update"):
        monkeypatch.setattr(encoder, name, remember(getattr(encoder, name)))
    monkeypatch.setattr(encoder, "logits", look)
    policy, coords = make(3), cities(1, 5)
    policy.compute_dtype = BF16
    for policy.recompute, left in ((0, [True] * 3), (1, [False, True, True]), (2, [False, True, True])):
        made.clear()
        scores_and_gradients(policy, coords, 5)
        assert alive.pop() == left
        assert len(made) == 3 + policy.recompute
        gc.collect()
        assert not any(each() for each in made)


class _SavesItsResult(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        result = x.exp()
        ctx.save_for_backward(x, result)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        x, result = ctx.saved_tensors
        return grad * (x.exp() + result) / 2


def test_a_promise_keeps_no_result_alive() -> None:
    """Not even where no backward pass ends the promise."""
    x = torch.ones(3, requires_grad=True)
    again = Recomputed(x, lambda: torch.ones(3))
    with again.hooks():
        result = _SavesItsResult.apply(x)
        dropped = _SavesItsResult.apply(x)
    (grad,) = torch.autograd.grad(result.sum(), x)
    torch.testing.assert_close(grad, torch.full((3,), math.e))
    storage = weakref.ref(dropped.untyped_storage())
    del dropped
    gc.collect()
    assert storage() is None


@pytest.mark.gpu
@pytest.mark.parametrize("avoid", [(), ("cuda hopper",)])
@pytest.mark.parametrize("n", [5, 50, 65, 100])
def test_on_the_device(n: int, avoid: tuple[str, ...]) -> None:
    """Both builds of the kernels; they repeat bit for bit."""
    policy, coords = make(6, "cuda"), cities(3, n).cuda()
    policy.avoid = avoid
    found = as_near_as_pytorch(policy, coords)
    assert policy.form(coords, 11) in choose.CUDA
    again = scores_and_gradients(policy, coords)
    assert all(torch.equal(value, again[name]) for name, value in found.items())


@pytest.mark.gpu
def test_recomputing_states_saves_memory_on_the_device() -> None:
    policy, coords = make(6, "cuda"), cities(64, 50).cuda()
    policy.compute_dtype = BF16
    found, peaks = [], []
    for policy.recompute in (0, 1, 3):
        for _ in range(2):  # the first call prepares
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            values = scores_and_gradients(policy, coords)
        found.append(values)
        peaks.append(torch.cuda.max_memory_allocated() - before)
    states = 64 * 50 * 50 * 128 * 2
    assert peaks[1] < peaks[0] - 0.8 * states
    assert peaks[2] < peaks[0] - 2 * states
    for name, value in found[0].items():
        assert all(torch.equal(value, other[name]) for other in found[1:]), name


@torch.no_grad()
def test_neighborhoods_found_in_kernels_are_those_of_pytorch(
    launched: list[Kernel], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without gradients the kernels find them, unless ties make one too wide; in parts of about one size."""
    emulate_gpu(monkeypatch, hopper=True)
    policy, coords = make().eval(), cities(4, 20)
    policy.compute_dtype = BF16
    near = policy._near(coords)
    expected = policy._in_kernels(
        coords[:3], None, Neighborhood(*(x[:3] for x in vars(near).values())), hopper=True
    )
    sought = []
    find = policy._near
    monkeypatch.setattr(policy, "_near", lambda *given: sought.append(1) or find(*given))
    for pairs, parts in ((1 << 20, 1), (800, 2)):
        policy.pairs_per_block = pairs
        launched.clear()
        for found, same in zip(policy.dense(coords[:3]), expected, strict=True):
            assert torch.equal(found, same)
        assert sum(kernel.name == "nearest" for kernel in launched) == parts
    assert not sought
    policy.dense(coords)  # the grid
    assert sought


@pytest.mark.gpu
@torch.no_grad()
@pytest.mark.parametrize("n", [5, 50, 100, 300])
def test_a_recorded_pass_repeats_the_launched_one(n: int) -> None:
    policy, coords = make(6, "cuda").eval(), torch.rand(3, n, 2, device="cuda")
    policy.compute_dtype = BF16
    launched = policy.dense(coords)
    for _ in range(3):  # recorded, replayed
        other = policy.dense(torch.rand_like(coords))
        again = policy.dense(coords)
        assert all(torch.equal(x, y) for x, y in zip(launched, again, strict=True))
        assert not torch.equal(other[1], again[1])
    with torch.no_grad():
        policy.encoder.edge_head[2].bias.add_(1.0)  # in place: the graph reads it where it is
    torch.testing.assert_close(policy.dense(coords)[1], launched[1] + 1, rtol=0, atol=1e-2)


@pytest.mark.gpu
@torch.no_grad()
def test_rows_equal_all_pairs_on_the_device() -> None:
    policy, coords = make(3, "cuda").eval(), cities(2, 100).cuda()
    policy.compute_dtype = BF16
    whole = policy.dense(coords)
    for policy.pairs_per_block in (10_000, 1_000):  # instance by instance, and rows of one
        for left, right in zip(policy.dense(coords), whole, strict=True):
            torch.testing.assert_close(left, right, rtol=0.05, atol=0.1)
