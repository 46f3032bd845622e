"""The replay of given tours on a GPU: no ``(B, M, n, n)`` tensor, no atomic additions.

A program holds some rows ``i`` of one instance's logits and walks over the tours. Of a tour it needs only the
position of every city: the cities still unvisited at ``i`` are those with a later one. The forward pass
keeps the largest logit, the normalizer and the entropy of every row and tour, so the backward pass has
nothing to reduce over cities and sums the gradient of its rows on chip.

Same function as `georoutenet.decode.replay.replay_reference`.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from georoutenet.decode.common import FLOOR
from georoutenet.decode.replay import start_entropy

ELEMENTS = 1024  # rows of a program times padded cities: 32 for each thread of its only warp

# Below FLOOR, and finite: 0 * (this) is no NaN.
_VISITED = tl.constexpr(-3e38)
_LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _positions(tours, position, successor, n, count, instance_stride, tour_stride, J: tl.constexpr):
    """The step at which a tour visits each city, and the city after it; padding cities are at step 0."""
    program = tl.program_id(0).to(tl.int64)
    instance = program // count
    step = tl.arange(0, J)
    tour = tours + instance * instance_stride + (program - instance * count) * tour_stride
    city = tl.load(tour + step, mask=step < n, other=0)
    following = tl.load(tour + step + 1, mask=step < n - 1, other=0)
    place = program * J
    inside = (step < n) & (city >= 0) & (city < n)
    tl.store(position + place + city, step.to(tl.int16), mask=inside)
    tl.store(successor + place + city, following.to(tl.int16), mask=inside)
    tl.store(position + place + step, (step * 0).to(tl.int16), mask=step >= n)
    tl.store(successor + place + step, (step * 0).to(tl.int16), mask=step >= n)


# The number of cities is not specialized: knowing that it is a multiple of 16 would spread a thread's
# elements over rows, and the sums over cities would need more exchanges between threads.
@triton.jit(do_not_specialize=["n"])
def _forward(edges, position, successor, rows, n, count, size, J: tl.constexpr, R: tl.constexpr):
    """Eqs. masked_transition and path_entropy by row: largest, log of the sum, entropy, log-probability."""
    instance, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    j, i = tl.arange(0, J), block * R + tl.arange(0, R)
    real = i < n
    matrix = edges + instance * n * n
    z = tl.load(matrix + j[:, None] * n + i[None, :], mask=(j < n)[:, None] & real[None, :], other=0.0)
    for m in range(count):
        place = (instance * count + m) * J
        here = tl.load(position + place + i)
        chosen = tl.load(matrix + tl.load(successor + place + i).to(tl.int32) * n + i, mask=real, other=0.0)
        later = tl.load(position + place + j)
        x = tl.where(later[:, None] > here[None, :], z, _VISITED)
        largest = tl.max(x, 0)
        x -= largest[None, :]
        weight = tl.exp2(x * _LOG2E)
        total = tl.sum(weight, 0)
        log_total = tl.log(total)
        # H = log(total) - sum_j p_j (z_j - largest): no log of a vanishing probability is taken.
        entropy = log_total - tl.sum(weight * x, 0) / total
        final = here == n - 1  # the last city has no choice left
        row = rows + (instance * count + m) * n + i
        tl.store(row, tl.where(final, 0.0, largest), mask=real)
        tl.store(row + size, log_total, mask=real)
        tl.store(row + 2 * size, tl.where(final, 0.0, entropy), mask=real)
        tl.store(row + 3 * size, tl.where(final, 0.0, chosen - largest - log_total), mask=real)


@triton.jit
def _sums(rows, chance, entropy, n, tours, size, J: tl.constexpr, T: tl.constexpr):
    """Log-probability and entropy of some tours: the sums over their rows."""
    tour, i = tl.program_id(0).to(tl.int64) * T + tl.arange(0, T), tl.arange(0, J)
    row = rows + tour[:, None] * n + i[None, :]
    inside = (tour < tours)[:, None] & (i < n)[None, :]
    tl.store(entropy + tour, tl.sum(tl.load(row + 2 * size, mask=inside, other=0.0), 1), mask=tour < tours)
    tl.store(chance + tour, tl.sum(tl.load(row + 3 * size, mask=inside, other=0.0), 1), mask=tour < tours)


@triton.jit(do_not_specialize=["n", "stride"])
def _backward(
    edges, position, rows, grad_chance, grad_entropy, grad, n, stride, count, size,
    J: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """With ``g`` the gradients of log-probability (l) and entropy (h), of every row and tour

    dz_j = g_l [j is next] - p_j (g_l + g_h (log p_j + H))
    """
    instance, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    j, i = tl.arange(0, J), block * R + tl.arange(0, R)
    real = i < n
    inside = (j < n)[:, None] & real[None, :]
    z = tl.load(edges + instance * n * n + j[:, None] * n + i[None, :], mask=inside, other=0.0)
    total = tl.zeros((J, R), tl.float32)
    for m in range(count):
        place = (instance * count + m) * J
        here = tl.load(position + place + i).to(tl.int32)
        later = tl.load(position + place + j).to(tl.int32)
        row = rows + (instance * count + m) * n + i
        largest = tl.load(row, mask=real, other=0.0)
        log_total = tl.load(row + size, mask=real, other=0.0)
        entropy = tl.load(row + 2 * size, mask=real, other=0.0)
        g_chance = tl.load(grad_chance + instance * count + m)
        g_entropy = tl.load(grad_entropy + instance * count + m)
        x = z - largest[None, :]
        p = tl.exp2(x * _LOG2E - (log_total * _LOG2E)[None, :])
        p = tl.where(later[:, None] > here[None, :], p, 0.0)
        total -= p * (x * g_entropy + (g_chance + g_entropy * (entropy - log_total))[None, :])
        total += tl.where(later[:, None] == here[None, :] + 1, g_chance, 0.0)
    # A stride of its own (it is n): otherwise the addresses above are kept in registers for this.
    tl.store(grad + instance * n * n + j[:, None] * stride + i[None, :], total, mask=inside)


def _shape(n: int) -> tuple[tuple[int, int], int]:
    """Padded cities and rows of a program, and the number of programs that share an instance."""
    cities = triton.next_power_of_2(n)
    rows = min(cities, max(1, ELEMENTS // cities))
    return (cities, rows), triton.cdiv(n, rows)


@torch.library.custom_op("georoutenet::replay_rows", mutates_args=())
def replay_rows(edges: Tensor, tours: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Log-probability and entropy ``(B, M)`` of all steps but the first, and what the backward pass reads.

    ``edges (B, n, n)`` are finite float32 logits *to* the row's city *from* the column's: a program's threads
    lie along the cities it leaves. ``tours (B, M, n)`` are permutations.
    """
    batch, count, n = tours.shape
    (cities, block), blocks = _shape(n)
    if tours.stride(2) != 1:
        tours = tours.contiguous()
    position = torch.empty(batch, count, cities, dtype=torch.int16, device=tours.device)
    successor = torch.empty_like(position)
    rows = edges.new_empty(4, batch, count, n)
    _positions[(batch * count,)](
        tours, position, successor, n, count, tours.stride(0), tours.stride(1), J=cities, num_warps=1
    )
    _forward[(batch, blocks)](
        edges.contiguous(), position, successor, rows, n, count, batch * count * n,
        J=cities, R=block, num_warps=1,
    )  # fmt: skip
    chance, entropy = edges.new_empty(batch, count), edges.new_empty(batch, count)
    tours_of_program = max(1, ELEMENTS // cities)
    _sums[(triton.cdiv(batch * count, tours_of_program),)](
        rows, chance, entropy, n, batch * count, batch * count * n, J=cities, T=tours_of_program, num_warps=1
    )
    return chance, entropy, position, rows


@torch.library.custom_op("georoutenet::replay_rows_backward", mutates_args=())
def replay_rows_backward(
    grad_chance: Tensor, grad_entropy: Tensor, edges: Tensor, position: Tensor, rows: Tensor
) -> Tensor:
    """The gradient of ``edges``."""
    batch, n, _ = edges.shape
    count = position.shape[1]
    (cities, block), blocks = _shape(n)
    grad = torch.empty(edges.shape, dtype=edges.dtype, device=edges.device)
    _backward[(batch, blocks)](
        edges.contiguous(), position, rows, grad_chance.contiguous(), grad_entropy.contiguous(), grad,
        n, n, count, batch * count * n, J=cities, R=block, num_warps=1,
    )  # fmt: skip
    return grad


@replay_rows.register_fake
def _(edges: Tensor, tours: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    batch, count, n = tours.shape
    chance = edges.new_empty(batch, count)
    position = edges.new_empty(batch, count, _shape(n)[0][0], dtype=torch.int16)
    return chance, torch.empty_like(chance), position, edges.new_empty(4, batch, count, n)


@replay_rows_backward.register_fake
def _(grad_chance: Tensor, grad_entropy: Tensor, edges: Tensor, *_: Tensor) -> Tensor:
    return edges.new_empty(edges.shape)


def _setup(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(inputs[0], *output[2:])


def _gradient(ctx: Any, grad_chance: Tensor, grad_entropy: Tensor, *_: Any) -> tuple[Tensor, None]:
    return torch.ops.georoutenet.replay_rows_backward(grad_chance, grad_entropy, *ctx.saved_tensors), None


replay_rows.register_autograd(_gradient, setup_context=_setup)


def replay_fused(start: Tensor, logits: Tensor, tours: Tensor) -> tuple[Tensor, Tensor]:
    """As `replay_reference`, for float32 scores of at most `FUSED_CITIES` cities."""
    edges = logits.clamp(min=FLOOR).transpose(1, 2).contiguous()
    chance, entropy, *_ = replay_rows(edges, tours)
    # Not gathered: the gradient of a gather would be atomic additions. Nor read from the positions: their
    # padded width is a bit pattern of n, over which the compiler takes minutes when n is symbolic.
    cities = torch.arange(logits.shape[1], device=tours.device)
    first = torch.where(cities == tours[:, :, :1], start[:, None], 0.0).sum(2)
    return chance + first, entropy + start_entropy(start)[:, None]
