"""The edge update's backward pass in one CUDA kernel for Hopper (`edge_backward.cu`): bfloat16, 128 features.

It computes what `edge_update_cuda.backward_pass` and `edge_sums_cuda.sums` compute one after the other; the
gradient of the proposals stays on the multiprocessors: half of the memory traffic.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from torch import Tensor, float32

from georoutenet.kernels.cuda import compile as native
from georoutenet.kernels.cuda.compile import MATRIX, WIDTH, Kernel
from georoutenet.kernels.cuda.edge_sums import totals

MERGED = True  # whether this kernel is used where it can be
ROWS, COLUMNS = 128, 32  # pairs of a stage; its targets and sources together
PIECE = (ROWS + 2) * 16  # bytes of 8 features of a stage's pairs
# The weights; a stage's states with columns, its gradients of proposals; rows of 128 features: states and
# gradients as they come, products, two stages' sources and targets; the norm's sums, 8 a thread.
SHARED = MATRIX + (16 + COLUMNS // 8 + 16) * PIECE + (5 * ROWS // 2 + 2 * COLUMNS) * 2 * WIDTH + 256 * 32
GRADIENTS = Kernel("edge_backward.cu", "update_gradients", warps=12, shared=SHARED, groups=True)


@dataclass(frozen=True)
class Plan:
    """How the pairs are divided: an item is a part of an instance's sources, a stage a few of them.

    Its targets are one of the bands of the instance's targets.
    """

    parts: int
    chunk: int  # sources of a part
    bands: int
    width: int  # targets of a band
    height: int  # sources of a stage

    def stages(self) -> int:
        """Of an item, at most."""
        return self.bands * self.steps()

    def steps(self) -> int:
        """Stages of a band."""
        return -(-self.chunk // self.height)

    def scratch(self) -> int:
        """Rows of what a block keeps of the sources' gradients from band to band: columns by eights."""
        if self.bands == 1:
            return 1
        eights = (self.width + self.height - 1) // 8 - self.width // 8 + 1
        return self.steps() * eights * 8


@cache
def plan(batch: int, m: int, n: int, blocks: int) -> Plan:
    """The plan with the shortest way for the block that has the longest; an item costs a third of a stage."""
    plans = []
    for bands in range(-(-n // (COLUMNS - 1)), n + 1):
        width = -(-n // bands)
        if -(-n // width) != bands:
            continue
        height = min(m, ROWS // width, COLUMNS - width)
        for wanted in range(1, min(m, 4 * blocks // batch + 1) + 1):
            chunk = -(-m // wanted)
            plans.append(Plan(-(-m // chunk), chunk, bands, width, height))
    return min(plans, key=lambda p: (-(-batch * p.parts // blocks) * (p.stages() + 1 / 3), p.parts, p.bands))


def fits(e: Tensor, *kernels: Kernel) -> bool:
    """Whether the kernel, or these ones, take these states."""
    return MERGED and native.hopper(e.device) and native.fits(e, *(kernels or (GRADIENTS,)))


def backward_pass(
    saved: tuple[Tensor, ...], grad: Tensor, de: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Fill in the gradient of e, which may be where ``grad`` is.

    Returns those of sources, targets, the weight, and the norm ``(2, d)``.

    Saved: e, source, target, weight, gamma, scales, shifts.
    """
    e = saved[0]
    batch, m, n, _ = e.shape
    places = GRADIENTS.count(saved)
    divided = plan(batch, m, n, places)
    blocks = min(places, batch * divided.parts)
    found = outputs(e, divided, blocks)
    GRADIENTS(*saved, grad, de, *found, *arguments(e, divided), blocks=blocks)
    return gather(found, e)


def outputs(e: Tensor, divided: Plan, blocks: int) -> tuple[Tensor, ...]:
    """Gradients of the weight, sources, targets and the norm, in parts; and a scratch."""
    batch, m, n, d = e.shape
    of_targets = e.new_empty((batch, divided.parts, n, d), dtype=e.dtype if divided.parts == 1 else float32)
    return (
        e.new_empty((blocks, d, d), dtype=float32),
        e.new_empty((batch, 1, m, d)),
        of_targets,
        e.new_empty((blocks, 2, d), dtype=float32),
        e.new_empty((blocks, divided.scratch(), d), dtype=float32),
    )


def arguments(e: Tensor, divided: Plan) -> tuple[int, ...]:
    """The kernel's numbers."""
    batch, m, n, _ = e.shape
    items = batch * divided.parts
    return m, n, items, divided.parts, divided.chunk, divided.bands, divided.width, divided.height


def gather(found: tuple[Tensor, ...], e: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of sources, targets, the weight and the norm."""
    dw, ds, dt, norms, _ = found
    return totals(dw, ds, dt, norms, e.dtype)
