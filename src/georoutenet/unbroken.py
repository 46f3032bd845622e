"""Work that Ctrl-C must not break off: importing a package, compiling a function.

An import that is broken off leaves half of a package behind, and every later import of it fails; a compiler
that is broken off forgets half of what it had set up. So such work runs in a thread of its own, out of reach
of the exceptions that signals raise in the main thread: the caller is interrupted at once, and the work goes
on to its end behind it. Whoever needs the same again waits for that by Python's import locks and the
compiler's own. A program that ends waits for it too.

Meanwhile the garbage collector rests: what is imported and compiled stays, and to look through it took a
twelfth of the time of a first call.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TypeVar

Result = TypeVar("Result")

ALERT = 0.1
"""Seconds after which a waiting main thread looks for Ctrl-C: a signal that comes just before it sleeps,
or that another thread takes, does not wake it."""

_imported: set[str] = set()


def unbroken(work: Callable[[], Result]) -> Result:
    """What ``work`` returns or raises; an interrupt ends the waiting, not the work."""
    if threading.current_thread() is not threading.main_thread():
        with _no_collecting():
            return work()
    returned: list[Result] = []
    raised: list[BaseException] = []
    done = threading.Event()  # not join(): one that is interrupted takes the thread for ended

    def run() -> None:
        try:
            with _no_collecting():
                returned.append(work())
        except BaseException as error:
            raised.append(error)
        done.set()

    try:
        threading.Thread(target=run, name="georoutenet-unbroken").start()
    except RuntimeError:  # no more threads, or Python is about to end
        return work()
    while not done.wait(ALERT):
        pass
    if raised:
        raise raised.pop()
    return returned.pop()


@contextmanager
def _no_collecting() -> Iterator[None]:
    usual = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if usual:
            gc.enable()


def import_whole(*names: str) -> None:
    """Import modules, each to its end; the statements that follow then find them ready."""
    missing = [name for name in names if name not in _imported]
    if missing:
        unbroken(lambda: [import_module(name) for name in missing])
        _imported.update(missing)
