"""The shortest tour of a small Euclidean instance, proven: the integer program of the tour, by HiGHS.

Minimize the length over edge sets in which every city has two edges and no part of the cities is cut off.
The linear program comes first, with parts added as they are found and edges as their prices ask for them. An
edge whose reduced cost exceeds what a known tour is above the linear program is in no shorter tour; the
integer program has the others. ``python -m research.references.prove`` prints what the examples of the
playground say.
"""

from __future__ import annotations

import argparse
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, linprog, milp
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import breadth_first_order, connected_components, maximum_flow

from georoutenet import Instance, MaxIterations, solve
from georoutenet.problem.tour import tour_length

Pairs = NDArray[np.int64]
SCALE = 10**6
"""Flows are computed in whole millionths."""


class Program:
    """Edges, and the parts of the cities that must not be cut off."""

    def __init__(self, instance: Instance, tour: NDArray[np.int64]) -> None:
        self.distances = instance.distance_matrix().astype(np.float64)
        self.n = instance.n
        near = np.argsort(self.distances + np.diag(np.full(self.n, np.inf)), axis=1)[:, :8]
        some = np.column_stack([np.repeat(np.arange(self.n), 8), near.ravel()])
        some = np.concatenate([some, np.column_stack([tour, np.roll(tour, -1)])])
        self.edges: Pairs = np.unique(np.sort(some, axis=1), axis=0)
        self.parts: list[NDArray[np.bool_]] = []

    @property
    def costs(self) -> NDArray[np.float64]:
        return self.distances[self.edges[:, 0], self.edges[:, 1]]

    def degrees(self) -> csr_array:
        m = len(self.edges)
        place = (self.edges.ravel(), np.repeat(np.arange(m), 2))
        return csr_array((np.ones(2 * m), place), shape=(self.n, m))

    def crossings(self) -> csr_array:
        """Which edges lead out of which part."""
        inside = np.array(self.parts)[:, self.edges].reshape(-1, len(self.edges), 2)
        return csr_array((inside[..., 0] != inside[..., 1]).astype(float))

    def solve_linear(self) -> tuple[float, NDArray[np.float64], NDArray[np.float64]]:
        """The bound, the values of the edges, and reduced costs of all pairs ``(n, n)``."""
        while True:
            cuts: dict[str, Any] = {}
            if self.parts:
                cuts = {"A_ub": -self.crossings(), "b_ub": np.full(len(self.parts), -2.0)}
            found = linprog(self.costs, A_eq=self.degrees(), b_eq=np.full(self.n, 2.0), bounds=(0, 1), **cuts)
            if found.status != 0:
                raise RuntimeError(found.message)
            price = found.eqlin.marginals
            reduced = self.distances - price[:, None] - price[None, :]
            for part, weight in zip(self.parts, found.ineqlin.marginals if self.parts else (), strict=True):
                reduced += weight * (part[:, None] != part[None, :])
            outside = np.triu(reduced < -1e-9, 1)
            outside[tuple(self.edges.T)] = False
            if not outside.any():
                return found.fun, found.x, reduced
            self.edges = np.concatenate([self.edges, np.argwhere(outside)])

    def cut(self, values: NDArray[np.float64]) -> bool:
        """Add parts that the values cut off; False where there is none."""
        graph = coo_array((values, tuple(self.edges.T)), shape=(self.n, self.n)).tocsr()
        graph = graph + graph.T
        count, label = connected_components(graph > 1e-9, directed=False)
        if count > 1:
            self.parts += [label == k for k in range(count)]
            return True
        whole = csr_array((graph * SCALE).astype(np.int32))
        before = len(self.parts)
        for sink in range(1, self.n):
            flow = maximum_flow(whole, 0, sink)
            if flow.flow_value < 2 * SCALE - 1_000:
                left = csr_array(whole - flow.flow)
                left.eliminate_zeros()
                part = np.zeros(self.n, dtype=bool)
                part[breadth_first_order(csr_array(left > 0), 0, return_predecessors=False)] = True
                if not any(np.array_equal(part, other) for other in self.parts[before:]):
                    self.parts.append(part)
        return len(self.parts) > before


def prove(instance: Instance) -> tuple[float, NDArray[np.int64]]:
    """The length of the shortest tour, and the tour."""
    known = solve(instance, stop=MaxIterations(100 * instance.n))
    program = Program(instance, known.tour)
    while True:
        bound, values, reduced = program.solve_linear()
        if not program.cut(values):
            break
    slack = max(0.0, known.length - bound) * (1 + 1e-6) + 1e-9 * known.length
    program.edges = np.argwhere(np.triu(reduced <= slack, 1))
    while True:
        found = milp(
            program.costs,
            integrality=1,
            bounds=Bounds(0, 1),
            constraints=[
                LinearConstraint(program.degrees(), 2, 2),
                *([LinearConstraint(program.crossings(), 2, math.inf)] if program.parts else ()),
            ],
            options={"mip_rel_gap": 0.0},
        )
        if found.status != 0:
            raise RuntimeError(found.message)
        tours = _cycles(program.edges[found.x > 0.5], instance.n)
        if len(tours) == 1:
            return float(tour_length(instance, tours[0])), np.array(tours[0])
        for cycle in tours:
            part = np.zeros(instance.n, dtype=bool)
            part[cycle] = True
            program.parts.append(part)


def _cycles(edges: Pairs, n: int) -> list[list[int]]:
    """The closed ways that edges form, two at each city."""
    near: list[list[int]] = [[] for _ in range(n)]
    for i, j in edges.tolist():
        near[i].append(j)
        near[j].append(i)
    cycles, seen = [], set[int]()
    for start in range(n):
        if start not in seen:
            cycle = [start]
            seen.add(start)
            while (after := next((city for city in near[cycle[-1]] if city not in seen), None)) is not None:
                cycle.append(after)
                seen.add(after)
            cycles.append(cycle)
    return cycles


def main() -> None:
    from georoutenet.web.examples import EXAMPLES

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(EXAMPLES))
    for name in parser.parse_args().names:
        length, _ = prove(EXAMPLES[name].make())
        print(f"{name}: {length!r}, listed {EXAMPLES[name].optimum!r}", flush=True)


if __name__ == "__main__":
    main()
