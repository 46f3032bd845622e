"""The optimizer against torch's own, and its kernels (on emulated blocks, or a GPU) against the optimizer."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from emulated import emulate, on_gpu
from tiny import tiny_recipe
from torch import Tensor, nn

from georoutenet.kernels import adam as kernels
from georoutenet.kernels.adam import PIECE
from georoutenet.train.adam import Adam, FusedAdam, starts
from georoutenet.train.prepare import make_policy, make_steps
from georoutenet.train.step import State

# Less than four elements, a tail of a vector, of a piece, several pieces, nothing but whole ones; no shape.
SHAPES = [(), (1,), (3,), (7, 5), (130,), (24, 43), (PIECE + 1,), (2, PIECE), (129, 17)]
PLAIN: list[str] = []
ALL = ["clip=0.5", "weight_decay=0.1", "averaging=0.9"]
SETTINGS = [PLAIN, ["clip=0.5"], ["clip=1e6"], ["weight_decay=0.1"], ["averaging=0.9"], ALL]
VALUES = torch.tensor([0.5, -2.0, 3.25])


class Case:
    """Parameters and gradients of all kinds, the same for each seed."""

    def __init__(
        self, make: type[Adam], settings: list[str], seed: int, step: int = 0, device: str = "cpu"
    ) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.device = device
        recipe = tiny_recipe(settings)
        self.parameters = [nn.Parameter(self.draw(shape)) for shape in SHAPES]
        averaged = [nn.Parameter(self.draw(shape)) for shape in SHAPES] if recipe.averaging else []
        self.before = [parameter.detach().clone() for parameter in self.parameters]
        self.rate = torch.tensor(0.01, device=device)
        self.step = torch.zeros((), dtype=torch.int64, device=device)
        self.totals = torch.ones(len(VALUES) + 1, dtype=torch.float64, device=device)
        self.adam = make(
            self.parameters, averaged, recipe, rate=self.rate, step=self.step, totals=self.totals
        )
        for momentum, variance in zip(self.adam.momentum.tensors, self.adam.variance.tensors, strict=True):
            momentum.copy_(self.draw(momentum.shape) * (step > 0))
            variance.copy_((self.draw(variance.shape).square() + 0.01) * (step > 0))
        self.adam.set_step(step)

    def draw(self, shape: tuple[int, ...]) -> Tensor:
        return torch.randn(shape, generator=self.generator).to(self.device)

    def set_gradients(self) -> None:
        """Dense, transposed, of every second element, expanded, or none at all; in turns."""
        for k, parameter in enumerate(self.parameters):
            shape = parameter.shape
            gradient: Tensor | None = self.draw(shape)
            if k == 3:
                gradient = self.draw((5, 7)).T
            elif k == 4:
                gradient = self.draw((260,))[::2]
            elif k == 5:
                gradient = self.draw((24, 1)).expand(shape)
            elif k == 6:
                gradient = None
            elif k == 7:
                gradient = self.draw((2 * PIECE + 1,))[1:].view(shape)  # not where 16 bytes begin
            parameter.grad = gradient

    def take_steps(self, count: int) -> None:
        for _ in range(count):
            self.set_gradients()
            self.adam.update(VALUES.to(self.device))

    def groups(self) -> dict[str, list[Tensor]]:
        found = {
            "weights": self.adam.weights.tensors,
            "momentum": self.adam.momentum.tensors,
            "variance": self.adam.variance.tensors,
        }
        return found | ({} if self.adam.average is None else {"average": self.adam.average.tensors})


ON_DEVICE = 3e-5  # relative: there PyTorch takes the betas' powers in float32, the kernels in float64


def compare(found: Case, expected: Case, rtol: float = 2e-6) -> None:
    """Equal up to the rounding of float32."""
    assert int(found.step) == int(expected.step)
    torch.testing.assert_close(found.totals, expected.totals, rtol=3e-6, atol=0)
    assert found.groups().keys() == expected.groups().keys()
    for group, tensors in found.groups().items():
        for k, (left, right) in enumerate(zip(tensors, expected.groups()[group], strict=True)):
            torch.testing.assert_close(left, right, rtol=rtol, atol=rtol / 10, msg=f"{group} {SHAPES[k]}")
    for case in (found, expected):  # also no memory of others was touched
        for together in (case.adam.weights, case.adam.momentum, case.adam.variance):
            used = torch.zeros_like(together.buffer, dtype=torch.bool)
            for start, tensor in zip(starts(together.tensors), together.tensors, strict=False):
                used[start : start + tensor.numel()] = True
            assert not together.buffer[~used].any()


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Runs the kernels on emulated blocks, at most so many."""

    def use(blocks: int) -> None:
        emulate(monkeypatch)
        monkeypatch.setattr(kernels, "NORM_BLOCKS", 2 * blocks)
        monkeypatch.setattr(kernels, "UPDATE_BLOCKS", blocks)

    return use


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("step", [0, 999])
def test_kernels_equal_the_reference(emulated: Callable[[int], None], settings: list[str], step: int) -> None:
    emulated(3)
    found, expected = (Case(make, settings, 5, step) for make in (FusedAdam, Adam))
    for case in (found, expected):
        case.take_steps(2)
    compare(found, expected)
    assert not torch.equal(found.parameters[-1], found.before[-1])
    assert torch.equal(found.parameters[6], found.before[6])  # it had no gradient


@pytest.mark.parametrize("blocks", [1, 2, 100])
def test_any_number_of_blocks(emulated: Callable[[int], None], blocks: int) -> None:
    emulated(blocks)
    found, expected = (Case(make, ALL, 6, 10) for make in (FusedAdam, Adam))
    for case in (found, expected):
        case.take_steps(1)
    compare(found, expected)


def test_a_norm_that_is_no_number_shows(emulated: Callable[[int], None]) -> None:
    emulated(2)
    for make in (FusedAdam, Adam):
        case = Case(make, ALL, 7)
        case.set_gradients()
        case.parameters[2].grad = torch.tensor([1.0, float("nan"), 0.0])
        case.adam.update(VALUES)
        assert case.totals.isfinite().tolist() == [True, True, True, False]
        assert case.parameters[0].isnan().all()


def test_a_graph_has_a_table_of_its_own(emulated: Callable[[int], None]) -> None:
    """Recorded launches run later: with the recorded gradients, whatever other steps did in between."""
    emulated(2)
    found, expected = (Case(make, ALL, 8) for make in (FusedAdam, Adam))
    assert isinstance(found.adam, FusedAdam)
    launches = []
    with pytest.MonkeyPatch.context() as patch, found.adam.recording() as table:
        for name in ("NORM", "UPDATE"):
            launches.append(recorded := [])
            patch.setattr(kernels, name, lambda *a, of=recorded, **k: of.append((a, k)))
        found.set_gradients()
        found.adam.update(VALUES)
        kept = [parameter.grad for parameter in found.parameters]
    assert table is not None
    found.generator.manual_seed(8)
    expected.generator.manual_seed(8)
    expected.set_gradients()
    found.take_steps(1)
    expected.adam.update(VALUES)
    compare(found, expected)
    for parameter, gradient in zip(expected.parameters, kept, strict=True):
        parameter.grad = gradient
    expected.adam.update(VALUES)
    for kernel, ((arguments, options),) in zip((kernels.NORM, kernels.UPDATE), launches, strict=True):
        kernel(*arguments, **options)
    compare(found, expected)


def test_training_with_the_kernels(emulated: Callable[[int], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole steps of a policy, with gradients as the backward pass leaves them."""
    emulated(20)

    def train(in_kernels: bool) -> State:
        monkeypatch.setattr("georoutenet.train.step.has_adam", lambda device, dtype: in_kernels)
        recipe = tiny_recipe(ALL)
        state = State(make_policy(recipe), recipe, torch.device("cpu"))
        assert isinstance(state.optimizer, FusedAdam) == in_kernels
        (step,) = make_steps(state, recipe, torch.device("cpu"))
        for _ in range(3):
            step()
        assert any(parameter.grad is None for parameter in state.parameters.values())
        return state

    found, expected = train(True), train(False)
    torch.testing.assert_close(found.totals, expected.totals, rtol=1e-5, atol=1e-6)
    groups, variance = expected.groups(), expected.groups()["variance"]
    for group, tensors in found.groups().items():
        for name, tensor in tensors.items():
            real = variance[name].sqrt() > 1e-6  # others have gradients that are but rounding
            exact = groups[group][name]
            # A step changes a weight by 1e-3.
            near = 1e-5 if group in ("weights", "average") else 1e-3 * exact.abs().max().item()
            torch.testing.assert_close(tensor[real], exact[real], rtol=0, atol=near, msg=f"{group} {name}")


def test_the_reference_is_what_torch_does() -> None:
    """Clipping, decay and Adam as in the usual loop of PyTorch."""
    case = Case(Adam, ["clip=0.5", "weight_decay=0.1"], 9)
    copies = [nn.Parameter(tensor.clone()) for tensor in case.before]
    optimizer = torch.optim.AdamW(copies, lr=0.01, weight_decay=0.1)
    norms = torch.zeros(())
    for _ in range(3):
        case.set_gradients()
        for copy, parameter in zip(copies, case.parameters, strict=True):
            copy.grad = None if parameter.grad is None else parameter.grad.clone()
        case.adam.update(VALUES)
        norms += torch.nn.utils.clip_grad_norm_(copies, 0.5)
        optimizer.step()
    for parameter, copy in zip(case.parameters, copies, strict=True):
        torch.testing.assert_close(parameter, copy)
    torch.testing.assert_close(case.totals, torch.cat((1 + 3 * VALUES, 1 + norms[None])).double())


def test_parameters_are_views_of_one_buffer() -> None:
    case = Case(Adam, ALL, 10)
    case.adam.weights.buffer.fill_(2.0)
    for parameter, before in zip(case.parameters, case.before, strict=True):
        assert parameter.shape == before.shape
        assert parameter.data_ptr() % 16 == 0
        assert bool((parameter == 2).all())


@pytest.mark.gpu
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("step", [0, 999])
def test_on_the_device(settings: list[str], step: int) -> None:
    on_gpu(False)
    found, expected = (Case(make, settings, 5, step, "cuda") for make in (FusedAdam, Adam))
    for case in (found, expected):
        case.take_steps(2)
    compare(found, expected, ON_DEVICE)


@pytest.mark.gpu
def test_recorded_on_the_device() -> None:
    """A graph with gradients of its own, replayed between eager steps."""
    on_gpu(False)
    found, expected = (Case(make, ALL, 5, 3, "cuda") for make in (FusedAdam, Adam))
    found.set_gradients()
    source = [None if p.grad is None else p.grad.clone() for p in found.parameters]
    values, graph = VALUES.cuda(), torch.cuda.CUDAGraph()
    with found.adam.recording() as table, torch.cuda.graph(graph):
        for parameter, gradient in zip(found.parameters, source, strict=True):
            parameter.grad = None if gradient is None else gradient * 2
        found.adam.update(values)
    assert table is not None
    assert int(found.step) == 3
    expected.generator.manual_seed(1)
    found.generator.manual_seed(1)
    for case in (found, expected):
        case.take_steps(1)
    for _ in range(2):
        graph.replay()
        for parameter, gradient in zip(expected.parameters, source, strict=True):
            parameter.grad = None if gradient is None else gradient * 2
        expected.adam.update(values)
    compare(found, expected, ON_DEVICE)
