"""The training kernels in CUDA C++ beside compiled PyTorch: forward, and forward with backward.

    python benchmarks/gpu/cuda_kernels.py [--batch 512] [--n 50] [--mma] [--csv FILE]

Everything is timed in a CUDA graph, as in training. With ``--mma`` a Hopper GPU runs the kernels' build for
other GPUs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from kernel_table import Table, parser
from torch import Tensor

from georoutenet.kernels import choose
from georoutenet.kernels.edge_ends import (
    edge_embedding,
    edge_embedding_reference,
    edge_update_logit,
    edge_update_logit_reference,
)
from georoutenet.kernels.edge_update import edge_update, edge_update_reference
from georoutenet.kernels.nearest import nearest
from georoutenet.kernels.node_layer import Tower, node_layer_reference
from georoutenet.kernels.start_attention import (
    bf16_weights,
    start_distribution,
    start_distribution_reference,
    start_state,
    start_state_reference,
)
from georoutenet.model.config import PolicyConfig
from georoutenet.model.georoutenet import GeoRouteNet

D = 128
Passes = tuple[Callable[[], object], Callable[[], object]]
"""A forward pass, and forward with backward."""


def random(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    values = [torch.randn(s, device="cuda") * (s[-1] ** -0.5 if len(s) == 2 else 1) for s in shapes]
    return [value.to(dtype) for value in values]


def passes(function: Callable[..., Tensor | list[Tensor]], given: list[Tensor]) -> Passes:
    """Both, with gradients of all arguments."""
    leaves = [value.detach().requires_grad_() for value in given]
    outputs = function(*leaves)
    outputs = outputs if isinstance(outputs, list) else [outputs]
    upstream = [torch.randn_like(output) for output in outputs]

    def both() -> None:
        for leaf in leaves:
            leaf.grad = None
        found = function(*leaves)
        torch.autograd.backward(found if isinstance(found, list) else [found], upstream)

    return partial(function, *leaves), both


def nodes(batch: int, n: int, *, hopper: bool) -> tuple[Passes, Passes]:
    """Attention and the nodes of six layers, in kernels and in PyTorch."""
    net = GeoRouteNet(PolicyConfig()).cuda()
    _, near, slots = nearest(torch.rand(batch, n, 2, device="cuda"), 10, 11, 0.0)
    given = random(*[(batch, n, D)] * 4, (batch, n, n, D), dtype=torch.bfloat16)
    strength = torch.tensor(0.7, device="cuda")

    def fused(q: Tensor, k: Tensor, v: Tensor, first: Tensor, e: Tensor) -> list[Tensor]:
        tower, outputs = Tower(net, first, hopper=hopper), []
        for number in range(len(net.layers)):
            outputs += tower.layer(number, (q, k, v), e, strength, near, slots)
        return outputs

    def plain(q: Tensor, k: Tensor, v: Tensor, first: Tensor, e: Tensor) -> list[Tensor]:
        history, outputs = [first], []
        for number in range(len(net.layers)):
            found = node_layer_reference(net, number, (q, k, v), e, strength, near, history)
            history.append(found[1])
            outputs += found
        return outputs

    return passes(fused, given), passes(torch.compile(plain), given)


def starts(batch: int, n: int) -> tuple[Passes, Passes]:
    """Six layers' start attention, up to the start distribution."""
    net = GeoRouteNet(PolicyConfig()).cuda()
    given = random((batch, 1, D), (batch, n, D), dtype=torch.bfloat16)

    def fused(s: Tensor, x: Tensor) -> Tensor:
        s = s.squeeze(1)
        for layer, weights in zip(net.layers, bf16_weights(net.layers), strict=True):
            s = (start_distribution if layer is net.layers[-1] else start_state)(s, x, layer, weights)
        return s

    def plain(s: Tensor, x: Tensor) -> Tensor:
        s = s.squeeze(1)
        for layer in net.layers:
            is_last = layer is net.layers[-1]
            s = (start_distribution_reference if is_last else start_state_reference)(s, x, layer)
        return s

    return passes(fused, given), passes(torch.compile(plain), given)


def cases(batch: int, n: int, *, hopper: bool) -> dict[str, tuple[Passes, Passes]]:
    """For each operation its passes in kernels and in compiled PyTorch."""
    states = random((batch, n, n, D), (batch, n, D), (batch, n, D), dtype=torch.bfloat16)
    update = [*states, *random((D, D), (D,), (D,))]
    head = random((D, D), (D,), (D,), (1,))
    distance = torch.rand(batch, n, n, device="cuda")
    bases = [torch.linspace(0, 1.4, 16, device="cuda"), torch.tensor(0.1, device="cuda")]
    embedding = [*bases, *random((D, 16), (D,), (D, D), (D,))]
    embed = partial(edge_embedding, distance, hopper=hopper)
    plain_embed = torch.compile(partial(edge_embedding_reference, distance, dtype=torch.bfloat16))
    last = partial(edge_update_logit, hopper=hopper)
    return {
        "update": (
            passes(partial(edge_update, hopper=hopper), update),
            passes(torch.compile(edge_update_reference), update),
        ),
        "embedding": (passes(embed, embedding), passes(plain_embed, embedding)),
        "update and logit": (
            passes(last, [*update, *head]),
            passes(torch.compile(edge_update_logit_reference), [*update, *head]),
        ),
        "attention and nodes, 6 layers": nodes(batch, n, hopper=hopper),
        "start, 6 layers": starts(batch, n),
    }


def main() -> None:
    command = parser(__doc__)
    command.add_argument("--mma", action="store_true", help="the build for other GPUs on Hopper")
    options = command.parse_args()
    device = torch.device("cuda", 0)
    hopper = choose.is_hopper(device) and not options.mma
    if not choose.compiles(device, hopper):
        raise SystemExit("the CUDA kernels do not run here")
    torch.manual_seed(0)
    table = Table("cuda", options)
    for what, ways in cases(options.batch, options.n, hopper=hopper).items():
        for how, (forward, both) in zip(("CUDA, wgmma" if hopper else "CUDA", "compiled"), ways, strict=True):
            table.measure(f"{what} forward", how, forward)
            table.measure(f"{what} both", how, both)
    table.append()


if __name__ == "__main__":
    main()
