"""All rows of the comparison in ``solve_peers.py`` at once, on several free cores: an hour of CPU time.

    python benchmarks/solve_table.py --processes 12 --limit 480 --out results/

Each run is a process of its own with one thread and as much CPU time as the others of its row; set-up
counts, but imports and compiling do not. What has not ended by ``--limit`` (seconds of the clock) is left out
and named. Rows are appended to ``solve_peers.csv`` in ``--out``. Where no optimum is published the best of
all runs on an instance, whatever their time, is the reference.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import rows as rows_of
from solve_peers import COLUMNS, SOLVERS, ours

from georoutenet import DistanceRule, Instance, gap, load_tsplib, tour_length
from georoutenet.io.tsplib import tsplib_folder
from georoutenet.problem.generate import uniform

GRACE = 30.0
"""Seconds of the clock that a run may take beyond its limit: the peers need their matrix first."""


class Run(NamedTuple):
    row: str
    solver: str
    instance: Instance
    seconds: float


class Done(NamedTuple):
    run: Run
    length: float
    cpu: float


def runs(scale: float, fresh: int) -> Iterator[Run]:
    """``scale`` times the usual limits; uniform instances with seeds from ``fresh`` on."""
    folder = tsplib_folder()
    assert folder is not None, "TSPLIB is not here"
    for file in sorted(folder.glob("*.tsp")):
        instance = load_tsplib(file.stem)
        if instance.optimum is None:
            continue
        if 50 < instance.n < 300 or 318 <= instance.n <= 1_084:
            row = "tsplib to 299" if instance.n < 300 else "tsplib 318-1084"
            for seconds in (1.0, 10.0):
                for solver in (
                    ("ours", "fast-tsp", "lkh") if instance.n > 300 or seconds == 1.0 else ("ours",)
                ):
                    yield Run(row, solver, instance, scale * seconds)
        elif 2_103 <= instance.n <= 4_461:
            for seconds in (10.0, 60.0):
                for solver in ("ours", "fast-tsp"):
                    yield Run("tsplib 2103-4461", solver, instance, scale * seconds)
    for n, count, limits in ((1_000, 10, (1.0, 10.0, 60.0)), (10_000, 2, (10.0, 60.0))):
        for seed in range(fresh + n, fresh + n + count):
            instance = Instance(uniform(1, n, seed)[0], name=f"uniform{n}-{seed}")
            for seconds in limits if seed < fresh + n + 5 else limits[:2]:  # 60 s on five
                for solver in ("ours", "fast-tsp"):
                    yield Run(f"uniform {n}", solver, instance, scale * seconds)


def play(run: Run, pipe: object) -> None:
    began = time.process_time()
    tour = SOLVERS[run.solver](run.instance, run.seconds, 0)
    pipe.send((tour_length(run.instance, tour), time.process_time() - began))  # type: ignore[attr-defined]


def watch(run: Run, until: float) -> Done | None:
    """A run in a process of its own, forked from this one with all that is compiled."""
    context = multiprocessing.get_context("fork")
    left = min(until - time.monotonic(), run.seconds + GRACE)
    if left < run.seconds:
        return None
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=play, args=(run, sender))
    process.start()
    sender.close()
    found = None
    try:
        if receiver.poll(left):
            found = Done(run, *receiver.recv())
    except EOFError:  # it failed, and said why
        pass
    process.kill()
    process.join()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--processes", type=int, default=12)
    parser.add_argument("--limit", type=float, default=480.0, help="seconds of the clock for all of it")
    parser.add_argument("--scale", type=float, default=1.0, help="of all limits, for a trial")
    parser.add_argument("--fresh", type=int, default=95_000, help="first seed of uniform instances, less n")
    parser.add_argument("--rows", nargs="*", help="only these, such as 'uniform 1000'")
    parser.add_argument("--solvers", nargs="*", choices=list(SOLVERS), help="only these")
    parser.add_argument("--out", type=Path, default=rows_of.RESULTS)
    options = parser.parse_args()
    until = time.monotonic() + options.limit
    points = uniform(1, 400, 1)[0]
    for instance in Instance(points), Instance(100 * points, rule=DistanceRule.GEO):  # compiled code
        ours(instance, 0.5, 0)
    work = [
        run
        for run in runs(options.scale, options.fresh)
        if (not options.rows or run.row in options.rows)
        and (not options.solvers or run.solver in options.solvers)
    ]
    # The longest first; then the shortest, so that none of them is left out; those in between fill the cores.
    work.sort(key=lambda run: (run.seconds < 30 * options.scale, run.seconds, -run.instance.n))
    print(f"{sum(run.seconds for run in work):.0f} s in {len(work)} runs", flush=True)
    with ThreadPoolExecutor(options.processes) as pool:
        done = list(pool.map(lambda run: watch(run, until), work))
    for run, found in zip(work, done, strict=True):
        if found is None:
            print("left out:", run.solver, run.instance.name, run.seconds)
    ended = [one for one in done if one is not None]
    best: dict[str, float] = {}
    for one in ended:
        name = one.run.instance.name
        best[name] = min(best.get(name, np.inf), one.run.instance.optimum or one.length)
    table, rows = defaultdict(list), []
    for one in ended:
        run, reference = one.run, best[one.run.instance.name]
        percent = gap(one.length, reference)
        rows.append((run.solver, run.instance.name, run.instance.n, 0, one.length, reference))
        rows[-1] += (round(percent, 5), round(one.cpu, 2), run.seconds)  # type: ignore[assignment]
        table[run.row, run.seconds, run.solver].append((percent, one.cpu))
    for (row, seconds, solver), values in sorted(table.items()):
        gaps, cpu = np.array(values).T
        print(f"{row:<17} {seconds:5g} s {solver:<9} {len(gaps):3} runs, mean {gaps.mean():.4f} %, ", end="")
        print(f"worst {gaps.max():.4f}, at reference {int((gaps <= 0).sum())}, {cpu.mean():.2f} s CPU")
    options.out.mkdir(parents=True, exist_ok=True)
    rows_of.RESULTS = options.out
    rows_of.append("solve_peers.csv", COLUMNS, rows)


if __name__ == "__main__":
    main()
