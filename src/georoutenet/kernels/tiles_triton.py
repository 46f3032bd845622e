"""What the edge kernels share: a tile of consecutive pairs, the hyperbolic tangent, and programs that stay.

Pairs ``(b, i, j)`` of m sources and n targets are numbered ``(b m + i) n + j``. A tile is a run of them; it
may cross sources and instances, so no size of instance wastes rows. A program takes every so-many-th tile and
keeps the weights on chip.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import os
from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl

# Bytes of shared memory that the largest kernel takes as it is launched, about. Large GPUs have them from the
# A100 on; others have 99 kB, which half the rows fit into.
SHARED_MEMORY = 128 << 10
# The interpreter knows no inline assembly.
FAST = os.environ.get("TRITON_INTERPRET") != "1"


@dataclass(frozen=True)
class Launch:
    """How a kernel is launched: rows of a tile, warps, pipeline stages, programs for each multiprocessor."""

    rows: int
    warps: int
    stages: int
    share: int
    registers: int | None = None  # at most so many a thread, so that `share` programs fit side by side

    def programs(self, items: int, device: torch.device) -> int:
        """How many programs share the items: as many as run at a time; a few in the interpreter."""
        if device.type != "cuda":
            return min(items, 3)
        return min(items, self.share * torch.cuda.get_device_properties(device).multi_processor_count)

    def on(self, device: torch.device) -> Launch:
        """The same for GPUs with less shared memory: fewer rows, and none on their way."""
        if device.type != "cuda":
            return self
        properties = torch.cuda.get_device_properties(device)
        memory: int = getattr(properties, "shared_memory_per_block_optin", SHARED_MEMORY)
        return self if memory >= SHARED_MEMORY else replace(self, rows=self.rows // 2, stages=1)

    def options(self) -> dict[str, int]:
        options = {"num_warps": self.warps, "num_stages": self.stages}
        return options if self.registers is None or not FAST else {**options, "maxnreg": self.registers}


@triton.jit
def tanh(x, FAST: tl.constexpr):
    """One instruction with a relative error of 2^-11, eight times below the rounding of bfloat16."""
    if FAST:
        return tl.inline_asm_elementwise(
            "tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        return 2.0 * tl.sigmoid(2.0 * x) - 1.0


@triton.jit
def ends(first, m, n, per_source, per_target, P: tl.constexpr):
    """Rows of source and target of the pairs ``first, ..., first + P - 1``.

    The divisions inside a tile are products with ``per_source = 1 / m`` and ``per_target = 1 / n``: half a
    step off the integers, far more than float32 rounds for any size that fits in memory.
    """
    row = first // n
    instance = row // m
    j = first - row * n + tl.arange(0, P)
    crossed = ((j.to(tl.float32) + 0.5) * per_target).to(tl.int32)
    source = row + crossed
    above = source - instance * m
    other = instance + ((above.to(tl.float32) + 0.5) * per_source).to(tl.int32)
    return source, other * n + (j - crossed * n)
