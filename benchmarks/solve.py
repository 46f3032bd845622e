"""How good ``solve`` is on one core, beside its own parts and beside other solvers, at the same CPU time.

    python benchmarks/solve.py tsplib36 [--seconds 1]       # needs TSPLIB: georoutenet data tsplib
    python benchmarks/solve.py uniform1000 [--seconds 10]
    python benchmarks/solve.py help                         # does the network help the search? (TSPLIB)
    python benchmarks/solve.py first                        # which first tour, 301 to 1,000 cities
    python benchmarks/solve.py start                        # a new process: georoutenet solve berlin52.tsp

Limits are in CPU time of one thread, so that a busy machine does not decide the result; time for the network
counts, and so does making a distance matrix. fast-tsp, OR-Tools and PyVRP measure wall-clock time and are
given as much as that CPU time takes at the moment. LKH counts CPU time itself and starts anew until it is up;
it looks at the clock only between trials. What each really took is in the rows that go to
``benchmarks/results/``, with the share of a core that was to be had before. One core: ``taskset -c 1``.

    network+search   the default of ``solve``: network, beam or greedy, local search
    network          the network's tour as it is, default settings (candidate lists above 300 cities)
    greedy+search    the same local search from a greedy-edge tour, no network
    nearest+search   the same local search from a nearest-neighbor tour, no network
    candidates+search  network+search with the network's ten likeliest cities as neighbor lists
"""

from __future__ import annotations

import argparse
import csv
import datetime
import gzip
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from rows import CpuTime

from georoutenet import Instance, gap, load_tsplib, solve, tour_length
from georoutenet.examples import thousand_cities
from georoutenet.io.tsplib import tsplib_names
from georoutenet.io.tsplib_format import format_tsp
from georoutenet.problem.generate import uniform
from georoutenet.problem.tour import Tour
from georoutenet.search import greedy_edge, improve, nearest_neighbor
from georoutenet.search.space_filling import space_filling_curve
from georoutenet.solver.stages import warm_up
from georoutenet.stop import Budget, Progress

sys.path.insert(0, str(Path(__file__).parent.parent))  # research/ is no part of the package
from research.references.solvers import make_solver, rounded_distances

RESULTS = Path(__file__).parent / "results"
COLUMNS = (
    "solver",
    "instance",
    "n",
    "length",
    "reference",
    "gap_percent",
    "cpu_s",
    "wall_s",
    "core_share",
    "limit_s",
    "commit",
    "date",
)


Contender = Callable[[Instance, float], Tour]


def network_and_search(instance: Instance, seconds: float) -> Tour:
    return solve(instance, stop=CpuTime(seconds)).tour


def network(instance: Instance, seconds: float) -> Tour:
    return solve(instance, improve=False).tour


def greedy_and_search(instance: Instance, seconds: float) -> Tour:
    stop = CpuTime(seconds)
    return improve(instance, greedy_edge(instance.coordinates), stop=stop).tour


def nearest_and_search(instance: Instance, seconds: float) -> Tour:
    stop = CpuTime(seconds)
    return improve(instance, nearest_neighbor(instance.coordinates), stop=stop).tour


def candidates_and_search(instance: Instance, seconds: float) -> Tour:
    stop = CpuTime(seconds)
    first = solve(instance, improve=False, views=4 if instance.n <= 100 else 1)
    assert first.edges is not None
    lists = first.edges.neighbors.astype(np.int64)
    order = np.argsort(instance.distance(np.arange(instance.n)[:, None], lists), axis=1, kind="stable")
    return improve(instance, first.tour, neighbors=np.take_along_axis(lists, order, 1), stop=stop).tour


def fast_tsp(instance: Instance, seconds: float) -> Tour:
    from fast_tsp import find_tour

    distances = instance.distance_matrix()
    if not instance.rule.is_integer or distances.max() > 65_535:
        distances = np.rint(distances * (65_535 / distances.max()))
    wall = seconds / share_of_a_core["now"]
    return np.asarray(find_tour(distances.astype(np.uint16), wall, max_threads=1, stop_when_converged=True))


share_of_a_core = {"now": 1.0}


def measure_share() -> float:
    """CPU time per wall-clock time that this process gets at the moment."""
    began, started = time.process_time(), time.perf_counter()
    while time.perf_counter() - started < 0.3:
        pass
    return min(1.0, (time.process_time() - began) / (time.perf_counter() - started))


def lkh(instance: Instance, seconds: float) -> Tour:
    from elkai._elkai import solve_problem

    scale = None if instance.rule.is_integer else 1_000_000
    text = format_tsp(instance, scale=scale)
    settings = f"RUNS = 10000\nSEED = 1\nTOTAL_TIME_LIMIT = {seconds}\nPROBLEM_FILE = :stdin:\n"
    return np.asarray(solve_problem(settings, text), dtype=np.int64) - 1


def on_matrix(name: str) -> Contender:
    """A solver of ``georoutenet.evaluate`` on whole-number distances: the rule's own, or scaled to 10^7."""

    def run(instance: Instance, seconds: float) -> Tour:
        distances = instance.distance_matrix()
        if not instance.rule.is_integer:
            distances = rounded_distances(instance.normalized(), largest=10_000_000)
        solver = make_solver(name, seconds=seconds / share_of_a_core["now"])
        return np.asarray(solver.search_matrix(distances.astype(np.int64)))  # type: ignore[attr-defined]

    return run


CONTENDERS: dict[str, Contender] = {
    "network+search": network_and_search,
    "network": network,
    "greedy+search": greedy_and_search,
    "nearest+search": nearest_and_search,
    "candidates+search": candidates_and_search,
    "fast-tsp": fast_tsp,
    "LKH (elkai)": lkh,
    "OR-Tools": on_matrix("or-tools"),
    "PyVRP": on_matrix("pyvrp"),
}
DEFAULT = tuple(name for name in CONTENDERS if name != "candidates+search")


def instances_of(name: str, count: int) -> Iterator[Instance]:
    if name != "uniform1000":
        for instance in tsplib_names("tsplib36")[:count]:
            yield load_tsplib(instance)
    else:
        yield thousand_cities()
        for seed in range(2, count + 1):
            yield Instance(uniform(1, 1000, seed)[0], name=f"uniform1000-{seed}")


@dataclass(frozen=True)
class Reached:
    """Stop at a length, or after so many perturbations; in steps of ten."""

    length: float
    most: int

    def budget(self, progress: Progress) -> Budget:
        left = 0 if progress.length <= self.length else min(10, self.most - progress.iterations)
        return Budget(iterations=left)


def does_the_network_help(seeds: int = 3, most: int = 20_000) -> None:
    """What the same search needs to reach the optimum from three first tours; tsplib36."""
    rows = []
    for instance in instances_of("tsplib36", 36):
        for name in ("network", "greedy edge", "nearest neighbor"):
            began = time.process_time()
            if name == "network":
                tour = solve(instance, improve=False, views=4 if instance.n <= 100 else 1).tour
            else:
                tour = (greedy_edge if name == "greedy edge" else nearest_neighbor)(instance.coordinates)
            first = time.process_time() - began
            for seed in range(seeds):
                began = time.process_time()
                found = improve(instance, tour, stop=Reached(instance.optimum or 0.0, most), seed=seed)
                search = time.process_time() - began
                excess = gap(found.history[0].length, instance.optimum)
                solved = found.length == instance.optimum
                row = (name, instance.name, instance.n, seed, round(excess, 4), int(solved), found.iterations)
                rows.append((*row, round(first, 4), round(search, 4)))
    columns = ["first_tour", "instance", "n", "seed", "first_gap_percent", "solved", "perturbations"]
    _write(RESULTS / "solve_help.csv.gz", [*columns, "first_cpu_s", "search_cpu_s"], rows)
    print(f"{'first tour':<18} {'gap %':>6} {'CPU s':>6} {'solved':>9} {'perturbations':>14} {'search s':>9}")
    for name in ("network", "greedy edge", "nearest neighbor"):
        own = [row for row in rows if row[0] == name]
        solved = sum(row[5] for row in own)
        mean = [statistics.fmean(row[k] for row in own) for k in (4, 7, 6, 8)]
        counts = f"{solved}/{len(own)}"
        print(f"{name:<18} {mean[0]:>6.2f} {mean[1]:>6.3f} {counts:>9} {mean[2]:>14.0f} {mean[3]:>9.3f}")


@dataclass
class Checkpoints:
    """Stop after the last of some CPU times, and keep the length at each of them."""

    times: tuple[float, ...]
    began: float
    lengths: dict[float, float] = field(default_factory=dict)

    def budget(self, progress: Progress) -> Budget:
        spent = time.process_time() - self.began
        for at in self.times:
            if at not in self.lengths and spent >= at:
                self.lengths[at] = progress.length
        return Budget(seconds=next((at - spent for at in self.times if at > spent), 0.0))


FIRST_TSPLIB = ("lin318", "rd400", "pcb442", "d493", "rat575", "u724", "rat783")


def which_first_tour(times: tuple[float, ...] = (1.0, 10.0), seeds: int = 1) -> None:
    """The same search from four first tours, 301 to 1,000 cities; making the first tour counts.

    The first seed goes on to the last of ``times``, the others to the first.
    """
    instances = [load_tsplib(name) for name in FIRST_TSPLIB]
    instances += [Instance(uniform(1, n, 7)[0], name=f"uniform{n}") for n in (350, 500, 700, 1000)]
    makers: dict[str, Callable[[Instance], Tour]] = {
        "network": lambda i: solve(i, improve=False, decoder="greedy").tour,
        "network, beam 1000": lambda i: solve(i, improve=False, decoder="beam").tour,
        "greedy edge": lambda i: greedy_edge(i.coordinates),
        "space-filling curve": lambda i: space_filling_curve(i.coordinates),
    }
    rows: list[tuple[object, ...]] = []
    for instance in instances:
        found = []
        for seed in range(seeds):
            for name, make in makers.items():
                began = time.process_time()
                tour = make(instance)
                first = time.process_time() - began
                stop = Checkpoints(times if seed == 0 else times[:1], began)
                best = improve(instance, tour, stop=stop, seed=seed)
                stop.lengths[stop.times[-1]] = best.length
                found.append((name, seed, first, [tour_length(instance, tour), *stop.lengths.values()]))
        reference = min([lengths[-1] for *_, lengths in found] + [instance.optimum or np.inf])
        for name, seed, first, lengths in found:
            gaps = [round(gap(value, reference), 4) + 0.0 for value in lengths]
            rows.append((name, instance.name, instance.n, seed, round(first, 4), *gaps))
            print(*rows[-1], flush=True)
    columns = ["first_tour", "instance", "n", "seed", "first_cpu_s", "first_gap_percent"]
    _write(RESULTS / "solve_first.csv", [*columns, *(f"gap_percent_{at:g}s" for at in times)], rows)
    for name in makers:
        own = [row for row in rows if row[0] == name]
        means = [
            statistics.fmean(float(row[k]) for row in own if len(row) > k)  # type: ignore[arg-type]
            for k in range(4, 6 + len(times))
        ]
        print(f"{name:<20}", *(f"{mean:9.4f}" for mean in means))


def _write(path: Path, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(f"{path}.part", "wt", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(rows)
    os.replace(f"{path}.part", path)


def start(runs: int = 5) -> None:
    """A new process solves berlin52: wall-clock and CPU seconds, and how much of it is importing torch."""
    from georoutenet.io.tsplib import tsplib_folder

    folder = tsplib_folder()
    assert folder is not None, "TSPLIB is not here"
    tasks = {
        "import torch": ["-c", "import torch"],
        "georoutenet solve berlin52.tsp": ["-m", "georoutenet", "solve", str(folder / "berlin52.tsp")],
    }
    for name, arguments in tasks.items():
        wall, cpu = [], []
        for _ in range(runs + 1):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            began = time.perf_counter()
            subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            wall.append(time.perf_counter() - began)
            cpu.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        print(
            f"{name:<32} wall median {statistics.median(wall[1:]):.2f} s, best {min(wall[1:]):.2f} s; "
            f"CPU median {statistics.median(cpu[1:]):.2f} s, best {min(cpu[1:]):.2f} s"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("set", choices=("tsplib36", "uniform1000", "help", "first", "start"))
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--count", type=int, help="only the first so many instances")
    parser.add_argument("--solvers", nargs="+", choices=list(CONTENDERS), default=list(DEFAULT))
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.set == "start":
        start()
        return
    uniform_set = options.set == "uniform1000"
    seconds = options.seconds or (10.0 if uniform_set else 1.0)
    instances = list(instances_of(options.set, options.count or (3 if uniform_set else 36)))
    warm_up(device="cpu")
    solve(uniform(1, 60, 9)[0], device="cpu")
    solve(uniform(1, 400, 9)[0], device="cpu")
    for contender in (greedy_and_search, nearest_and_search):  # compile
        contender(instances[0], 0.01)
    if options.set == "help":
        does_the_network_help()
        return
    if options.set == "first":
        which_first_tour()
        return

    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    about = (seconds, commit, datetime.date.today().isoformat())
    rows: list[tuple[object, ...]] = []
    for instance in instances:
        found = {}
        for name in options.solvers:
            share_of_a_core["now"] = measure_share()
            began, started = time.process_time(), time.perf_counter()
            tour = CONTENDERS[name](instance, seconds)
            cpu, wall = time.process_time() - began, time.perf_counter() - started
            found[name] = (tour_length(instance, tour), cpu, wall, share_of_a_core["now"])
        # Without a published optimum the best of all is the reference.
        reference = min([length for length, *_ in found.values()] + [instance.optimum or np.inf])
        for name, (length, *times) in found.items():
            row = (name, instance.name, instance.n, length, reference, round(gap(length, reference), 5))
            rows.append((*row, *(round(value, 3) for value in times), *about))
        print(instance.name, {name: rows[k - len(found)][5] for k, name in enumerate(found)}, flush=True)
    _write(RESULTS / f"solve_{options.set}_{seconds:g}s.csv", COLUMNS, rows)

    print(f"\n{options.set}: {len(instances)} instances, {seconds:g} s of CPU each, one thread, {about[1:]}")
    print(f"{'solver':<20} {'mean gap %':>10} {'worst %':>9} {'at reference':>12} {'mean CPU s':>10}")
    for name in options.solvers:
        gaps = [float(row[5]) for row in rows if row[0] == name]  # type: ignore[arg-type]
        cpu = statistics.fmean(float(row[6]) for row in rows if row[0] == name)  # type: ignore[arg-type]
        best = sum(value <= 0 for value in gaps)
        print(f"{name:<20} {statistics.fmean(gaps):>10.4f} {max(gaps):>9.4f} {best:>12} {cpu:>10.2f}")


if __name__ == "__main__":
    main()
