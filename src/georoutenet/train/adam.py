"""Adam with clipped gradients, decoupled weight decay and averaged weights, on parameters that lie together.

The parameters, both moments and the averaged weights are each one buffer, of which a module's parameters are
views. `Adam` has PyTorch update them tensor by tensor; `FusedAdam` goes through the buffers once, in kernels
of its own (`adam.cu`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from georoutenet.kernels.cuda import compile as native
from georoutenet.kernels.cuda.compile import WIDTH, Kernel
from georoutenet.train.recipe import Recipe

ALIGNMENT = 128  # elements between the beginnings of tensors are a multiple of these
WARPS = 8
PIECE = 4 * 32 * WARPS  # elements that a block works on at a time
# At most: what an H200 runs at a time. The same on all devices, so that sums are the same.
NORM_BLOCKS, UPDATE_BLOCKS = 1056, 528
NORM = Kernel("adam.cu", "adam_norm", warps=WARPS, shared=0)
UPDATE = Kernel("adam.cu", "adam_update", warps=WARPS, shared=0)


def starts(tensors: Iterable[Tensor]) -> list[int]:
    """Where each tensor begins in a buffer of all; last, where the buffer ends."""
    places = [0]
    for tensor in tensors:
        places.append(places[-1] + -(-tensor.numel() // ALIGNMENT) * ALIGNMENT)
    return places


class Together:
    """Tensors like the given ones in one buffer of zeros."""

    def __init__(self, like: Sequence[Tensor]) -> None:
        *places, end = starts(like)
        self.buffer = like[0].new_zeros(end)
        self.tensors = [
            self.buffer[start : start + tensor.numel()].view(tensor.shape)
            for start, tensor in zip(places, like, strict=True)
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
        pieces = [
            (k, start + first, first, tensor.numel())
            for k, (tensor, start) in enumerate(zip(parameters, starts(parameters)[:-1], strict=True))
            for first in range(0, tensor.numel(), PIECE)
        ]
        owners, self.extents = torch.tensor(pieces, dtype=torch.int32).split((1, 3), 1)
        self.owners = owners.flatten()
        self.blocks = min(UPDATE_BLOCKS, len(pieces))
        make = partial(torch.zeros, device=self.rate.device)
        self.table = make((len(pieces), 8), dtype=torch.int32)
        self.rows: Tensor | None = None  # the table of a graph that is being recorded, once it is known
        self.is_recording = False
        self.parts, self.plan = make(min(NORM_BLOCKS, len(pieces))), make(4)
        decays = (recipe.weight_decay, recipe.averaging)
        self.decays = torch.tensor(decays, dtype=torch.float64, device=self.rate.device)
        self.clip = torch.tensor(recipe.clip, device=self.rate.device)

    def update(self, values: Tensor) -> None:
        assert values.dtype == torch.float32
        assert values.is_contiguous()
        rows = self._rows()
        if self.is_recording:
            self.rows = rows
        else:
            self.table.copy_(rows)
        NORM(
            self.table,
            self.parts,
            self.step,
            self.rate,
            self.decays,
            self.plan,
            len(self.table),
            blocks=len(self.parts),
        )
        average = self.average or self.weights
        UPDATE(
            self.table,
            *(of.buffer for of in (self.weights, self.momentum, self.variance, average)),
            self.parts,
            self.plan,
            self.clip,
            values,
            self.totals,
            len(self.table),
            len(self.parts),
            int(self.average is not None),
            len(values),
            blocks=self.blocks,
        )

    def _rows(self) -> Tensor:
        """The table of pieces: address of the gradient, extent, and how the gradient lies."""
        layouts, addresses = [], []
        for parameter in self.parameters:
            gradient = parameter.grad
            if gradient is not None and gradient.dim() > 2:
                gradient = parameter.grad = gradient.contiguous()
            addresses.append(0 if gradient is None else gradient.data_ptr())
            layouts.append(_layout(parameter if gradient is None else gradient))
        words = torch.tensor(addresses)[:, None].view(torch.int32)
        rows = torch.cat((words, torch.tensor(layouts, dtype=torch.int32)), 1)[self.owners]
        return torch.cat((rows[:, :2], self.extents, rows[:, 2:]), 1)

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


def _layout(tensor: Tensor) -> tuple[int, int, int]:
    """Columns, and the strides of rows and columns; a tensor that is one row has as many as elements."""
    if tensor.dim() == 2 and not tensor.is_contiguous():
        return tensor.shape[1], tensor.stride(0), tensor.stride(1)
    return tensor.numel(), 0, 1 if tensor.is_contiguous() else tensor.stride(0)


def fits(weights: Tensor) -> bool:
    """Whether `FusedAdam` takes such parameters."""
    if not weights.is_cuda or weights.dtype != torch.float32:
        return False
    # The kernels know no bfloat16, but are compiled where the others are.
    return native.fits(weights.new_empty((0, WIDTH), dtype=torch.bfloat16), NORM, UPDATE)
