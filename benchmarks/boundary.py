"""What deciding boundary ties to 3e-6 changes on random sets: the instances it touches, solved both ways.

    python benchmarks/boundary.py --weights georoutenet,georoutenet-50 --set val50,test50,diag100,test100

appends one row per weights, set and decoder to ``benchmarks/results/boundary.csv``: how many instances have
another neighborhood than with ties to the last bit, how many of them another length, and by how much the mean
gap of the whole set moves. Instances with the same neighborhoods have the same scores, hence the same tours.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import torch

from georoutenet.evaluate.batch_solver import BatchSolver, Problems, checked_length
from georoutenet.evaluate.settings import parse_decoder
from georoutenet.io.datasets import dataset
from georoutenet.model import geometry
from georoutenet.policy.weights import load_policy

sys.path.insert(0, str(Path(__file__).parent.parent))
from benchmarks.rows import append

COLUMNS = (
    "weights",
    "set",
    "decoder",
    "instances",
    "other_neighborhoods",
    "other_lengths",
    "mean_gap_change",
)


def affected(coordinates: np.ndarray, k: int = 10) -> list[int]:
    """Instances in which a city is beyond the tenth by at most the tolerance."""
    found = []
    size = max(1, 2_000_000 // coordinates.shape[1] ** 2)
    for first in range(0, len(coordinates), size):
        block = torch.from_numpy(coordinates[first : first + size].copy())
        distance = geometry.nearest(block, min(k + 6, block.shape[1] - 1))[1]
        last = distance[..., k - 1 : k]
        beyond = (distance > last) & (distance <= last * (1 + geometry.BOUNDARY))
        found += (first + torch.nonzero(beyond.any(-1).any(-1)).flatten()).tolist()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--weights", required=True, help="names or files, with commas")
    parser.add_argument("--set", dest="sets", required=True)
    parser.add_argument("--decoder", default="greedy,beam-100,beam-1000")
    options = parser.parse_args()
    tolerance, cpu = geometry.BOUNDARY, torch.device("cpu")
    for name in options.sets.split(","):
        problems = Problems(dataset(name), None)
        rows = affected(dataset(name).coordinates)
        instances = [problems.take(row, row + 1)[0] for row in rows]
        references = np.array([problems.references[row] for row in rows])
        for weights in options.weights.split(","):
            policy = load_policy(weights)
            for decoder in options.decoder.split(","):
                solver = BatchSolver(policy, parse_decoder(decoder), cpu)
                lengths = []
                for geometry.BOUNDARY in (0.0, tolerance):
                    tours = solver.solve(instances).tours
                    lengths.append([checked_length(*each) for each in zip(instances, tours, strict=True)])
                change = np.subtract(*lengths[::-1])
                moved = 100 * float((change / references).sum()) / problems.count
                differ = int((np.abs(change) > 1e-9).sum())
                row = (Path(weights).stem, name, decoder, problems.count, len(rows), differ, f"{moved:.7f}")
                append("boundary.csv", COLUMNS, [row])
                print(*row, flush=True)


if __name__ == "__main__":
    main()
