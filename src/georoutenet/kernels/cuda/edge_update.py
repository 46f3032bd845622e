"""The edge update's passes over all pairs in CUDA C++: bf16 states of 128 features.

A warp holds a tile of 16 pairs in the registers in which the matrix instructions want and deliver it, so
nothing is rearranged and no warp waits for another; or, on Hopper, four warps multiply by wgmma. The last
update's forward pass goes on to the head with what it has in registers.

Backward, Hopper has one kernel (`edge_update_hopper.cu`), in which the gradients of the proposals stay on the
multiprocessors: half of the memory traffic. Other GPUs have two: gradients of states and proposals
(`edge_update.cu`), and the sums of the latter over sources, over targets, and against the states
(`edge_update_sums.cu`).
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from georoutenet.kernels.cuda.compile import MATRIX, TILE, WIDTH, Kernel
from georoutenet.kernels.cuda.edge_ends import HEAD, logit_outputs
from georoutenet.kernels.cuda.part_sums import SUM, part_sums
from georoutenet.kernels.streams import deferred


def _forward(name: str, shared: int) -> dict[bool, Kernel]:
    """By whether the GPU is Hopper: as many warps as a multiprocessor's registers allow, or before Hopper its
    shared memory."""
    return {
        hopper: Kernel(
            "edge_update.cu", name, warps=warps, shared=MATRIX + warps * TILE + shared, wgmma=hopper
        )
        for hopper, warps in ((True, 16), (False, 12))
    }


FORWARD, LOGIT_FORWARD = _forward("update_forward", 0), _forward("update_logit_forward", HEAD)
LOGIT_ALONE = _forward("update_logit_alone", HEAD)
BACKWARD = Kernel("edge_update.cu", "update_backward", warps=8, shared=2 * MATRIX + 8 * (5 * TILE // 2))

TARGETS = 64  # of an item of the sums, at most
# A block is one team of 8 warps, with three stages of four tiles of both tensors: 96 of an A100's 163 KiB.
SUMS = Kernel("edge_update_sums.cu", "update_sums", warps=8, shared=3 * 4 * 2 * TILE)

ROWS, COLUMNS = 128, 32  # pairs of a stage; its targets and sources together
PIECE = (ROWS + 2) * 16  # bytes of 8 features of a stage's pairs
# The weights; a stage's states with columns, its gradients of proposals; rows of 128 features: states and
# gradients as they come, products, two stages' sources and targets; the norm's sums, 8 a thread.
SHARED = MATRIX + (16 + COLUMNS // 8 + 16) * PIECE + (5 * ROWS // 2 + 2 * COLUMNS) * 2 * WIDTH + 256 * 32
GRADIENTS = Kernel("edge_update_hopper.cu", "update_gradients", warps=12, shared=SHARED, wgmma=True)


def kernels(*, hopper: bool) -> list[Kernel]:
    """All that a GPU needs."""
    backward = [GRADIENTS] if hopper else [BACKWARD, SUMS]
    return [FORWARD[hopper], LOGIT_FORWARD[hopper], LOGIT_ALONE[hopper], *backward, SUM]


def forward(inputs: tuple[Tensor, ...], *, hopper: bool) -> tuple[Tensor, Tensor, Tensor]:
    """New states, and scale and shift of each pair's norm. Inputs: e, source, target, weight, gamma, beta."""
    found = _outputs(inputs[0])
    FORWARD[hopper](*inputs, *found, *_sizes(inputs[0]))
    return found


def logit_forward(inputs: tuple[Tensor, ...], *, hopper: bool) -> tuple[Tensor, ...]:
    """What `forward` returns; and logits, and of each pair the bits of the head's hidden units.

    Inputs: e, source, target, weight, gamma, beta; the head's weight, bias, last, offset.
    """
    e = inputs[0]
    found = *_outputs(e), *logit_outputs(e)
    LOGIT_FORWARD[hopper](*inputs, *found, *_sizes(e))
    return found


def logits_alone(inputs: tuple[Tensor, ...], *, hopper: bool) -> Tensor:
    """The logits of `logit_forward` to the last bit, where no backward pass follows: half of the memory
    traffic, since the last states are never written."""
    e = inputs[0]
    logits = logit_outputs(e)[0]
    LOGIT_ALONE[hopper](*inputs, logits, *_sizes(e))
    return logits


def _outputs(e: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    scales, shifts = e.new_empty((2, e.shape[:-1].numel()), dtype=torch.float32)
    return torch.empty_like(e), scales, shifts


def _sizes(e: Tensor) -> tuple[int, int, int]:
    """Sources and targets of an instance, and all pairs."""
    batch, m, n, _ = e.shape
    return m, n, batch * m * n


def backward(
    saved: tuple[Tensor, ...], grad: Tensor, de: Tensor, *, hopper: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Fill in the gradient of e, which may be where ``grad`` is: each tile is read before it is written.

    Returns the gradients of sources ``(B, m, d)``, targets ``(B, n, d)``, weight, and norm ``(2, d)``.
    Saved: e, source, target, weight, gamma, scales, shifts.
    """
    if hopper:
        return _gradients(saved, grad, de)
    e = saved[0]
    du = torch.empty_like(e)
    norms = e.new_empty((BACKWARD.count(saved), 2, e.shape[-1]), dtype=torch.float32)
    BACKWARD(*saved, grad, de, du, norms, *_sizes(e))
    return sums(e, du, norms)


def sums(e: Tensor, du: Tensor, norms: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """From the gradients of proposals those of sources, targets and the weight; and norms ``(parts, 2, d)``
    added up."""
    batch, m, n, d = e.shape
    most = SUMS.count((e,))
    bands, width, parts, chunk = split(batch, m, n, most)
    items = batch * bands * parts
    blocks = min(most, items)
    dw = e.new_empty((blocks, d, d), dtype=torch.float32)
    ds, dt = _in_parts(e, batch, bands, m), _in_parts(e, batch, parts, n)
    SUMS(du, e, dw, ds, dt, m, n, items, bands, width, parts, chunk, blocks=blocks)
    return _totals(dw, ds, dt, norms)


def split(batch: int, m: int, n: int, teams: int) -> tuple[int, int, int, int]:
    """Items of about equal work: a band of an instance's targets and a part of its sources each.

    Returns the number of bands, the targets of one, the number of parts, and the sources of one, such that
    the longest walk of a team is short. An item costs about two sources more than it has.
    """
    bands = -(-n // TARGETS)
    walks = {}
    for wanted in range(1, min(m, 4 * teams // (batch * bands) + 1) + 1):
        chunk = -(-m // wanted)
        parts = -(-m // chunk)
        walks[parts, chunk] = -(-batch * bands * parts // teams) * (chunk + 2)
    parts, chunk = min(walks, key=lambda key: walks[key])
    return bands, -(-n // bands), parts, chunk


def _in_parts(e: Tensor, batch: int, parts: int, cities: int) -> Tensor:
    """Where gradients of cities go: in bf16 if in one part, else in fp32, to be added up."""
    return e.new_empty((batch, parts, cities, WIDTH), dtype=e.dtype if parts == 1 else torch.float32)


def _totals(dw: Tensor, ds: Tensor, dt: Tensor, norms: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of sources, targets, the weight and the norm from their parts."""
    in_parts = [x for x in (ds, dt) if x.shape[1] > 1]
    dtypes = [torch.float32, torch.float32, *[torch.bfloat16] * len(in_parts)]
    # One kernel adds up all of them, and gradients of cities are wanted at once.
    with nullcontext() if in_parts else deferred(dw, norms):
        weight, norm, *found = part_sums(dw.unsqueeze(0), norms.unsqueeze(0), *in_parts, dtypes=dtypes)
    sources, targets = (found.pop(0) if x.shape[1] > 1 else x.squeeze(1) for x in (ds, dt))
    return sources, targets, weight.squeeze(0), norm.squeeze(0)


@dataclass(frozen=True)
class Plan:
    """How Hopper's backward kernel divides the pairs: an item is a part of an instance's sources, a stage a
    few of them, with one band of the instance's targets."""

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


def _gradients(saved: tuple[Tensor, ...], grad: Tensor, de: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`backward` in one kernel."""
    e = saved[0]
    batch, m, n, d = e.shape
    most = GRADIENTS.count(saved)
    by = plan(batch, m, n, most)
    items = batch * by.parts
    blocks = min(most, items)
    dw, norms, scratch = (
        e.new_empty((blocks, rows, d), dtype=torch.float32) for rows in (d, 2, by.scratch())
    )
    ds, dt = _in_parts(e, batch, 1, m), _in_parts(e, batch, by.parts, n)
    GRADIENTS(
        *saved, grad, de, dw, ds, dt, norms, scratch, m, n, items, by.parts, by.chunk, by.bands, by.width,
        by.height, blocks=blocks,
    )  # fmt: skip
    return _totals(dw, ds, dt, norms)
