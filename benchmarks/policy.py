"""Time and memory of the policy's scores on the CPU, against the dense formulation the paper describes.

    python benchmarks/policy.py [--large]

Each measurement runs in a process of its own, so that peak memory is its own; both formulations of a row
run one after the other on the same machine. Of a batch of 128 instances the time is that of one, and both
ways are ours: two towers in PyTorch, or a few instances at a time with kernels between products. Results are
appended to benchmarks/results/policy.csv.
"""

from __future__ import annotations

import csv
import datetime
import json
import math
import platform
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch.nn import functional

from georoutenet.kernels.cpu import dense as dense_cpu
from georoutenet.model.geometry import neighborhood, pair_distances
from georoutenet.model.georoutenet import node_features
from georoutenet.model.layers import split_heads
from georoutenet.policy import Policy

BATCH = 128
BATCHED = ("batch in two towers", "batch")
RESULTS = Path(__file__).parent / "results" / "policy.csv"


def materialized(policy: Policy, coords: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The dense formulation as the paper states it: all edge states, edge values and attention logits."""
    net = policy.encoder
    batch, n, _ = coords.shape
    d = pair_distances(coords.unsqueeze(2), coords.unsqueeze(1))
    mask = d <= d.kthvalue(min(11, n), dim=-1, keepdim=True).values
    h = net.node_input(node_features(coords))
    e = net.edge_input(net.rbf(d))
    s = net.start["query"].expand(batch, -1)
    history = [h]
    for number, layer in enumerate(net.layers):
        q, k, v = (split_heads(part(h), layer.heads) for part in (layer.query, layer.key, layer.value))
        scores = torch.einsum("bihq,bjhq->bijh", q, k) / math.sqrt(q.shape[-1]) + layer.edge_bias(e)
        scores = scores - functional.softplus(layer.distance) * d.unsqueeze(-1)
        weights = scores.masked_fill(~mask.unsqueeze(-1), -torch.inf).softmax(2)
        values = v.unsqueeze(1) + split_heads(layer.edge_value(e), layer.heads)
        g = layer.output(torch.einsum("bijh,bijhq->bihq", weights, values).flatten(2))
        past = torch.stack(history, 2)
        beta = (layer.residual_query(g).unsqueeze(2) * layer.residual_key(past)).sum(-1)
        beta = (beta / math.sqrt(h.shape[-1])).softmax(-1)
        h = layer.norm1(g + (beta.unsqueeze(-1) * past).sum(2))
        h = layer.norm2(h + layer.feed_forward(h))
        history.append(h)
        proposal = layer.edge_update(e) + layer.source(h).unsqueeze(2) + layer.target(h).unsqueeze(1)
        e = layer.edge_norm(e + functional.silu(proposal))
        if number < len(net.layers) - 1:
            s = layer.start_norm(s + layer.start_attention(s, h))
    return layer.start_attention.distribution(s, h), net.edge_head(e).squeeze(-1)


@torch.no_grad()
def measure(what: str, n: int, candidates: int, repeats: int) -> dict[str, float]:
    torch.set_num_threads(2)
    torch.manual_seed(0)
    policy = Policy(avoid=("cpu dense",) if what == "batch in two towers" else ()).eval()
    small = torch.rand(1, 20, 2)
    policy(small, candidates=5)  # load everything the first call loads, kernels too
    dense_cpu.dense(policy.encoder, small, pair_distances(small.unsqueeze(2), small), neighborhood(small, 10))
    batch = BATCH if what in BATCHED else 1
    coords = torch.rand(batch, n, 2)
    if what == "materialized":
        torch.testing.assert_close(materialized(policy, small)[1], policy(small).logits, rtol=1e-4, atol=1e-5)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = []
    for _ in range(repeats):
        begin = time.perf_counter()
        if what == "materialized":
            materialized(policy, coords)
        else:
            policy(coords, candidates or None)
        seconds.append(time.perf_counter() - begin)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    timed = seconds[1:] or seconds  # the first call also takes the memory
    return {
        "seconds": statistics.median(timed) / batch,
        "added_mb": (peak - before) / 1024,
        "peak_mb": peak / 1024,
    }


def main() -> None:
    if len(sys.argv) == 5:
        print(json.dumps(measure(sys.argv[1], *(int(value) for value in sys.argv[2:]))))
        return
    cases = [
        ("materialized", 50, 0, 21),
        ("dense", 50, 0, 21),
        ("materialized", 100, 0, 11),
        ("dense", 100, 0, 11),
        ("materialized", 200, 0, 5),
        ("dense", 200, 0, 5),
        *((what, n, 0, 3) for n in (20, 50) for what in BATCHED),
        ("sparse", 1000, 32, 5),
        ("sparse", 2000, 32, 3),
        ("sparse", 5000, 32, 3),
        ("sparse", 10000, 32, 3),
    ]
    if "--large" in sys.argv:
        cases.append(("sparse", 100000, 32, 1))
    describe = ["git", "describe", "--always", "--dirty"]
    run = {
        "date": datetime.date.today().isoformat(),
        "commit": subprocess.run(describe, capture_output=True, text=True, check=False).stdout.strip(),
        "machine": platform.machine(),
        "torch": torch.__version__,
        "threads": 2,
    }
    RESULTS.parent.mkdir(exist_ok=True)
    is_new = not RESULTS.exists()
    with RESULTS.open("a", newline="") as file:
        writer = None
        for what, n, candidates, repeats in cases:
            command = [sys.executable, __file__, what, str(n), str(candidates), str(repeats)]
            result = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
            shown = f"{result['seconds']:9.4f} s {result['added_mb']:8.0f} MB"
            print(f"{what:19} n={n:<7} candidates={candidates:<3} {shown}")
            figures = {name: f"{value:.5g}" for name, value in result.items()}
            row = run | {"what": what, "n": n, "candidates": candidates} | figures
            writer = writer or csv.DictWriter(file, row)
            if is_new:
                writer.writeheader()
                is_new = False
            writer.writerow(row)


if __name__ == "__main__":
    main()
