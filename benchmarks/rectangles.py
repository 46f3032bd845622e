"""How a policy trained on squares does in rectangles: uniform cities, the shorter side from 1 to 0.25.

    python benchmarks/rectangles.py --weights georoutenet-50,georoutenet

Gaps are to fast-tsp's tours. Prints means; benchmarks/results/rectangles.csv.gz has a row for each instance.
"""

from __future__ import annotations

import argparse
import csv
import gzip
from pathlib import Path

import fast_tsp
import torch

from georoutenet.decode import beam, greedy
from georoutenet.decode.costs import tour_costs
from georoutenet.io.provenance import commit, device_name, today
from georoutenet.model.geometry import pair_distances
from georoutenet.policy.weights import load_policy
from georoutenet.train.instances import instances

CSV = Path(__file__).parent / "results" / "rectangles.csv.gz"
COLUMNS = [
    "date",
    "commit",
    "device",
    "weights",
    "n",
    "shorter",
    "instance",
    "reference",
    "greedy",
    "beam_1000",
]


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--weights", default="georoutenet-50", help="names or files, with commas")
    parser.add_argument("--seconds", type=float, default=0.03, help="of fast-tsp for each instance")
    options = parser.parse_args()
    where = [today(), commit(), device_name(torch.device("cpu"))]
    rows = []
    for n, count in ((50, 100), (100, 60)):
        for shorter in (1.0, 0.7, 0.5, 0.25):
            cities = instances(torch.tensor([777]), count, n)
            cities[..., 1] *= shorter
            whole = (4e4 * pair_distances(cities[:, :, None], cities[:, None])).round().int().numpy()
            best = torch.tensor(
                [fast_tsp.find_tour(each, duration_seconds=options.seconds) for each in whole]
            )
            reference = tour_costs(cities, best[:, None])[:, 0]
            for name in options.weights.split(","):
                policy = load_policy(name).eval()
                found = []
                for part in cities.split(20):
                    scores = policy(part)
                    tours = (greedy(scores).tours, beam(scores, 1000, coordinates=part).tours)
                    found.append(torch.cat([tour_costs(part, each.long()) for each in tours], 1))
                lengths = torch.cat(found)
                gaps = (100 * (lengths / reference[:, None] - 1)).mean(0).tolist()
                print(
                    f"{name} n={n} shorter={shorter}: greedy {gaps[0]:.2f} %, Beam-1000 {gaps[1]:.2f} %",
                    flush=True,
                )
                for k, (own, (one, two)) in enumerate(zip(reference.tolist(), lengths.tolist(), strict=True)):
                    values = [f"{each:.6f}" for each in (own, one, two)]
                    rows.append([*where, Path(name).stem, n, shorter, k, *values])
    is_new = not CSV.exists()
    with gzip.open(CSV, "at", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([COLUMNS, *rows] if is_new else rows)


if __name__ == "__main__":
    main()
