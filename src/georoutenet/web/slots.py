"""How many searches run and wait at a time, over all processes of a server."""

from __future__ import annotations

import asyncio
import os
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

    def __init__(self, slots: Slots, number: int, descriptor: int | None) -> None:
        self._slots, self._number, self._descriptor = slots, number, descriptor
        self._held = True

    def release(self) -> None:
        """Once or more than once."""
        if self._held:
            self._held = False
            self._slots.taken.discard(self._number)
            if self._descriptor is not None:
                os.close(self._descriptor)


class Slots:
    """A number of slots, each a locked file that all processes see; a process that dies leaves its slots.

    Without a folder, and where a system has no such locks, the slots are those of this process.
    """

    def __init__(self, folder: Path | None, name: str, count: int) -> None:
        self._files = [None if folder is None else folder / f"{name}-{k}" for k in range(count)]
        self.taken: set[int] = set()

    def take(self) -> Slot | None:
        for number, file in enumerate(self._files):
            if number in self.taken:
                continue
            descriptor = None if file is None else _open(file)
            if descriptor is not None and lock(descriptor, wait=False) is False:
                os.close(descriptor)
                continue
            self.taken.add(number)
            return Slot(self, number, descriptor)
        return None


def _open(file: Path) -> int:
    """The file, made if need be; and its folder, which something that cleans up may have removed."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    try:
        return os.open(file, flags, 0o600)
    except FileNotFoundError:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.open(file, flags, 0o600)


class Admission:
    """Lets so many in, lets so many wait in line, and sends the others away."""

    def __init__(self, limits: Limits, folder: Path | None) -> None:
        self._running = Slots(folder, "search", limits.searches)
        self._waiting = Slots(folder, "queue", limits.queue)
        self._line: deque[object] = deque()
        self.closing = False

    async def enter(self, gone: asyncio.Task[None]) -> Slot:
        """A slot to release; waits for it in the order of arrival at this process, until ``gone`` is done."""
        if self.closing:
            raise Problem(503, "the server is about to end")
        if not self._line and (slot := self._running.take()) is not None:
            return slot
        place = self._waiting.take()
        if place is None:
            raise Problem(429, "all searches of this server are in use and its queue is full; try again soon")
        own = object()
        self._line.append(own)
        try:
            while not (gone.done() or self.closing):
                if self._line[0] is own and (slot := self._running.take()) is not None:
                    return slot
                await asyncio.sleep(POLL)
            raise Problem(503, "the server is about to end") if self.closing else Left
        finally:
            self._line.remove(own)
            place.release()
