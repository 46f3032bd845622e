"""Shorter reference tours by this package's own search.

    python -m research.references.search diag100                # each unproven instance solved from nothing
    python -m research.references.search test1000 --seconds 2   # searched on from the tour that is known

Tours that are not shorter change nothing, and a tour stays *best known*: the search proves nothing. Sets of
which no tour is known are solved from nothing, all of their instances.
"""

from __future__ import annotations

import argparse
import datetime
import time
from pathlib import Path

import numpy as np

from georoutenet.errors import GeoRouteNetError, InputError
from georoutenet.evaluate.references import PACKAGED, References, has_references, load_references, random_set
from georoutenet.solver.api import solve, solve_many
from research.references.keep import improve, save_references, unknown

BLOCK = 500
"""Instances that are solved at a time."""


def search(known: References, *, seconds: float | None = None, first: int | None = None) -> References:
    """The references with the tours that the search found shorter, and a line of what was done."""
    if first is not None and not 1 <= first <= known.count:
        raise InputError(f"{known.name} has {known.count} instances; cannot take the first {first}")
    is_known = np.isfinite(known.lengths)
    if not is_known[slice(first, None) if first else slice(0, 0)].all():
        raise InputError(f"{known.name} has no references yet: search all of its {known.count} instances")
    rows = np.flatnonzero(~known.proven[:first]).astype(np.int64)
    coordinates = random_set(known.name).coordinates
    began, tours = time.perf_counter(), [np.empty((0, known.n), dtype=np.int64)]
    for block in (rows[k : k + BLOCK] for k in range(0, len(rows), BLOCK)):
        problems = [coordinates[row].astype(np.float64) for row in block]
        if seconds is None:
            results = solve_many(problems, workers=1)
        else:
            results = [
                solve(
                    each,
                    initial_tour=known.tours[row] if is_known[row] else None,
                    max_seconds=seconds,
                    workers=1,
                )
                for each, row in zip(problems, block, strict=True)
            ]
        tours.append(np.stack([result.tour for result in results]))
    better = improve(known, rows, np.concatenate(tours), np.zeros(len(rows), dtype=np.bool_))
    better.info.append(
        {
            "solver": "georoutenet",
            "settings": {
                "from": "nothing" if seconds is None or not is_known.all() else "known",
                **({} if seconds is None else {"seconds": seconds}),
            },
            "instances": len(rows),
            "improved": int((better.lengths < known.lengths).sum()),
            "seconds": round(time.perf_counter() - began, 1),
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        }
    )
    return better


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", metavar="SET", help="a random data set")
    parser.add_argument("--seconds", type=float, help="for each instance, from its known tour")
    parser.add_argument("--first", type=int, help="the first so many instances; default: all")
    parser.add_argument("--out", type=Path, default=PACKAGED, help="folder of the .npz file")
    options = parser.parse_args()
    try:
        known = load_references(options.name) if has_references(options.name) else unknown(options.name)
        better = search(known, seconds=options.seconds, first=options.first)
        save_references(better, options.out)
    except GeoRouteNetError as error:
        raise SystemExit(f"error: {error}") from None
    shorter = np.flatnonzero((better.lengths < known.lengths) & np.isfinite(known.lengths))
    print(f"{options.name}: {better.info[-1]}")
    for row in shorter:
        percent = 100 * (known.lengths[row] / better.lengths[row] - 1)
        print(f"  {row}: {known.lengths[row]:.9f} -> {better.lengths[row]:.9f}, was {percent:.4f} % too long")


if __name__ == "__main__":
    main()
