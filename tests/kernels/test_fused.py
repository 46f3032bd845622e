"""GeoRouteNet over one set of edge states against its two towers: scores and the gradients of all weights."""

from __future__ import annotations

import copy
import gc
import math
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from georoutenet.model.config import PolicyConfig
from georoutenet.model.geometry import neighborhood, pair_distances
from georoutenet.model.georoutenet import GeoRouteNet
from georoutenet.policy import Policy

pytest.importorskip("triton", reason="Triton is not installed")


def make(hidden: int, layers: int, dtype: torch.dtype, device: str = "cpu", heads: int = 2) -> Policy:
    torch.manual_seed(2)
    policy = Policy(PolicyConfig(hidden=hidden, heads=heads, layers=layers, neighbors=4)).to(device, dtype)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return policy


def cities(batch: int, n: int) -> Tensor:
    """Random instances, and as the last a grid full of ties."""
    torch.manual_seed(n)
    coords = torch.rand(batch, n, 2, dtype=torch.float64)
    coords[-1] = torch.stack((torch.arange(n) % 4, torch.arange(n) // 4), -1) / 4
    return coords


def gradients(policy: Policy, start: Tensor, logits: Tensor) -> dict[str, Tensor]:
    """Gradients of a fixed random function of the scores."""
    torch.manual_seed(5)
    policy.zero_grad()
    weights = torch.randn(start.shape).to(start), torch.randn(logits.shape).to(logits)
    ((start * weights[0]).sum() + (logits * weights[1]).sum()).backward()
    return {name: p.grad.clone() for name, p in policy.named_parameters() if p.grad is not None}


def differences(policy: Policy, coords: Tensor, dtype: torch.dtype, *, plain: bool) -> list[dict[str, float]]:
    """How far all pairs at once in ``dtype``, and the two towers in it, are from the towers in float64."""
    from georoutenet.kernels.encoder import all_pairs, operations

    near = neighborhood(coords, policy.config.neighbors)
    distance = pair_distances(coords.unsqueeze(2), coords.unsqueeze(1))
    assert isinstance(policy.encoder, GeoRouteNet)
    scores = all_pairs(policy.encoder, coords, distance, near, dtype, operations(plain=plain))
    found = [{"start": scores[0], "logits": scores[1], **gradients(policy, *scores)}]
    policy.fused = False
    for compute_dtype in (dtype, None):
        if compute_dtype is None:
            policy.double()
        policy.compute_dtype = compute_dtype
        scores = policy.dense(coords.to(policy.dtype))
        found.append({"start": scores[0], "logits": scores[1], **gradients(policy, *scores)})
    *found, exact = found
    largest = max(value.norm() for value in exact.values())

    def off(mine: Tensor, value: Tensor) -> float:
        # Some gradients vanish: a key's bias cancels in the softmax.
        return ((mine.double() - value).norm() / value.norm().clamp(min=1e-3 * largest.item())).item()

    assert all(each.keys() == exact.keys() for each in found)
    for each in (*found, exact):
        each["gradient"] = torch.cat([g.flatten() for name, g in each.items() if "." in name])
    return [{name: off(each[name], value) for name, value in exact.items()} for each in found]


def compare(policy: Policy, coords: Tensor, dtype: torch.dtype, tolerance: float, *, plain: bool) -> None:
    """All pairs at once in ``dtype`` against the two towers in float64."""
    for name, off in differences(policy, coords, dtype, plain=plain)[0].items():
        assert off < tolerance, (name, off)


@pytest.mark.parametrize("n", [2, 3, 5, 12, 30])
def test_plain_operations_give_the_scores_of_the_two_towers(n: int) -> None:
    compare(make(16, 3, torch.float64), cities(2, n), torch.float64, 1e-10, plain=True)


def test_weights_narrowed_together_are_those_narrowed_one_by_one() -> None:
    from georoutenet.kernels import encoder as fused

    policy, coords = make(16, 2, torch.float32), cities(2, 9).float()
    net = policy.encoder
    assert isinstance(net, GeoRouteNet)
    near, distance = neighborhood(coords, 4), pair_distances(coords.unsqueeze(2), coords.unsqueeze(1))
    dtype, use = torch.bfloat16, fused.operations(plain=True)
    together = fused.all_pairs(net, coords, distance, near, dtype, use)
    one_by_one = fused._all_pairs(net, fused.prepare(net, coords, dtype, use), distance, near, {}, dtype, use)
    assert net.layers[0].query.narrow is None
    for left, right in zip(together, one_by_one, strict=True):
        assert torch.equal(left, right)
    expected = gradients(policy, *one_by_one)
    found = gradients(policy, *together)
    assert found.keys() == expected.keys()
    for name, gradient in found.items():
        assert torch.equal(gradient, expected[name]), name


def test_compiled_beginning() -> None:
    """Compiled, the beginning of a pass is written otherwise; it is that of the network."""
    from georoutenet.kernels import encoder as fused

    policy, coords = make(16, 1, torch.float32), cities(3, 7).float()
    net = policy.encoder
    assert isinstance(net, GeoRouteNet)
    fused.compile_nodes(net)
    assert net.compiled is not None
    (h,), s, queries = net.begin(coords, torch.float32)
    (first,), start, (together,) = net.compiled(coords, torch.float32)
    mine, expected = (first, start, together), (h, s, torch.cat(queries, -1))
    torch.manual_seed(1)
    upstream = [torch.randn_like(x) for x in expected]
    found = []
    for outputs in (mine, expected):
        policy.zero_grad()
        torch.autograd.backward(outputs, upstream)
        found.append({name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None})
    for left, right in zip(mine, expected, strict=True):
        torch.testing.assert_close(left, right)
    torch.testing.assert_close(*found)


def test_a_copy_has_nothing_compiled() -> None:
    """What is compiled has the weights of the network that it was compiled for."""
    from georoutenet.kernels import encoder as fused

    net = make(16, 2, torch.float32).encoder
    assert isinstance(net, GeoRouteNet)
    fused.compile_nodes(net)
    again = copy.deepcopy(net)
    assert [part.compiled is None for part in (net, *net.layers)] == [False] * 3
    assert [part.compiled is None for part in (again, *again.layers)] == [True] * 3
    assert torch.equal(again.node_input.weight, net.node_input.weight)


SCRIPT = """
import sys, torch
sys.path.insert(0, {folder!r})
from test_fused import cities, compare, make
for n in (3, 11):
    compare(make(16, 2, torch.float32), cities(2, n).float(), torch.float32, 1e-4, plain=False)

sys.path.insert(0, {train!r})
from georoutenet.kernels import encoder as fused
from georoutenet.train.step import State
from georoutenet.train.prepare import make_policy, make_steps
from tiny import tiny_recipe

def train(kernels):
    fused.fits = lambda *_: kernels
    recipe = tiny_recipe(["n=6", "batch=2", "policy.hidden=16", "policy.layers=2", "policy.neighbors=3"])
    state = State(make_policy(recipe), recipe, torch.device("cpu"))
    weights = lambda: torch.cat([p.detach().flatten() for p in state.parameters.values()])
    (step,) = make_steps(state, recipe, torch.device("cpu"))
    before = weights()
    for _ in range(4):
        step()
    return weights() - before, state.totals

(change, totals), (expected_change, expected_totals) = train(True), train(False)
torch.testing.assert_close(totals, expected_totals, rtol=1e-3, atol=1e-3)
assert (change - expected_change).norm() < 0.02 * expected_change.norm()
print("agreed")
"""


def test_in_the_interpreter(interpret: Callable[[str], None]) -> None:
    """Scores and gradients, and a few steps of training with and without the kernels."""
    folder = Path(__file__).parent
    interpret(SCRIPT.format(folder=str(folder), train=str(folder.parent / "train")))


def scores_and_gradients(policy: Policy, coords: Tensor, *, recompute: int) -> dict[str, Tensor]:
    """As trained in kernels, in float32."""
    from georoutenet.kernels.encoder import all_pairs, operations

    near = neighborhood(coords, policy.config.neighbors)
    distance = pair_distances(coords.unsqueeze(2), coords.unsqueeze(1))
    assert isinstance(policy.encoder, GeoRouteNet)
    use = operations()
    start, logits = all_pairs(policy.encoder, coords, distance, near, torch.float32, use, recompute=recompute)
    return {"start": start, "logits": logits, **gradients(policy, start, logits)}


FORGET = """
import gc, sys, weakref, torch
sys.path.insert(0, {folder!r})
from test_fused import cities, make, scores_and_gradients
from georoutenet.kernels import encoder as fused

made = []  # edge states, in the order in which they were made
for name in ("embed", "update"):
    def remember(*args, make=getattr(fused, name)):
        states = make(*args)
        made.append(weakref.ref(states.untyped_storage()))
        return states
    setattr(fused, name, remember)

alive = []  # whether they still are when the last ones are made, by the operation that has the head
logits = fused.logits
def look(*args):
    gc.collect()  # Triton's interpreter leaves cycles
    alive.append([each() is not None for each in made])
    return logits(*args)
fused.logits = look

for layers, count, left in (
    (4, 1, [False, True, True, True]),
    (4, 2, [False, True, False, True]),
    (3, 2, [False, True, True]),
):
    policy, coords = make(16, layers, torch.float32), cities(2, 7).float()
    kept = scores_and_gradients(policy, coords, recompute=0)
    made.clear()
    again = scores_and_gradients(policy, coords, recompute=count)
    assert alive == [[True] * layers, left], alive
    assert len(made) == layers + count
    gc.collect()
    assert not any(each() for each in made)
    assert kept.keys() == again.keys()
    assert all(torch.equal(value, again[name]) for name, value in kept.items())
    alive.clear()
    made.clear()
print("agreed")
"""


def test_states_that_are_made_again(interpret: Callable[[str], None]) -> None:
    """One set of edge states, or every second one, is gone after the forward pass; scores and gradients are
    the same."""
    interpret(FORGET.format(folder=str(Path(__file__).parent)))


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
    from georoutenet.kernels.encoder import MadeAgain

    x = torch.ones(3, requires_grad=True)
    again = MadeAgain(x, lambda: torch.ones(3))
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
def test_making_states_again_saves_memory_on_the_device() -> None:
    policy = make(128, 6, torch.float32, "cuda", 8).train()
    policy.compute_dtype = torch.bfloat16
    coords = cities(64, 50).float().cuda()
    found, peaks = [], []
    for policy.recompute in (0, 1, 3):
        for _ in range(2):  # the first call prepares
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            scores = policy.dense(coords, 11)
            of_parameters = gradients(policy, *scores)
            values = {"start": scores[0].detach(), "logits": scores[1].detach(), **of_parameters}
            del scores  # and with them all that their graph still holds
        found.append(values)
        peaks.append(torch.cuda.max_memory_allocated() - before)
    states = 64 * 50 * 50 * 128 * 2
    assert peaks[1] < peaks[0] - 0.8 * states
    assert peaks[2] < peaks[0] - 2 * states
    for name, value in found[0].items():
        assert all(torch.equal(value, other[name]) for other in found[1:]), name


# With 8 heads the work at the nodes is in CUDA kernels, with 2 it is not.
HEADS = pytest.mark.parametrize("heads", [2, 8])


@pytest.mark.gpu
@HEADS
@pytest.mark.parametrize("n", [5, 50, 65, 100])
def test_on_the_device(n: int, heads: int) -> None:
    """In bfloat16 the kernels are as near to the exact scores and gradients as the two towers are."""
    policy = make(128, 6, torch.float32, "cuda", heads)
    fused, towers = differences(policy, cities(3, n).float().cuda(), torch.bfloat16, plain=False)
    for name, parameter in policy.named_parameters():
        if parameter.numel() == 1:  # its gradient is one sum that cancels; it counts in "gradient"
            fused.pop(name, None)
    for name, off in fused.items():
        # A parameter's gradient may be small beside the terms that it is the sum of.
        allowance = 0.5 if "." in name else 0.05
        assert off < 3 * towers[name] + allowance, (name, off, towers[name])


@pytest.mark.gpu
@pytest.mark.parametrize(("n", "unit", "reach"), [(12, "square", 0.0), (50, "density", 0.5)])
def test_one_kernel_for_the_neighborhoods_on_the_device(
    n: int, unit: str, reach: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scores and gradients do not depend on how the neighborhoods were found, to the bit, and repeat."""
    from georoutenet.kernels.cuda import nearest as nearest_cuda

    torch.manual_seed(3)
    policy = Policy(PolicyConfig(layers=2, unit=unit, reach=reach)).cuda().train()
    policy.compute_dtype = torch.bfloat16
    coords = cities(5, n).float().cuda()
    assert nearest_cuda.fits(coords, 10, 11)
    found = []
    for is_native in (True, True, False):
        if not is_native:
            monkeypatch.setattr(nearest_cuda, "fits", lambda *_: False)
        scores = policy.dense(coords, 11)
        found.append({"start": scores[0], "logits": scores[1], **gradients(policy, *scores)})
    for other in found[1:]:
        for name, value in found[0].items():
            assert torch.equal(value, other[name]), name


@pytest.mark.gpu
@HEADS
@torch.no_grad()
def test_rows_equal_all_pairs_on_the_device(heads: int) -> None:
    policy = make(128, 3, torch.float32, "cuda", heads).eval()
    policy.compute_dtype = torch.bfloat16
    coords = cities(2, 100).float().cuda()
    whole = policy.dense(coords)
    for pairs in (10_000, 1_000):  # instance by instance, and rows of one
        policy.pairs_per_block = pairs
        for left, right in zip(policy.dense(coords), whole, strict=True):
            torch.testing.assert_close(left, right, rtol=0.05, atol=0.1)
