"""Several walks on one instance at a time, in threads: the kernels let go of Python's lock.

In a round all make the same number of kicks, each with random numbers of its own. Then the best tours of all
are merged, part by part, and each walk goes on where it is, but returns to the merged tour when it ends. So
the result depends on seed, workers and kicks, not on which thread was faster.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from georoutenet.search.state import MANY, best_tour, next_slice

ROUND = 1_000
"""Kicks of each worker between two meetings. Two workers at 5,000 cities, as many kicks as one in all: tours
as long as one's with 1,000 (mean of two seeds), 0.02 % longer with 5,000."""
WAIT = 0.005
"""Seconds between two looks at the clock while others finish their round."""


@dataclass
class Walker:
    """One worker's part of a round."""

    state: Any
    kicks: int = 0
    done: int = 0
    gain: float = 0.0

    def walk(self, rule: Any, halted: Callable[[], bool]) -> None:
        """Make this round's kicks, in slices, unless halted."""
        from georoutenet.search import kernels

        kicks = 10
        self.done, self.gain = 0, 0.0
        while self.done < self.kicks and not halted():
            began = time.perf_counter()
            count = min(kicks, self.kicks - self.done)
            gain, _, made = kernels.run(self.state, rule, count, MANY)
            self.gain += gain
            self.done += made
            if made < count:  # walks agree
                break
            kicks = next_slice(count, time.perf_counter() - began)


def in_threads(jobs: Sequence[Callable[[Callable[[], bool]], None]], goes_on: Callable[[], bool]) -> None:
    """Do the first job in this thread, which alone asks ``goes_on``, and the others each in its own.

    Each job is given a function that says whether it has to end.
    """
    halt, errors = threading.Event(), list[BaseException]()

    def do(job: Callable[[Callable[[], bool]], None]) -> None:
        try:
            job(halt.is_set)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=do, args=(job,), daemon=True) for job in jobs[1:]]
    try:
        for thread in threads:
            thread.start()
        jobs[0](lambda: not goes_on())
        while any(thread.is_alive() for thread in threads) and goes_on():
            for thread in threads:
                thread.join(WAIT)
    finally:
        halt.set()
        for thread in threads:
            if thread.ident is not None:
                thread.join()
    for error in errors:
        raise error


def play_round(walkers: list[Walker], rule: Any, goes_on: Callable[[], bool]) -> tuple[float, int]:
    """All walkers make their kicks, the first in this thread, which alone asks ``goes_on``.

    Returns by how much the best tour of all got shorter, and how many kicks were made. Every walker's best
    tour is then of that length, whatever ended the round.
    """
    jobs = [functools.partial(walker.walk, rule) for walker in walkers]
    try:
        in_threads(jobs, goes_on)
    finally:
        gain = meet(walkers, rule)
    return gain, sum(walker.done for walker in walkers)


def meet(walkers: list[Walker], rule: Any) -> float:
    """Merge the best tours of all, for every walker to return to; returns the gain since they last met."""
    from georoutenet.search import kernels
    from georoutenet.search.steps import TOLERANCE

    order = sorted(range(len(walkers)), key=lambda k: -walkers[k].gain)
    gain = walkers[order[0]].gain
    best: NDArray[np.int32] = best_tour(walkers[order[0]].state).copy()
    state = walkers[0].state
    for k in order[1:]:
        other = best_tour(walkers[k].state).copy()
        gain += kernels.merge(rule, state.x, state.y, best, other, state.edges, state.room)
    for walker in walkers:
        state, behind = walker.state, gain - walker.gain
        if behind > TOLERANCE:
            state.best[:] = best
            state.excess[kernels.BEHIND] += behind
            state.count[kernels.LEADS] = state.count[kernels.AGREED] = 0
    return gain
