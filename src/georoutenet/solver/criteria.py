"""Stopping criteria that the stages of ``solve`` put around the caller's."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace

from georoutenet.stop import Budget, Progress, Stop


@dataclass(frozen=True)
class Later:
    """A stopping criterion whose clock has been running for ``seconds``."""

    stop: Stop
    seconds: float

    def budget(self, progress: Progress) -> Budget:
        return self.stop.budget(replace(progress, seconds=progress.seconds + self.seconds))


@dataclass(frozen=True)
class Cancelled:
    """Stop when an event is set: Ctrl-C reaches the main thread only."""

    event: threading.Event

    def budget(self, progress: Progress) -> Budget:
        return Budget(seconds=0.0) if self.event.is_set() else Budget()
