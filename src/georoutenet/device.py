"""Where torch computes: the one place that understands a ``device`` option."""

from __future__ import annotations

from typing import TYPE_CHECKING

from georoutenet.errors import InputError

if TYPE_CHECKING:
    import torch


def choose_device(name: str) -> torch.device:
    """``auto`` is CUDA where there is a device, else the CPU; anything else is checked.

    A GPU that is named by its number becomes the current one: that is where kernels run.
    """
    import torch

    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    unknown = InputError(f"unknown device {name!r}; allowed: auto, cpu, cuda, cuda:N")
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        raise unknown from None
    if device.type not in ("cpu", "cuda"):
        raise unknown
    count = torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= count:
        raise InputError(f"device {name!r} was asked for, but no CUDA device fits ({count} CUDA devices)")
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)
    return device
