"""Adam with clipped gradients, decoupled weight decay and averaged weights, on parameters that lie together.

The parameters, both moments and the averaged weights are each one buffer, of which a module's parameters are
views. `Adam` has PyTorch update them tensor by tensor; `FusedAdam` goes through the buffers once, in the CUDA
kernels of `georoutenet.kernels.adam`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from georoutenet.kernels.adam import Pieces
from georoutenet.train.recipe import Recipe

ALIGNMENT = 128  # elements between the beginnings of tensors are a multiple of these


def starts(tensors: Iterable[Tensor]) -> list[int]:
    """Where each tensor begins in a buffer of all; last, where the buffer ends."""
    begins = [0]
    for tensor in tensors:
        begins.append(begins[-1] + -(-tensor.numel() // ALIGNMENT) * ALIGNMENT)
    return begins


class Together:
    """Tensors like the given ones in one buffer of zeros."""

    def __init__(self, like: Sequence[Tensor]) -> None:
        *begins, end = starts(like)
        self.buffer = like[0].new_zeros(end)
        self.tensors = [
            self.buffer[start : start + tensor.numel()].view(tensor.shape)
            for start, tensor in zip(begins, like, strict=True)
        ]


@torch.no_grad()
def move_together(parameters: Sequence[nn.Parameter]) -> Together:
    """Make the parameters views of one buffer; their values stay."""
    together = Together([parameter.detach() for parameter in parameters])
    for parameter, tensor in zip(parameters, together.tensors, strict=True):
        tensor.copy_(parameter)
        parameter.data = tensor
    return together


class Adam:
    """The optimizer of a policy's parameters, in place; ``average`` are the averaged ones, if there are any.

    ``rate``, ``step`` and ``totals`` live on the device: the learning rate to use, the steps so far, and the
    sums of all steps' values and of the gradients' norms before clipping.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        average: Sequence[nn.Parameter],
        recipe: Recipe,
        *,
        rate: Tensor,
        step: Tensor,
        totals: Tensor,
    ) -> None:
        self.parameters, self.recipe = parameters, recipe
        self.rate, self.step, self.totals = rate, step, totals
        self.weights = move_together(parameters)
        self.average = move_together(average) if average else None
        self.momentum, self.variance = Together(self.weights.tensors), Together(self.weights.tensors)
        # Without weight decay this is Adam itself; with it, the decay stays apart from the gradient.
        self.by_tensor = torch.optim.AdamW(
            parameters, lr=rate, weight_decay=recipe.weight_decay, fused=True, capturable=rate.is_cuda
        )
        moments = zip(parameters, self.momentum.tensors, self.variance.tensors, strict=True)
        for parameter, momentum, variance in moments:
            step_of_tensor = torch.zeros((), device=rate.device)
            state = {"step": step_of_tensor, "exp_avg": momentum, "exp_avg_sq": variance}
            self.by_tensor.state[parameter] = state

    def set_step(self, step: int) -> None:
        """Continue as after ``step`` steps."""
        self.step.fill_(step)
        for state in self.by_tensor.state.values():
            state["step"].fill_(step)

    @torch.no_grad()
    def update(self, values: Tensor) -> None:
        """One step with the parameters' gradients. A parameter that has none stays as it is."""
        given = [parameter for parameter in self.parameters if parameter.grad is not None]
        gradients = [parameter.grad.contiguous() for parameter in given if parameter.grad is not None]
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        if self.recipe.clip:  # not in place: parameters may share a gradient
            gradients = list(torch._foreach_mul(gradients, (self.recipe.clip / (norm + 1e-6)).clamp(max=1.0)))
        for parameter, gradient in zip(given, gradients, strict=True):
            parameter.grad = gradient
        self.by_tensor.step()
        self.step += 1
        if self.average is not None:  # the plain mean until the window of 1 / (1 - averaging) steps is full
            weight = (1 / self.step).clamp_min(1 - self.recipe.averaging)
            self.average.buffer += (self.weights.buffer - self.average.buffer) * weight
        self.totals += torch.cat((values, norm[None]))

    @contextmanager
    def recording(self) -> Iterator[Tensor | None]:
        """While a CUDA graph is recorded; it needs what this gives for as long as it is used."""
        yield None


class FusedAdam(Adam):
    """Adam in two kernels, which read the gradients where the backward pass left them."""

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        average: Sequence[nn.Parameter],
        recipe: Recipe,
        **on_device: Tensor,
    ) -> None:
        super().__init__(parameters, average, recipe, **on_device)
        self.pieces = Pieces(parameters, starts(parameters)[:-1])
        self.table = self.pieces.new_table()
        self.rows: Tensor | None = None  # the table of a graph that is being recorded, once it is known
        self.is_recording = False
        decays = (recipe.weight_decay, recipe.averaging)
        self.decays = torch.tensor(decays, dtype=torch.float64, device=self.rate.device)
        self.clip = torch.tensor(recipe.clip, device=self.rate.device)

    def update(self, values: Tensor) -> None:
        rows = self.pieces.rows()
        if self.is_recording:
            self.rows = rows
        else:
            self.table.copy_(rows)
        of_buffers = (self.weights, self.momentum, self.variance, self.average or self.weights)
        self.pieces.update(
            self.table,
            [of.buffer for of in of_buffers],
            step=self.step,
            rate=self.rate,
            decays=self.decays,
            clip=self.clip,
            values=values,
            totals=self.totals,
            has_average=self.average is not None,
        )

    @contextmanager
    def recording(self) -> Iterator[Tensor | None]:
        """A graph's gradients have addresses of their own, which are written down when it is complete."""
        usual, self.table, self.is_recording = self.table, torch.empty_like(self.table), True
        try:
            yield self.table
            assert self.rows is not None, "nothing was recorded"
            self.table.copy_(self.rows)
        finally:
            self.table, self.rows, self.is_recording = usual, None, False
