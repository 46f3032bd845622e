"""Latency, runtime, throughput and memory of our models beside classical solvers on the same instances.

    python benchmarks/efficiency.py --out results/efficiency/cpu.csv       # one thread, 100 instances a set
    python benchmarks/efficiency.py --out results/efficiency/gpu.csv --device cuda --limit 10000 \\
        --decoder greedy,beam-100,beam-1000,beam-1000-views-8 --solver-limit 100

Each model and solver takes the first instances of each set: one alone, warm, three times (the probe), then
all of them, models in batches, solvers one by one on one thread. ``georoutenet tables`` makes the efficiency
table and the picture of gap against time from the file. What is in the file already is not measured again,
so a killed run goes on. A solver that is not installed is left out and named.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

from georoutenet.device import choose_device
from georoutenet.evaluate.settings import parse_decoder
from georoutenet.io.datasets import parse_sets

sys.path.insert(0, str(Path(__file__).parent.parent))  # research/ is no part of the package
from research.report.efficiency import Measurement
from research.report.measure import measure_all

DECODERS = (
    "greedy,beam-100,beam-1000,beam-1000-views-8,"
    "greedy-improve-0.01,greedy-improve-0.1,beam-1000-views-8-improve-0.1"
)
SOLVERS = "concorde,lkh,fast-tsp:0.03,fast-tsp:0.3,or-tools:0.1,or-tools:1"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--weights", default="georoutenet-50", help="names or files, with commas")
    parser.add_argument("--set", dest="sets", default="val50,diag100,tsplib27")
    parser.add_argument("--decoder", default=DECODERS)
    parser.add_argument("--solver", default=SOLVERS, help="with a time limit after a colon; '' for none")
    parser.add_argument("--limit", type=int, default=100, help="instances of each set")
    parser.add_argument("--solver-limit", type=int, help="instances for the solvers, if not the same")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1, help="of the processor")
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--statistics", default="frozen")
    options = parser.parse_args()

    torch.set_num_threads(options.threads)
    others = {key: getattr(options, key) for key in ("limit", "batch", "precision", "statistics")}

    def report(one: Measurement) -> None:
        name = f"{one.weights or one.method} {one.decoder}"
        print(
            f"{one.set:9} {name:52} gap {one.gap:7.3f} %  probe {1000 * one.probe_seconds:8.1f} ms  "
            f"{one.instances} in {one.seconds:8.2f} s (CPU {one.cpu_seconds:8.2f} s)",
            flush=True,
        )

    left_out = measure_all(
        options.out,
        [name for name in options.weights.split(",") if name],
        parse_sets(options.sets),
        [parse_decoder(each, **others) for each in options.decoder.split(",")],
        [each for each in options.solver.split(",") if each],
        device=choose_device(options.device),
        solver_limit=options.solver_limit,
        report=report,
    )
    for reason in left_out:
        print(f"left out: {reason}")
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
