"""Runs the attacks, counts how they ended and prints the table."""

from __future__ import annotations

import argparse
import collections
import importlib
import platform
import random
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np

from georoutenet.errors import GeoRouteNetError, GeoRouteNetWarning, InputError
from research.torture import Outcome, overshoot, tally

MODULES = ("files", "calls", "requests", "solves", "kills", "signals")
"""Modules of this package, each with attacks of one kind."""

ATTACKS: dict[str, Callable[[random.Random, Path], Outcome]] = {}
KINDS: dict[str, str] = {}
for _module in map(importlib.import_module, (f"research.torture.{name}" for name in MODULES)):
    for _name, _value in vars(_module).items():
        if _name.startswith("attack_"):
            ATTACKS[_name.removeprefix("attack_")] = _value
            KINDS[_name.removeprefix("attack_")] = _module.KIND


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


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Hostile inputs, seeded and counted.")
    parser.add_argument("--attack", choices=list(ATTACKS), action="append", help="default: all of them")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each attack")
    parser.add_argument("--count", type=int, default=sys.maxsize, help="at most so many of each attack")
    parser.add_argument("--seed", type=int, default=0, help="of the first; the others follow")
    parser.add_argument("--rows", action="store_true", help="append to benchmarks/results/torture.csv")
    given = parser.parse_args(arguments)
    if given.count < 1:
        raise InputError(f"--count must be at least 1, got {given.count}")
    tally.clear()
    overshoot.clear()
    found, rows = 0, []
    for name in given.attack or ATTACKS:
        outcomes: collections.Counter[str] = collections.Counter()
        before, began = tally.total(), time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            for seed in range(given.seed, given.seed + given.count):
                try:
                    outcomes[attacked(name, seed, Path(folder))] += 1
                except Exception:
                    outcomes["FOUND"] += 1
                    sys.stderr.write(f"{name} with seed {seed}:\n{traceback.format_exc()}")
                if time.monotonic() - began > given.seconds:
                    break
        found += outcomes["FOUND"]
        words = ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(outcomes.items()) if count)
        sys.stdout.write(f"{name:12} {outcomes.total():9,} in {time.monotonic() - began:5.0f} s: {words}\n")
        sys.stdout.flush()
        rows.append(
            (name, given.seed, outcomes.total(), KINDS[name], tally.total() - before, outcomes["FOUND"])
        )
    sys.stdout.write(_table(found))
    if given.rows:
        from benchmarks.rows import append

        append("torture.csv", ("attack", "seed", "attacks", "kind", "count", "found"), rows)
    return 1 if found else 0


def _table(found: int) -> str:
    """The figures of docs/reliability.md."""
    lines = [f"{kind:10} {tally[kind]:9,}" for kind in ("inputs", "solves", "kills", "signals")]
    if overshoot:
        worst, usual = 1e3 * max(overshoot), 1e3 * float(np.percentile(overshoot, 99))
        lines.append(
            f"limits exceeded by at most {worst:.0f} ms, by {usual:.0f} ms in 1 of 100 solves or more"
        )
    lines.append(f"findings   {found:9,} ({platform.machine()}, Python {platform.python_version()})")
    return "\n".join([*lines, ""])
