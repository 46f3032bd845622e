"""Kernels in CUDA C++, compiled by PyTorch at first use: for GPUs with bfloat16 matrix instructions.

The sources are the ``.cu`` files in ``source/``, each compiled behind `warp.cuh` (a warp's instructions) and
`tiles.cuh` (a warp's tile of 16 rows). `georoutenet.kernels.choose` says where they run.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import repeat

import torch
from torch import Tensor

from georoutenet.errors import warn

WIDTH = 128  # features
MATRIX = 2 * WIDTH * WIDTH  # bytes of a matrix of weights in shared memory
TILE = 2 * WIDTH * 16  # bytes of 16 rows

# What a pointer of the sources may point to. Rows of bfloat16 are read 8 or 16 bytes at a time; a word is two
# of their numbers. Types that are not here (void, structures) take any tensor.
BITS16 = (torch.bfloat16, torch.int16)
DTYPES: dict[str, tuple[torch.dtype, ...]] = {
    "unsigned short": BITS16,
    "uint2": BITS16,
    "uint4": BITS16,
    "word": (*BITS16, torch.int32),
    "float": (torch.float32,),
    "float2": (torch.float32,),
    "float4": (torch.float32,),
    "double": (torch.float64,),
    "double2": (torch.float64,),
    "int": (torch.int32, torch.int64),  # of indices the kernels are told whether they are two words
    "long long": (torch.int64,),
    "unsigned char": (torch.bool, torch.uint8),
}


@dataclass(frozen=True)
class Kernel:
    """One kernel: where it is, and how it is launched."""

    file: str
    name: str
    warps: int  # of a block; the source knows them as NAME_WARPS, and leaves the other kernels out
    shared: int  # bytes of shared memory a block, at most
    wgmma: bool = False  # built for Hopper: warps, a multiple of 4, multiply in groups of four

    def __call__(
        self, *arguments: Tensor | int, blocks: int | None = None, shared: int | None = None
    ) -> None:
        """Launch on the current stream: one block for each multiprocessor, if not told otherwise, with that
        much shared memory."""
        device = _device(arguments)
        _enter(device)
        self.check(arguments)
        launch = _compile(self, device)
        count = self.count(arguments) if blocks is None else blocks
        launch(
            (count, 1, 1), (32 * self.warps, 1, 1), list(arguments), self.shared if shared is None else shared
        )

    def count(self, arguments: Sequence[Tensor | int]) -> int:
        """The number of blocks that run at a time."""
        return torch.cuda.get_device_properties(_device(arguments)).multi_processor_count

    def check(self, arguments: Sequence[Tensor | int]) -> None:
        """Compare the arguments with the kernel's parameters, once for each combination of types."""
        _check(self, tuple(x.dtype if isinstance(x, Tensor) else type(x) for x in arguments))


@cache
def _check(kernel: Kernel, kinds: tuple[torch.dtype | type, ...]) -> None:
    declared = parameters(kernel)
    if len(kinds) != len(declared):
        raise TypeError(f"{kernel.name} takes {len(declared)} arguments, got {len(kinds)}")
    for (kind, name), given in zip(declared, kinds, strict=True):
        allowed = DTYPES.get(kind.removesuffix("*"), ()) if kind.endswith("*") else (int,)
        is_tensor = isinstance(given, torch.dtype)
        if is_tensor != kind.endswith("*") or (allowed and given not in allowed):
            takes = ", ".join(str(x) for x in allowed) or "a tensor"
            raise TypeError(f"{kernel.name}: {name} is {kind} and takes {takes}, got {given}")


@cache
def parameters(kernel: Kernel) -> list[tuple[str, str]]:
    """Type and name of each parameter of the kernel, as its source declares them."""
    pattern = rf"__launch_bounds__\([^)]*\)\s*{kernel.name}\(([^)]*)\)"
    found = re.search(pattern, read_source(kernel.file))
    if found is None:
        raise TypeError(f"{kernel.file} has no kernel {kernel.name}")
    declared = []
    for parameter in found[1].split(","):
        kind, name = re.sub(r"\bconst\b|\s+", " ", parameter).strip().rsplit(" ", 1)
        declared.append((kind.strip().replace(" *", "*"), name))
    return declared


_threads = threading.local()


def _enter(device: torch.device) -> None:
    """Make the device's context this thread's: a thread has none before its first launch by PyTorch."""
    if device not in (entered := _threads.__dict__.setdefault("entered", set())):
        torch.zeros(1, device=device)
        entered.add(device)


def _device(arguments: Sequence[Tensor | int]) -> torch.device:
    return next(value.device for value in arguments if isinstance(value, Tensor))


def read_source(file: str) -> str:
    """A source with what it stands on: what all do, and what it includes."""
    folder = files("georoutenet.kernels.cuda").joinpath("source")

    def read(name: str) -> str:
        text = folder.joinpath(name).read_text(encoding="utf-8")
        return re.sub(r'#include "(\w+\.cuh)"\n', lambda included: read(included[1]), text)

    return "".join(read(name) for name in ("warp.cuh", "tiles.cuh", file))


@cache
def _compile(kernel: Kernel, device: torch.device) -> Callable[..., None]:
    with torch.cuda.device(device):
        _enter(device)
        options, capability = [f"-D{kernel.name.upper()}_WARPS={kernel.warps}"], None
        if kernel.wgmma:
            options, capability = [*options, "-DHOPPER"], "90a"
        compiled: Callable[..., None] = torch.cuda._compile_kernel(
            read_source(kernel.file), kernel.name, compute_capability=capability, nvcc_options=options
        )
        compiled.set_shared_memory_config(kernel.shared)  # type: ignore[attr-defined]
    return compiled


def try_all(kernels: Sequence[Kernel], device: torch.device, launch: Callable[[], object]) -> str:
    """Compile kernels side by side, then ``launch`` one or more of them on something small. Returns why they
    cannot be used: a compiler that is missing or refuses, a driver that does not run what was compiled, or a
    private function of PyTorch that has changed; empty if they can."""
    try:
        with ThreadPoolExecutor() as pool:
            list(pool.map(_compile, kernels, repeat(device)))
        with torch.cuda.device(device):
            launch()
    except (AttributeError, ImportError, OSError, RuntimeError, TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def usable(reason: str, what: str, instead: str) -> bool:
    """Whether `try_all` found nothing; warns of ``what`` fails, and what is done ``instead``, if it did."""
    if reason:
        warn(f"{what} with PyTorch {torch.__version__}; {instead} ({reason})")
    return not reason


def product_over_rows(left: Tensor, right: Tensor) -> Tensor:
    """``left^T right`` in fp32, of bf16 rows; of several matrices or of one."""
    if not left.is_cuda:
        return left.mT.float() @ right.float()
    product = torch.mm if left.dim() == 2 else torch.bmm
    return product(left.mT, right, out_dtype=torch.float32)
