"""How many edges of the best known tours are among the first five candidates of their cities.

    python benchmarks/candidates.py --count 20

The first ``count`` instances of test200, test500 and test1000, with their packaged references. An edge has
two ends; counted are ends whose other end is among the first five candidates. The candidates: the nearest
cities, those of least alpha (as the search takes them, its tour being greedy edge), the network's likeliest
next cities (one view), the likeliest by the sum of both directions, and mixtures of alpha and network. Rows
go to ``benchmarks/results/candidates.csv``.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from rows import append

import georoutenet as grn
from georoutenet.evaluate.references import load_references, random_set
from georoutenet.policy import Policy
from georoutenet.search import greedy_edge, nearest_neighbors
from georoutenet.search.ascent import prepare
from georoutenet.search.local_search import kernel_coordinates
from georoutenet.search.neighbors import candidate_neighbors, delaunay_edges

COLUMNS = ("set", "count", "weights", "candidates", "ends_covered_percent")
FIRST = 5


def by_alpha(instance: grn.Instance) -> Callable[[int], NDArray[np.int32]]:
    """The so many of least alpha; they come in order of distance, so a shorter list is not a beginning."""
    code, x, y, _ = kernel_coordinates(instance)
    tour = greedy_edge(instance.coordinates)
    lists, more = candidate_neighbors(instance), delaunay_edges(instance)
    return prepare(code, x, y, lists, tour, more=more).neighbors


def by_network(instance: grn.Instance, policy: Policy) -> dict[str, NDArray[np.intp]]:
    with torch.no_grad():
        logits = policy(torch.from_numpy(instance.normalized()).float()[None]).logits[0].double()
    logits.fill_diagonal_(-torch.inf)
    next_city = logits.softmax(1)
    both = next_city + next_city.T
    return {
        "network, next city": next_city.topk(FIRST, 1).indices.numpy(),
        "network, both directions": both.topk(FIRST, 1).indices.numpy(),
    }


def mixed(lists: NDArray[np.integer], others: NDArray[np.integer], kept: int) -> NDArray[np.integer]:
    """The first ``kept`` of the one, then of the other what is new."""
    rows = []
    for own, other in zip(lists.tolist(), others.tolist(), strict=True):
        chosen = own[:kept]
        rows.append((chosen + [city for city in other if city not in chosen])[:FIRST])
    return np.array(rows)


def covered(tour: NDArray[np.integer], lists: NDArray[np.integer]) -> float:
    following = np.roll(tour, -1)
    ends = [(lists[tour] == following[:, None]).any(1), (lists[following] == tour[:, None]).any(1)]
    return 100 * float(np.mean(ends))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--weights", default="georoutenet")
    options = parser.parse_args()
    policy = grn.load_policy(options.weights)
    rows = []
    for name in ("test200", "test500", "test1000"):
        tours, points = load_references(name).tours, random_set(name).coordinates
        shares: dict[str, list[float]] = {}
        for tour, coordinates in zip(tours[: options.count], points, strict=False):
            instance = grn.Instance(coordinates)
            alpha, network = by_alpha(instance), by_network(instance, policy)
            likely = network["network, both directions"]
            kinds = {"nearest": nearest_neighbors(coordinates, FIRST), "alpha": alpha(FIRST), **network}
            kinds["3 alpha, then network"] = mixed(alpha(3), likely, 3)
            kinds["4 alpha, then network"] = mixed(alpha(4), likely, 4)
            for kind, lists in kinds.items():
                shares.setdefault(kind, []).append(covered(tour.astype(np.int64), lists))
        for kind, values in shares.items():
            rows.append((name, len(values), options.weights, kind, round(float(np.mean(values)), 3)))
            print(f"{name:<9} {kind:<26} {np.mean(values):.2f} %", flush=True)
    append("candidates.csv", COLUMNS, rows)


if __name__ == "__main__":
    main()
