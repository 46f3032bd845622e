"""How many searches run and wait at a time, over all processes of a server."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections import deque
from pathlib import Path

from georoutenet.io.locks import lock
from georoutenet.web.limits import Limits
from georoutenet.web.problems import Problem

POLL = 0.005
"""Seconds between two looks of the first in the queue for a free slot; another process may have freed it."""


class Left(Exception):
    """The client has gone; nobody waits for an answer."""


class Slot:
    """Something held, until released."""

    def __init__(self, slots: Slots, number: int, descriptor: int) -> None:
        self._slots, self._number, self._descriptor = slots, number, descriptor

    def release(self) -> None:
        os.close(self._descriptor)
        self._slots.taken.discard(self._number)


class Slots:
    """A number of slots, each a locked file that all processes see; a process that dies leaves its slots.

    Where a system has no such locks, the slots are those of this process.
    """

    def __init__(self, folder: Path, name: str, count: int) -> None:
        self._files = [folder / f"{name}-{k}" for k in range(count)]
        self.taken: set[int] = set()

    def take(self) -> Slot | None:
        for number, file in enumerate(self._files):
            if number in self.taken:
                continue
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            if lock(descriptor, wait=False) is False:
                os.close(descriptor)
                continue
            self.taken.add(number)
            return Slot(self, number, descriptor)
        return None


class Admission:
    """Lets so many in, lets so many wait in line, and sends the others away."""

    def __init__(self, limits: Limits, folder: Path) -> None:
        self._running = Slots(folder, "search", limits.searches)
        self._waiting = Slots(folder, "queue", limits.queue)
        self._line: deque[object] = deque()

    async def enter(self, gone: asyncio.Task[None]) -> Slot:
        """A slot to release; waits for it in the order of arrival at this process, until ``gone`` is done."""
        if not self._line and (slot := self._running.take()) is not None:
            return slot
        place = self._waiting.take()
        if place is None:
            raise Problem(429, "all searches of this server are in use and its queue is full; try again soon")
        own = object()
        self._line.append(own)
        try:
            while not gone.done():
                if self._line[0] is own and (slot := self._running.take()) is not None:
                    return slot
                await asyncio.sleep(POLL)
            raise Left
        finally:
            self._line.remove(own)
            place.release()


def slots_folder() -> Path:
    """A new folder for the locks, which only this user can open."""
    return Path(tempfile.mkdtemp(prefix="georoutenet-serve-"))
