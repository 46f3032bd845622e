"""The training kernels in CUDA C++ beside those in Triton: forward, and forward with backward, in one run.

    python benchmarks/cuda_kernels.py [--batch 512] [--n 50] [--alone] [--csv benchmarks/results/kernels.csv]

The nodes' kernels have no Triton version; their row stands alone. The start attention stands beside PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from edge_kernels import arguments, both
from kernel_table import Table, parser
from neighborhood_attention import HEADS
from neighborhood_attention import arguments as attention_arguments

from georoutenet.kernels import edge_ends as edge_ends_triton
from georoutenet.kernels import edge_update as edge_update_triton
from georoutenet.kernels import encoder as fused
from georoutenet.kernels.cuda import compile as native
from georoutenet.kernels.cuda import node_layer as node_layer_cuda
from georoutenet.kernels.cuda.edge_last import edge_last
from georoutenet.kernels.neighborhood_attention import neighborhood_attention, neighborhood_slots
from georoutenet.model.config import PolicyConfig
from georoutenet.model.geometry import Neighborhood
from georoutenet.model.georoutenet import GeoRouteNet
from georoutenet.model.layers import narrowed


def cases(batch: int, n: int) -> dict[str, tuple[Callable[[], object], Callable[[], object]]]:
    """For each operation its forward pass and both passes."""
    d = 128
    update = arguments([(batch, n, n, d), (batch, n, d), (batch, n, d), (d, d), (d,), (d,)], 3)
    distance = torch.rand(batch, n, n, device="cuda")
    bases = [torch.linspace(0, 1.4, 16, device="cuda"), torch.tensor(0.1, device="cuda")]
    embedding = [*bases, *arguments([(d, 16), (d,), (d, d), (d,)], 0)]
    embed = partial(edge_ends_triton.edge_embedding, distance, dtype=torch.bfloat16)
    logit = arguments([(batch, n, n, d), (d, d), (d,), (d,), (1,)], 1)
    leaves, near, grads = attention_arguments(batch, n, 16)
    attend = partial(
        neighborhood_attention, *leaves, *near, heads=HEADS, slots=neighborhood_slots(near[0], near[1])
    )
    return {
        "update": (
            partial(edge_update_triton.edge_update, *update),
            both(edge_update_triton.edge_update, update),
        ),
        "embedding": (partial(embed, *embedding), both(embed, embedding)),
        "logit": (partial(edge_ends_triton.edge_logit, *logit), both(edge_ends_triton.edge_logit, logit)),
        "update and logit": (partial(edge_last, *update, *logit[1:]), both(edge_last, [*update, *logit[1:]])),
        "attention": (attend, lambda: torch.autograd.grad(attend(), leaves, grads)),
    }


def nodes(batch: int, n: int) -> tuple[Callable[[], object], Callable[[], object]]:
    """Attention and the nodes of six layers; the gradient of the edge states adds up where it is."""
    net = GeoRouteNet(PolicyConfig()).cuda()
    (q, k, v, e, _, strength), places, _ = attention_arguments(batch, n, 16)
    near, slots = Neighborhood(*places), neighborhood_slots(places[0], places[1])
    first = torch.randn(batch, n, 128, device="cuda").bfloat16().requires_grad_()

    def forward() -> list[torch.Tensor]:
        tower = node_layer_cuda.Tower(net, first)
        outputs: list[torch.Tensor] = []
        for number, layer in enumerate(net.layers):
            given = (layer.edge_bias.weight, strength, near, slots)
            outputs += tower.layer(number, (q, k, v), e, *given)
        return outputs

    upstream = [torch.randn_like(x) for x in forward()]

    def backward() -> None:
        net.zero_grad()
        for leaf in (q, k, v, e, strength, first):
            leaf.grad = None
        torch.autograd.backward(forward(), upstream)

    return forward, backward


def starts(batch: int, n: int) -> tuple[Callable[[], object], Callable[[], object]]:
    """Six layers' start attention, up to the start distribution."""
    net = GeoRouteNet(PolicyConfig()).cuda()
    first = torch.randn(batch, 128, device="cuda").bfloat16().requires_grad_()
    x = torch.randn(batch, n, 128, device="cuda").bfloat16().requires_grad_()
    upstream = torch.randn(batch, n, device="cuda")

    def forward() -> torch.Tensor:
        s = first
        with narrowed(net, x.dtype):
            for layer in net.layers:
                s = fused.start(net, layer, s, x, is_last=layer is net.layers[-1])
        return s

    def backward() -> None:
        net.zero_grad()
        first.grad = x.grad = None
        forward().backward(upstream)

    return forward, backward


def main() -> None:
    command = parser(__doc__)
    command.add_argument("--alone", action="store_true", help="no products of four warps on GPUs that can")
    options = command.parse_args()
    native.HOPPER = not options.alone
    table = Table("cuda", options)
    fits = native.fits
    cuda = "CUDA, four warps together" if native.hopper(torch.device("cuda", 0)) else "CUDA"
    for what, (forward, backward) in cases(options.batch, options.n).items():
        for how in (cuda, "Triton"):
            native.fits = fits if how == cuda else lambda *_: False
            table.measure(f"{what} forward", how, forward)
            table.measure(f"{what} both", how, backward)
    native.fits = fits
    forward, backward = nodes(options.batch, options.n)
    table.measure("attention and nodes, 6 layers, forward", cuda, forward)
    table.measure("attention and nodes, 6 layers, both", cuda, backward)
    forward, backward = starts(options.batch, options.n)
    for how in ("CUDA", "PyTorch"):
        native.fits = fits if how == "CUDA" else lambda *_: False
        table.measure("start, 6 layers, forward", how, forward)
        table.measure("start, 6 layers, both", how, backward)
    native.fits = fits
    table.append()


if __name__ == "__main__":
    main()
