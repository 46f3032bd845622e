"""Adam with clipped gradients, decoupled weight decay and averaged weights in two CUDA kernels (`adam.cu`).

    m = b_1 m + (1 - b_1) c g,    v = b_2 v + (1 - b_2) (c g)^2,    c = min(1, clip / |g|)
    w = (1 - r decay) w - r m' / (sqrt(v') + eps)                   m', v' without their bias towards zero

The first kernel sums the squares of all gradients, the second one goes once through the buffers in which the
parameters, both moments and the averaged weights lie. Gradients are read where the backward pass left them,
by a table of pieces. The reference is `georoutenet.train.adam.Adam`, which has PyTorch do the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from georoutenet.kernels.cuda.compile import Kernel

WARPS = 8
PIECE = 4 * 32 * WARPS  # elements that a block works on at a time
# At most: what an H200 runs at a time. The same on all devices, so that sums are the same.
NORM_BLOCKS, UPDATE_BLOCKS = 1056, 528
NORM = Kernel("adam.cu", "adam_norm", warps=WARPS, shared=0)
UPDATE = Kernel("adam.cu", "adam_update", warps=WARPS, shared=0)


class Pieces:
    """The parameters in pieces, each the work of a block, and memory for the kernels' sums.

    ``starts`` says where each parameter begins in the buffers.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], starts: Sequence[int]) -> None:
        self.parameters = parameters
        pieces = [
            (k, start + first, first, tensor.numel())
            for k, (tensor, start) in enumerate(zip(parameters, starts, strict=True))
            for first in range(0, tensor.numel(), PIECE)
        ]
        owners, self.extents = torch.tensor(pieces, dtype=torch.int32).split((1, 3), 1)
        self.owners = owners.flatten()
        self.blocks, device = min(UPDATE_BLOCKS, len(pieces)), parameters[0].device
        self.sums = torch.zeros(min(NORM_BLOCKS, len(pieces)), device=device)
        self.scalars = torch.zeros(4, device=device)  # what all elements of a step share

    def new_table(self) -> Tensor:
        """A table for `rows`, on the device."""
        return torch.zeros((len(self.extents), 8), dtype=torch.int32, device=self.sums.device)

    def rows(self) -> Tensor:
        """Of each piece the address of the gradient, its extent, and how the gradient lies; on the host."""
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

    def update(
        self,
        table: Tensor,
        buffers: Sequence[Tensor],
        *,
        step: Tensor,
        rate: Tensor,
        decays: Tensor,
        clip: Tensor,
        values: Tensor,
        totals: Tensor,
        has_average: bool,
    ) -> None:
        """One step of the weights, momentum, variance and averaged weights in ``buffers``. ``decays`` are
        those of the weights and of the average. Adds ``values`` and the gradients' norm to ``totals``."""
        assert values.dtype == torch.float32
        assert values.is_contiguous()
        count, parts = len(table), len(self.sums)
        NORM(table, self.sums, step, rate, decays, self.scalars, count, blocks=parts)
        UPDATE(
            table, *buffers, self.sums, self.scalars, clip, values, totals, count, parts, int(has_average),
            len(values), blocks=self.blocks,
        )  # fmt: skip


def _layout(tensor: Tensor) -> tuple[int, int, int]:
    """Columns, and the strides of rows and columns; a tensor that is one row has as many as elements."""
    if tensor.dim() == 2 and not tensor.is_contiguous():
        return tensor.shape[1], tensor.stride(0), tensor.stride(1)
    return tensor.numel(), 0, 1 if tensor.is_contiguous() else tensor.stride(0)
