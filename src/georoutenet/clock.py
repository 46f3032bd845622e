"""A clock for time limits that stands still while Numba compiles, and looks at it within long work.

Compiling happens once on a machine, takes many seconds and cannot be cut short, so no time limit counts it.
Later processes read the compiled code from Numba's cache, which does count.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from georoutenet.unbroken import import_whole

_lock = threading.Lock()
_state = {"depth": 0, "since": 0.0, "compiled": 0.0, "parts": 0}
_listeners: list[Callable[[], None]] = []


def now() -> float:
    """Seconds since some moment, without those spent on compiling."""
    return time.perf_counter() - compiled_seconds()


def compiled_seconds() -> float:
    """Seconds that this process has compiled since ``watch_compiler``."""
    with _lock:
        running = time.perf_counter() - _state["since"] if _state["depth"] else 0.0
        return _state["compiled"] + running


def compiled_parts() -> int:
    """Functions that this process has compiled since ``watch_compiler``."""
    return int(_state["parts"])


@contextmanager
def hearing_of_compiler(listener: Callable[[], None]) -> Iterator[None]:
    """Call ``listener`` before and after each function that is compiled in here, in any thread."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def _tell() -> None:
    for listener in tuple(_listeners):
        listener()


@functools.cache
def watch_compiler() -> None:
    """Import Numba and take note of what it compiles from now on."""
    import_whole("numba")
    from numba.core import event

    class Watch(event.Listener):
        def on_start(self, event: Any) -> None:
            with _lock:
                if not _state["depth"]:
                    _state["since"] = time.perf_counter()
                _state["depth"] += 1

            _tell()

        def on_end(self, event: Any) -> None:
            with _lock:
                _state["depth"] -= 1
                _state["parts"] += 1
                if not _state["depth"]:
                    _state["compiled"] += time.perf_counter() - _state["since"]
            _tell()

    event.register("numba:compile", Watch())


class OutOfTime(Exception):
    """What a look at the clock may raise; whoever set the limit catches it."""


_look: ContextVar[Callable[[], None]] = ContextVar("_look", default=lambda: None)


@contextmanager
def looking(watch: Callable[[], None]) -> Iterator[None]:
    """Work that is done in here in this thread calls ``watch`` between its pieces."""
    token = _look.set(watch)
    try:
        yield
    finally:
        _look.reset(token)


def look() -> None:
    """Called between the pieces of work that takes long; raises what ends it."""
    _look.get()()
