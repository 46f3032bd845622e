"""Kernels in CUDA C++, compiled by PyTorch at first use: for GPUs with bfloat16 matrix instructions.

The sources are the ``.cu`` files beside this one, each compiled behind `warp.cuh` (a warp's instructions) and
`tiles.cuh` (a warp's tile of 16 rows). Where they cannot be had, Triton or PyTorch does the work.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import repeat

import torch
from torch import Tensor

WIDTH = 128  # features
MATRIX = 2 * WIDTH * WIDTH  # bytes of a matrix of weights in shared memory
TILE = 2 * WIDTH * 16  # bytes of 16 rows
HOPPER = True  # whether four warps multiply together on GPUs that can


@dataclass(frozen=True)
class Kernel:
    """One kernel: where it is, and how it is launched."""

    file: str
    name: str
    warps: int  # of a block; the source knows them as NAME_WARPS, and leaves the other kernels out
    shared: int  # bytes of shared memory a block
    blocks: int = 1  # a multiprocessor
    groups: bool = False  # whether the source has a version for `hopper`; warps are a multiple of 4 there

    def __call__(self, *arguments: Tensor | int, blocks: int | None = None) -> None:
        """Launch on the current stream: one block for each place on the device, if not told otherwise."""
        device = _device(arguments)
        _enter(device)
        compiled = _compile(self, device, hopper(device))
        assert compiled is not None, "fits() says when to call"
        count = self.count(arguments) if blocks is None else blocks
        compiled((count, 1, 1), (32 * self.warps, 1, 1), list(arguments), self.shared)

    def count(self, arguments: Sequence[Tensor | int]) -> int:
        """How many blocks run at a time."""
        return self.blocks * torch.cuda.get_device_properties(_device(arguments)).multi_processor_count


_threads = threading.local()


def _enter(device: torch.device) -> None:
    """Make the device's context this thread's: a thread has none before its first launch by PyTorch."""
    if device not in (entered := _threads.__dict__.setdefault("entered", set())):
        torch.zeros(1, device=device)
        entered.add(device)


def _device(arguments: Sequence[Tensor | int]) -> torch.device:
    return next(value.device for value in arguments if isinstance(value, Tensor))


def read_source(file: str) -> str:
    """A source with what it stands on."""
    folder = files("georoutenet.kernels.cuda")
    return "".join(
        folder.joinpath(name).read_text(encoding="utf-8") for name in ("warp.cuh", "tiles.cuh", file)
    )


def is_capable(device: torch.device) -> bool:
    """Whether a GPU has bfloat16 matrix instructions, as NVIDIA's have them; compilers ask as they trace."""
    is_nvidia = device.type == "cuda" and not torch.version.hip
    return is_nvidia and torch.cuda.get_device_capability(device) >= (8, 0)


# What torch.compiler.assume_constant_result does, after a second for importing the compiler.
is_capable._dynamo_marked_constant = True  # type: ignore[attr-defined]


def hopper(device: torch.device) -> bool:
    """Whether kernels run on the device in their version in which four warps multiply together."""
    return HOPPER and is_capable(device) and torch.cuda.get_device_capability(device) == (9, 0)


@cache
def _compile(kernel: Kernel, device: torch.device, grouped: bool) -> Callable[..., None] | None:
    """The compiled kernel, or nothing where it cannot be had."""
    if not is_capable(device):
        return None
    try:
        with torch.cuda.device(device):
            _enter(device)
            options, capability = [f"-D{kernel.name.upper()}_WARPS={kernel.warps}"], None
            if grouped and kernel.groups:
                options, capability = [*options, "-DHOPPER"], "90a"
            compiled = torch.cuda._compile_kernel(
                read_source(kernel.file), kernel.name, compute_capability=capability, nvcc_options=options
            )
            compiled.set_shared_memory_config(kernel.shared)
    except (AttributeError, OSError, RuntimeError) as error:
        warnings.warn(f"slower code replaces the CUDA kernel {kernel.name}: {error}", stacklevel=2)
        return None
    return compiled


def fits(states: Tensor, *kernels: Kernel) -> bool:
    """Whether these kernels take such states: bfloat16 on CUDA, 128 features."""
    if not states.is_cuda or states.dtype != torch.bfloat16 or states.shape[-1] != WIDTH:
        return False
    return _compile_all(kernels, states.device, hopper(states.device))


@cache
def _compile_all(kernels: tuple[Kernel, ...], device: torch.device, grouped: bool) -> bool:
    """Compile kernels side by side; false if one cannot be had."""
    with ThreadPoolExecutor() as pool:
        every = pool.map(_compile, kernels, repeat(device), repeat(grouped))
        return all(compiled is not None for compiled in every)


def product_over_rows(left: Tensor, right: Tensor) -> Tensor:
    """``left^T right`` in float32, of bfloat16 rows; of several matrices or of one."""
    if not left.is_cuda:
        return left.mT.float() @ right.float()
    product = torch.mm if left.dim() == 2 else torch.bmm
    return product(left.mT, right, out_dtype=torch.float32)
