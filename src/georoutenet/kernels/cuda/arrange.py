"""Stored weights in the order in which kernels read them, in one CUDA kernel (`arrange.cu`).

The kernel finds the weights by a table of their addresses. It is made anew when they move, which must not
happen while a CUDA graph is recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from georoutenet.kernels.cuda.compile import WIDTH, Kernel

WARPS = 8
PARTS = 4  # of a matrix, a block each
ELEMENTS = WIDTH * WIDTH  # of a matrix as the kernels read it
SECOND = 1 << 15  # marks places in the second of two stored matrices
ARRANGE = Kernel("arrange.cu", "arrange", warps=WARPS, shared=0)


class Plan(NamedTuple):
    """Where everything comes from."""

    matrices: list[tuple[int, int, int]]  # numbers of one or two stored tensors, and of the pattern
    vectors: list[tuple[int, int] | None]  # number of a stored tensor and place in it; none: zeros
    patterns: Tensor  # (patterns, 128 * 128) in 16 bits, on the device


class Table(NamedTuple):
    """Addresses of stored weights on their device."""

    of: tuple[int, ...]  # the same on the host
    matrices: Tensor  # (count, 3): two addresses and the pattern's number
    vectors: Tensor  # (rows,)


def make_plan(matrices: np.ndarray, vectors: np.ndarray, sizes: Sequence[int], device: torch.device) -> Plan:
    """From places in all stored tensors in a row: ``matrices (count, 128 * 128)``, each in at most two of
    them, and ``vectors (rows, 128)``, each in one or, behind all of them, nowhere."""
    ends = np.cumsum(sizes)
    starts = ends - sizes
    patterns: dict[bytes, int] = {}
    rows: list[tuple[int, int, int]] = []
    for places in matrices:
        owner = np.searchsorted(ends, places, side="right")
        first, second = owner.min(), owner.max()
        local = places - starts[owner]
        assert local.max() < SECOND
        assert np.isin(owner, (first, second)).all()
        pattern = (local + SECOND * ((owner == second) & (first != second))).astype(np.uint16).tobytes()
        rows.append((int(first), int(second), patterns.setdefault(pattern, len(patterns))))
    owners = np.searchsorted(ends, vectors[:, 0], side="right")
    is_given = owners < len(ends)
    assert (vectors - vectors[:, :1] == np.arange(WIDTH) * is_given[:, None]).all()
    of_vectors = [
        (int(owner), int(place - starts[owner])) if given else None
        for owner, place, given in zip(owners, vectors[:, 0], is_given, strict=True)
    ]
    stacked = np.frombuffer(b"".join(patterns), np.int16).reshape(-1, ELEMENTS)
    return Plan(rows, of_vectors, torch.from_numpy(stacked.copy()).to(device))


def make_table(plan: Plan, stored: Sequence[Tensor], known: Table | None = None) -> Table:
    """The table of these tensors, which is ``known`` if nothing moved since."""
    at = [tensor.data_ptr() for tensor in stored]
    of = (*(x for first, second, pattern in plan.matrices for x in (at[first], at[second], pattern)),)
    of = (*of, *(0 if v is None else at[v[0]] + stored[v[0]].element_size() * v[1] for v in plan.vectors))
    if known is not None and known.of == of and known.matrices.device == stored[0].device:
        return known
    assert all(tensor.is_contiguous() for tensor in stored)
    table = torch.tensor(of, dtype=torch.int64).to(stored[0].device)
    matrices, vectors = table.split([3 * len(plan.matrices), len(plan.vectors)])
    return Table(of, matrices.view(-1, 3), vectors)


def arrange(plan: Plan, table: Table) -> tuple[Tensor, Tensor]:
    """All matrices' numbers in a row in bfloat16, and the vectors ``(rows, 128)``."""
    count, rows = len(plan.matrices), len(plan.vectors)
    fragments = plan.patterns.new_empty(count * ELEMENTS, dtype=torch.bfloat16)
    values = plan.patterns.new_empty((rows, WIDTH), dtype=torch.float32)
    blocks = PARTS * count + -(-rows // WARPS)
    ARRANGE(table.matrices, table.vectors, plan.patterns, fragments, values, count, rows, blocks=blocks)
    return fragments, values
