"""NAR4TSP's fused edge layer and attention on a GPU, in CUDA C++ and in Triton by launch shape, and the
encoder with and without it.

    python benchmarks/nar4tsp_layer.py [--batch 512] [--n 50]

Appends to benchmarks/results/kernels.csv.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from kernel_table import Table, parser
from torch import Tensor

from georoutenet.model import (
    nar4tsp_attention_triton,
    nar4tsp_nodes_cuda,
    nar4tsp_triton,
    nar4tsp_vectors_cuda,
    native,
)
from georoutenet.model.config import PolicyConfig
from georoutenet.model.nar4tsp import Nar4Tsp
from georoutenet.model.nar4tsp_attention_triton import attention, attention_backward
from georoutenet.model.nar4tsp_triton import edge_layer, edge_layer_backward, edge_norm_backward

# What to try for each Triton kernel, beside what it uses; ``share`` is programs for each multiprocessor.
SHAPES: dict[str, list[dict[str, int | None]]] = {
    "forward": [
        {},
        {"share": 4},
        {"registers": None, "share": 1},
        {"registers": None, "warps": 4},
        {"stages": 2},
    ],
    "scores": [{}, {"share": 8}, {"stages": 2}, {"rows": 128, "share": 2}],
    "score_sums": [{}, {"share": 2}, {"share": 8}],
    "proposal": [{}, {"registers": 128, "share": 2}, {"share": 2}],
    "weight": [{}, {"share": 1}, {"share": 4}, {"stages": 2}, {"stages": 4}],
}


def main() -> None:
    options = parser(__doc__).parse_args()
    batch, n, d, heads = options.batch, options.n, 128, 8
    torch.manual_seed(0)

    def normal(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return torch.randn(*shape, device="cuda", dtype=dtype)

    vector = [normal(d, dtype=torch.float32) for _ in range(5)]
    x, source, target = normal(batch, n, n, d), normal(batch, n, d), normal(batch, n, d)
    weight, score = normal(d, d) * d**-0.5, normal(d, heads)
    forward = (x, vector[0], vector[1], weight, source, target, vector[2], score)
    p, *_, moments = edge_layer(*forward)
    grad, grad_scores = normal(batch, n, n, d), normal(batch, heads, n, n)
    backward = (grad, grad_scores, score, vector[3], vector[4], p, x, vector[0], weight, source, target)
    calls: dict[str, Callable[[], object]] = {
        "forward": lambda: edge_layer(*forward),
        "scores": lambda: edge_layer(*forward),
        "score_sums": lambda: edge_norm_backward(p, grad_scores, *vector[:2], score, *vector[2:4], moments),
        "proposal": lambda: edge_layer_backward(*backward),
        "weight": lambda: edge_layer_backward(*backward),
    }
    what = {"forward": "forward", "scores": "forward", "score_sums": "score sums"}
    table = Table("nar4tsp", options)

    fits = native.fits
    for hopper in (False, True):
        native.HOPPER = hopper
        if hopper == native.hopper(p.device):
            for kernel in ("forward", "score_sums", "weight"):
                how = "CUDA, four warps together" if hopper else "CUDA"
                table.measure(what.get(kernel, "backward"), how, calls[kernel])
    native.fits = lambda *_: False
    for kernel, shapes in SHAPES.items():
        usual = nar4tsp_triton.LAUNCH[kernel]
        for shape in shapes:
            nar4tsp_triton.LAUNCH[kernel] = replace(usual, **shape)  # type: ignore[arg-type]
            table.measure(what.get(kernel, "backward"), f"{kernel} {shape}", calls[kernel])
        nar4tsp_triton.LAUNCH[kernel] = usual
    native.fits = fits

    points = torch.rand(batch, n, 2, device="cuda")
    distance = torch.cdist(points, points)
    reach = distance.sort().values[:, :, min(10, n - 1)]
    ends, by_head = normal(2, d // heads, dtype=torch.float32), normal(heads, dtype=torch.float32)
    attended = (source, ends, grad_scores, by_head, by_head, distance, reach)
    weights = attention(*attended)[1]
    back = (target, source, ends, weights, distance, False)
    table.measure("attention forward", "CUDA", lambda: attention(*attended))
    table.measure("attention backward", "CUDA", lambda: attention_backward(*back))
    native.fits = lambda *_: False
    usual_warps = nar4tsp_attention_triton.WARPS
    for warps in (usual_warps, 8):
        nar4tsp_attention_triton.WARPS = warps
        table.measure("attention forward", f"warps {warps}", lambda: attention(*attended))
        table.measure("attention backward", f"warps {warps}", lambda: attention_backward(*back))
    nar4tsp_attention_triton.WARPS = usual_warps
    native.fits = fits

    one, square = normal(d, dtype=torch.float32), normal(d, d) * d**-0.5
    maps = torch.stack([square] * 3)
    of_ends = ends.expand(heads, -1, -1).contiguous()
    layer = (source, of_ends, *attended[2:], target, one, one, one, maps, maps, *maps.float())
    state, *_, kept, y, norm = nar4tsp_nodes_cuda.node_layer(*layer)
    back = (*[target] * 4, source, of_ends, distance, maps, state, kept, y, norm, False)
    table.measure("nodes forward", "CUDA", lambda: nar4tsp_nodes_cuda.node_layer(*layer))
    table.measure("nodes backward", "CUDA", lambda: nar4tsp_nodes_cuda.node_layer_backward(*back))

    starts, folded = normal(batch, d, dtype=torch.float32), (square.float(), one, one, one)
    of_starts, start_moments = nar4tsp_vectors_cuda.start_norm(starts, one, one)
    small: dict[str, Callable[[], object]] = {
        "fold": lambda: nar4tsp_vectors_cuda.fold(*folded, one, True),
        "fold backward": lambda: nar4tsp_vectors_cuda.fold_backward(square, one, *folded),
        "start norm": lambda: nar4tsp_vectors_cuda.start_norm(starts, one, one),
        "start norm backward": lambda: nar4tsp_vectors_cuda.start_norm_backward(
            of_starts, starts, one, start_moments
        ),
    }
    for name, call in small.items():
        table.measure(name, "CUDA", call)

    encoder = Nar4Tsp(PolicyConfig(encoder="nar4tsp")).cuda()
    coords = torch.rand(batch, n, 2, device="cuda")
    grad_logits = torch.randn(batch, n, n, device="cuda")
    parameters = list(encoder.parameters())
    for fused in (True, False):
        torch._dynamo.reset()
        network = torch.compile(encoder.from_batch, dynamic=False)

        def both(network: Callable[..., tuple[Tensor, Tensor]] = network, fused: bool = fused) -> object:
            start, logits = network(coords, torch.bfloat16, fused=fused)
            return torch.autograd.grad(
                (start.sum(), logits), parameters, (None, grad_logits), allow_unused=True
            )

        torch.cuda.reset_peak_memory_stats()
        table.measure("encoder both", "fused" if fused else "compiled", both)
        print(f"peak memory {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB", flush=True)
    table.append()


if __name__ == "__main__":
    main()
