"""The replay of given tours on a GPU: forward and backward, fused by launch shape, against compiled PyTorch.

    python benchmarks/gpu/replay.py [--batch 512] [--n 50] [--tours 48]

Appends to benchmarks/results/gpu/kernels.csv.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from kernel_table import Table, parser
from torch import Tensor

from georoutenet.decode.gpu import replay as replay_triton
from georoutenet.decode.replay import replay_reference

Replay = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def main() -> None:
    command = parser(__doc__)
    command.add_argument("--tours", type=int, default=48)
    options = command.parse_args()
    batch, n, count = options.batch, options.n, options.tours
    torch.manual_seed(0)
    start = torch.randn(batch, n, device="cuda").log_softmax(1).requires_grad_()
    logits = (3 * torch.randn(batch, n, n, device="cuda")).requires_grad_()
    tours = torch.rand(batch, count + 1, n, device="cuda").argsort(2)[:, :-1]
    weight = torch.randn(batch, count, device="cuda")
    table = Table(f"replay of {count} tours", options)
    measure = table.measure

    def both(function: Replay) -> Callable[[], object]:
        def call() -> object:
            chance, entropy = function(start, logits, tours)
            return torch.autograd.grad((chance, entropy), (start, logits), (weight, weight))

        return call

    def forward(function: Replay) -> Callable[[], object]:
        @torch.no_grad()
        def call() -> object:
            return function(start, logits, tours)

        return call

    for elements in (512, 1024, 2048):
        replay_triton.ELEMENTS = elements
        torch._dynamo.reset()
        fused = torch.compile(replay_triton.replay_fused, dynamic=False)
        measure("fused forward", str(elements), forward(fused))
        measure("fused both", str(elements), both(fused))
    compiled = torch.compile(replay_reference, dynamic=False)
    measure("compiled forward", "", forward(compiled))
    measure("compiled both", "", both(compiled))
    table.append()


if __name__ == "__main__":
    main()
