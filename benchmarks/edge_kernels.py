"""The fused edge kernels on a GPU: forward and backward, by launch shape, against compiled PyTorch.

python benchmarks/edge_kernels.py [--batch 512] [--n 50] [--csv benchmarks/results/kernels.csv]
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from kernel_table import Table, parser
from torch import Tensor

from georoutenet.kernels import edge_ends as edge_ends_triton
from georoutenet.kernels import edge_update as edge_update_triton
from georoutenet.kernels.cuda import edge_backward as edge_backward_cuda
from georoutenet.kernels.cuda import edge_ends as edge_ends_cuda
from georoutenet.kernels.cuda import edge_sums as edge_sums_cuda
from georoutenet.kernels.cuda import edge_update as edge_update_cuda
from georoutenet.kernels.tiles_triton import Launch

FORWARD = [
    Launch(64, warps=4, stages=2, share=3, registers=168),
    Launch(64, warps=4, stages=1, share=3, registers=168),
    Launch(64, warps=4, stages=2, share=2),
    Launch(64, warps=4, stages=3, share=2),
    Launch(64, warps=8, stages=2, share=2, registers=128),
    Launch(128, warps=8, stages=2, share=1),
]
BACKWARD = [
    Launch(64, warps=4, stages=2, share=2),
    Launch(64, warps=4, stages=1, share=2),
    Launch(64, warps=4, stages=3, share=2),
    Launch(128, warps=8, stages=2, share=1),
]
SUMS = [
    Launch(64, warps=8, stages=3, share=1),
    Launch(64, warps=8, stages=2, share=1),
    Launch(32, warps=8, stages=4, share=1),
    Launch(64, warps=4, stages=3, share=1),
]
ENDS_BACKWARD = [
    Launch(128, warps=8, stages=2, share=1),
    Launch(128, warps=8, stages=1, share=1),
    Launch(64, warps=4, stages=2, share=2),
]


def best(
    table: Table, launches: dict[str, Launch], key: str, choices: list[Launch], what: str, call: Callable
) -> None:
    """Time every launch shape; keep the fastest for what follows."""
    times = []
    for choice in choices:
        launches[key] = choice
        times.append(table.measure(what, choice, call))
    launches[key] = choices[times.index(min(times))]


def arguments(shapes: list[tuple[int, ...]], narrow: int) -> list[Tensor]:
    """Random tensors of these shapes, the first ``narrow`` of them in bfloat16."""
    torch.manual_seed(0)
    values = [torch.randn(s, device="cuda") * (s[-1] ** -0.5 if len(s) == 2 else 1) for s in shapes]
    return [v.bfloat16() if k < narrow else v for k, v in enumerate(values)]


def both(function: Callable[..., Tensor], values: list[Tensor]) -> Callable[[], None]:
    """Forward and backward with gradients of all arguments."""
    leaves = [value.detach().requires_grad_(value.is_floating_point()) for value in values]
    with torch.no_grad():
        upstream = torch.randn_like(function(*leaves))

    def run() -> None:
        for leaf in leaves:
            leaf.grad = None
        function(*leaves).backward(upstream)

    return run


def main() -> None:
    options = parser(__doc__).parse_args()
    batch, n, d = options.batch, options.n, 128
    table = Table("edges", options)

    update = edge_update_triton
    values = arguments([(batch, n, n, d), (batch, n, d), (batch, n, d), (d, d), (d,), (d,)], 3)
    e, source, target, weight, gamma, beta = values
    narrow = (e, source, target, weight.bfloat16(), gamma)
    grad, norms = torch.randn_like(e), torch.randn(132, 2, d, device="cuda")
    forward = partial(update._forward_pass, (*narrow, beta))
    if edge_update_cuda.fits(e):
        _, scales, shifts = forward()
        saved = (*narrow, scales, shifts)
        backward = partial(edge_update_cuda.backward_pass, saved, grad, torch.empty_like(grad))
        table.measure("update forward", "CUDA", forward)
        table.measure("update backward, states", "CUDA", backward)
        if edge_backward_cuda.fits(e):
            merged = partial(edge_backward_cuda.backward_pass, saved, grad, torch.empty_like(grad))
            table.measure("update backward, all", "CUDA", merged)
        table.measure("update both", "CUDA", both(update.edge_update, values))
        table.measure(
            "update backward, sums", edge_sums_cuda.SUMS, partial(update._sums_backward, e, grad, norms)
        )
        edge_update_cuda.fits = edge_sums_cuda.fits = edge_backward_cuda.fits = lambda e: False
    best(table, update.LAUNCH, "forward", FORWARD, "update forward", forward)
    _, scales, shifts = forward()
    backward = partial(update.backward_pass, (*narrow, scales, shifts), grad, in_place=False)
    best(table, update.LAUNCH, "backward", BACKWARD, "update backward (all)", backward)
    sums = partial(update._sums_backward, e, grad, norms)
    best(table, update.LAUNCH, "sums", SUMS, "update backward, sums", sums)
    table.measure("update both", "", both(update.edge_update, values))
    plain = torch.compile(update.edge_update_reference)
    table.measure("update compiled both", "", both(plain, [*values[:3], *(v.bfloat16() for v in values[3:])]))

    ends = edge_ends_triton
    distance = torch.rand(batch, n, n, device="cuda")
    centers, bandwidth = torch.linspace(0, 1.4, 16, device="cuda"), torch.tensor(0.1, device="cuda")
    maps = arguments([(d, 16), (d,), (d, d), (d,)], 0)
    embedding = partial(ends.edge_embedding, distance, dtype=torch.bfloat16)
    run = partial(embedding, centers, bandwidth, *maps)
    run_both = both(embedding, [centers, bandwidth, *maps])
    if edge_ends_cuda.embedding_fits(grad, 16):
        saved = (distance, centers, bandwidth, maps[0].bfloat16(), maps[1], maps[2].bfloat16())
        backward = partial(edge_ends_cuda.embedding_backward, saved, grad)
        table.measure("embedding forward", edge_ends_cuda.EMBEDDING_FORWARD, run)
        table.measure("embedding backward", edge_ends_cuda.embedding_backward_kernel(grad.device), backward)
        table.measure("embedding both", "CUDA", run_both)
        edge_ends_cuda.embedding_fits = lambda states, bases: False
    best(table, ends.LAUNCH, "embedding", FORWARD, "embedding forward", run)
    best(table, ends.LAUNCH, "embedding_backward", ENDS_BACKWARD, "embedding both", run_both)
    reference = torch.compile(partial(ends.edge_embedding_reference, distance, dtype=torch.bfloat16))
    table.measure("embedding compiled both", "", both(reference, [centers, bandwidth, *maps]))

    values = arguments([(batch, n, n, d), (d, d), (d,), (d,), (1,)], 1)
    run = partial(ends.edge_logit, *values)
    run_both = both(ends.edge_logit, values)
    if edge_ends_cuda.logit_fits(grad):
        inputs = (values[0], values[1].bfloat16(), *values[2:])
        out, on = edge_ends_cuda.logit_forward(inputs)
        backward = partial(edge_ends_cuda.logit_backward, (*inputs[:4], on), torch.randn_like(out))
        table.measure("logit forward", edge_ends_cuda.LOGIT_FORWARD, run)
        table.measure("logit backward", edge_ends_cuda.logit_backward_kernel(grad.device), backward)
        table.measure("logit both", "CUDA", run_both)
        edge_ends_cuda.logit_fits = lambda states: False
    best(table, ends.LAUNCH, "logit", FORWARD, "logit forward", run)
    best(table, ends.LAUNCH, "logit_backward", ENDS_BACKWARD, "logit both", run_both)
    table.measure("logit compiled both", "", both(torch.compile(ends.edge_logit_reference), values))
    table.append()
    for launches in (update.LAUNCH, ends.LAUNCH):
        print("\n".join(f"best {key}: {launch}" for key, launch in launches.items()))


if __name__ == "__main__":
    main()
