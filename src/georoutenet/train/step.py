"""One optimizer step, from fresh instances to updated weights, as a function without host synchronization.

On the CPU the function runs eagerly. On CUDA the same function is compiled in its heavy parts and captured as
one graph (:class:`CapturedStep`), so that a step costs a single launch. Everything a step reads or writes
lives in the tensors of a :class:`State`, updated in place.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from georoutenet.decode import greedy, rollout, sample
from georoutenet.decode.costs import tour_costs
from georoutenet.decode.replay import replay
from georoutenet.kernels.choose import has_adam
from georoutenet.kernels.streams import postponing
from georoutenet.model.scores import Scores
from georoutenet.train.adam import Adam, FusedAdam
from georoutenet.train.distributed import Processes
from georoutenet.train.instances import instances, step_seed
from georoutenet.train.objectives import multi_candidate_loss, single_candidate_loss
from georoutenet.train.pins import hold, left_of
from georoutenet.train.recipe import Batch, Recipe

MULTI = ("loss", "policy_gradient", "guidance", "entropy", "advantage", "gain")
SINGLE = ("loss", "policy_gradient")
COSTS = ("cost", "best_cost", "greedy_cost", "gradient_norm")
WARMUP_STEPS = 4

Network = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Coordinates ``(B, n, 2)`` to start log-probabilities ``(B, n)`` and edge logits ``(B, n, n)``."""
Loss = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""Coordinates, both scores and tours ``(B, M + 1, n)`` to the loss and the diagnostics."""


def diagnostics(recipe: Recipe) -> tuple[str, ...]:
    """Names of the numbers a step reports, in the order of ``State.totals``."""
    return (MULTI if recipe.objective == "mcs" else SINGLE) + COSTS


def plain_rollout(start: Tensor, logits: Tensor, samples: int, seed: int | Tensor) -> Tensor:
    """``rollout`` without kernels of our own, for any device; it reads the seed back to the host."""
    scores = Scores(start, logits)
    drawn = sample(scores, samples, seed=seed, backend="reference").tours
    return torch.cat((drawn, greedy(scores, backend="reference").tours), 1)


class State:
    """Everything that changes during training, as tensors on the device that are only updated in place."""

    def __init__(self, policy: nn.Module, recipe: Recipe, device: torch.device) -> None:
        self.policy = policy.to(device).train()
        self.held = hold(policy, recipe.pin)  # before it is copied
        self.parameters = dict(policy.named_parameters())
        self.average = copy.deepcopy(policy) if recipe.averaging else None
        self.rate = torch.tensor(recipe.learning_rate, device=device)
        self.entropy_weight = torch.zeros((), device=device)
        self.step = torch.zeros((), dtype=torch.int64, device=device)
        self.totals = torch.zeros(len(diagnostics(recipe)), dtype=torch.float64, device=device)
        weights = list(self.parameters.values())
        average = [] if self.average is None else list(self.average.parameters())
        make = FusedAdam if recipe.fused and has_adam(device, weights[0].dtype) else Adam
        self.optimizer = make(weights, average, recipe, rate=self.rate, step=self.step, totals=self.totals)

    def groups(self) -> dict[str, dict[str, Tensor]]:
        """The tensors to store, by group and name: weights, Adam's two moments, the averaged weights."""
        optimizer = self.optimizer
        found = {"weights": optimizer.weights, "momentum": optimizer.momentum, "variance": optimizer.variance}
        if optimizer.average is not None:
            found["average"] = optimizer.average
        return {
            group: dict(zip(self.parameters, together.tensors, strict=True))
            for group, together in found.items()
        }

    def set_step(self, step: int) -> None:
        """Continue as after ``step`` optimizer steps."""
        self.optimizer.set_step(step)
        self.totals.zero_()

    def load(self, groups: dict[str, dict[str, Tensor]], step: int) -> None:
        """Copy stored tensors into place."""
        with torch.no_grad():
            for group, tensors in self.groups().items():
                for name, tensor in tensors.items():
                    tensor.copy_(groups[group][name])
        self.set_step(step)

    def evaluated(self) -> nn.Module:
        """The policy to validate and to keep: the averaged one where there is one."""
        return self.policy if self.average is None else self.average


def make_loss(state: State, recipe: Recipe, processes: Processes) -> Loss:
    """The objective: loss and stacked diagnostics of scores and tours, of which the last is greedy."""
    settings, names = recipe.multi_candidate(), diagnostics(recipe)[:-1]

    def loss_of(coords: Tensor, start: Tensor, logits: Tensor, tours: Tensor) -> tuple[Tensor, Tensor]:
        costs = tour_costs(coords, tours)
        sampled, greedy = costs[:, :-1], costs[:, -1]
        log_probability, entropy = replay(start, logits, tours[:, :-1])
        if recipe.objective == "pg":
            loss, values = single_candidate_loss(sampled, greedy, log_probability, across=processes.average)
        else:
            loss, values = multi_candidate_loss(
                sampled,
                greedy,
                log_probability,
                entropy,
                n=tours.shape[-1],
                entropy_coefficient=state.entropy_weight,
                settings=settings,
                across=processes.average,
            )
        return loss, torch.stack([values[name] for name in names])

    return loss_of


class Step:
    """One optimizer step on one kind of batch. Calling it changes ``state`` and returns nothing."""

    def __init__(
        self,
        state: State,
        recipe: Recipe,
        kind: Batch,
        network: Network,
        loss_of: Loss,
        *,
        processes: Processes | None = None,
        compiled: bool = False,
    ) -> None:
        self.state, self.recipe, self.kind = state, recipe, kind
        self.network, self.loss_of = network, loss_of
        self.processes = processes or Processes()
        self.batch = self.processes.share(kind.batch)
        self.draw = torch.compile(self._draw, dynamic=False) if compiled else self._draw
        self.tours_of = rollout if recipe.triton else plain_rollout

    def _draw(self) -> tuple[Tensor, Tensor]:
        """This step's instances, and the seed of its sampled tours."""
        first = self.processes.rank * self.batch
        seed = step_seed(self.recipe.seed, self.state.step, 1)
        coords = instances(seed, self.batch, self.kind.n, self.kind.distribution, first=first)
        return coords, step_seed(self.recipe.seed, self.state.step, 2 + self.processes.rank)

    def gradients(self) -> Tensor:
        """Compute this step's gradients; returns the stacked diagnostics."""
        for parameter in self.state.parameters.values():
            parameter.grad = None  # the last step's memory is free for this one
        coords, seed = self.draw()
        start, logits = self.network(coords)
        tours = self.tours_of(start.detach(), logits.detach(), samples=self.recipe.candidates, seed=seed)
        loss, values = self.loss_of(coords, start, logits, tours)
        del start, logits, tours  # before the backward pass, which is when most memory is in use
        self.backward(loss)
        return values

    def backward(self, loss: Tensor) -> None:
        """Leave the loss's gradients at the parameters, as they come: strided, shared, or none."""
        names, parameters = list(self.state.parameters), list(self.state.parameters.values())
        with postponing(loss):
            gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        for name, parameter, given in zip(names, parameters, gradients, strict=True):
            gradient = None if given is None else left_of(given, name, self.state.held)
            if gradient is not None and self.processes.count > 1:  # written to, so in memory of its own
                gradient = gradient.clone(memory_format=torch.contiguous_format)
            parameter.grad = gradient
        self.processes.average_gradients(parameters)

    def __call__(self) -> None:
        self.state.optimizer.update(self.gradients())


class CapturedStep:
    """A step recorded as one CUDA graph. Making it runs warm-up steps and puts the state back afterwards.

    Steps that take turns share their memory: ``beside`` is another one recorded before.
    """

    def __init__(self, step: Step, *, beside: CapturedStep | None = None) -> None:
        state = step.state
        before = {
            group: {name: tensor.to("cpu", copy=True) for name, tensor in tensors.items()}
            for group, tensors in state.groups().items()
        }
        at = int(state.step.item())
        # Graphs of one stream share the workspace of its matrix products, so those that may run at the same
        # time (other trainers') are recorded on others.
        self.stream: torch.cuda.Stream = torch.cuda.Stream() if beside is None else beside.stream
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            for _ in range(WARMUP_STEPS):
                step()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        pool = None if beside is None else beside.graph.pool()
        with (
            state.optimizer.recording() as self.kept,
            torch.cuda.graph(self.graph, pool=pool, stream=self.stream),
        ):
            step()
        state.load(before, at)

    def __call__(self) -> None:
        self.graph.replay()
