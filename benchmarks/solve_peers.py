"""The search beside fast-tsp and LKH at the same CPU time, one thread each, in turns: instance by instance.

    python benchmarks/solve_peers.py tsplib --seconds 1 --solvers ours fast-tsp
    python benchmarks/solve_peers.py uniform --n 1000 --count 5 --first-seed 9100 --seconds 1

``tsplib``: all of TSPLIB here with ``--least`` to ``--most`` cities (rules as published); ``uniform``: seeds
that nothing was tuned on; ``boards``: rows of holes far apart; ``test1000``: the first ``--count``
of the held-out set, with its references. Ours is ``greedy_edge`` and ``improve``, from coordinates to tour.
fast-tsp is given the wall-clock time that the CPU time takes at the moment; what each really took is in the
rows, which are appended to ``benchmarks/results/solve_peers.csv``. Without a published optimum the best of
all runs is the reference.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from rows import CpuTime, append

from georoutenet import DistanceRule, Instance, gap, load_tsplib, tour_length
from georoutenet.evaluate.references import load_references, random_set
from georoutenet.io.tsplib import tsplib_folder
from georoutenet.problem.generate import uniform
from georoutenet.problem.tour import Tour
from georoutenet.search import greedy_edge, improve
from georoutenet.search.neighbors import spatial_points

COLUMNS = ("solver", "instance", "n", "seed", "length", "reference", "gap_percent", "cpu_s", "limit_s")


def ours(instance: Instance, seconds: float, seed: int) -> Tour:
    stop = CpuTime(seconds)
    return improve(instance, greedy_edge(spatial_points(instance)), stop=stop, seed=seed).tour


def fast_tsp(instance: Instance, seconds: float, seed: int) -> Tour:
    from fast_tsp import find_tour

    distances = instance.distance_matrix()
    if not instance.is_integer or distances.max() > 65_535:
        distances = np.rint(distances * (65_535 / distances.max()))
    return np.asarray(find_tour(distances.astype(np.uint16), seconds, max_threads=1))


def core_share() -> float:
    """How much of a core this process gets at the moment."""
    began, started = time.process_time(), time.perf_counter()
    while time.perf_counter() - started < 0.2:
        pass
    return (time.process_time() - began) / (time.perf_counter() - started)


def lkh(instance: Instance, seconds: float, seed: int) -> Tour:
    from elkai._elkai import solve_problem

    from georoutenet.io.tsplib_format import format_tsp

    text = format_tsp(instance, scale=None if instance.is_integer else 1_000_000)
    settings = f"RUNS = 10000\nSEED = {seed + 1}\nTOTAL_TIME_LIMIT = {seconds}\nPROBLEM_FILE = :stdin:\n"
    return np.asarray(solve_problem(settings, text), dtype=np.int64) - 1


SOLVERS = {"ours": ours, "fast-tsp": fast_tsp, "lkh": lkh}


def board(n: int, seed: int) -> NDArray[np.float64]:
    """Holes of a circuit board: rows, lattices, holes here and there on a lattice, single ones; far apart."""
    random = np.random.default_rng(seed)
    parts: list[NDArray[np.int64]] = []
    while sum(map(len, parts)) < n:
        kind, corner = random.random(), random.integers(0, 2000, 2)
        if kind < 0.45:
            count, step = random.integers([20, 2], [250, 8])
            part = step * np.stack([np.arange(count), np.zeros(count, dtype=np.int64)], axis=1)
        elif kind < 0.6:
            wide, high, step = random.integers([8, 3, 3], [60, 8, 7])
            part = step * np.stack(np.divmod(np.arange(wide * high), high), axis=1)
        elif kind < 0.8:
            part = np.array([6, 8]) * random.integers(0, [50, 12], (random.integers(20, 120), 2))
        else:
            part = np.zeros((1, 2), dtype=np.int64)
        parts.append(corner + part)
    holes = np.unique(np.concatenate(parts), axis=0)
    return random.permutation(holes)[:n].astype(np.float64)


def instances(options: argparse.Namespace) -> Iterator[Instance]:
    if options.set == "test1000":
        lengths = load_references("test1000").lengths
        for k, points in enumerate(random_set("test1000").coordinates[: options.count]):
            yield Instance(points, name=f"test1000-{k}", optimum=float(lengths[k]))
        return
    if options.set in ("uniform", "boards"):
        for seed in range(options.first_seed, options.first_seed + options.count):
            name = f"{options.set}{options.n}-{seed}"
            if options.set == "boards":
                yield Instance(board(options.n, seed), rule=DistanceRule.EUC_2D, name=name)
            else:
                yield Instance(uniform(1, options.n, seed)[0], name=name)
        return
    folder = tsplib_folder()
    assert folder is not None, "TSPLIB is not here"
    for file in sorted(folder.glob("*.tsp")):
        instance = load_tsplib(file.stem)
        if options.least <= instance.n <= options.most and instance.optimum is not None:
            yield instance


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("set", choices=("tsplib", "uniform", "boards", "test1000"))
    parser.add_argument("--solvers", nargs="+", choices=list(SOLVERS), default=["ours", "fast-tsp"])
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--least", type=int, default=301)
    parser.add_argument("--most", type=int, default=1100)
    parser.add_argument("--n", type=int, default=1000)
    parser.add_argument("--count", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=9100)
    options = parser.parse_args()
    for rule in DistanceRule.EUCLIDEAN, DistanceRule.GEO:  # compiled code
        ours(Instance(uniform(1, 400, 1)[0], rule=rule), 0.5, 0)
    rows: list[tuple[object, ...]] = []
    for instance in instances(options):
        found = []
        for seed in range(options.seeds):
            for name in options.solvers:
                wall_clock = name == "fast-tsp"
                limit = options.seconds / (core_share() if wall_clock else 1.0)
                began = time.process_time()
                tour = SOLVERS[name](instance, limit, seed)
                found.append((name, seed, tour_length(instance, tour), time.process_time() - began))
        reference = instance.optimum or min(length for *_, length, _ in found)
        for name, seed, length, cpu in found:
            row = (name, instance.name, instance.n, seed, length, reference)
            rows.append((*row, round(gap(length, reference), 5), round(cpu, 2), options.seconds))
        print(instance.name, [(row[0], row[6]) for row in rows[-len(found) :]], flush=True)
    for name in options.solvers:
        gaps = [float(row[6]) for row in rows if row[0] == name]  # type: ignore[arg-type]
        cpu = statistics.fmean(float(row[7]) for row in rows if row[0] == name)  # type: ignore[arg-type]
        best = f"at reference {sum(value <= 0 for value in gaps)} of {len(gaps)}"
        print(f"{name:<10} mean {statistics.fmean(gaps):.4f} %, worst {max(gaps):.4f}, {cpu:.2f} s, {best}")
    append("solve_peers.csv", COLUMNS, rows)


if __name__ == "__main__":
    main()
