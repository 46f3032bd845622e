"""Which form of the network runs where: one table, read from top to bottom; the first form whose needs are
all met is chosen.

    cuda hopper     `kernels.encoder`, built with wgmma
    cuda            `kernels.encoder`, for other GPUs from the A100 on
    compiled        `model.all_pairs` on a GPU; training compiles it as a whole
    all pairs       `model.all_pairs` as it is
    cpu dense       `kernels.cpu.dense`, small instances without gradients
    blocks of rows  the two towers of `model.georoutenet` or `model.nar4tsp`, in bounded memory
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch

from georoutenet.kernels import adam, bases, encoder
from georoutenet.kernels.cpu import dense as cpu_dense
from georoutenet.kernels.cuda.compile import WIDTH, Kernel, try_all, usable
from georoutenet.kernels.cuda.edge_ends import BASES
from georoutenet.kernels.cuda.neighborhood_attention import HEADS, SLOTS
from georoutenet.kernels.cuda.part_sums import SUM, part_sums
from georoutenet.model.config import PolicyConfig

CUDA = ("cuda hopper", "cuda")
"""The forms in CUDA kernels."""


@dataclass(frozen=True)
class Case:
    """What the choice depends on."""

    config: PolicyConfig
    device: torch.device
    stored: torch.dtype  # of the weights
    compute: torch.dtype  # of the towers' matrix products
    gradients: bool
    batch: int
    n: int
    width: int  # of the neighborhoods
    avoid: tuple[str, ...] = ()  # forms that shall not run


@dataclass(frozen=True)
class Need:
    """Something that a form asks for, in words and as a test."""

    what: str
    is_met: Callable[[Case], bool]


def has_bf16(device: torch.device) -> bool:
    """Whether a GPU has NVIDIA's bf16 matrix instructions."""
    is_nvidia = device.type == "cuda" and not torch.version.hip
    return is_nvidia and torch.cuda.get_device_capability(device) >= (8, 0)


def is_capable(device: torch.device) -> bool:
    """Whether a GPU has bf16 and the shared memory that the kernels take."""
    if not has_bf16(device):
        return False
    most = max(kernel.shared for kernel in encoder.kernels(hopper=is_hopper(device)))
    found: int = getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", most)
    return found >= most


def is_hopper(device: torch.device) -> bool:
    """Whether the GPU has wgmma."""
    return has_bf16(device) and torch.cuda.get_device_capability(device) == (9, 0)


@cache
def compiles(device: torch.device, hopper: bool) -> bool:
    """Whether all kernels of a pass can be compiled and launched on the device; warns once if not."""
    return _usable(encoder.kernels(hopper=hopper), device, "the network")


@cache
def has_adam(device: torch.device, stored: torch.dtype) -> bool:
    """Whether the optimizer of such parameters runs in CUDA kernels; warns once if they do not compile."""
    if not has_bf16(device) or stored != torch.float32:  # they need no bf16, but are tied to the same GPUs
        return False
    return _usable([adam.NORM, adam.UPDATE, SUM], device, "the optimizer")


def _usable(kernels: list[Kernel], device: torch.device, what: str) -> bool:
    """Whether all of these kernels compile; `part_sums` is launched once."""
    reason = try_all(
        kernels, device, lambda: part_sums(torch.zeros(1, 1, 4, device=device), dtypes=[torch.float32])
    )
    return usable(reason, "CUDA kernels cannot be used", f"{what} runs in PyTorch alone, more slowly")


# What torch.compiler.assume_constant_result does, after a second for importing the compiler.
for _function in (is_capable, is_hopper, compiles):
    _function._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _has_precision(case: Case) -> bool:
    return case.compute == torch.bfloat16 and case.stored == torch.float32


def _has_sizes(case: Case) -> bool:
    config = case.config
    sizes = (config.hidden, config.heads, config.rbf) == (WIDTH, HEADS, BASES)
    return sizes and config.layers <= bases.LAYERS and config.neighbors < SLOTS


GEOROUTENET = Need("the encoder georoutenet", lambda case: case.config.encoder == "georoutenet")
GRADIENTS = Need("gradients", lambda case: case.gradients)
NO_GRADIENTS = Need("no gradients", lambda case: not case.gradients)
GPU = Need("a GPU", lambda case: case.device.type == "cuda")
IN_KERNELS = (
    GEOROUTENET,
    Need(GPU.what, lambda case: GPU.is_met(case) or is_capable(case.device)),  # as tests emulate one
    Need("bf16 products of fp32 weights", _has_precision),
    Need(f"{WIDTH} features, {HEADS} heads, {BASES} bases, {bases.LAYERS} layers, k < {SLOTS}", _has_sizes),
    Need(f"neighborhoods of at most {SLOTS}", lambda case: case.width <= SLOTS or not case.gradients),
    Need(
        "an NVIDIA GPU with bf16 and 163 KiB of shared memory a block", lambda case: is_capable(case.device)
    ),
)

FORMS: dict[str, tuple[Need, ...]] = {
    "cuda hopper": (
        *IN_KERNELS,
        Need("a Hopper GPU", lambda case: is_hopper(case.device)),
        Need("kernels that compile", lambda case: compiles(case.device, True)),
    ),
    "cuda": (*IN_KERNELS, Need("kernels that compile", lambda case: compiles(case.device, False))),
    "compiled": (GEOROUTENET, GRADIENTS, GPU),
    "all pairs": (GEOROUTENET, GRADIENTS),
    "cpu dense": (
        GEOROUTENET,
        NO_GRADIENTS,
        Need("a CPU", lambda case: case.device.type == "cpu"),
        Need("fp32", lambda case: case.compute == case.stored == torch.float32),
        Need("enough pairs", lambda case: case.batch * case.n**2 >= cpu_dense.FEWEST),
        Need("few enough pairs of an instance", lambda case: case.n**2 <= cpu_dense.MOST),
    ),
    "blocks of rows": (),
}


def unmet(form: str, case: Case) -> str:
    """The first need of the form that the case does not meet, in words; empty if it meets all."""
    if form in case.avoid:
        return "to be allowed (it is in `avoid`)"
    for need in FORMS[form]:
        if not need.is_met(case):
            return need.what
    return ""


def choose(case: Case) -> str:
    """The form that runs."""
    for form in FORMS:
        if not unmet(form, case):
            return form
    raise ValueError(f"all forms are avoided: {', '.join(case.avoid)}")


def describe(case: Case) -> list[tuple[str, str]]:
    """Each form down to the one that runs, and why it does not; of the last an empty reason."""
    found = []
    for form in FORMS:
        found.append((form, unmet(form, case)))
        if not found[-1][1]:
            break
    return found
