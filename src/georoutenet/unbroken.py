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

import atexit
import gc
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from typing import TypeVar

Result = TypeVar("Result")

ALERT = 0.1
"""Seconds after which a waiting main thread looks for Ctrl-C: a signal that comes just before it sleeps,
or that another thread takes, does not wake it."""

LONGEST = 30.0
"""Seconds that a fork waits at most: whoever holds a lock that the thread needs must not wait for ever."""

_imported: set[str] = set()
_behind: list[threading.Thread] = []


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


def do_behind(work: Callable[[], object]) -> None:
    """Have ``work`` done in a thread that nobody waits for, unless some is being done.

    What it raises concerns whoever needs the same next. A program that ends breaks it off; one that forks
    waits for it first, since a child would have the locks of its imports and not the thread that holds them.
    """

    def run() -> None:
        with suppress(Exception), _no_collecting():
            work()

    if is_behind():
        return
    _prepare_for_behind()
    thread = threading.Thread(target=run, name="georoutenet-behind", daemon=True)
    _behind[:] = [thread]
    try:
        thread.start()
    except RuntimeError:  # no more threads, or Python is about to end
        _behind.clear()


def is_behind() -> bool:
    """Whether work is being done behind: what it imports is in ``sys.modules`` before it can be used."""
    return any(thread.is_alive() for thread in _behind)


@cache
def _prepare_for_behind() -> None:
    """A fork calls first what was registered last: the wait then comes before it takes the locks of these."""
    for name in ("logging", "concurrent.futures.thread"):
        import_module(name)
    atexit.register(_end_behind)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_wait_for_behind)


def _wait_for_behind() -> None:
    for thread in _behind:
        if thread is not threading.current_thread():
            thread.join(LONGEST)


def _end_behind() -> None:
    """Python must not end beside the thread: one that is in a library of C++ then aborts the process."""
    if not is_behind():
        return
    import ctypes

    usual = sys.unraisablehook
    # Where it is lost Python would print it.
    sys.unraisablehook = lambda lost: None if lost.exc_type is SystemExit else usual(lost)
    for thread in _behind:
        while thread.is_alive():  # again and again, since an exception can be lost in what catches all
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit)
            )
            thread.join(ALERT)
