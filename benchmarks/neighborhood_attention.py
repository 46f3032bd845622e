"""The fused neighborhood attention on a GPU: forward and both passes, against compiled PyTorch.

    python benchmarks/neighborhood_attention.py [--batch 512] [--n 50] [--width 16] [--sweep]

Everything is timed in a CUDA graph, as in training. ``--sweep`` tries other launch shapes.
Appends to benchmarks/results/kernels.csv.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from kernel_table import Table, parser
from torch import Tensor

from georoutenet.kernels import neighborhood_attention as neighborhood_attention_triton
from georoutenet.kernels.cuda import neighborhood_attention as neighborhood_attention_cuda
from georoutenet.kernels.neighborhood_attention import (
    Launch,
    neighborhood_attention,
    neighborhood_attention_reference,
    neighborhood_slots,
)
from georoutenet.model.geometry import neighborhood

HEADS, NEIGHBORS, D = 8, 10, 128

# Other launches than the defaults: 132 multiprocessors hold 4, 3 or 2 programs of 4 warps at these registers.
SWEEP = {
    "forward": [
        Launch(64, 4, 168, 396), Launch(64, 4, 255, 264), Launch(32, 2, 168, 792), Launch(64, 4, 128, 1056)
    ],
    "pairs": [Launch(64, 4, 255, 264), Launch(64, 4, 168, 792), Launch(32, 2, 168, 792)],
    "cities": [Launch(64, 4, 168), Launch(64, 8, 64), Launch(64, 2, 255)],
}  # fmt: skip


def arguments(batch: int, n: int, width: int) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Leaves, neighborhoods of random cities as in training, and upstream gradients."""
    torch.manual_seed(0)
    shapes = [(batch, n, D)] * 3 + [(batch, n, n, D)]
    leaves = [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for shape in shapes]
    leaves += [torch.randn(HEADS, D, device="cuda") * D**-0.5, torch.tensor(0.7, device="cuda")]
    near = neighborhood(torch.rand(batch, n, 2, device="cuda"), NEIGHBORS, width)
    upstream = [(batch, n, D), (batch, n, HEADS, D), (batch, n, n, D)]
    grads = [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for shape in upstream]
    return [x.requires_grad_() for x in leaves], [near.index.int(), near.mask, near.distance], grads


def main() -> None:
    command = parser(__doc__)
    command.add_argument("--width", type=int, default=16, help="of the neighborhoods; 11 in training")
    command.add_argument("--sweep", action="store_true", help="other launch shapes, too")
    options = command.parse_args()
    leaves, near, grads = arguments(options.batch, options.n, options.width)
    slots = neighborhood_slots(*near[:2])
    launch = neighborhood_attention_triton.LAUNCH
    table = Table("attention", options)
    measure = table.measure

    def forward() -> object:
        return neighborhood_attention(*leaves, *near, heads=HEADS, slots=slots)

    def both() -> object:
        outputs = neighborhood_attention(*leaves, *near, heads=HEADS, slots=slots)
        return torch.autograd.grad(outputs, leaves, grads)  # adds to the last of grads

    measure("slots", "", lambda: neighborhood_slots(*near[:2]))
    native = neighborhood_attention_cuda
    q, k, v, e, weight, _ = leaves
    if native.fits(q, k, v, near[0], HEADS):
        alpha = native.forward_pass((*leaves, *near))[2]
        saved = (q, k, v, e, weight, *near, alpha)
        _, pairs, partial = native.pairs_pass(saved, *grads)
        measure("forward", native.FORWARD, forward)
        measure("backward, pairs", native.PAIRS, lambda: native.pairs_pass(saved, *grads))
        sources = (q, near[0], slots, grads[0], pairs, partial)
        measure("backward, cities", native.CITIES, lambda: native.cities_pass(*sources))
        measure("both", "CUDA", both)
        if options.sweep:  # other numbers of warps, with their part of the shared memory
            default = native.FORWARD
            for warps in (12, 15):
                native.FORWARD = replace(default, warps=warps, shared=default.shared * warps // default.warps)
                measure("forward", native.FORWARD, forward)
            native.FORWARD, default = default, native.PAIRS
            for warps in (8, 10):
                native.PAIRS = replace(default, warps=warps)
                measure("backward, pairs", native.PAIRS, lambda: native.pairs_pass(saved, *grads))
            native.PAIRS = default
        native.fits = lambda *arguments: False
    measure("forward", str(launch["forward"]), forward)
    measure("both", " ".join(str(tuple(each)) for each in launch.values()), both)
    if options.sweep:
        for kernel, others in SWEEP.items():
            default = launch[kernel]
            for other in others:
                launch[kernel] = other
                if kernel == "forward":
                    measure("forward", str(other), forward)
                else:
                    measure(f"both, {kernel}", str(other), both)
            launch[kernel] = default

    compiled = torch.compile(neighborhood_attention_reference)

    def reference() -> object:
        return compiled(*leaves, *near, heads=HEADS)

    def reference_both() -> object:
        return torch.autograd.grad(compiled(*leaves, *near, heads=HEADS), leaves, grads)

    measure("compiled forward", "", reference)
    measure("compiled both", "", reference_both)
    table.append()


if __name__ == "__main__":
    main()
