"""Runs the attacks, on several processes if wanted, counts how they ended and prints the table."""

from __future__ import annotations

import argparse
import collections
import importlib.util
import multiprocessing
import os
import platform
import random
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from georoutenet.errors import GeoRouteNetError, GeoRouteNetWarning, InputError
from research.torture import Outcome, overshoot, tally

MODULES = ("files", "calls", "requests", "bulk", "solves", "gpu", "kills", "signals")
"""Modules of this package, each with attacks of one kind."""
SHOWN = 20
"""Findings of an attack and a process that are printed; the others are counted."""
LONGEST = 300.0
"""Seconds that the last input of a process may take after its time; a process that takes longer is ended."""

NEEDS = {"frames": "pandas"}
"""Attacks that need a package which may be missing: they are left out then, and say so."""

ATTACKS: dict[str, Callable[[random.Random, Path], Outcome]] = {}
KINDS: dict[str, str] = {}
for _module in map(importlib.import_module, (f"research.torture.{name}" for name in MODULES)):
    for _name, _value in vars(_module).items():
        if _name.startswith("attack_"):
            ATTACKS[_name.removeprefix("attack_")] = _value
            KINDS[_name.removeprefix("attack_")] = _module.KIND


def left_out(name: str) -> str:
    """Why an attack cannot be made here; empty where it can."""
    package = NEEDS.get(name)
    return f"{package} is not installed" if package and importlib.util.find_spec(package) is None else ""


def attacked(name: str, seed: int, folder: Path) -> Outcome:
    """How one attack ended; what is raised is a finding."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GeoRouteNetWarning)
        if KINDS[name] == "inputs":
            tally["inputs"] += 1
        try:
            return ATTACKS[name](random.Random(f"{name} {seed}"), folder)
        except GeoRouteNetError as error:
            return "refused" if str(error) else "refused without a word"


@dataclass
class Counts:
    """What an attack has come to."""

    outcomes: collections.Counter[str] = field(default_factory=collections.Counter)
    tally: collections.Counter[str] = field(default_factory=collections.Counter)
    overshoot: list[float] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)

    def add(self, other: Counts) -> None:
        self.outcomes += other.outcomes
        self.tally += other.tally
        self.overshoot += other.overshoot
        self.findings += other.findings

    def found(self, text: str) -> None:
        self.outcomes["FOUND"] += 1
        if len(self.findings) < SHOWN:
            self.findings.append(text)


def spend(name: str, seeds: range, seconds: float) -> Counts:
    """One attack, seed after seed, until the time or the seeds are at an end."""
    counts, began = Counts(), time.monotonic()
    tally.clear()
    overshoot.clear()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        for seed in seeds:
            try:
                counts.outcomes[attacked(name, seed, Path(folder))] += 1
            except Exception:
                counts.found(f"{name} with seed {seed}:\n{traceback.format_exc()}")
            if time.monotonic() - began > seconds:
                break
    counts.tally += tally
    counts.overshoot += overshoot
    return counts


def _own_cores(number: int, processes: int) -> None:
    """Give a process its share of the cores, so that it disturbs no other one's limits."""
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, cores[number % len(cores) :: processes])


class Crew:
    """Processes that share the seeds of each attack. One that dies or hangs is a finding, and is replaced."""

    def __init__(self, processes: int) -> None:
        self.pools = [self._hire(number, processes) for number in range(processes)]

    def _hire(self, number: int, processes: int) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(
            1, multiprocessing.get_context("spawn"), initializer=_own_cores, initargs=(number, processes)
        )

    def spend(self, name: str, seeds: range, seconds: float) -> Counts:
        """As ``spend``, on all processes."""
        processes = len(self.pools)
        futures: list[Future[Counts]] = [
            pool.submit(spend, name, seeds[number::processes], seconds)
            for number, pool in enumerate(self.pools)
        ]
        counts, until = Counts(), time.monotonic() + seconds + LONGEST
        for number, future in enumerate(futures):
            try:
                counts.add(future.result(max(0.0, until - time.monotonic())))
            except Exception as error:
                counts.found(f"{name}, seeds {seeds[number::processes]}: a process ended: {error!r}\n")
                self._dismiss(self.pools[number])
                self.pools[number] = self._hire(number, processes)
        return counts

    def _dismiss(self, pool: ProcessPoolExecutor) -> None:
        for process in list((pool._processes or {}).values()):
            process.kill()
        pool.shutdown(cancel_futures=True)

    def end(self) -> None:
        for pool in self.pools:
            pool.shutdown()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Hostile inputs, seeded and counted.")
    parser.add_argument("--attack", choices=list(ATTACKS), action="append", help="default: all of them")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each attack")
    parser.add_argument("--count", type=int, default=sys.maxsize, help="at most so many of each attack")
    parser.add_argument("--seed", type=int, default=0, help="of the first; the others follow")
    parser.add_argument("--processes", type=int, default=1, help="that share the seeds, and the cores")
    parser.add_argument(
        "--rows", nargs="?", const="torture.csv", help="append to this file, in benchmarks/results"
    )
    given = parser.parse_args(arguments)
    for option in ("count", "processes"):
        if getattr(given, option) < 1:
            raise InputError(f"--{option} must be at least 1, got {getattr(given, option)}")
    # A shell's job in the background ignores Ctrl-C, and so would all that is interrupted here.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    total = Counts()
    crew = Crew(given.processes) if given.processes > 1 else None
    for name in given.attack or ATTACKS:
        if reason := left_out(name):
            sys.stdout.write(f"{name:12} left out: {reason}\n")
            continue
        began, seeds = time.monotonic(), range(given.seed, given.seed + given.count)
        counts = (spend if crew is None else crew.spend)(name, seeds, given.seconds)
        total.add(counts)
        outcomes = counts.outcomes
        words = ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(outcomes.items()) if count)
        sys.stderr.write("".join(counts.findings))
        sys.stdout.write(f"{name:12} {outcomes.total():9,} in {time.monotonic() - began:5.0f} s: {words}\n")
        sys.stdout.flush()
        if given.rows is not None:
            from benchmarks.rows import append

            row = (name, given.seed, outcomes.total(), KINDS[name], counts.tally.total(), outcomes["FOUND"])
            append(given.rows, ("attack", "seed", "attacks", "kind", "count", "found"), [row])
    if crew is not None:
        crew.end()
    sys.stdout.write(_table(total))
    return 1 if total.outcomes["FOUND"] else 0


def _table(total: Counts) -> str:
    """The figures of docs/reliability.md."""
    kinds = ["inputs", "solves", "kills", "signals", *sorted({"GPU solves", "emulated"} & total.tally.keys())]
    lines = [f"{kind:10} {total.tally[kind]:9,}" for kind in kinds]
    if total.overshoot:
        worst, usual = 1e3 * max(total.overshoot), 1e3 * float(np.percentile(total.overshoot, 99))
        lines.append(
            f"limits exceeded by at most {worst:.0f} ms, by {usual:.0f} ms in 1 of 100 solves or more"
        )
    found = total.outcomes["FOUND"]
    lines.append(f"findings   {found:9,} ({platform.machine()}, Python {platform.python_version()})")
    return "\n".join([*lines, ""])
