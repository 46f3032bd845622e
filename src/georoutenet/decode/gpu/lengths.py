"""Lengths of tours on a GPU: one warp a tour (``kernels/cuda/source/tour_lengths.cu``)."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from georoutenet.kernels.cuda.compile import Kernel, try_all

LENGTHS = Kernel("tour_lengths.cu", "tour_lengths", warps=4, shared=0)


@cache
def problem(device: torch.device) -> str:
    """Why the kernel cannot be had, empty if it can; PyTorch measures as well, in more launches."""

    def launch() -> None:
        tours = torch.arange(2, device=device).view(1, 1, 2)
        lengths(torch.zeros((1, 2, 2), dtype=torch.float64, device=device), tours, closed=True, rule=0)

    return try_all([LENGTHS], device, launch)


def lengths(points: Tensor, tours: Tensor, *, closed: bool, rule: int) -> Tensor:
    """Float64 ``(B, M)`` of ``tours (B, M, n)`` in ``points (B, n, 2)``, under a rule of ``costs.RULES``."""
    batch, count, n = tours.shape
    found = points.new_empty((batch, count))
    if batch * count:
        LENGTHS(
            points.contiguous(), tours.contiguous(), found, batch * count, count, n, n - (not closed), rule,
            blocks=-(-batch * count // LENGTHS.warps),
        )  # fmt: skip
    return found
