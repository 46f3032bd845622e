"""Searches in threads beside the event loop: one answer, or a stream of events."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from starlette.types import Receive

from georoutenet.problem.tour import tour_length
from georoutenet.solver.api import solve_one
from georoutenet.solver.options import Report
from georoutenet.stop import Progress
from georoutenet.web.limits import Limits
from georoutenet.web.messages import Work, result_object
from georoutenet.web.slots import Admission, Left, Slot

FRAMES = 30
"""Tours a second in a stream, at most."""
Value = TypeVar("Value")
Event = tuple[str, dict[str, Any]]


@dataclass
class Admitted:
    """A client whose search may run."""

    gone: asyncio.Task[None]
    """Done when the client has left."""
    slot: Slot


_importing = threading.Lock()


def import_all() -> None:
    """What searches and the network import, by one thread: two at a time would meet modules half made."""
    with _importing:
        import numba  # noqa: F401
        import torch  # noqa: F401

        import georoutenet.decode
        import georoutenet.policy.weights
        import georoutenet.search.local_search  # noqa: F401


class Searches:
    """Admits searches, runs them in threads and ends them when their client or the server leaves."""

    def __init__(self, limits: Limits, admission: Admission) -> None:
        self.limits, self._admission = limits, admission
        self._threads = ThreadPoolExecutor(limits.searches, "search")
        self._running: set[threading.Event] = set()

    @asynccontextmanager
    async def admitted(self, receive: Receive) -> AsyncIterator[Admitted]:
        """One of the searches that may run at a time, for a client that may leave; it waits its turn."""
        gone = asyncio.create_task(_left(receive))
        try:
            slot = await self._admission.enter(gone)
            try:
                yield Admitted(gone, slot)
            finally:
                slot.release()
        finally:
            gone.cancel()

    async def run(self, work: Callable[[threading.Event], Value], client: Admitted) -> Value:
        """What ``work`` returns, from a thread; the event it gets is set when it should end."""
        cancel = threading.Event()
        self._running.add(cancel)

        def begin() -> Value:
            import_all()
            return work(cancel)

        task = asyncio.get_running_loop().run_in_executor(self._threads, begin)
        try:
            either: set[asyncio.Future[Any]] = {task, client.gone}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise Left
            return task.result()
        finally:
            cancel.set()
            self._running.discard(cancel)
            if not task.done():  # a slot is free only when its thread is
                await asyncio.wait({task})
            client.slot.release()  # though the client may still be reading

    async def solve(self, work: Work, client: Admitted) -> dict[str, Any]:
        return await self.run(lambda cancel: _solve(work, self.limits, cancel, None), client)

    async def events(self, work: Work, client: Admitted) -> AsyncIterator[Event]:
        """A search as it goes: ``first``, ``bound`` and ``tour``, and in the end ``done``."""
        frames = Frames(work, asyncio.get_running_loop())
        report = frames.report
        task = asyncio.create_task(self.run(lambda cancel: _solve(work, self.limits, cancel, report), client))
        task.add_done_callback(lambda _: frames.wake.set())
        try:
            ended = False
            while not ended:
                await frames.wake.wait()
                ended = task.done()  # looked at before the news is taken: none is lost
                for event in frames.take():
                    yield event
            yield "done", task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task})

    def close(self) -> None:
        """End all searches; their clients get the best tours so far."""
        self._admission.closing = True
        for cancel in list(self._running):
            cancel.set()


def _solve(work: Work, limits: Limits, cancel: threading.Event, report: Report | None) -> dict[str, Any]:
    result = solve_one(
        work.instance,
        replace(work.options, progress=report),
        initial_tour=work.initial_tour,
        cancel=cancel,
        longest=limits.seconds,
    )
    return result_object(result)


class Frames:
    """The latest news of a search: what its thread leaves here and the event loop takes."""

    def __init__(self, work: Work, loop: asyncio.AbstractEventLoop) -> None:
        self._work, self._loop = work, loop
        self._lock = threading.Lock()
        self._news: dict[str, dict[str, Any]] = {}
        self._shown = math.inf
        self._bound: float | None = None
        self._last = 0.0
        self.wake = asyncio.Event()

    def report(self, stage: str, at: Progress) -> None:
        """Called by the search some 100 times a second; tours are asked for only when they are shown."""
        instance, news = self._work.instance, dict[str, dict[str, Any]]()
        if at.lower_bound is not None and at.lower_bound != self._bound:
            self._bound = at.lower_bound
            news["bound"] = {"lower_bound": at.lower_bound, "seconds": round(at.seconds, 4)}
        now = time.monotonic()
        due = stage == "first" or (now - self._last >= 1 / FRAMES and at.length < self._shown)
        tour = at.tour() if due else None
        length = math.inf if tour is None else tour_length(instance, tour, closed=self._work.options.closed)
        if tour is not None and (stage == "first" or length < self._shown):
            frame = {"tour": tour.tolist(), "length": length, "seconds": round(at.seconds, 4)}
            if stage == "first":
                news["first"] = {**frame, "method": at.method}
            else:
                news["tour"] = {**frame, "iterations": at.iterations, "lower_bound": at.lower_bound}
            self._shown, self._last = length, now
        if news:
            with self._lock:
                self._news |= news
            self._loop.call_soon_threadsafe(self.wake.set)

    def take(self) -> list[Event]:
        """What is new, each kind once; a client that reads slowly misses frames, not the latest."""
        self.wake.clear()
        with self._lock:
            news, self._news = self._news, {}
        return [(name, news[name]) for name in ("first", "bound", "tour") if name in news]


async def _left(receive: Receive) -> None:
    """Returns when the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
