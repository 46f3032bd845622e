"""Where torch computes: the one place that understands a ``device`` option."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from georoutenet.errors import InputError
from georoutenet.unbroken import import_whole

if TYPE_CHECKING:
    import torch


def check_device(name: str) -> None:
    """Refuse what is no name of a device, without torch."""
    if not re.fullmatch(r"auto|cpu|cuda(:[0-9]{1,3})?", str(name)):
        raise InputError(f"unknown device {name!r}; allowed: auto, cpu, cuda, cuda:N")


def gpu_possible(name: str) -> bool:
    """Whether ``choose_device`` might answer CUDA; torch is asked only where it is there already."""
    if name != "auto":
        return name != "cpu"
    if "torch" in sys.modules:
        return bool(sys.modules["torch"].cuda.is_available())
    return any(os.path.exists(path) for path in ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")) or os.name == "nt"


def choose_device(name: str) -> torch.device:
    """``auto`` is CUDA where there is a device, else the CPU; anything else is checked.

    A GPU that is named by its number becomes the current one: that is where kernels run.
    """
    check_device(name)
    import_whole("torch")
    import torch

    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(name)
    count = torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= count:
        raise InputError(f"device {name!r} was asked for, but no CUDA device fits ({count} CUDA devices)")
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)
    return device


def memory_available(device: str) -> int:
    """Bytes that may be taken without harm: nine tenths of what is free."""
    if device.startswith("cuda"):
        import torch

        place = torch.device(device)
        kept = torch.cuda.memory_reserved(place) - torch.cuda.memory_allocated(place)  # PyTorch's own store
        return int(0.9 * (torch.cuda.mem_get_info(place)[0] + kept))
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(0.9 * 1024 * int(line.split()[1]))
    except OSError:
        pass
    try:
        return int(0.5 * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, ValueError, OSError):
        return 4 << 30
